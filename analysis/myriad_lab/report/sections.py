"""The parts of the page, in the order in which they are read."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from .. import claims, factorial, factors, papers, ratios
from ..curves import SECONDS, Chart, Curve
from ..factorial import Factorial
from ..figures import curves as curve_figure
from ..figures import forest, lattice, summary, triangles
from ..figures.style import number, render, times
from . import html, methods, tables
from .content import Report

PAPERS = {
    "FFSOPT": "Dowse and Malone 2002: Recent Filesystem Optimisations in FreeBSD",
    "ORLOV": "Orlov 2001: directory preference in FFS",
    "XFS96": "Sweeney et al. 1996: Scalability in the XFS File System",
    "DLFS": "Lensing et al. 2013: Direct Lookup and Hash-Based Metadata Placement",
    "SIMPLEFS": "simplefs 2025: access to directory extent blocks",
}
# More rows than this are more than one picture shows.
ROWS_MOST = 40


def page(report: Report, tables: list[str]) -> tuple[str, str]:
    """Title and body; `tables` are the names of the CSV files."""
    names = list(dict.fromkeys(group.paper for group in report.groups))
    parts = [_head(report), _short(report)]
    parts += [_paper(report, name) for name in names]
    parts += [_summary(report), _peers(report), _originals(report), _others(report), methods.section(report, tables)]
    # Sections without data are empty.
    body = html.element("header", parts[0]) + html.element("main", *parts[1:])
    return "Myriad: report of the lab", body


# ------------------------------------------------------------------------------------------------ the head


def _head(report: Report) -> str:
    table = report.samples.table
    out = [html.element("h1", "Myriad: report of the lab")]
    if report.samples.is_synthetic:
        out.append(html.paragraph("Made-up numbers: these samples come from a generator of the tests, not from a run.", class_="warning"))
    if table.empty:
        out.append(html.paragraph("No samples. Every claim below is a prediction that waits for its run."))
        return "".join(out)
    out.append(html.element("div", html.paragraph(*_about(table)), class_="where"))
    if report.samples.problems:
        out.append(html.bullets(html.text(p) for p in report.samples.problems))
    if report.samples.absent:
        what = [f"{html.text(asked)}: {html.text(why)}" for asked, why in sorted(report.samples.absent.items())]
        out.append(html.details(f"{len(what)} factors or targets that the runs did not have", html.bullets(what)))
    links = [("short", "In short"), *[(name, name) for name in PAPERS], ("peers", "Alternatives"), ("method", "Method")]
    there = {group.paper for group in report.groups} | {"short", "method"} | ({"peers"} if len(report.peers) else set())
    items = [html.element("a", html.text(label), href=f"#{anchor}") for anchor, label in links if anchor in there]
    return "".join(out) + html.element("nav", html.bullets(items), aria_label="Parts of this page")


def _about(table: pd.DataFrame) -> list[str]:
    """Sentences on what was measured, where and when; from the samples only, so that the page is the same each time."""
    days = sorted({s[:10] for s in table["started"] if s})
    when = f" measured {days[0]}{' to ' + days[-1] if len(days) > 1 else ''}" if days else ""
    commits = sorted({c[:12] for c in table["commit"] if c})
    scales = sorted(table["scale"].unique())
    out = [f"{len(table):,} samples of {table['workload'].nunique()} workloads on {table['target'].nunique()} targets{when}."]
    out.append(f"Targets: {html.text(', '.join(sorted(table['target'].unique())))}.")
    out.append(f"Scale: {', '.join(number(s) for s in scales)} of the paper's.")
    out += [f"Commit {html.text(', '.join(commits))}."] if commits else []
    machines = table[["machine.cpu", "machine.cores", "machine.memory_bytes", "machine.kernel"]].drop_duplicates().dropna()
    for cpu, cores, memory, kernel in machines.itertuples(index=False):
        out.append(html.text(f"{cpu}, {cores:.0f} cores, {memory / 2**30:.1f} GiB, kernel {kernel}."))
    return out


def _short(report: Report) -> str:
    rows = [(group, f) for group in report.groups for f in report.findings_of(group)]
    tally = Counter(findings[0].verdict for _, findings in rows)
    items = [html.element("li", html.element("b", str(tally[v])), tables.verdict(v)) for v in claims.VERDICTS]
    out = [html.element("h2", "In short", id="short"), html.element("ul", *items, class_="tally")]
    out.append(
        html.paragraph(
            f"{len(rows)} claims of the papers were written down with the results that would count as the same, before our runs.",
            "A claim that no sample answers is not run.",
        )
    )
    judged = [(g, f) for g, f in rows if f[0].verdict != claims.NOT_RUN]
    if judged:
        out.append(html.paragraph(_predictions_sentence(claims.predictions([f[0].verdict for _, f in judged]))))
        caption = "Claims that our samples answer, each on the target that is nearest to the paper's machine"
        out.append(tables.claims(caption, judged, report.notes, True))
    waiting = Counter((g.paper, g.title, f[0].why) for g, f in rows if f[0].verdict == claims.NOT_RUN)
    if waiting:
        what = [f"{html.text(paper)}, {html.text(title)}: {n}. {html.text(why)}" for (paper, title, why), n in waiting.items()]
        out.append(html.details(f"{tally[claims.NOT_RUN]} claims that were not run, and what is missing", html.bullets(what)))
    if len(report.peers):
        out.append(html.paragraph(_peers_sentence(report)))
    return "".join(out)


def _predictions_sentence(found: claims.Predictions) -> str:
    if not found.decided:
        return "None of them is decided: more runs tell."
    most = 100 * claims.OUTSIDE_MOST
    return (
        f"{found.outside} of {found.decided} decided claims ({100 * found.outside / found.decided:.0f} %) lie outside of what was "
        f"expected, {found.direction} of them on the paper’s side. The aim, {most:.0f} % at most, is {'met' if found.is_met else 'missed'}."
    )


def _peers_sentence(report: Report) -> str:
    said, ours = Counter(report.peers["verdict"]), html.text(report.ours)
    several = len(report.peers) - said[ratios.ALONE]
    alone = f"{said[ratios.ALONE]} comparisons of one run each have no interval, and say neither faster nor slower" if said[ratios.ALONE] else ""
    if not several:
        return f"Beside the alternatives, {alone}: more runs tell."
    out = f"Beside the alternatives, {ours} is faster in {said[ratios.FASTER]} of {several} comparisons, slower in {said[ratios.SLOWER]};"
    out += " in the others no difference is seen, or none that chance would not explain."
    return out + (f" {alone}." if alone else "")


# ------------------------------------------------------------------------------------------------ the papers


def _paper(report: Report, name: str) -> str:
    out = [html.element("h2", html.text(PAPERS.get(name, name)), id=name)]
    out += [_group(report, group) for group in report.groups if group.paper == name]
    return "".join(out)


def _group(report: Report, group: claims.Group) -> str:
    out = [html.element("h3", html.text(group.title), id=group.id)]
    where = f"{html.text(group.paper)} {html.text(group.place)}; workload {html.text(group.workload)}"
    out.append(html.paragraph(where + (f"; factors {', '.join(group.factors)}" if group.factors else ""), class_="where"))
    out.append(tables.claims("Claims", [(group, f) for f in report.findings_of(group)], report.notes, False))
    if group.redraw == "buildworld":
        out.append(_buildworld(report))
    if set(group.show) & {"ranks", "model", "triangles", "lattice"}:
        out += [_test(report, test, group.id, group.show) for test in _preferred(report.tests, group)]
    if "curves" in group.show:
        phases = {claim.phase for claim in group.claims}
        charts = [c for c in report.charts if c.workload == group.workload and c.phase in phases]
        if group.redraw == "xfs96":
            charts = [_with_xfs96(c) if c.metric == SECONDS else c for c in charts] or [Chart(group.workload, "lookup", _xfs96())]
        out += [_chart(report, chart, group.id) for chart in charts]
    return "".join(out)


def _preferred(tests: list[Factorial], group: claims.Group) -> list[Factorial]:
    """Of each phase and size the test that is drawn: most factors, then the machine of the group, then the largest scale."""
    chosen: dict[tuple, Factorial] = {}

    def rank(test: Factorial) -> tuple:
        about = test.about
        return (-len(test.factors), about["target"] != group.machine, about["clock"] != "modelled", -about["scale"], about["target"])

    for test in claims.of_group(tests, group):
        place = (test.about["phase"], None if pd.isna(test.about["size"]) else test.about["size"])
        if place not in chosen or rank(test) < rank(chosen[place]):
            chosen[place] = test
    return list(chosen.values())


def _buildworld(report: Report) -> str:
    drawn, model = papers.buildworld(divides_by_n=False), papers.buildworld()
    out = [html.element("h4", "The paper's own numbers, drawn anew")]
    out.append(html.details("Rank table (the paper's Table 1)", tables.ranks("Combinations by mean time, n = 4 each (Table 1)", drawn)))
    out.append(_pictures(report, model, "paper-buildworld", ["triangles", "lattice"], " From the paper's Table 1."))
    return "".join(out)


def _test(report: Report, test: Factorial, prefix: str, show: list[str]) -> str:
    size = "" if pd.isna(test.about["size"]) else f"-{test.about['size']:.0f}"
    name = "-".join([prefix, test.about["phase"], test.about["target"], *[f.short for f in test.factors]]) + size
    name = "".join(c if c.isalnum() else "-" for c in name.lower())
    n = sorted({cell.n for cell in test.cells.values()})
    out = [html.element("h4", html.text(test.title))]
    fixed = f"Scale {number(test.about['scale'])}, {test.about['clock']} clock, n = {'–'.join(str(x) for x in n[:: max(len(n) - 1, 1)])}."
    flipped = {factor.option for factor in test.factors}
    held = [f"{name}={choice}" for name, choice in sorted(test.settings.items()) if factors.is_known(name) and name not in flipped]
    fixed += f" In all of it {', '.join(held)}." if held else ""
    fixed += f" Conditions {test.about['conditions_key']}." if test.about["conditions_key"] else ""
    fixed += f" Options {test.about['options_key']}." if test.about["options_key"] else ""
    out.append(html.paragraph(html.text(fixed), class_="where"))
    out.append(_pictures(report, test, name, show, ""))
    if "ranks" in show:
        out.append(html.details("Rank table", tables.ranks("Combinations by mean time per operation", test)))
    if "model" in show:
        out.append(html.details("Linear model", tables.model(_model_caption(test), test)))
    return "".join(out)


def _model_caption(test: Factorial) -> str:
    if test.is_exact:
        return "Coefficients of the saturated model; repetitions do not differ, so all are exact, and those below a thousandth of the base are left out"
    if test.has_no_spread:
        return "Coefficients of the saturated model, of one seed, which gives the same every time; those below a thousandth of the base are left out"
    if all(cell.n == 1 for cell in test.cells.values()):
        return "Coefficients of the saturated model; one run of each combination has no error, so none is significant"
    return "Coefficients of the saturated model that are significant at 1/1000; in brackets: significant only in the other column"


def _pictures(report: Report, test: Factorial, name: str, show: list[str], source: str) -> str:
    out = []
    ranked = [test.factors[i] for i in factorial.by_effect(test)]
    effects = ", ".join(f"{f.short} {times(float(np.exp(-factorial.effect(test, test.factors.index(f)))))}" for f in ranked)
    if "triangles" in show and 2 <= len(ranked) <= triangles.FACTORS_MOST:
        alt = f"Triangles of {test.title}. Mean effect of each factor, the largest first: {effects}."
        caption = f"{html.text(test.title)}: what each factor does in each setting of those before it.{source}"
        out.append(report.draw(render(f"{name}-triangles", alt, lambda shape: triangles.draw(test, shape)), caption))
    if "lattice" in show and 2 <= len(ranked) <= lattice.FACTORS_MOST:
        most = factorial.best(test)
        alt = f"Lattice of {test.title}. All on: {times(test.gain(test.full))}; best: {test.name(most)} at {times(test.gain(most))}."
        caption = f"{html.text(test.title)}: all combinations and steps; a node is as high as two standard errors to either side.{source}"
        out.append(report.draw(render(f"{name}-lattice", alt, lambda shape: lattice.draw(test, shape)), caption))
    return "".join(out)


# ------------------------------------------------------------------------------------------------ curves


def _xfs96() -> list[Curve]:
    frame = papers.table("xfs96-figure4")
    out = []
    for series, rows in frame.groupby("series", sort=True):
        points = pd.DataFrame({"size": rows["size"], "mean": 1 / rows["per_second"], "low": np.nan, "high": np.nan, "n": 1})
        out.append(Curve(f"the paper's {series}", points.reset_index(drop=True), is_paper=True))
    return out


def _with_xfs96(chart: Chart) -> Chart:
    return Chart(chart.workload, chart.phase, chart.curves + _xfs96())


def _chart(report: Report, chart: Chart, prefix: str) -> str:
    mine = [c for c in chart.curves if not c.is_paper]
    theirs = [c for c in chart.curves if c.is_paper]
    parts = _parts(mine)
    is_time = chart.metric == SECONDS
    cost = "Time" if is_time else "Blocks looked at"
    out = []
    for k, part in enumerate(parts):
        shown = Chart(chart.workload, chart.phase, part + theirs, chart.metric)
        said = "; ".join(_range(c, chart.metric) for c in shown.curves)
        name = f"{prefix}-{chart.phase}-{k + 1}" if is_time else f"{prefix}-{chart.phase}-blocks-{k + 1}"
        name = "".join(c if c.isalnum() else "-" for c in name.lower())
        more = f" ({k + 1} of {len(parts)})" if len(parts) > 1 else ""
        whose = "" if mine else " The paper's numbers only: ours were not run."
        title = f"{html.text(chart.workload)}: {html.text(chart.phase)}{more}"
        caption = f"{title}: {cost.lower()} per operation by size, with 95 % intervals.{whose}"
        alt = f"{cost} per operation of {chart.workload}, {chart.phase}, by size. {said}."
        picture = render(name, alt, lambda shape, c=shown: curve_figure.draw(c, shape))
        out.append(report.draw(picture, caption))
    return "".join(out)


def _parts(curves: list[Curve]) -> list[list[Curve]]:
    """The curves of each picture. Where one has no room for all, each target that was measured in several ways has its own picture, with
    those of one curve beside it in each: the kernel's file systems, which no factor changes."""
    most = curve_figure.LINES_MOST
    if len(curves) <= most:
        return [curves]
    by_target = {name: [c for c in curves if c.target == name] for name in dict.fromkeys(c.target for c in curves)}
    beside = [curve for found in by_target.values() if len(found) == 1 for curve in found]
    parts = [found + beside for found in by_target.values() if len(found) > 1]
    if parts and max(map(len, parts)) <= most:
        return parts
    return [curves[i : i + most] for i in range(0, len(curves), most)]


def _range(curve: Curve, metric: str) -> str:
    first, last = curve.points.iloc[0], curve.points.iloc[-1]
    said = tables.seconds if metric == SECONDS else number
    ends = [f"{said(p['mean'])} at {p['size']:,.0f}" for p in (first, last)]
    return f"{curve.label}: {ends[0]}, {ends[1]}"


# ------------------------------------------------------------------------------------------------ all tests, peers, the rest


def _summary(report: Report) -> str:
    """FFSOPT's Figure 10, of all tests that are drawn above."""
    tests = [t for g in report.groups if "lattice" in g.show for t in _preferred(report.tests, g) if len(t.factors) >= 2]
    if not tests:
        return ""
    out = [html.element("h2", "All tests at a glance", id="summary")]
    tests = sorted(tests, key=lambda t: -t.gain(factorial.best(t)))
    for k in range(0, len(tests), ROWS_MOST):
        part = tests[k : k + ROWS_MOST]
        said = "; ".join(f"{t.title} {times(t.gain(t.full))}" for t in part)
        caption = (
            "Each bar is how many times faster all factors make a test, divided along the uppermost path through its lattice; "
            "hatched: what a combination of fewer factors gains beyond that (FFSOPT, Figure 10)."
        )
        picture = render(f"summary-{k // ROWS_MOST + 1}", f"Summary of tests: {said}.", lambda shape, p=part: summary.draw(p, shape))
        out.append(report.draw(picture, caption))
    return "".join(out)


def _peers(report: Report) -> str:
    if report.peers.empty:
        return ""
    out = [html.element("h2", f"{html.text(report.ours)} beside the alternatives", id="peers")]
    out.append(
        html.paragraph(
            "A ratio is their time over ours: above 1, ours is faster. Faster and slower alike are shown.",
            _floor_sentence(report.floor),
            "“Would find” is the least difference that this many runs find four times in five.",
            *_twins_sentences(report.peers),
        )
    )
    settings = sorted(set(report.peers["ours_factors"]) - {""})
    if settings:
        # Of several combinations one stands for us; which must be said.
        out.append(html.paragraph(f"Ours is with {html.text('; or '.join(settings))}.", class_="where"))
    frame = report.peers.copy()
    # A workload that only one suite has is known by its own name.
    several = frame.groupby("workload")["suite"].nunique().max() > 1
    frame["label"] = [_peer_label(row, several) for row in frame.to_dict("records")]
    for (peer, *settings), rows in frame.groupby(ratios.PEER, sort=True):
        options = ", ".join(filter(None, settings))
        rows = rows.sort_values(["ratio", "label"], ascending=[False, True])
        title = html.text(peer + (f" ({options})" if options else ""))
        out.append(html.element("h3", title))
        said = Counter(rows["verdict"])
        tally = ", ".join(f"{v} {said[v]}" for v in forest.LOOK if said[v])
        for k in range(0, len(rows), ROWS_MOST):
            part = rows.iloc[k : k + ROWS_MOST]
            name = "".join(c if c.isalnum() else "-" for c in f"peer-{peer}-{options}-{k // ROWS_MOST + 1}".lower())
            alt = f"Time of {peer} over that of {report.ours}: {tally}."
            floor = report.floor.ratio if report.floor else None
            picture = render(name, alt, lambda shape, p=part, f=floor: forest.draw(p, f, shape))
            out.append(report.draw(picture, f"{title} against {html.text(report.ours)}, with 95 % intervals: {tally}."))
        out.append(html.details("Table", tables.peers(f"{title} against {html.text(report.ours)}, time per operation", rows)))
    return "".join(out)


def _originals(report: Report) -> str:
    if report.originals.empty:
        return ""
    out = [html.element("h2", "Benchmarks of others beside ours", id="originals")]
    out.append(
        html.paragraph(
            "The same target, once worked on by the original program and once by our workload of its kind, time per operation. A ratio is the "
            "original’s over ours.",
            "They are not the same work. Ours syncs after each phase, the original once, after its last; ours drops caches before phases that "
            "read a large file; the original makes its names, its numbers and its buffers while the clock runs.",
        )
    )
    for target, rows in report.originals.groupby("target", sort=True):
        out.append(tables.originals(f"On {html.text(target)}", rows))
    return "".join(out)


def _peer_label(row: dict, several_suites: bool) -> str:
    label = f"{row['workload']}: {row['phase']}" + (f", {row['size']:,.0f}" if not pd.isna(row["size"]) else "")
    return f"{row['suite']}/{label}" if several_suites else label


def _floor_sentence(floor: ratios.Floor | None) -> str:
    if floor is None:
        return f"There is no noise floor: no measurement has {ratios.SPLIT_LEAST} runs or more."
    return (
        f"A against A, halves of the same runs, differ by less than {times(floor.ratio)} in 95 % of cases ({floor.cells} measurements); "
        f"the test calls {100 * floor.called:.1f} % of such halves different, where 5 % would be chance."
    )


def _twins_sentences(rows: pd.DataFrame) -> list[str]:
    if not rows["floor"].notna().any():
        return []
    return ["“Noise floor” is how far a target lies from itself when it runs twice in each round: of the two targets, the one that is farther."]


def _others(report: Report) -> str:
    """Tests and curves that no claim asks for: a factor that came later shows here by itself."""
    drawn = {id(t) for g in report.groups for t in claims.of_group(report.tests, g)}
    tests = [t for t in report.tests if id(t) not in drawn]
    asked = {(g.workload, c.phase) for g in report.groups if "curves" in g.show for c in g.claims}
    charts = [c for c in report.charts if (c.workload, c.phase) not in asked]
    sized = {(c.workload, c.phase) for c in report.charts}
    tests = [t for t in tests if (t.about["workload"], t.about["phase"]) not in sized]
    if not (tests or charts or report.incomplete):
        return ""
    out = [html.element("h2", "What no claim asks for", id="others")]
    for k, test in enumerate(tests):
        out.append(_test(report, test, f"other-{k + 1}", ["ranks", "model", "triangles", "lattice"]))
    out += [_chart(report, chart, f"other-{chart.workload}") for chart in charts]
    if report.incomplete:
        out.append(html.details("Tests of which combinations are missing", html.bullets(html.text(x) for x in report.incomplete)))
    return "".join(out)
