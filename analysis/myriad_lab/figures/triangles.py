"""The triangles of FFSOPT's Figure 8: what each factor does, in each setting of the factors of larger effect.

A column a factor, the largest effect first. A triangle stands on the performance without the factor and points to that with it: up
is better. The dots below say which of the factors to the left are on. Not every step of the lattice is here, and no spread.
"""

from __future__ import annotations

from ..factorial import Factorial, by_effect, steps
from .style import LIGHT, Canvas, Shape, times
from .ticks import logarithmic

# More columns are more triangles than a page is wide.
FACTORS_MOST = 5


def draw(test: Factorial, shape: Shape) -> Canvas:
    columns, order = steps(test), by_effect(test)
    k = len(order)
    canvas = Canvas(shape, 3.5 + 0.17 * k)
    grid = canvas.figure.add_gridspec(2, 1, height_ratios=[3.2, 0.17 * (k - 0.4)], hspace=0.02)
    top = canvas.axes(grid[0])
    dots = canvas.axes(grid[1], sharex=top)
    _triangles(test, columns, top, canvas)
    _dots(test, columns, order, dots)
    return canvas


def _slots(columns: list) -> list[tuple[int, int, float]]:
    """Column, place in it, x; half a slot between columns."""
    found, x = [], 0.0
    for c, column in enumerate(columns):
        for place in range(len(column)):
            found.append((c, place, x))
            x += 1
        x += 0.7
    return found


def _triangles(test: Factorial, columns: list, axes, canvas: Canvas) -> None:
    gains = [test.gain(mask) for mask in test.cells]
    low, high = min(gains), max(gains)
    room = (high / low) ** 0.06 if high > low else 1.05
    for c, place, x in _slots(columns):
        step = columns[c][place]
        before, after = test.gain(step.before), test.gain(step.after)
        better = after >= before
        colour = LIGHT["s1"] if better else LIGHT["s2"]
        axes.fill(
            [x - 0.42, x + 0.42, x],
            [before, before, after],
            facecolor=colour if better else LIGHT["surface"],
            edgecolor=colour,
            linewidth=1.0,
            hatch=None if better else "////",
            zorder=3,
        )
        # A step of nearly nothing would not be seen: its foot is drawn in any case.
        axes.plot([x - 0.42, x + 0.42], [before, before], color=colour, linewidth=1.4, zorder=4)
    axes.set_yscale("log")
    axes.set_ylim(low / room, high * room)
    logarithmic(axes.yaxis, low / room, high * room, times)
    axes.set_ylabel("times faster than all off")
    axes.grid(False, axis="x")
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    for c in range(len(columns)):
        xs = [x for column, _, x in _slots(columns) if column == c]
        axes.annotate(
            test.factors[columns[c][0].factor].short,
            (sum(xs) / len(xs), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontweight="bold",
        )
        if c:
            axes.axvline(min(xs) - 0.85, color=LIGHT["grid"], linewidth=0.9)
    better = axes.fill([], [], facecolor=LIGHT["s1"], edgecolor=LIGHT["s1"], label="faster with it")[0]
    worse = axes.fill([], [], facecolor=LIGHT["surface"], edgecolor=LIGHT["s2"], hatch="////", label="slower with it")[0]
    canvas.figure.legend(handles=[better, worse], loc="outside upper right", ncols=2, handlelength=1.2, columnspacing=1.2)


def _dots(test: Factorial, columns: list, order: list[int], axes) -> None:
    for c, place, x in _slots(columns):
        for row, index in enumerate(order[:c]):
            on = columns[c][place].before >> index & 1
            axes.plot([x], [row], "o", markersize=4, markeredgecolor=LIGHT["muted"], markerfacecolor=LIGHT["ink" if on else "surface"])
    # Nothing is to the right of the last factor.
    axes.set_ylim(len(order) - 1.4, -0.6)
    axes.set_yticks(range(len(order) - 1), [test.factors[i].short for i in order[:-1]])
    axes.grid(False)
    axes.tick_params(axis="both", length=0, labelbottom=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("filled dot: on   ·   empty or no dot: off")
