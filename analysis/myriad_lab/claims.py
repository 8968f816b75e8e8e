"""What the papers claim, held against the samples.

`claims.toml` has the claims; its head describes the fields. Each is judged once for every target that has what it asks for. A claim
that no target can answer is `NOT_RUN`, with the reason. Nothing is filled in: not a missing combination, not a size nearby.

How a claim is judged. `expect` is a range of results that count as the same as the paper's. *No effect* is 1 for a ratio and 0 for
a coefficient or a slope.

- The claim is of an effect (the range does not hold *no effect*). The whole interval beyond *no effect* on the paper's side:
  `REPRODUCED` if the value is in the range, otherwise `DIRECTION`. The whole interval on the other side, or off the range although
  it holds *no effect*: `NOT_REPRODUCED`. Otherwise the runs do not tell: `UNDECIDED`.
- The claim is that there is no effect. The whole interval in the range: `REPRODUCED`; none of it: `NOT_REPRODUCED`; else `UNDECIDED`.
- One run with a clock has no interval: `UNDECIDED`.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from . import curves, factorial, factors, ratios
from .ratios import CONFIDENCE, Estimate
from .samples import DEVICE, Samples, same

REPRODUCED = "reproduced"
DIRECTION = "direction only"
NOT_REPRODUCED = "not reproduced"
UNDECIDED = "undecided"
NOT_RUN = "not run"
VERDICTS = (REPRODUCED, DIRECTION, NOT_REPRODUCED, UNDECIDED, NOT_RUN)

NO_EFFECT = {"ratio": 1.0, "coefficient": 0.0, "slope": 0.0}
KINDS = (*NO_EFFECT, "largest")
SHOWN = ("times", "percent", "points", "slope")
SHOWS = ("ranks", "model", "triangles", "lattice", "curves", "ratios")
SELECTION = {"combination", "workload", "phase", "target", "size", "size_most", "factors", "options"}


class BadClaims(Exception):
    """A mistake in the file of claims; the text names the claim."""


class _Missing(Exception):
    """Samples that a claim would need are not there."""


@dataclass
class Claim:
    id: str
    text: str
    kind: str
    phase: str
    select: dict = field(default_factory=dict)
    source: dict = field(default_factory=dict)
    goal: dict = field(default_factory=dict)
    term: str = ""
    metric: str = "seconds"
    paper: float | None = None
    paper_text: str = ""
    expect: tuple[float, float] = (-math.inf, math.inf)
    shown: str = "times"


@dataclass
class Group:
    id: str
    paper: str
    place: str
    title: str
    workload: str
    factors: list[str]
    show: list[str]
    redraw: str
    claims: list[Claim]


@dataclass
class Finding:
    """A claim on one target: `value` is text for `largest`. `why` is a sentence."""

    claim: Claim
    verdict: str
    why: str
    target: str = ""
    clock: str = ""
    scale: float = math.nan
    estimate: Estimate | None = None
    value: str = ""


# ------------------------------------------------------------------------------------------------ reading


def read(path: Path | None = None) -> list[Group]:
    """The claims of the package, or of another file. Raises `BadClaims`."""
    text = path.read_text("utf-8") if path else files(__package__).joinpath("claims.toml").read_text("utf-8")
    try:
        groups = tomllib.loads(text).get("group", [])
    except tomllib.TOMLDecodeError as error:
        raise BadClaims(f"claims: {error}") from None
    found = [_group(dict(group)) for group in groups]
    ids = [claim.id for group in found for claim in group.claims] + [group.id for group in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise BadClaims(f"claims: {', '.join(twice)}: there twice")
    return found


def _group(raw: dict) -> Group:
    name = raw.get("id", "a group without id")
    wanted = {"id", "paper", "place", "title", "workload", "factors", "show", "claims"}
    if not wanted <= raw.keys() or not raw.keys() <= wanted | {"redraw"}:
        raise BadClaims(f"{name}: fields {sorted(wanted ^ raw.keys() - {'redraw'})} missing or unknown")
    if not set(raw["show"]) <= set(SHOWS):
        raise BadClaims(f"{name}: show {raw['show']}; known are {', '.join(SHOWS)}")
    for short in raw["factors"]:
        _known(short, name)
    claims = [_claim(dict(claim), name) for claim in raw.pop("claims")]
    return Group(**{"redraw": "", **raw}, claims=claims)


def _known(short: str, place: str) -> None:
    try:
        factors.named(short)
    except StopIteration:
        raise BadClaims(f"{place}: factor {short} is not in factors.toml") from None


def _claim(raw: dict, group: str) -> Claim:
    name = raw.get("id", f"a claim of {group} without id")
    kind = raw.get("kind")
    needs = {"id", "text", "kind", "phase"}
    needs |= {"ratio": {"from", "to", "expect"}, "coefficient": {"term", "expect"}, "slope": {"select", "expect"}}.get(kind, {"term"})
    optional = {"metric", "paper", "paper_text", "shown"}
    if kind not in KINDS:
        raise BadClaims(f"{name}: kind {kind!r}; known are {', '.join(KINDS)}")
    if not needs <= raw.keys() or not raw.keys() <= needs | optional:
        raise BadClaims(f"{name}: fields {sorted(raw.keys() - needs - optional | needs - raw.keys())} missing or unknown")
    if "paper" not in raw and "paper_text" not in raw:
        raise BadClaims(f"{name}: says nothing of the paper's value")
    if raw.get("metric", "seconds") not in ("seconds", *DEVICE) or raw.get("shown", "times") not in SHOWN:
        raise BadClaims(f"{name}: unknown metric or unit")
    for theirs, ours in (("from", "source"), ("to", "goal"), ("select", "select")):
        if theirs in raw:
            raw[ours] = _selection(raw.pop(theirs), name)
    if "expect" in raw:
        low, high = (float(x) for x in raw["expect"])
        if not low < high:
            raise BadClaims(f"{name}: expect {raw['expect']}")
        raw["expect"] = (low, high)
    return Claim(**raw)


def _selection(raw: str | dict, place: str) -> dict:
    chosen = {"combination": raw} if isinstance(raw, str) else dict(raw)
    if not chosen.keys() <= SELECTION:
        raise BadClaims(f"{place}: fields {sorted(chosen.keys() - SELECTION)} unknown")
    for short in _letters(chosen):
        _known(short, place)
    return chosen


def _letters(selection: dict) -> list[str]:
    return [short for short in selection.get("combination", "").split("+") if short]


# ------------------------------------------------------------------------------------------------ selecting


def _chosen(samples: Samples, group: Group, claim: Claim, selection: dict) -> pd.DataFrame:
    """Samples of a selection, of all targets. Raises `_Missing`."""
    table = samples.table
    workload, phase = selection.get("workload", group.workload), selection.get("phase", claim.phase)
    for column, value, word in (("workload", workload, "workload"), ("phase", phase, f"phase of {workload}")):
        table = table[table[column] == value]
        if table.empty:
            raise _Missing(f"no samples of {word} {value}")
    if "target" in selection:
        table = table[table["target"] == selection["target"]]
        if table.empty:
            raise _Missing(f"no samples of target {selection['target']}")
    for short in dict.fromkeys([*group.factors, *_letters(selection)]):
        table = _with_factor(table, short, short in _letters(selection))
    for option, choice in selection.get("factors", {}).items():
        column = f"factor.{option}"
        table = table[table[column] == choice] if column in table else table.iloc[:0]
        if table.empty:
            raise _Missing(f"no samples with {option}={choice}")
    for option, choice in selection.get("options", {}).items():
        table = table[table["options_key"].str.split(",").map(lambda words, w=f"{option}={choice}": w in words)]
        if table.empty:
            raise _Missing(f"no samples with {option}={choice}")
    return table


def _with_factor(table: pd.DataFrame, short: str, on: bool) -> pd.DataFrame:
    option, off_names, on_names = factors.choices(short)
    column = f"factor.{option}"
    if column not in table or table[column].isna().all():
        if on:
            raise _Missing(f"factor {short} ({option}) is absent: no samples have it")
        return table
    names = on_names if on else off_names
    found = table[table[column].isin(names)]
    if found.empty:
        raise _Missing(f"no samples with {option}={names[0]} ({short} {'on' if on else 'off'}) and the rest as asked")
    return found


def _sized(table: pd.DataFrame, selection: dict) -> pd.DataFrame:
    """By size, once target and scale are one: the largest is that of this target."""
    if "size_most" in selection:
        table = table[table["size"] <= selection["size_most"]]
    size = selection.get("size")
    if size == "largest":
        table = table[table["size"] == table["size"].max()]
    elif size is not None:
        table = table[table["size"] == size]
    if table.empty:
        raise _Missing(f"no samples of size {size or selection.get('size_most')}")
    return table


def _cost(table: pd.DataFrame, claim: Claim) -> np.ndarray:
    column = table["cost"] if claim.metric == "seconds" else table[f"device.{claim.metric}"] / table["count"]
    column = column.dropna()
    if column.empty:
        raise _Missing("no samples with a clock" if claim.metric == "seconds" else f"no samples that count {claim.metric}")
    return column.to_numpy(float)


PLACE = ["target", "clock", "scale"]


def _places(table: pd.DataFrame) -> list[tuple]:
    """Targets with samples: modelled ones first, as the machines of the papers are nearest to those; large scales before small."""
    found = table[PLACE].drop_duplicates().itertuples(index=False, name=None)
    return sorted(found, key=lambda p: (p[1] != "modelled", p[1] == "none", -p[2], p[0]))


def _at(table: pd.DataFrame, place: tuple, but_target: bool = False) -> pd.DataFrame:
    for column, value in zip(PLACE, place, strict=True):
        if column != "target" or not but_target:
            table = table[same(table[column], value)]
    return table


# ------------------------------------------------------------------------------------------------ judging


def judge(samples: Samples, tests: list[factorial.Factorial], group: Group, claim: Claim) -> list[Finding]:
    """Findings of a claim, one a target, the first the one that counts; or one that says why there is none."""
    try:
        measure = {"ratio": _ratio, "slope": _slope}.get(claim.kind)
        found = measure(samples, group, claim) if measure else _model(samples, tests, group, claim)
    except _Missing as missing:
        return [Finding(claim, NOT_RUN, _sentence(str(missing)))]
    return found


def _ratio(samples: Samples, group: Group, claim: Claim) -> list[Finding]:
    sources, goals = (_chosen(samples, group, claim, s) for s in (claim.source, claim.goal))
    # Two targets against each other: neither is "the" target.
    across = claim.source.get("target") != claim.goal.get("target")
    found, missing = [], _Missing("no target has samples of both sides")
    for place in _places(goals):
        try:
            top, bottom = _sized(_at(sources, place, across), claim.source), _sized(_at(goals, place), claim.goal)
            exact = place[1] == "modelled" or claim.metric != "seconds"
            found.append(_finding(claim, place, ratios.ratio(_cost(top, claim), _cost(bottom, claim), exact)))
        except _Missing as error:
            missing = error
    return _some(found, missing)


def _slope(samples: Samples, group: Group, claim: Claim) -> list[Finding]:
    chosen = _chosen(samples, group, claim, claim.select)
    found, missing = [], _Missing("too few sizes")
    for place in _places(chosen):
        try:
            rows = _sized(_at(chosen, place), claim.select)
            rows = rows[rows["size"].notna() & (rows["cost"] > 0)]
            if rows["size"].nunique() < curves.SIZES_LEAST:
                raise _Missing(f"{rows['size'].nunique()} sizes; a slope takes {curves.SIZES_LEAST}")
            found.append(_finding(claim, place, curves.slope(rows["size"].to_numpy(float), rows["cost"].to_numpy(float))))
        except _Missing as error:
            missing = error
    return _some(found, missing)


def _some(found: list[Finding], missing: _Missing) -> list[Finding]:
    if not found:
        raise missing
    return found


def of_group(tests: list[factorial.Factorial], group: Group) -> list[factorial.Factorial]:
    """The tests of a group: its workload, and only factors of the paper."""
    return [t for t in tests if t.about["workload"] == group.workload and {f.short for f in t.factors} <= set(group.factors)]


def _model(samples: Samples, tests: list[factorial.Factorial], group: Group, claim: Claim) -> list[Finding]:
    wanted = set(claim.term.split(":"))
    mine = [t for t in of_group(tests, group) if t.about["phase"] == claim.phase and wanted <= {f.short for f in t.factors}]
    if not mine:
        _chosen(samples, group, claim, {"combination": "+".join(sorted(wanted))})
        raise _Missing(f"no test has all combinations of {', '.join(sorted(wanted))}")
    found = []
    for test in sorted(mine, key=lambda t: (t.about["clock"] != "modelled", -t.about["scale"], t.about["target"])):
        place = tuple(test.about[column] for column in PLACE)
        if claim.kind == "largest":
            first = test.factors[factorial.by_effect(test)[0]].short
            verdict = REPRODUCED if first == claim.term else NOT_REPRODUCED
            why = f"{first} changes the time most, mean over all settings of the others"
            found.append(Finding(claim, verdict, _sentence(why), *place, value=first))
            continue
        table = factorial.coefficients(test)
        mask = sum(1 << i for i, f in enumerate(test.factors) if f.short in wanted)
        row = table.loc[table["mask"] == mask].iloc[0]
        freedom = table.attrs["freedom"]
        if row["sigma"] > 0:
            reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * row["sigma"]
            estimate = Estimate(row["estimate"], row["estimate"] - reach, row["estimate"] + reach)
        else:
            estimate = (Estimate.exact if place[1] == "modelled" else Estimate.alone)(float(row["estimate"]))
        found.append(_finding(claim, place, estimate))
    return found


def _finding(claim: Claim, place: tuple, estimate: Estimate) -> Finding:
    verdict, why = decide(claim, estimate)
    return Finding(claim, verdict, _sentence(why), *place, estimate=estimate)


def decide(claim: Claim, estimate: Estimate) -> tuple[str, str]:
    """The rule of this module's head: verdict, and why, as a clause."""
    low, high = claim.expect
    nothing = NO_EFFECT[claim.kind]
    inside = low <= estimate.value <= high
    if not estimate.has_interval:
        return UNDECIDED, f"one run; its value is {'in' if inside else 'off'} the expected range, and nothing says how sure it is"
    if low <= nothing <= high:
        if low <= estimate.low and estimate.high <= high:
            return REPRODUCED, "the whole interval is in the range that counts as no effect"
        if estimate.high < low or high < estimate.low:
            return NOT_REPRODUCED, "there is an effect where the paper saw none"
        return UNDECIDED, "the interval reaches out of the range that counts as no effect"
    papers_side = estimate.low > nothing if low > nothing else estimate.high < nothing
    other_side = estimate.high < nothing if low > nothing else estimate.low > nothing
    if papers_side and inside:
        return REPRODUCED, "same direction, and in the expected range"
    if papers_side:
        size = "smaller" if abs(estimate.value - nothing) < min(abs(low - nothing), abs(high - nothing)) else "larger"
        return DIRECTION, f"same direction, but the effect is {size} than expected"
    if other_side:
        return NOT_REPRODUCED, "the effect has the opposite direction"
    if estimate.high < low or high < estimate.low:
        return NOT_REPRODUCED, "no effect seen, and one of the expected size would have been"
    return UNDECIDED, "the interval holds both no effect and the expected one: more runs are needed"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
