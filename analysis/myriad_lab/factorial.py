"""A test under all combinations of k two-level factors, as Dowse and Malone analyse it (FFSOPT 4.3).

A combination is a bit mask: bit i is set where factor i is on. Cost is time per operation, so that rates become times before
anything is averaged. Percent means percent of the mean cost of combination 0, all off.

    rank_table    combinations by mean cost
    coefficients  the saturated linear model: a coefficient for each set of factors, on plain cost or on its logarithm
    steps         the triangles: what each factor does in each setting of the factors before it
    edges         the lattice: every step that turns one factor on
    path          the uppermost path through the lattice

Errors assume one variance for all combinations, estimated from the repetitions in all of them (2^k (n - 1) degrees of freedom).
On plain cost this is what the paper did; where costs differ by orders of magnitude the logarithm fits it better.
Without any spread between repetitions, as on a modelled clock, there are no errors, and a result is exact if they have several seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy import stats

from . import factors as known
from .factors import Factor
from .ratios import CONFIDENCE
from .samples import Samples

# What the paper asks of a coefficient that it prints.
SIGNIFICANCE = 1 / 1000
# The least that is printed of an exact coefficient, in percent of the base, or of its logarithm: the same number.
EXACT_LEAST = 1 / 1000 * 100


@dataclass
class Cell:
    """Repetitions of one combination. `sd` divides by n - 1; `values` are missing where a paper prints only the rest."""

    mean: float
    sd: float
    n: int
    values: np.ndarray | None = None
    log_mean: float | None = None

    @staticmethod
    def of(values: np.ndarray) -> Cell:
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        # Repetitions that are all the same leave rounding noise in a deviation.
        if np.ptp(values) == 0:
            spread = 0.0
        with np.errstate(divide="ignore"):
            logs = float(np.mean(np.log(values)))
        return Cell(float(np.mean(values)), spread, len(values), values, logs)


@dataclass
class Factorial:
    """One test: `cells` by mask, all 2^k of them. `about` has the fields that tell it from other tests, `settings` the options that
    are the same in all of it."""

    title: str
    factors: list[Factor]
    cells: dict[int, Cell]
    about: dict
    settings: dict[str, str] = field(default_factory=dict)
    unit: str = "seconds per operation"
    # A modelled clock's, of which some combination has samples of one seed only.
    is_of_one_seed: bool = False

    @property
    def full(self) -> int:
        """The mask of all factors."""
        return (1 << len(self.factors)) - 1

    @property
    def base(self) -> float:
        return self.cells[0].mean

    def percent(self, mask: int) -> float:
        return 100 * self.cells[mask].mean / self.base

    def gain(self, mask: int) -> float:
        """How many times faster than all off."""
        return self.base / self.cells[mask].mean

    def name(self, mask: int, joint: str = "+", none: str = "none") -> str:
        return joint.join(f.short for i, f in enumerate(self.factors) if mask >> i & 1) or none

    @property
    def is_exact(self) -> bool:
        return self.has_no_spread and not self.is_of_one_seed

    @property
    def has_no_spread(self) -> bool:
        """Not for want of repetitions."""
        repeated = self.about.get("clock") == "modelled" or all(cell.n > 1 for cell in self.cells.values())
        return repeated and all(cell.sd == 0 for cell in self.cells.values())


def find(samples: Samples) -> tuple[list[Factorial], list[str]]:
    """All tests of which every combination is there, and, as sentences, which are not complete."""
    tests, incomplete = [], []
    table = samples.table[samples.table["cost"].notna()]
    keys = ["suite", "workload", "phase", "target", "clock", "scale", "size", "conditions_key", "options_key"]
    for key, rows in table.groupby(keys, dropna=False, sort=True):
        about = dict(zip(keys, key, strict=True))
        columns = [name for name in sorted(samples.factors, key=known.rank) if rows[f"factor.{name}"].nunique(dropna=False) > 1]
        found = [known.of_option(name, set(rows[f"factor.{name}"].dropna())) for name in columns]
        for chosen in product(*[f for f in found if f]):
            if not chosen:
                continue
            test, missing = _test(about, rows, list(chosen))
            if test:
                tests.append(test)
            else:
                incomplete.append(f"{title(about)}, {'·'.join(f.short for f in chosen)}: incomplete: {', '.join(missing)}")
    return tests, incomplete


def title(about: dict) -> str:
    """A test in words, as in "folder: create (disk2001)"."""
    size = about.get("size")
    size = "" if size is None or pd.isna(size) else f", size {size:,.0f}"
    return f"{about['workload']}: {about['phase']} ({about['target']}{size})"


def _test(about: dict, rows: pd.DataFrame, factors: list[Factor]) -> tuple[Factorial | None, list[str]]:
    cells, missing, used, seeds = {}, [], [], []
    for mask in range(1 << len(factors)):
        name = "+".join(f.short for i, f in enumerate(factors) if mask >> i & 1) or "none"
        here = rows
        for i, factor in enumerate(factors):
            here = here[here[f"factor.{factor.option}"] == (factor.on if mask >> i & 1 else factor.off)]
        if here.empty:
            missing.append(name)
        elif (here["cost"] <= 0).any():
            # Nothing can be divided by it.
            missing.append(f"{name} (takes no time)")
        else:
            used.append(here)
            seeds.append(here["seed"].nunique())
            cells[mask] = Cell.of(here.sort_values(["run", "order"])["cost"].to_numpy(float))
    if missing:
        return None, missing
    is_of_one_seed = about["clock"] == "modelled" and min(seeds) < 2
    return Factorial(title(about), factors, cells, about, _settings(pd.concat(used)), is_of_one_seed=is_of_one_seed), []


def _settings(rows: pd.DataFrame) -> dict[str, str]:
    """Options and factors that have one choice in all rows."""
    all_of_a_row = [
        options | dict(factor.split("=", 1) for factor in key.split(",") if factor)
        for options, key in zip(rows["options"], rows["factors_key"], strict=True)
    ]
    first = all_of_a_row[0]
    return {name: choice for name, choice in first.items() if all(other.get(name) == choice for other in all_of_a_row)}


def rank_table(test: Factorial) -> pd.DataFrame:
    """Combinations, cheapest first: a column a factor (True where on), mean, percent of all off, its standard error, n."""
    rows = []
    for mask, cell in test.cells.items():
        row = {f.short: bool(mask >> i & 1) for i, f in enumerate(test.factors)}
        error = cell.sd / np.sqrt(cell.n) / test.base * 100 if cell.n > 1 else None
        row |= {"mean": cell.mean, "percent": test.percent(mask), "error": error, "n": cell.n, "mask": mask}
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["mean", "mask"], ignore_index=True)


def coefficients(test: Factorial, log: bool = False) -> pd.DataFrame:
    """The saturated model, a row a set of factors, sets of fewer factors first.

    Columns: mask, term (as in "DP:SU"), estimate, sigma, t, p, shown. The unit is percent of all off; with `log` it is the natural
    logarithm of cost, so that exp(estimate) is a ratio of costs and interactions say whether factors multiply.
    """
    masks = sorted(test.cells)
    if log or all(test.cells[m].values is not None for m in masks):
        estimates, sigmas, freedom = _fit(test, masks, log)
    else:
        estimates, sigmas, freedom = _from_summary(test, masks)
    unit = 1 if log else 100 / test.base
    rows = []
    for mask in sorted(masks, key=lambda m: (m.bit_count(), m)):
        estimate, sigma = estimates[mask] * unit, sigmas[mask] * unit
        t = estimate / sigma if sigma > 0 else np.nan
        p = float(2 * stats.t.sf(abs(t), freedom)) if sigma > 0 and freedom > 0 else np.nan
        if mask == 0:
            shown = True
        elif sigma > 0:
            shown = p < SIGNIFICANCE
        else:
            shown = test.has_no_spread and abs(estimate) * (100 if log else 1) >= EXACT_LEAST
        term = test.name(mask, ":", "base")
        rows.append({"mask": mask, "term": term, "estimate": estimate, "sigma": sigma, "t": t, "p": p, "shown": shown})
    out = pd.DataFrame(rows)
    out.attrs["freedom"] = freedom
    return out


def _fit(test: Factorial, masks: list[int], log: bool) -> tuple[dict, dict, int]:
    y = np.concatenate([test.cells[m].values for m in masks])
    if log:
        y = np.log(y)
    owner = np.concatenate([np.full(test.cells[m].n, m) for m in masks])
    # Column m is 1 where all factors of m are on.
    design = np.array([[(row & m) == m for m in masks] for row in owner], dtype=float)
    freedom = len(y) - len(masks)
    fitted = sm.OLS(y, design).fit()
    estimates = dict(zip(masks, map(float, fitted.params), strict=True))
    if freedom == 0 or all(test.cells[m].sd == 0 for m in masks):
        return estimates, dict.fromkeys(masks, 0.0), freedom
    return estimates, dict(zip(masks, map(float, fitted.bse), strict=True)), freedom


def _from_summary(test: Factorial, masks: list[int]) -> tuple[dict, dict, int]:
    """The same from means and deviations: coefficients by differences over subsets, errors from the pooled variance."""
    freedom = sum(test.cells[m].n - 1 for m in masks)
    pooled = sum((test.cells[m].n - 1) * test.cells[m].sd ** 2 for m in masks) / freedom if freedom else 0.0
    estimates, sigmas = {}, {}
    for mask in masks:
        subsets = [m for m in masks if m & mask == m]
        estimates[mask] = sum((-1) ** (mask ^ m).bit_count() * test.cells[m].mean for m in subsets)
        sigmas[mask] = float(np.sqrt(pooled * sum(1 / test.cells[m].n for m in subsets)))
    return estimates, sigmas, freedom


def effect(test: Factorial, index: int) -> float:
    """Natural logarithm of cost with a factor over cost without it, mean over all settings of the others; negative is faster."""
    bit = 1 << index
    return float(np.mean([np.log(test.cells[m | bit].mean / test.cells[m].mean) for m in test.cells if not m & bit]))


def by_effect(test: Factorial) -> list[int]:
    """Factors, the one that changes most first."""
    return sorted(range(len(test.factors)), key=lambda i: (-abs(effect(test, i)), i))


@dataclass(frozen=True)
class Lead:
    """By how much the factor of the largest effect is ahead of the next, in logarithms of cost: `gap`, its 95 % interval reaching `reach`
    to either side; missing (NaN) where nothing says how sure it is."""

    gap: float
    reach: float


def lead(test: Factorial) -> Lead:
    """Of a test whose cells have their values."""
    first, *others = by_effect(test)
    # Means of effects are sums of the cells' mean logarithms; so is the gap between two of them.
    weights = dict.fromkeys(test.cells, 0.0)
    for index, sign in [(first, 1), *((other, -1) for other in others[:1])]:
        sign = sign if effect(test, index) > 0 else -sign
        for mask in weights:
            weights[mask] += sign * (1 if mask >> index & 1 else -1) * 2 / len(test.cells)
    logs = {mask: np.log(cell.values) for mask, cell in test.cells.items()}
    gap = float(sum(weights[mask] * np.mean(logs[mask]) for mask in weights))
    if test.has_no_spread:
        # Sums of logarithms leave what floating point leaves.
        return Lead(round(gap, 9), 0.0)
    freedom = sum(len(values) - 1 for values in logs.values())
    if freedom == 0:
        return Lead(gap, float("nan"))
    variance = sum(float(np.sum((values - np.mean(values)) ** 2)) for values in logs.values()) / freedom
    error = np.sqrt(variance * sum(weights[mask] ** 2 / len(logs[mask]) for mask in weights))
    return Lead(gap, float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * error))


@dataclass(frozen=True)
class Step:
    """Turning one factor on: from one combination to another."""

    factor: int
    before: int
    after: int


def steps(test: Factorial) -> list[list[Step]]:
    """The triangles, a list a column: column k has one for each setting of the k - 1 factors of larger effect, the rest off.

    Settings come fastest first: those with the leading factors on are to the left, as in the paper's Figure 8.
    """
    order, columns = by_effect(test), []
    for k, index in enumerate(order):
        settings = [sum(1 << order[j] for j in range(k) if setting >> (k - 1 - j) & 1) for setting in reversed(range(1 << k))]
        columns.append([Step(index, mask, mask | 1 << index) for mask in settings])
    return columns


def edges(test: Factorial) -> list[Step]:
    """All k 2^(k-1) steps of the lattice."""
    return [Step(i, m, m | 1 << i) for m in sorted(test.cells) for i in range(len(test.factors)) if not m >> i & 1]


def path(test: Factorial) -> list[Step]:
    """The uppermost path from all off to all on: at each node the step to the cheapest next one."""
    mask, found = 0, []
    while mask != test.full:
        after = min((i for i in range(len(test.factors)) if not mask >> i & 1), key=lambda i: test.cells[mask | 1 << i].mean)
        found.append(Step(after, mask, mask | 1 << after))
        mask |= 1 << after
    return found


def best(test: Factorial) -> int:
    """The combination of the least mean cost; of equal ones that with the fewest factors."""
    return min(test.cells, key=lambda m: (test.cells[m].mean, m.bit_count(), m))
