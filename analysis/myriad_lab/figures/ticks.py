"""Ticks of logarithmic axes as plain numbers. matplotlib's own are powers of ten, and a picture of effects often spans less than one."""

from __future__ import annotations

import math
from collections.abc import Callable

from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator


def nice(low: float, high: float, most: int = 7) -> list[float]:
    """At most so many round numbers from `low` to `high`; always two, if need be beyond them."""
    assert 0 < low <= high
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
        found = [s * 10.0**e for e in range(first, last + 1) for s in steps]
        found = [t for t in found if low / 1.0001 <= t <= high * 1.0001]
        if len(found) > most and len(steps) == 1:
            every = -(-len(found) // most)
            return found[::every]
        if 3 <= len(found) <= most:
            return found
    # Less than a factor of 1.2: steps of equal width do.
    width = (high - low) / 3
    unit = 10 ** math.floor(math.log10(width)) if width else 1e-3 * low
    step = next(unit * s for s in (1, 2, 5, 10) if unit * s >= width) if width else unit
    return [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)] or [low]


def logarithmic(axis: Axis, low: float, high: float, form: Callable, most: int = 7) -> None:
    """Round numbers on an axis whose scale is logarithmic already."""
    axis.set_major_locator(FixedLocator(nice(low, high, most)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(form))


def spread(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels: as near as possible to where they belong, at least `gap` apart, between `low` and `high` if they fit."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    # Clusters of labels that touch, each centred on where its members belong; merged until none touch.
    clusters: list[list[int]] = [[i] for i in order]

    def middle(cluster: list[int]) -> float:
        reach = gap * (len(cluster) - 1) / 2
        wanted = sum(places[i] for i in cluster) / len(cluster)
        return max(low + reach, min(high - reach, wanted))

    merged = True
    while merged:
        merged = False
        for k in range(len(clusters) - 1):
            a, b = clusters[k], clusters[k + 1]
            if middle(b) - middle(a) < gap * (len(a) + len(b)) / 2 - 1e-12:
                clusters[k : k + 2] = [a + b]
                merged = True
                break
    out = [0.0] * len(places)
    for cluster in clusters:
        start = middle(cluster) - gap * (len(cluster) - 1) / 2
        for k, i in enumerate(cluster):
            out[i] = start + k * gap
    return out
