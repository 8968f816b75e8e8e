"""How the numbers of the page were made, and the check of the method against the paper's own tables."""

from __future__ import annotations

from .. import papers, ratios
from ..claims import MACHINES
from ..factorial import SIGNIFICANCE
from . import html, tables
from .content import Report


def section(report: Report, files: list[str]) -> str:
    """The last part of the page."""
    out = [html.element("h2", "Method", id="method")]
    out.append(
        html.bullets(
            [
                "<b>Cost</b> is time per operation. Rates become times before anything is averaged.",
                "<b>Ratios</b> are of geometric means; their intervals are Welch’s t intervals on the logarithms, 95 %. "
                "The seed matters only to the random halves of the noise floor: " + str(report.seed) + ".",
                "<b>The linear model</b> has a coefficient for every set of factors, in percent of the time with all off, as in FFSOPT 4.3; "
                f"one is shown if p &lt; 1/{1 / SIGNIFICANCE:.0f}. Beside it stands the same model on the logarithm of time, whose "
                "coefficients are factors.",
                "<b>A modelled clock</b> has no noise: repetitions of several seeds that agree are exact; a result of one seed says so, for other names and sizes may give another.",
                "<b>Verdicts.</b> Reproduced: the interval lies on the paper’s side of “no effect”, and the value in the expected range. "
                "Direction only: the same side, another size. Undecided: the interval holds both answers. "
                "For claims of no effect the whole interval has to be in the range.",
                "<b>Many rows.</b> Of a hundred rows without any difference, about five have an interval that leaves out 1. So a row counts as "
                "faster or slower only if it is significant among all rows of its table (Holm); one that is not may be chance.",
            ]
        )
    )
    out.append(_machine(report))
    out.append(_floor(report))
    out.append(_twins(report))
    out.append(_self_check())
    out.append(html.element("h3", "Files"))
    links = ", ".join(html.element("a", f"{n}.csv", href=f"data/{n}.csv") for n in files)
    out.append(html.paragraph(f"Beside this page: {links}, and every figure as PNG in <code>figures/</code>."))
    return "".join(out)


def _machine(report: Report) -> str:
    if not set(report.samples.table["target"]) & set(MACHINES):
        return ""
    return html.element("h3", "The modelled machine") + html.paragraph(
        "<code>machine2001</code> is the disk of 2001 and a Pentium 4 of 1.6 GHz, that of Dowse and Malone. Its processor is charged 3 µs for a call, "
        "28 µs more for one that changes something, 1 µs for a block that is looked at, and 0.15 µs for an entry of a directory that is "
        "compared: from stat (5, 7, 9 µs), create (50) and remove (35) in the paper’s 3.2, and from nothing else of it. The drive works on while the "
        "processor computes. Claims of the processor’s time are judged by that alone, as the paper’s tests measured it. On the other modelled "
        "targets the processor costs nothing."
    )


def _floor(report: Report) -> str:
    if report.floor is None:
        return ""
    rows = []
    for target in sorted(set(report.samples.table["target"])):
        floor = ratios.noise_floor(report.samples, report.seed, target)
        if floor:
            rows.append([html.text(target), str(floor.cells), tables.times(floor.ratio), f"{100 * floor.called:.1f} %"])
    columns = [("Target", ""), ("Measurements", "number"), ("95 % of halves within", "number"), ("Called different", "number")]
    return html.element("h3", "A against A") + html.table(
        f"Random halves of the same runs, {ratios.SPLITS} splits each; by chance 5 % would be called different", columns, rows
    )


def _twins(report: Report) -> str:
    rows = report.twins
    if rows.empty:
        return ""
    apart = int(((rows["low"] > 1) | (rows["high"] < 1)).sum())
    said = [
        "Each measurement ran as A and as A′ in every round, one right after the other. A ratio is the median of the rounds’, and its interval draws "
        "whole rounds. The noise floor is the farther end of the interval of A′ over A, up or down.",
        f"{apart} of {len(rows)} intervals of A′ over A leave out 1; by chance 5 in 100 do.",
    ]
    if "slow" in rows:
        slowed = rows[rows["slow"].notna()]
        with_it = slowed["planted"] > 1
        found = slowed["differs"].astype(bool)
        said.append(
            f"A third time a slowdown was planted. It is found in {int((found & with_it).sum())} of {int(with_it.sum())} measurements that have the "
            f"operation, and a difference is seen in {int((found & ~with_it).sum())} of {int((~with_it).sum())} others. A difference is an interval that "
            "leaves out 1 and a ratio beyond the floor; by chance fewer than 1 in 100 have both.",
        )
    caption = "Measurements against themselves, by the clock"
    return html.element("h3", "Twins", id="twins") + html.paragraph(*said) + html.details("Table", tables.twins(caption, rows))


def _self_check() -> str:
    frame = papers.table2()
    usual = frame.loc[frame["term"] == "base", "usual_sigma"].iloc[0]
    printed = frame.loc[frame["term"] == "base", "sigma"].iloc[0]
    short = 100 * (1 - usual / printed)
    return (
        html.element("h3", "The method on the paper’s own table")
        + html.paragraph(
            "From FFSOPT’s Table 1 this program computes the coefficients of Table 2 to the last printed digit, and the 1/1000 rule picks "
            "the same five.",
            f"The printed errors do not follow if the deviations of Table 1 divide by n − 1, as is usual: they come out {short:.0f} % too small. "
            "They follow exactly if those divide by n, and the model’s by its degrees of freedom.",
        )
        + tables.table2("FFSOPT Table 2, printed and computed from Table 1, in percent of the base", frame)
    )
