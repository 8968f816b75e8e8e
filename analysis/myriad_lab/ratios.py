"""One measurement against another: how many times the cost, and how sure that is.

A ratio is that of geometric means, and its 95 % interval is Welch's t interval on the logarithms of cost: two groups of
repetitions, each with its own spread. It needs no resampling, so it is the same every time. Where neither group has any spread (a
modelled clock, counts of a deterministic run) the ratio is exact, if the groups are of two seeds or more; of one seed it says so, for
another seed has other names and sizes. One run a group, with a clock, has no interval.

A table of many rows holds some that leave out 1 by chance. So a row of `against_peers` is called faster or slower only if it is
significant at 5 % among all rows of its peer (Holm's correction); one whose interval alone leaves out 1 is `MAYBE`.

The noise floor comes from A against A: the repetitions of each cell are split in two at random (seeded), and the halves compared
as if they were different programs. What such halves differ by is what no program did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import stdtrit

from .samples import Samples, cells, identity

CONFIDENCE = 0.95
# Of a difference that is there, the share of runs of the whole measurement that would find it, for `detectable`.
POWER = 0.8
SPLITS = 200
# Halves of fewer repetitions have no spread of their own.
SPLIT_LEAST = 4


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; `low` and `high` are missing (NaN) where nothing says how sure it is. `is_of_one_seed`: it needs
    no repetitions, and nobody knows what another seed would give."""

    value: float
    low: float
    high: float
    n: tuple[int, ...] = ()
    is_of_one_seed: bool = False

    @property
    def is_exact(self) -> bool:
        return self.low == self.high and not self.is_of_one_seed

    @property
    def has_interval(self) -> bool:
        return not np.isnan(self.low)

    @staticmethod
    def exact(value: float, *n: int) -> Estimate:
        return Estimate(value, value, value, n)

    @staticmethod
    def alone(value: float, *n: int) -> Estimate:
        return Estimate(value, float("nan"), float("nan"), n)


def _spread(logs: np.ndarray) -> float:
    return 0.0 if len(logs) < 2 or np.ptp(logs) == 0 else float(np.var(logs, ddof=1)) / len(logs)


def _welch(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Standard error of the difference of means, and its degrees of freedom."""
    vx, vy = _spread(x), _spread(y)
    if vx + vy == 0:
        return 0.0, np.inf
    parts = sum(v**2 / (len(z) - 1) for v, z in ((vx, x), (vy, y)) if v)
    return float(np.sqrt(vx + vy)), (vx + vy) ** 2 / parts


def _reach(freedom):
    """Standard errors on either side of a difference of means, by Student's distribution."""
    return stdtrit(freedom, (1 + CONFIDENCE) / 2)


def ratio(cost: np.ndarray, against: np.ndarray, exact: bool = False) -> Estimate:
    """`cost` over `against`. `exact`: repetitions without spread are no accident, so one is enough."""
    if (cost <= 0).any() or (against <= 0).any():
        # Counts may be 0: then there is a ratio of means at most, and nothing to take logarithms of.
        top, bottom = float(np.mean(cost)), float(np.mean(against))
        value = top / bottom if bottom > 0 else np.inf if top > 0 else 1.0
        both = np.ptp(cost) == 0 and np.ptp(against) == 0
        return (Estimate.exact if exact and both else Estimate.alone)(value, len(cost), len(against))
    x, y = np.log(cost), np.log(against)
    middle = float(np.mean(x) - np.mean(y))
    n = (len(x), len(y))
    if exact and np.ptp(x) == 0 and np.ptp(y) == 0:
        return Estimate.exact(float(np.exp(middle)), *n)
    if min(n) < 2:
        return Estimate.alone(float(np.exp(middle)), *n)
    error, freedom = _welch(x, y)
    reach = float(_reach(freedom)) * error if error else 0.0
    return Estimate(float(np.exp(middle)), float(np.exp(middle - reach)), float(np.exp(middle + reach)), n)


def detectable(cost: np.ndarray, against: np.ndarray) -> float:
    """The least ratio above 1 that measurements with this spread find four times in five; NaN where that is unknown."""
    if min(len(cost), len(against)) < 2:
        return float("nan")
    error, freedom = _welch(np.log(cost), np.log(against))
    return float(np.exp((_reach(freedom) + stdtrit(freedom, POWER)) * error)) if error else 1.0


def p_value(cost: np.ndarray, against: np.ndarray) -> float:
    """Of Welch's test on logarithms; NaN where there is no spread to judge by."""
    if min(len(cost), len(against)) < 2:
        return float("nan")
    x, y = np.log(cost), np.log(against)
    error, freedom = _welch(x, y)
    return float(2 * stats.t.sf(abs(np.mean(x) - np.mean(y)) / error, freedom)) if error else float("nan")


FASTER, SLOWER, SAME, MAYBE, ALONE = "faster", "slower", "no difference seen", "may be chance", "one run"


def verdicts(table: pd.DataFrame) -> list[str]:
    """Of the rows of one peer: whether we are faster."""
    held = dict.fromkeys(table.index, False)
    tested = table["p"].dropna().sort_values()
    for k, (index, p) in enumerate(tested.items()):
        if p * (len(tested) - k) >= 1 - CONFIDENCE:
            break
        held[index] = True
    out = []
    for row in table.itertuples():
        if np.isnan(row.low):
            out.append(ALONE)
        elif row.low <= 1 <= row.high:
            out.append(SAME)
        elif row.low < row.high and not held[row.Index]:
            out.append(MAYBE)
        else:
            out.append(FASTER if row.low > 1 else SLOWER)
    return out


# What a peer and ours agree in, beside the clock; and what tells one peer's rows from another's.
LIKE = ("suite", "workload", "phase", "scale", "size", "conditions_key")
PEER = ["peer", "conditions_key", "peer_options"]


def against_peers(samples: Samples, ours: str, floors: dict[tuple, float]) -> pd.DataFrame:
    """Each peer's cost over that of the target `ours`, a row a peer, workload, phase and size. Above 1 we are faster.

    Compared is like with like: the same suite, workload, phase, scale, size, clock and conditions. Ours is the cell without factors, or that
    whose factors and options come first where there are several; `ours_factors` says which. `floor` is the larger noise floor of the two, of
    `floors`; missing where neither ran against itself.
    """
    rows, groups = [], {}
    for key, data in cells(samples):
        if key["clock"] == "wall":
            place = tuple(None if pd.isna(key[k]) else key[k] for k in LIKE)
            groups.setdefault(place, []).append((key, data))
    for place, members in groups.items():
        mine = [m for m in members if m[0]["target"] == ours]
        if not mine:
            continue
        own_key, own = mine[0]
        for key, data in members:
            if key["target"] == ours:
                continue
            a, b = data["cost"].to_numpy(float), own["cost"].to_numpy(float)
            found = ratio(a, b)
            rows.append(
                dict(zip(LIKE, place, strict=True))
                | {"peer": key["target"], "peer_options": key["options_key"], "ours": ours, "ours_factors": own_key["factors_key"]}
                | {"ratio": found.value, "low": found.low, "high": found.high, "n_peer": len(a), "n_ours": len(b)}
                | {"peer_us": 1e6 * float(np.exp(np.mean(np.log(a)))), "ours_us": 1e6 * float(np.exp(np.mean(np.log(b))))}
                | {"p": p_value(a, b), "detectable": detectable(a, b), "floor": _larger(floors, key, own_key)}
            )
    table = pd.DataFrame(rows)
    if rows:
        table["verdict"] = ""
        for _, part in table.groupby(PEER):
            table.loc[part.index, "verdict"] = verdicts(part)
    return table


def _larger(floors: dict[tuple, float], *keys: dict) -> float:
    return max((floors[identity(key)] for key in keys if identity(key) in floors), default=float("nan"))


# Benchmarks of others (suite `tools`) and the workload of ours that does what each does; phases have the same names.
ORIGINALS = {"bonnie++": "bonnie", "postmark_tool": "postmark"}


def against_originals(samples: Samples, floors: dict[tuple, float]) -> pd.DataFrame:
    """The cost of each benchmark of others over that of our workload of its kind, a row a target, workload and phase of both. Their counts
    need not be the same, for some come in multiples of 1024: what is compared is the cost of an operation."""
    rows, mine = [], {}
    found = [(key, data) for key, data in cells(samples) if key["clock"] == "wall"]

    def place(key: dict, workload: str) -> tuple:
        return (workload, key["phase"], key["target"], *(None if pd.isna(key[k]) else key[k] for k in ("scale", "size")), key["factors_key"], key["conditions_key"])

    for key, data in found:
        if key["suite"] != "tools":
            mine.setdefault(place(key, key["workload"]), (key, data))
    for key, data in found:
        own = mine.get(place(key, ORIGINALS.get(key["workload"], ""))) if key["suite"] == "tools" else None
        if own is None:
            continue
        own_key, own = own
        a, b = data["cost"].to_numpy(float), own["cost"].to_numpy(float)
        ours = ratio(a, b)
        rows.append(
            {"target": key["target"], "workload": key["workload"], "phase": key["phase"], "scale": key["scale"], "size": key["size"]}
            | {"factors": key["factors_key"], "conditions": key["conditions_key"]}
            | {"ours": ORIGINALS[key["workload"]], "ratio": ours.value, "low": ours.low, "high": ours.high}
            | {"n_theirs": len(a), "n_ours": len(b), "floor": _larger(floors, key, own_key)}
            | {"theirs_us": 1e6 * float(np.exp(np.mean(np.log(a)))), "ours_us": 1e6 * float(np.exp(np.mean(np.log(b))))}
        )
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Floor:
    """A against A. `ratio`: 95 % of halves differ by less than this factor. `called`: share of splits that the test of the ratio
    tables, at 95 %, calls different; near 5 % if the test is right. `cells` were split `SPLITS` times each."""

    ratio: float
    called: float
    cells: int


def noise_floor(samples: Samples, seed: int, target: str | None = None) -> Floor | None:
    """The floor over all cells measured with a clock; nothing if no cell has enough repetitions."""
    random = np.random.default_rng(seed)
    apart, called = [], []
    for key, data in cells(samples):
        costs = data["cost"].to_numpy(float)
        if key["clock"] != "wall" or len(costs) < SPLIT_LEAST or (costs <= 0).any() or (target and key["target"] != target):
            continue
        # A row a split, all of them at once: one by one they take longer than the figures.
        logs = np.log(np.stack([random.permutation(costs) for _ in range(SPLITS)]))
        x, y = np.hsplit(logs, [len(costs) // 2])
        difference = np.abs(x.mean(axis=1) - y.mean(axis=1))
        vx, vy = (np.where(np.ptp(z, axis=1) > 0, z.var(axis=1, ddof=1) / z.shape[1], 0) for z in (x, y))
        parts = vx**2 / (x.shape[1] - 1) + vy**2 / (y.shape[1] - 1)
        freedom = (vx + vy) ** 2 / np.where(parts > 0, parts, 1)
        apart.append(difference)
        called.append(difference > np.where(parts > 0, _reach(freedom), 0) * np.sqrt(vx + vy))
    if not apart:
        return None
    return Floor(float(np.exp(np.quantile(apart, CONFIDENCE))), float(np.mean(called)), len(apart))
