"""The summary of FFSOPT's Figure 10: a bar a test, divided among the factors along the uppermost path of its lattice.

The solid part ends where all factors are on, the whole bar at the best combination: the hatched part is what fewer factors gain.
"""

from __future__ import annotations

from ..factorial import Factorial, best, path
from .style import LIGHT, SERIES, Canvas, Shape, times
from .ticks import logarithmic

HATCHES = ("", "..", "\\\\\\", "xx", "--", "oo", "++")


def draw(tests: list[Factorial], shape: Shape) -> Canvas:
    """Tests in the order given, from the top."""
    shorts = list(dict.fromkeys(f.short for t in tests for f in t.factors))
    row = 0.42 if shape.name == "wide" else 0.5
    canvas = Canvas(shape, 1.25 + row * len(tests))
    axes = canvas.axes()
    right = 1.0
    for y, test in enumerate(tests):
        end, most = test.gain(test.full), test.gain(best(test))
        for step in path(test):
            start, stop = test.gain(step.before), min(test.gain(step.after), end)
            if stop > start:
                _part(axes, y, start, stop, shorts.index(test.factors[step.factor].short))
        if most > end:
            axes.barh(y, most - max(end, 1.0), left=max(end, 1.0), height=0.45, facecolor=LIGHT["surface"], edgecolor=LIGHT["muted"])
            axes.barh(y, most - max(end, 1.0), left=max(end, 1.0), height=0.45, fill=False, hatch="//", edgecolor=LIGHT["muted"])
        axes.text(1.0, y - 0.33, test.title, ha="left", va="bottom", fontsize=shape.text - 0.5)
        says = times(end) + (f", {test.name(best(test))} {times(most)}" if most > end * 1.005 else "")
        axes.annotate(says, (max(most, end, 1.0), y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=shape.text - 1)
        right = max(right, most)
    right = max(right, 1.2)
    # Room for the text at the end of the longest bar.
    limit = right ** (1.8 if canvas.is_narrow else 1.3)
    axes.set_xscale("log")
    axes.set_xlim(1.0, limit)
    axes.set_ylim(len(tests) - 0.5, -0.75)
    axes.set_yticks([])
    logarithmic(axes.xaxis, 1.0, right * 1.02, times, 4 if canvas.is_narrow else 7)
    axes.set_xlabel("times faster than all off")
    axes.grid(False, axis="y")
    handles = [_swatch(axes, i, short) for i, short in enumerate(shorts)]
    handles.append(axes.barh(0, 0, left=1.0, fill=False, hatch="//", edgecolor=LIGHT["muted"], label="best, with fewer"))
    canvas.figure.legend(handles=handles, loc="outside upper left", ncols=3 if canvas.is_narrow else 7, handlelength=1.3, columnspacing=1.0)
    return canvas


def _part(axes, y: float, start: float, stop: float, index: int) -> None:
    axes.barh(y, stop - start, left=start, height=0.45, **_look(index), linewidth=0.8)


def _look(index: int) -> dict:
    return {"facecolor": LIGHT[SERIES[index % 7]], "edgecolor": LIGHT["surface"], "hatch": HATCHES[index % 7]}


def _swatch(axes, index: int, short: str):
    return axes.barh(0, 0, left=1.0, label=short, **_look(index))
