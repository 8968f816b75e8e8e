"""Time or blocks against size, both logarithmic, a line a target and set of factors, bars for the 95 % intervals. A paper's own are grey."""

from __future__ import annotations

from ..curves import SECONDS, Chart
from .style import DASHES, LIGHT, MARKERS, SERIES, Canvas, Shape, count, seconds
from .ticks import logarithmic

# More lines than there are markers would be told apart by nothing.
LINES_MOST = len(SERIES)
# Intervals of as many runs count for the limits of an axis.
RUNS_OF_AXIS = 3


def draw(chart: Chart, shape: Shape) -> Canvas:
    ours = [c for c in chart.curves if not c.is_paper]
    papers = [c for c in chart.curves if c.is_paper]
    names = len(ours) + len(papers)
    canvas = Canvas(shape, 3.6 + (0.17 * names if shape.name == "narrow" else 0.17 * -(-names // 2)))
    axes = canvas.axes()
    # Before there is anything: a flat line has no limits that an axis could take from it.
    axes.set_xscale("log")
    axes.set_yscale("log")
    for i, curve in enumerate(ours):
        _line(axes, curve, LIGHT[SERIES[i]], MARKERS[i], DASHES[i], 1.6)
    for i, curve in enumerate(papers):
        _line(axes, curve, LIGHT["muted"], ("1", "2", "3", "4")[i % 4], (0, (1, 2)), 1.0)
    sizes = [s for c in chart.curves for s in c.points["size"]]
    # The interval of two runs reaches twelve standard errors to either side: an axis for it would make every line flat. It goes on past the frame.
    sure = [c.points[c.points["n"] >= RUNS_OF_AXIS] for c in chart.curves]
    costs = [v for c in chart.curves for v in c.points["mean"] if v > 0]
    costs += [v for points in sure for name in ("low", "high") for v in points[name].dropna() if v > 0]
    low, high = min(costs), max(costs)
    room = max((high / low) ** 0.06, 1.15)
    axes.set_ylim(low / room, high * room)
    axes.set_xlim(min(sizes) / 1.25, max(sizes) * 1.25)
    logarithmic(axes.yaxis, low / room, high * room, seconds if chart.metric == SECONDS else count)
    logarithmic(axes.xaxis, min(sizes), max(sizes), count, 5 if canvas.is_narrow else 8)
    axes.set_xlabel("size")
    axes.set_ylabel("time per operation" if chart.metric == SECONDS else "blocks looked at per operation")
    canvas.figure.legend(loc="outside upper left", ncols=1 if canvas.is_narrow else 2, handlelength=3.2)
    return canvas


def _line(axes, curve, colour: str, marker: str, dashes, width: float) -> None:
    p = curve.points
    sure = p["low"].notna()
    errors = [(p["mean"] - p["low"])[sure], (p["high"] - p["mean"])[sure]]
    axes.plot(p["size"], p["mean"], color=colour, marker=marker, markersize=5, linestyle=dashes, linewidth=width, label=curve.label)
    if sure.any():
        axes.errorbar(p["size"][sure], p["mean"][sure], errors, fmt="none", color=colour, ecolor=colour, elinewidth=1.1, capsize=2.5)
