"""Cost against size: for each size the geometric mean of the repetitions with its 95 % t interval on logarithms. Cost is time, and the
blocks that the engine looked at: what a modelled clock does not count, and the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy import stats

from .ratios import CONFIDENCE, Estimate
from .samples import Samples

# The fewest sizes that make a curve.
SIZES_LEAST = 3
SECONDS, BLOCKS = "seconds", "blocks_touched"


@dataclass
class Curve:
    """One line: `points` has a row a size (size, mean, low, high, n), of what the chart's metric is. `is_paper`: drawn as a reference."""

    label: str
    points: pd.DataFrame
    is_paper: bool = False
    target: str = ""


@dataclass
class Chart:
    """Curves of one workload and phase: `metric` per operation."""

    workload: str
    phase: str
    curves: list[Curve]
    metric: str = SECONDS


def mean(costs: np.ndarray) -> Estimate:
    """Geometric mean of positive costs."""
    logs = np.log(costs)
    middle, n = float(np.mean(logs)), len(logs)
    if n < 2:
        return Estimate.alone(float(np.exp(middle)), n)
    if np.ptp(logs) == 0:
        return Estimate.exact(float(np.exp(middle)), n)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.std(logs, ddof=1) / np.sqrt(n))
    return Estimate(float(np.exp(middle)), float(np.exp(middle - reach)), float(np.exp(middle + reach)), n=(n,))


def charts(samples: Samples) -> list[Chart]:
    """A chart of time and one of blocks for each workload and phase that was measured at several sizes."""
    looks = samples.table["device.blocks_touched"] / samples.table["count"]
    found = _charts(samples, samples.table["cost"], SECONDS) + _charts(samples, looks, BLOCKS)
    return sorted(found, key=lambda chart: (chart.workload, chart.phase))


def _charts(samples: Samples, costs: pd.Series, metric: str) -> list[Chart]:
    table = samples.table.assign(cost=costs)
    sized = table[table["size"].notna() & (table["cost"] > 0)]
    found = []
    for (workload, phase), rows in sized.groupby(["workload", "phase"], sort=True):
        if rows["size"].nunique() < SIZES_LEAST:
            continue
        # What differs between curves is what a label has to say.
        several = [n for n in samples.factors if rows[f"factor.{n}"].nunique(dropna=True) > 1]
        scales = rows["scale"].nunique() > 1
        curves = []
        for _, line in rows.groupby(["target", "clock", "scale", "factors_key", "conditions_key", "options_key"], dropna=False, sort=True):
            if line["size"].nunique() < SIZES_LEAST:
                continue
            one = line.iloc[0]
            varied = [f"{n}={one[f'factor.{n}']}" for n in several if not pd.isna(one[f"factor.{n}"])]
            varied += [f"scale {one['scale']:g}"] if scales else []
            varied += [one[name] for name in ("conditions_key", "options_key") if one[name]]
            curves.append(Curve(", ".join([one["target"], *varied]), _points(line), target=one["target"]))
        if curves:
            found.append(Chart(workload, phase, curves, metric))
    return found


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    points = []
    for size, group in rows.groupby("size", sort=True):
        found = mean(group["cost"].to_numpy(float))
        points.append({"size": size, "mean": found.value, "low": found.low, "high": found.high, "n": len(group)})
    return pd.DataFrame(points)


def slope(sizes: np.ndarray, costs: np.ndarray) -> Estimate:
    """How cost grows with size: the slope of log cost over log size by least squares. 0 is flat, 1 is proportional."""
    x, y = np.log(sizes), np.log(costs)
    fitted = sm.OLS(y, sm.add_constant(x)).fit()
    value = float(fitted.params[1])
    if len(np.unique(x)) < SIZES_LEAST:
        return Estimate.alone(value, len(x))
    low, high = fitted.conf_int(1 - CONFIDENCE)[1]
    return Estimate(value, float(low), float(high), (len(x),))
