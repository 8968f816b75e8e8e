"""The improvement lattice of FFSOPT's Figure 9: every combination, and every step that turns one factor on.

x is how many factors are on, y the performance. A node is as high as its mean plus and minus twice its standard error.
"""

from __future__ import annotations

import numpy as np

from ..factorial import Factorial, edges
from .style import DASHES, LIGHT, SERIES, Canvas, Shape, times
from .ticks import logarithmic, spread

FACTORS_MOST = 5


def draw(test: Factorial, shape: Shape) -> Canvas:
    canvas = Canvas(shape, 4.6 if len(test.factors) < 5 else 6.0)
    axes = canvas.axes()
    gains = {mask: test.gain(mask) for mask in test.cells}
    low, high = min(gains.values()), max(gains.values())
    room = (high / low) ** 0.07 if high > low else 1.05
    low, high = low / room, high * room
    # All steps of a factor are one line with gaps.
    steps = list(edges(test))
    for factor in range(len(test.factors)):
        mine = [step for step in steps if step.factor == factor]
        axes.plot(
            [x for step in mine for x in (step.before.bit_count(), step.after.bit_count(), np.nan)],
            [y for step in mine for y in (gains[step.before], gains[step.after], np.nan)],
            color=LIGHT[SERIES[factor % len(SERIES)]],
            linestyle=DASHES[factor % len(DASHES)],
            linewidth=1.3,
            alpha=0.9,
            zorder=2,
        )
    for mask, cell in test.cells.items():
        error = cell.sd / np.sqrt(cell.n) if cell.n > 1 else 0.0
        top, bottom = test.base / max(cell.mean - 2 * error, cell.mean * 0.05), test.base / (cell.mean + 2 * error)
        x = mask.bit_count()
        axes.plot([x, x], [bottom, top], color=LIGHT["ink"], linewidth=5, solid_capstyle="butt", zorder=4)
        axes.plot([x], [gains[mask]], "o", markersize=3.2, color=LIGHT["ink"], zorder=5)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    k = len(test.factors)
    axes.set_xlim(-0.12, k + (0.95 if canvas.is_narrow else 0.6))
    logarithmic(axes.yaxis, low, high, times)
    axes.set_xticks(range(k + 1))
    axes.set_xlabel("factors that are on")
    axes.set_ylabel("times faster than all off")
    axes.grid(False, axis="x")
    _labels(test, gains, axes, canvas, (np.log(low), np.log(high)))
    handles = [
        axes.plot([], [], color=LIGHT[SERIES[i % 7]], linestyle=DASHES[i % 7], linewidth=1.6, label=f"{f.short}: {f.title}")[0]
        for i, f in enumerate(test.factors)
    ]
    canvas.figure.legend(handles=handles, loc="outside upper left", ncols=1 if canvas.is_narrow else min(k, 4), handlelength=2.6)
    return canvas


def _labels(test: Factorial, gains: dict, axes, canvas: Canvas, span: tuple[float, float]) -> None:
    """Names beside the nodes, moved apart where they would lie on each other, with a line to their node."""
    height = canvas.figure.get_figheight() * 72 * (0.72 if canvas.is_narrow else 0.8)
    gap = (span[1] - span[0]) * (canvas.shape.text + 1.5) / height
    for on in range(len(test.factors) + 1):
        masks = [m for m in sorted(gains) if m.bit_count() == on]
        for mask, place in zip(masks, spread([np.log(gains[m]) for m in masks], gap, *span), strict=True):
            axes.plot([on, on + 0.11], [gains[mask], np.exp(place)], color=LIGHT["muted"], linewidth=0.5, zorder=3)
            axes.text(
                on + 0.12,
                np.exp(place),
                test.name(mask, "·" if canvas.is_narrow else "+"),
                va="center",
                fontsize=canvas.shape.text - (2 if canvas.is_narrow else 1),
                bbox={"boxstyle": "square,pad=0.12", "facecolor": LIGHT["surface"], "edgecolor": "none", "alpha": 0.8},
                zorder=6,
            )
