"""What the papers claim, held against the samples.

`claims.toml` has the claims; its head describes the fields. Each is judged once for every target that has what it asks for. A claim
that no target can answer is `NOT_RUN`, with the reason. Nothing is filled in: not a missing combination, not a size nearby.

How a claim is judged. `expect` is a range of results that count as the same as the paper's. *No effect* is 1 for a ratio and 0 for
a coefficient or a slope.

- The claim is of an effect (the range does not hold *no effect*). The whole interval beyond *no effect* on the paper's side:
  `REPRODUCED` if the value is in the range, otherwise `DIRECTION`. The whole interval on the other side, or off the range although
  it holds *no effect*: `NOT_REPRODUCED`. Otherwise the runs do not tell: `UNDECIDED`.
- The claim is that there is no effect. The whole interval in the range: `REPRODUCED`; none of it: `NOT_REPRODUCED`; else `UNDECIDED`.
- One run with a clock has no interval: `UNDECIDED`. A modelled clock, or a count, needs no second run of the same seed; of one seed the
  verdict stands, and says that it is of one seed.
- The claim is that a factor has the largest effect. The 95 % interval of the gap between the two largest holds 0: `UNDECIDED`.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path

import pandas as pd
from scipy import stats

from . import curves, factorial, factors, ratios
from .ratios import CONFIDENCE, Estimate
from .samples import COUNTS, Samples, choices_of, same

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
SELECTION = {"combination", "workload", "phase", "target", "size", "size_most", "factors"}


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
    machine: str = ""


@dataclass
class Group:
    id: str
    paper: str
    place: str
    title: str
    workload: str
    machine: str
    factors: list[str]
    show: list[str]
    redraw: str
    fixed: dict[str, str]
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
    conditions: str = ""
    options: str = ""
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
    wanted = {"id", "paper", "place", "title", "workload", "machine", "factors", "show", "claims"}
    optional = {"redraw": "", "fixed": {}}
    if not wanted <= raw.keys() or not raw.keys() <= wanted | optional.keys():
        raise BadClaims(f"{name}: fields {sorted(raw.keys() - wanted - optional.keys() | wanted - raw.keys())} missing or unknown")
    if not set(raw["show"]) <= set(SHOWS):
        raise BadClaims(f"{name}: show {raw['show']}; known are {', '.join(SHOWS)}")
    for short in raw["factors"]:
        _known(short, name)
    claims = [_claim({"machine": raw["machine"], **claim}, name) for claim in raw.pop("claims")]
    return Group(**{**optional, **raw}, claims=claims)


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
    optional = {"paper", "paper_percent", "paper_text", "shown", "machine"}
    # The linear model is of time.
    optional |= {"metric"} if kind in ("ratio", "slope") else set()
    if kind not in KINDS:
        raise BadClaims(f"{name}: kind {kind!r}; known are {', '.join(KINDS)}")
    if not needs <= raw.keys() or not raw.keys() <= needs | optional:
        raise BadClaims(f"{name}: fields {sorted(raw.keys() - needs - optional | needs - raw.keys())} missing or unknown")
    if "paper_percent" in raw:
        raw["paper"] = 100 / raw.pop("paper_percent")
    if "paper" not in raw and "paper_text" not in raw:
        raise BadClaims(f"{name}: says nothing of the paper's value")
    if raw.get("metric", "seconds") not in ("seconds", *COUNTS) or raw.get("shown", "times") not in SHOWN:
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
    for option, choice in {**group.fixed, **selection.get("factors", {})}.items():
        table = table[choices_of(table, option) == choice]
        if table.empty:
            raise _Missing(f"no samples with {option}={choice}{samples.why_absent(option)}")
    for short in dict.fromkeys([*group.factors, *_letters(selection)]):
        table = _with_factor(samples, table, short, short in _letters(selection))
    return table


def _with_factor(samples: Samples, table: pd.DataFrame, short: str, on: bool) -> pd.DataFrame:
    option, off_names, on_names = factors.choices(short)
    chosen = choices_of(table, option)
    if chosen.isna().all():
        if on:
            raise _Missing(f"factor {short} ({option}) is absent: no samples have it{samples.why_absent(option)}")
        return table
    names = on_names if on else off_names
    found = table[chosen.isin(names)]
    if found.empty:
        what = f"{option}={names[0]} ({short} {'on' if on else 'off'}) and the rest as asked"
        raise _Missing(f"no samples with {what}{samples.why_absent(option)}")
    return found


def _sized(table: pd.DataFrame, selection: dict, scale: float) -> pd.DataFrame:
    """By size, once target and scale are one: the largest is that of this target, a size of the paper that at this scale."""
    if "size_most" in selection:
        table = table[table["size"] <= selection["size_most"] * scale + 0.5]
    size = selection.get("size")
    if size == "largest":
        table = table[table["size"] == table["size"].max()]
    elif size is not None:
        table = table[(table["size"] - size * scale).abs() <= 0.5]
    if table.empty:
        raise _Missing(f"no samples of size {size or selection.get('size_most')}")
    return table


def _costed(table: pd.DataFrame, claim: Claim) -> pd.DataFrame:
    """Samples that have what the claim is about, as `cost`."""
    column = table["cost"] if claim.metric == "seconds" else table[f"device.{claim.metric}"] / table["count"]
    if _is_of_the_processor(claim):
        # The drive of a machine takes time besides, for what the paper's test did not measure.
        column = column.mask(table["target"].isin(MACHINES), table["device.processor_seconds"] / table["count"])
    table = table.assign(cost=column)[column.notna()]
    if table.empty:
        raise _Missing("no samples with a clock" if claim.metric == "seconds" else f"no samples that count {claim.metric}")
    return table


def _is_exact(claim: Claim, place: tuple) -> bool:
    """Whether the same seed gives the same cost again."""
    return place[1] == "modelled" or claim.metric != "seconds"


def _seeded(estimate: Estimate, claim: Claim, place: tuple, *tables: pd.DataFrame) -> Estimate:
    """The estimate, and whether it is what one seed gives every time."""
    is_of_one_seed = _is_exact(claim, place) and min(table["seed"].nunique() for table in tables) < 2
    return replace(estimate, is_of_one_seed=is_of_one_seed)


PLACE = ["target", "clock", "scale", "conditions_key", "options_key"]
# Modelled targets whose clock counts the processor's time.
MACHINES = ("machine2001",)


def _nearest(claim: Claim, target: str, clock: str, scale: float, conditions: str, options: str) -> tuple:
    """Sorts targets: that nearest to the paper's machine, then modelled ones; large scales before small."""
    return (target != claim.machine, clock != "modelled", clock == "none", -scale, target, conditions, options)


def _is_of_the_processor(claim: Claim) -> bool:
    return claim.metric == "seconds" and claim.machine == "process"


def _places(claim: Claim, table: pd.DataFrame) -> list[tuple]:
    """Where a claim can be judged. What is claimed of the processor's time is not seen on a modelled device, where the processor costs
    nothing, but in a modelled machine."""
    if _is_of_the_processor(claim):
        table = table[(table["clock"] != "modelled") | table["target"].isin(MACHINES)]
        if table.empty:
            raise _Missing("only a modelled device has samples of this, and its clock does not count the processor's time")
    found = table[PLACE].drop_duplicates().itertuples(index=False, name=None)
    return sorted(found, key=lambda place: _nearest(claim, *place))


def _at(table: pd.DataFrame, place: tuple, but_target: bool = False) -> pd.DataFrame:
    for column, value in zip(PLACE, place, strict=True):
        if not but_target or column not in ("target", "options_key"):
            table = table[same(table[column], value)]
    return table


def _settled(samples: Samples, sides: list[pd.DataFrame], asked: set[str]) -> tuple[list[pd.DataFrame], str]:
    """Sides that differ in nothing but what was asked for: a factor that varies beside it is held at its off, or at the first choice
    that all sides have. Samples of different settings are never pooled. Gives what was held, as text."""
    held = []
    for option in sorted(set(samples.factors) - asked):
        found = [choices_of(side, option) for side in sides]
        levels = [set(choices.dropna()) for choices in found]
        if len(set().union(*levels)) < 2:
            continue
        # A side without any is of a target that has no such option.
        common = set.intersection(*[names for names in levels if names])
        if not common:
            raise _Missing(f"no samples that agree in {option}")
        choice = factors.base(option, common)
        sides = [side[choices == choice] if names else side for side, choices, names in zip(sides, found, levels, strict=True)]
        if any(side.empty for side in sides):
            raise _Missing(f"no samples with {option}={choice} and the rest as asked")
        held.append(f"{option}={choice}")
    return sides, ", ".join(held)


def _asked(group: Group, *selections: dict) -> set[str]:
    """Options that a claim sets itself."""
    shorts = [*group.factors, *(short for selection in selections for short in _letters(selection))]
    named = {option for selection in (group.fixed, *(s.get("factors", {}) for s in selections)) for option in selection}
    return {factors.choices(short)[0] for short in shorts} | named


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
    for place in _places(claim, goals):
        try:
            top, bottom = _sized(_at(sources, place, across), claim.source, place[2]), _sized(_at(goals, place), claim.goal, place[2])
            (top, bottom), held = _settled(samples, [top, bottom], _asked(group, claim.source, claim.goal))
            top, bottom = _costed(top, claim), _costed(bottom, claim)
            estimate = ratios.ratio(top["cost"].to_numpy(float), bottom["cost"].to_numpy(float), _is_exact(claim, place))
            found.append(_finding(claim, place, _seeded(estimate, claim, place, top, bottom), held))
        except _Missing as error:
            missing = error
    return _some(found, missing)


def _slope(samples: Samples, group: Group, claim: Claim) -> list[Finding]:
    chosen = _chosen(samples, group, claim, claim.select)
    found, missing = [], _Missing("too few sizes")
    for place in _places(claim, chosen):
        try:
            rows = _sized(_at(chosen, place), claim.select, place[2])
            (rows,), held = _settled(samples, [rows], _asked(group, claim.select))
            rows = _costed(rows, claim)
            rows = rows[rows["size"].notna() & (rows["cost"] > 0)]
            if rows["size"].nunique() < curves.SIZES_LEAST:
                raise _Missing(f"{rows['size'].nunique()} sizes; a slope takes {curves.SIZES_LEAST}")
            estimate = curves.slope(rows["size"].to_numpy(float), rows["cost"].to_numpy(float))
            found.append(_finding(claim, place, _seeded(estimate, claim, place, rows), held))
        except _Missing as error:
            missing = error
    return _some(found, missing)


def _some(found: list[Finding], missing: _Missing) -> list[Finding]:
    if not found:
        raise missing
    return found


def of_group(tests: list[factorial.Factorial], group: Group) -> list[factorial.Factorial]:
    """The tests of a group: its workload, only factors of the paper, and what the group holds fixed."""

    def belongs(test: factorial.Factorial) -> bool:
        fixed = all(test.settings.get(option) == choice for option, choice in group.fixed.items())
        return test.about["workload"] == group.workload and fixed and {f.short for f in test.factors} <= set(group.factors)

    return [test for test in tests if belongs(test)]


def _model(samples: Samples, tests: list[factorial.Factorial], group: Group, claim: Claim) -> list[Finding]:
    wanted = set(claim.term.split(":"))
    mine = [t for t in of_group(tests, group) if t.about["phase"] == claim.phase and wanted <= {f.short for f in t.factors}]
    if not mine:
        _chosen(samples, group, claim, {"combination": "+".join(sorted(wanted))})
        raise _Missing(f"no test has all combinations of {', '.join(sorted(wanted))}")
    found = []
    for test in sorted(mine, key=lambda t: _nearest(claim, *(t.about[column] for column in PLACE))):
        place = tuple(test.about[column] for column in PLACE)
        if claim.kind == "largest":
            found.append(_largest(claim, place, test))
            continue
        table = factorial.coefficients(test)
        mask = sum(1 << i for i, f in enumerate(test.factors) if f.short in wanted)
        row = table.loc[table["mask"] == mask].iloc[0]
        freedom = table.attrs["freedom"]
        if row["sigma"] > 0:
            reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * row["sigma"]
            estimate = Estimate(row["estimate"], row["estimate"] - reach, row["estimate"] + reach)
        else:
            # Sums of times that agree leave what floating point leaves, and that is no effect.
            points = round(float(row["estimate"]), 9)
            estimate = (Estimate.exact if place[1] == "modelled" else Estimate.alone)(points)
        found.append(_finding(claim, place, replace(estimate, is_of_one_seed=test.is_of_one_seed)))
    return found


def _largest(claim: Claim, place: tuple, test: factorial.Factorial) -> Finding:
    first, lead = test.factors[factorial.by_effect(test)[0]].short, factorial.lead(test)
    if math.isnan(lead.reach):
        verdict, why = UNDECIDED, f"one run; {first} changes the time most in it, and nothing says how sure that is"
    elif lead.gap <= lead.reach:
        verdict, why = UNDECIDED, f"{first} changes the time most, but no more than the next one as far as the runs tell"
    else:
        verdict = REPRODUCED if first == claim.term else NOT_REPRODUCED
        why = f"{first} changes the time most, mean over all settings of the others"
    why += ", of one seed" if test.is_of_one_seed else ""
    return Finding(claim, verdict, _sentence(why), *place, value=first)


def _finding(claim: Claim, place: tuple, estimate: Estimate, held: str = "") -> Finding:
    verdict, why = decide(claim, estimate)
    if held:
        why += f" (with {held})"
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


# Of claims that are decided, the share that may come out otherwise than expected: who predicts much and is never wrong predicts little.
OUTSIDE_MOST = 0.1


@dataclass(frozen=True)
class Predictions:
    """How the expectations fared: of `decided` claims `outside` came out off their range, `direction` of them on the paper's side."""

    decided: int
    outside: int
    direction: int

    @property
    def is_met(self) -> bool:
        return self.outside <= OUTSIDE_MOST * self.decided


def predictions(verdicts: list[str]) -> Predictions:
    """Of one verdict a claim. What the runs do not tell, and what was not run, decides nothing."""
    tally = Counter(verdicts)
    outside = tally[DIRECTION] + tally[NOT_REPRODUCED]
    return Predictions(tally[REPRODUCED] + outside, outside, tally[DIRECTION])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
