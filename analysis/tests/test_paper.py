"""The analysis on the papers' own numbers: Table 1 in, Table 2 out."""

import numpy as np
import pytest

from myriad_lab import factorial, papers
from myriad_lab.factorial import Cell, Factorial


def test_table_1_gives_the_coefficients_of_table_2():
    printed = papers.table("ffsopt-table2").set_index("term")
    computed = factorial.coefficients(papers.buildworld())
    shown = computed[computed["shown"]]
    # The 1/1000 rule picks the five that the paper prints, and each is the same to the last printed digit.
    assert {":".join(sorted(t.split(":"))) for t in shown["term"]} == set(printed.index)
    for row in shown.itertuples():
        assert f"{row.estimate:.2f}" == f"{printed.loc[':'.join(sorted(row.term.split(':'))), 'estimate']:.2f}"


def test_the_printed_errors_follow_only_from_deviations_over_n():
    table = papers.table2().set_index("term")
    assert [f"{x:.2f}" for x in table["computed_sigma"]] == [f"{x:.2f}" for x in table["sigma"]]
    # With the usual n - 1 they are too small by a factor of sqrt(3/4), and no rounding explains that.
    assert (table["usual_sigma"] < 0.9 * (table["sigma"] - 0.005)).all()


def test_the_other_eleven_coefficients():
    # Computed by hand from the means, MECHANISMS 13.2.
    wanted = {"DH": 0.07, "SU:VM": -0.38, "SU:DH": -0.29, "DP:VM": 1.27, "DP:DH": 0.52, "VM:DH": -0.12, "SU:DP:VM": 0.83}
    wanted |= {"SU:DP:DH": 0.89, "SU:VM:DH": 0.27, "DP:VM:DH": -0.81, "SU:DP:VM:DH": -1.12}
    computed = factorial.coefficients(papers.buildworld()).set_index("term")["estimate"]
    assert {term: round(float(computed[term]), 2) for term in wanted} == pytest.approx(wanted, abs=0.011)


def test_table_1_is_what_the_rank_table_shows():
    printed = papers.table("ffsopt-table1")
    ranked = factorial.rank_table(papers.buildworld(divides_by_n=False))
    for theirs, ours in zip(printed.itertuples(), ranked.itertuples(), strict=True):
        assert [bool(x) for x in (theirs.SU, theirs.DP, theirs.VM, theirs.DH)] == [ours.SU, ours.DP, ours.VM, ours.DH]
        assert (f"{ours.percent:.2f}", f"{ours.error:.2f}") == (f"{theirs.percent:.2f}", f"{theirs.error:.2f}")


def test_figures_8_to_10_of_table_1():
    test = papers.buildworld()
    assert [test.factors[i].short for i in factorial.by_effect(test)] == ["SU", "DP", "VM", "DH"]
    columns = factorial.steps(test)
    assert [len(c) for c in columns] == [1, 2, 4, 8]
    # Of dirhash's eight triangles three point down; with SU and DP on and VM off it costs 2.5 % (MECHANISMS 15, 6).
    worse = [s for s in columns[3] if test.gain(s.after) < test.gain(s.before)]
    assert sorted(test.name(s.before) for s in worse) == ["DP", "SU+DP", "none"]
    assert test.cells[0b1011].mean / test.cells[0b0011].mean == pytest.approx(1.025, abs=0.0005)
    assert len(factorial.edges(test)) == 32
    assert [test.name(s.after) for s in factorial.path(test)] == ["SU", "SU+DP", "SU+DP+VM", "SU+DP+VM+DH"]
    assert factorial.best(test) == test.full


def test_orlovs_ratios_are_those_of_his_times():
    table = papers.table("orlov")
    for verb in ("tar", "rm"):
        assert (table[f"{verb}_old"] / table[f"{verb}_new"]).to_numpy() == pytest.approx(table[f"{verb}_ratio"].to_numpy(), rel=0.01)


def test_the_fit_is_the_differences_over_subsets():
    rng = np.random.default_rng(7)
    raw = {m: rng.lognormal(0, 0.1, 5) * (1 + m) for m in range(8)}
    three = papers.buildworld().factors[:3]
    fitted = factorial.coefficients(Factorial("", three, {m: Cell.of(v) for m, v in raw.items()}, {}))
    summary = {m: Cell(float(v.mean()), float(v.std(ddof=1)), 5) for m, v in raw.items()}
    differences = factorial.coefficients(Factorial("", three, summary, {}))
    for column in ("estimate", "sigma", "p"):
        assert fitted[column].to_numpy() == pytest.approx(differences[column].to_numpy(), rel=1e-9)
