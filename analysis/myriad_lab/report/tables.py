"""Tables of the page, and how their numbers are written."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ..claims import NOT_RUN, Claim, Finding, Group
from ..factorial import Factorial, coefficients, rank_table
from ..figures.style import number, seconds, times
from ..ratios import Estimate
from . import html

SYMBOLS = {
    "reproduced": "✓",
    "direction only": "↗",
    "not reproduced": "✗",
    "undecided": "?",
    "not run": "–",
    "faster": "▲",
    "slower": "▼",
    "no difference seen": "=",
    "may be chance": "~",
    "one run": "?",
}


# With a space at which no line ends.
UNITS = {"times": "", "percent": "\u00a0%", "points": "\u00a0points", "slope": ""}


def between(low: float, high: float, shown: str) -> str:
    """Two ends of a range, the unit once."""
    if shown == "percent":
        low, high = high, low
    ends = [in_unit(x, shown).removesuffix(UNITS[shown]).removeprefix("slope ") for x in (low, high)]
    return f"{ends[0]} to {ends[1]}{UNITS[shown] if shown != 'times' else ''}"


def verdict(name: str) -> str:
    """A verdict with its sign, so that colour is not needed."""
    return html.element("span", f"{SYMBOLS[name]} {html.text(name)}", class_=f"verdict {name.replace(' ', '-')}")


def in_unit(value: float, shown: str) -> str:
    """A value of a claim. Percent is the time that is left of that before."""
    if math.isinf(value):
        return "any" if value > 0 else "any less"
    if shown == "times":
        return times(value)
    if shown == "percent":
        return f"{100 / value:.2f}{UNITS[shown]}"
    return ("slope " if shown == "slope" else "") + signed(value, 2) + UNITS[shown]


def signed(value: float, digits: int) -> str:
    written = f"{value:.{digits}f}"
    return written.replace("-", "−") if float(written) else written.lstrip("-")


def interval(estimate: Estimate | None, shown: str = "times") -> str:
    if estimate is None:
        return ""
    middle = in_unit(estimate.value, shown)
    if not estimate.has_interval:
        return f"{middle} (one run)"
    if estimate.is_exact:
        return f"{middle} (exact)"
    if estimate.low == estimate.high:
        return f"{middle} (one seed)"
    return f"{middle} ({between(estimate.low, estimate.high, shown)}{', one seed' if estimate.is_of_one_seed else ''})"


def of_paper(claim: Claim) -> str:
    if claim.paper is None:
        return html.text(claim.paper_text)
    value = html.text(in_unit(claim.paper, claim.shown))
    return value + (html.element("span", html.text(claim.paper_text), class_="small") if claim.paper_text else "")


def expected(claim: Claim) -> str:
    low, high = claim.expect
    if claim.kind == "largest":
        return claim.term
    if math.isinf(high):
        return f"at {'most' if claim.shown == 'percent' else 'least'} {in_unit(low, claim.shown)}"
    return between(low, high, claim.shown)


def of_ours(findings: list[Finding]) -> str:
    first, *rest = findings
    if first.verdict == NOT_RUN:
        return ""
    out = html.text(first.value or interval(first.estimate, first.claim.shown))
    out += html.element("span", html.text(place(first)), class_="small")
    for other in rest:
        said = other.value or interval(other.estimate, other.claim.shown)
        out += html.element("span", html.text(f"{place(other)}: {said}, {other.verdict}"), class_="small")
    return out


def place(finding: Finding) -> str:
    clock = "" if finding.clock == "wall" else f", {finding.clock} clock" if finding.clock != "none" else ", counted"
    scale = "" if finding.scale == 1 else f", scale {number(finding.scale)}"
    settings = "".join(f", {text}" for text in (finding.conditions, finding.options) if text)
    return f"on {finding.target}{clock}{scale}{settings}"


def claims(caption: str, rows: list[tuple[Group, list[Finding]]], notes: dict[str, str], where: bool) -> str:
    """`where`: one table of many groups, shorter, with a link to the group; otherwise the claims of one group, in full."""
    columns = [("Verdict", ""), ("Claim", ""), ("Paper", ""), ("Ours", "ours")]
    if where:
        columns.insert(1, ("Where", ""))
    else:
        columns += [("Expected", ""), ("Why", "")]
    body = []
    for group, findings in rows:
        claim, first = findings[0].claim, findings[0]
        why = html.text(first.why) + (" " + html.text(notes[claim.id]) if claim.id in notes else "")
        link = html.element("a", html.text(f"{group.paper} {group.place}"), href=f"#{group.id}")
        about = html.text(claim.text.replace(" %", "\u00a0%")) + html.element("span", html.text(f"{group.workload}: {claim.phase}"), class_="small")
        if where:
            body.append([verdict(first.verdict), link, about, of_paper(claim), of_ours(findings[:1])])
        else:
            body.append([verdict(first.verdict), about, of_paper(claim), of_ours(findings), html.text(expected(claim)), why])
    return html.table(caption, columns, body, stacked=True)


def ranks(caption: str, test: Factorial) -> str:
    frame = rank_table(test)
    columns = [(f.short, "mark") for f in test.factors]
    columns += [("Mean", "number"), ("Time", "number"), ("Error", "number"), ("n", "number")]
    rows = []
    for row in frame.to_dict("records"):
        marks = ['<span aria-label="on">●</span>' if row[f.short] else "" for f in test.factors]
        error = "" if pd.isna(row["error"]) else f"{row['error']:.2f}"
        mean = f"{row['mean']:,.2f} s" if test.unit == "seconds" else seconds(row["mean"])
        rows.append([*marks, mean, f"{row['percent']:.2f} %", error, str(row["n"])])
    return html.table(caption, columns, rows)


def model(caption: str, test: Factorial) -> str:
    """Coefficients that the 1/1000 rule shows, on plain cost; beside them what they are on the logarithm."""
    plain = coefficients(test)
    has_logs = all(cell.values is not None and (cell.values > 0).all() for cell in test.cells.values())
    logs = coefficients(test, log=True).set_index("mask") if has_logs else None
    columns = [("Factors", ""), ("Δ % time", "number"), ("σ", "number"), ("p", "number")]
    columns += [("factor on log time", "number"), ("p", "number")] if logs is not None else []
    rows = []
    for row in plain.to_dict("records"):
        other = logs.loc[row["mask"]] if logs is not None else None
        if not row["shown"] and (other is None or not other["shown"]):
            continue
        estimate = signed(row["estimate"], 2) if row["shown"] else f"({signed(row['estimate'], 2)})"
        cells = [html.text(row["term"]), estimate, f"{row['sigma']:.2f}", _p(row["p"], test)]
        if other is not None:
            ratio = "" if row["mask"] == 0 else times(float(np.exp(other["estimate"])))
            cells += [ratio if other["shown"] else f"({ratio})", "" if row["mask"] == 0 else _p(other["p"], test)]
        rows.append(cells)
    return html.table(caption, columns, rows)


def _p(p: float, test: Factorial) -> str:
    if np.isnan(p):
        return "one seed" if test.is_of_one_seed else "exact"
    return "&lt; 0.0001" if p < 1e-4 else f"{p:.4f}"


def peers(caption: str, rows: pd.DataFrame) -> str:
    columns = [("Result", ""), ("Workload", ""), ("Theirs", "number"), ("Ours", "number"), ("Ratio", "number"), ("95 % interval", "number")]
    columns += [("n", "number"), ("Would find", "number"), *_floor_column(rows)]
    body = []
    for row in rows.to_dict("records"):
        ends = "" if np.isnan(row["low"]) else f"{times(row['low'])} to {times(row['high'])}"
        least = "" if np.isnan(row["detectable"]) else f"{100 * (row['detectable'] - 1):.1f} %"
        body.append(
            [verdict(row["verdict"]), html.text(row["label"]), seconds(row["peer_us"] / 1e6), seconds(row["ours_us"] / 1e6)]
            + [times(row["ratio"]), ends, f"{row['n_peer']}, {row['n_ours']}", least, *_floor_cell(rows, row)]
        )
    return html.table(caption, columns, body, stacked=True)


def _floor_column(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Where nothing ran against itself there is no column."""
    return [("Noise floor", "number")] if rows["floor"].notna().any() else []


def _floor_cell(rows: pd.DataFrame, row: dict) -> list[str]:
    return ["" if np.isnan(row["floor"]) else percent(row["floor"]) for _ in _floor_column(rows)]


def percent(ratio: float) -> str:
    """A ratio's distance from 1."""
    return f"{signed(100 * (ratio - 1), 1)} %"


def twins(caption: str, rows: pd.DataFrame) -> str:
    columns = [("Target", ""), ("Workload", ""), ("Rounds", "number"), ("A′ over A", "number"), ("95 % interval", "number"), ("Noise floor", "number")]
    slowed = "slow" in rows
    columns += [("Planted", "number"), ("Slowed over A", "number"), ("95 % interval", "number"), ("Result", "")] if slowed else []
    body = []
    for row in rows.to_dict("records"):
        label = f"{row['workload']}: {row['phase']}" + (f", {row['size']:,.0f}" if not pd.isna(row["size"]) else "")
        settings = ", ".join(row[name] for name in ("factors_key", "conditions_key", "options_key") if row[name])
        label += f" ({settings})" if settings else ""
        cells = [html.text(row["target"]), html.text(label), str(row["rounds"]), f"{row['ratio']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}"]
        cells.append(percent(row["floor"]))
        if slowed and pd.isna(row["slow"]):
            cells += [""] * 4
        elif slowed:
            added = f"{percent(row['planted'])} by {html.text(row['slow'])}" if row["planted"] > 1 else "nothing"
            cells += [added, f"{row['slowed_ratio']:.3f}", f"{row['slowed_low']:.3f} to {row['slowed_high']:.3f}"]
            cells.append("differs" if row["differs"] else "no difference seen")
        body.append(cells)
    return html.table(caption, columns, body, stacked=True)


def originals(caption: str, rows: pd.DataFrame) -> str:
    columns = [("Workload", ""), ("Theirs", "number"), ("Ours", "number"), ("Ratio", "number"), ("95 % interval", "number"), ("n", "number")]
    columns += _floor_column(rows)
    body = []
    for row in rows.to_dict("records"):
        ends = "" if np.isnan(row["low"]) else f"{times(row['low'])} to {times(row['high'])}"
        label = f"{row['workload']}: {row['phase']}" + (f", {row['size']:,.0f}" if not pd.isna(row["size"]) else "")
        settings = ", ".join(filter(None, (row["factors"], row["conditions"])))
        label += f" ({settings})" if settings else ""
        body.append(
            [html.text(label), seconds(row["theirs_us"] / 1e6), seconds(row["ours_us"] / 1e6), times(row["ratio"]), ends]
            + [f"{row['n_theirs']}, {row['n_ours']}", *_floor_cell(rows, row)]
        )
    return html.table(caption, columns, body, stacked=True)


def table2(caption: str, frame: pd.DataFrame) -> str:
    columns = [("Factors", ""), ("Printed", "number"), ("Computed", "number"), ("σ printed", "number")]
    columns += [("σ, deviations ÷ n", "number"), ("σ, deviations ÷ (n − 1)", "number")]
    order = frame.assign(rank=frame["term"].map(lambda t: (t != "base", t.count(":"), t))).sort_values("rank")
    rows = [
        [html.text(r["term"]), signed(r["estimate"], 2), signed(r["computed"], 2), f"{r['sigma']:.2f}"]
        + [f"{r['computed_sigma']:.2f}", f"{r['usual_sigma']:.2f}"]
        for r in order.to_dict("records")
    ]
    return html.table(caption, columns, rows)
