"""Ratios with their intervals: a line a workload and phase, faster to the right. The band is the noise floor."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .style import LIGHT, Canvas, Shape, times
from .ticks import logarithmic

LOOK = {
    "faster": ("s1", "o", "ours is faster"),
    "slower": ("s2", "s", "ours is slower"),
    "no difference seen": ("s7", "D", "no difference seen"),
    "may be chance": ("s5", "^", "may be chance"),
    "one run": ("muted", "x", "one run: no interval"),
}


def draw(rows: pd.DataFrame, floor: float | None, shape: Shape) -> Canvas:
    """`rows` as `ratios.against_peers` gives them, of one peer, with `label`; `floor` as a ratio."""
    canvas = Canvas(shape, 1.3 + (0.25 if shape.name == "wide" else 0.4) * len(rows))
    axes = canvas.axes()
    values = np.concatenate([rows[c].dropna().to_numpy(float) for c in ("ratio", "low", "high")] + [np.array([1.0, 1 / (floor or 1)])])
    values = values[(values > 0) & np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    room = max((high / low) ** 0.05, 1.04)
    low, high = low / room, high * room
    if floor:
        axes.axvspan(1 / floor, floor, color=LIGHT["band"], zorder=0, label=f"noise floor, {times(floor)}")
    axes.axvline(1.0, color=LIGHT["muted"], linewidth=1.0, zorder=1)
    seen = set()
    for y, row in enumerate(rows.itertuples()):
        role, marker, label = LOOK[row.verdict]
        axes.plot(
            [row.ratio], [y], marker, color=LIGHT[role], markersize=5.5, zorder=4, linestyle="none",
            label=None if row.verdict in seen else label,
        )  # fmt: skip
        seen.add(row.verdict)
        if not np.isnan(row.low):
            axes.plot([row.low, row.high], [y, y], color=LIGHT[role], linewidth=1.6, zorder=3)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(len(rows) - 0.4, -0.75 if canvas.is_narrow else -0.6)
    logarithmic(axes.xaxis, low, high, times, 4 if canvas.is_narrow else 8)
    axes.grid(False, axis="y")
    if canvas.is_narrow:
        axes.set_yticks([])
        for y, label in enumerate(rows["label"]):
            axes.annotate(
                label,
                (0.0, y - 0.2),
                xycoords=("axes fraction", "data"),
                xytext=(3, 0),
                textcoords="offset points",
                va="bottom",
                bbox={"boxstyle": "square,pad=0.1", "facecolor": LIGHT["surface"], "edgecolor": "none", "alpha": 0.8},
            )
    else:
        axes.set_yticks(range(len(rows)), rows["label"])
        axes.tick_params(axis="y", length=0)
    axes.set_xlabel("their time over ours: above 1, ours is faster")
    canvas.figure.legend(loc="outside upper left", ncols=2 if canvas.is_narrow else 4, handlelength=1.4)
    return canvas
