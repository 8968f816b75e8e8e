"""Memory of hashes over directories against the directories' size, both logarithmic, beside what Dowse and Malone say of theirs."""

from __future__ import annotations

import pandas as pd

from .style import LIGHT, Canvas, Shape, count
from .ticks import logarithmic

# Of FreeBSD's hash: its structure (the text's figure of 3.4; its formula has 266), and what each byte of a directory adds with pointers of 64 bits.
PAPER_STRUCTURE, PAPER_SLOPE = 320, 0.507


def draw(points: pd.DataFrame, shape: Shape) -> Canvas:
    """`points` has a row a directory: its bytes (`directory`) and those of its hash (`hash`)."""
    canvas = Canvas(shape, 3.6)
    axes = canvas.axes()
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes, used = points["directory"], points["hash"]
    paper = PAPER_STRUCTURE + PAPER_SLOPE * sizes
    axes.plot(sizes, paper, color=LIGHT["muted"], linestyle=(0, (1, 2)), label=f"FreeBSD's: {PAPER_SLOPE} bytes a byte of directory")
    axes.plot(sizes, used, color=LIGHT["s1"], marker="o", markersize=5, label=f"ours: {(used / sizes).min():.2f} to {(used / sizes).max():.2f}")
    low, high = min(used.min(), paper.min()), max(used.max(), paper.max())
    axes.set_ylim(low / 1.3, high * 1.3)
    axes.set_xlim(sizes.min() / 1.25, sizes.max() * 1.25)
    logarithmic(axes.yaxis, low, high, count)
    logarithmic(axes.xaxis, sizes.min(), sizes.max(), count, 5 if canvas.is_narrow else 8)
    axes.set_xlabel("bytes of the directory")
    axes.set_ylabel("bytes of its hash")
    canvas.figure.legend(loc="outside upper left", ncols=1, handlelength=3.2)
    return canvas
