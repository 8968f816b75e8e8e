"""A target against itself: the noise floor of each measurement, and whether a slowdown that was planted is found.

With `myriad lab run --twin` each measurement runs as A and as A' in each round, and with `--slow` a third time, slowed. What is compared
are ratios within a round: their median, with a 95 % interval by bootstrap over whole rounds. The floor is the farther end of the interval
of A' over A. What was slowed *differs* if its interval leaves out 1 and its ratio lies beyond the floor. `myriad lab run` prints the
same numbers (`crates/lab/src/experiment/twins.rs`, `crates/lab/src/stats.rs`): the resamples follow from the same seed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from .ratios import Estimate
from .samples import CELL, TWINS, Samples, identity

FIRST, SECOND, SLOWED = TWINS
# Of fewer rounds even the whole range of their ratios is no 95 % interval.
ROUNDS_LEAST = 6
RESAMPLES = 4000
SEED = 1
ENDS = (0.025, 0.975)


def median_by_rounds(values: np.ndarray) -> Estimate:
    """Median with its interval; each value is of one round."""
    ordered = np.sort(np.asarray(values, float))
    rounds = len(ordered)
    pick = np.sort(_below(rounds, RESAMPLES * rounds).reshape(RESAMPLES, rounds), axis=1)
    medians = (ordered[pick[:, (rounds - 1) // 2]] + ordered[pick[:, rounds // 2]]) / 2
    low, high = (_quantile(np.sort(medians), end) for end in ENDS)
    return Estimate(float(np.median(ordered)), low, high, (rounds,))


def _below(bound: int, count: int) -> np.ndarray:
    """Uniform below `bound`: SplitMix64 of `SEED`, as the lab has it."""
    with np.errstate(over="ignore"):
        x = np.uint64(SEED) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    # The upper half of a product of 128 bits, in two parts.
    low, high, by = x & np.uint64(0xFFFFFFFF), x >> np.uint64(32), np.uint64(bound)
    return ((high * by + (low * by >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)


def _quantile(ordered: np.ndarray, fraction: float) -> float:
    position = fraction * (len(ordered) - 1)
    below, above = int(np.floor(position)), int(np.ceil(position))
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


def table(samples: Samples) -> pd.DataFrame:
    """A row a measurement that has twins, with `floor` as a ratio; `planted` is what was added to the phase, as a ratio. Rows of a modelled
    device have no noise, and are left out; so are those of too few rounds."""
    rows = []
    groups = [] if samples.twins.empty else samples.twins.groupby(list(CELL), dropna=False, sort=True)
    for place, data in groups:
        key = dict(zip(CELL, place, strict=True))
        if key["clock"] != "wall":
            continue
        rounds = _rounds(data)
        if not {FIRST, SECOND} <= set(rounds) or len(rounds) < ROUNDS_LEAST:
            continue
        found = median_by_rounds(rounds[SECOND] / rounds[FIRST])
        row = key | {"rounds": len(rounds), "ratio": found.value, "low": found.low, "high": found.high, "floor": max(found.high, 1 / found.low)}
        if SLOWED in rounds and rounds[SLOWED].notna().all():
            row |= _slowed(data, rounds, row["floor"])
        rows.append(row)
    return pd.DataFrame(rows)


def _rounds(data: pd.DataFrame) -> pd.DataFrame:
    """Seconds, a row a round, a column a twin; rounds that lack A or A' are left out. Two files may have a round of the same number."""
    data = data.sort_values(["started", "order"], kind="stable")
    place = ["commit", "seed", "run"]
    data = data.assign(again=data.groupby([*place, "twin"]).cumcount())
    wide = data.pivot(index=[*place, "again"], columns="twin", values="seconds")
    return wide.dropna(subset=[name for name in (FIRST, SECOND) if name in wide])


def _slowed(data: pd.DataFrame, rounds: pd.DataFrame, floor: float) -> dict:
    found = median_by_rounds(rounds[SLOWED] / np.sqrt(rounds[FIRST] * rounds[SECOND]))
    mine = data[data["twin"] == SLOWED]
    planted = float((mine["seconds"] / (mine["seconds"] - mine["slowed.added_ns"].fillna(0) / 1e9)).median())
    differs = not found.low <= 1 <= found.high and abs(np.log(found.value)) > np.log(floor)
    operation, percent = mine["slowed.operation"].iloc[0], mine["slowed.percent"].iloc[0]
    row = {"slow": f"{operation}:{percent:g}%", "planted": planted, "slowed_ratio": found.value}
    return row | {"slowed_low": found.low, "slowed_high": found.high, "differs": differs}


def floors(rows: pd.DataFrame) -> dict[tuple, float]:
    """The floor of each measurement by its identity."""
    return {identity(row): row["floor"] for row in rows.to_dict("records")}
