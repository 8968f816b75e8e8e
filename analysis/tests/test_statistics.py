"""Factorials, ratios, the noise floor and curves, on numbers whose truth is known."""

import numpy as np
import pytest
import synthetic

from myriad_lab import curves, factorial, ratios, samples, twins


def made(effects, both=1.0, noise=0.02, runs=4, seed=1, **fields):
    rng = np.random.default_rng(seed)
    raw = synthetic.factorial("w", "p", effects, both, rng, noise, runs, **fields)
    tests, incomplete = factorial.find(samples.from_dicts(raw))
    assert not incomplete
    return tests[0]


def test_a_factorial_is_found_with_the_papers_factors_in_their_order():
    test = made((0.5, 0.9, 1.0, 1.0))
    assert [f.short for f in test.factors] == ["SU", "DP", "VM", "DH"]
    assert len(test.cells) == 16 and all(cell.n == 4 for cell in test.cells.values())


def test_the_log_model_finds_factors_that_multiply_and_no_interaction():
    test = made((0.02, 0.9, 1.0, 1.0), noise=0.01)
    logs = factorial.coefficients(test, log=True).set_index("term")
    assert set(logs.index[logs["shown"]]) == {"base", "SU", "DP"}
    assert np.exp(logs.loc["SU", "estimate"]) == pytest.approx(0.02, rel=0.02)
    # On plain time the same data need an interaction: DP's gain is small once SU is on.
    plain = factorial.coefficients(test).set_index("term")
    assert plain.loc["SU:DP", "shown"]


def test_without_noise_small_things_are_left_out():
    test = made((0.5, 0.9, 1.0, 1.0), noise=0.0, runs=1, clock="modelled")
    table = factorial.coefficients(test).set_index("term")
    assert test.has_no_spread and set(table.index[table["shown"]]) == {"base", "SU", "DP", "SU:DP"}


def test_one_run_with_a_clock_shows_no_coefficient():
    table = factorial.coefficients(made((0.5, 0.9, 1.0, 1.0), runs=1))
    assert list(table.loc[table["shown"], "term"]) == ["base"]


def test_a_missing_combination_is_named_and_nothing_is_made_up():
    raw = synthetic.factorial("w", "p", (0.5, 0.9), 1.0, np.random.default_rng(1), 0.02, 2)
    raw = [s for s in raw if s["factors"] != {"order": "softdep", "dirpref": "new"}]
    tests, incomplete = factorial.find(samples.from_dicts(raw))
    assert not tests and incomplete == ["w: p (process), SU·DP: incomplete: SU+DP"]


def test_three_orders_make_two_factors_against_sync():
    raw = [synthetic.sample(factors={"order": o}, run=r) for o in ("sync", "softdep", "log") for r in range(2)]
    tests, _ = factorial.find(samples.from_dicts(raw))
    assert [[f.short for f in t.factors] for t in tests] == [["SU"], ["LG"]]


def test_an_unknown_option_is_a_factor_by_itself():
    raw = [synthetic.sample(factors={"window": w}, run=r) for w in ("wide", "off") for r in range(2)]
    (test,), _ = factorial.find(samples.from_dicts(raw))
    assert (test.factors[0].short, test.factors[0].off, test.factors[0].on) == ("Wind", "off", "wide")


def test_the_uppermost_path_takes_the_best_step_at_each_node():
    # DH gains only together with SU.
    test = made((0.5, 0.9, 1.0, 1.3), both=0.2, noise=0.0)
    assert [test.name(s.after) for s in factorial.path(test)] == ["SU", "SU+DH", "SU+DP+DH", "SU+DP+VM+DH"]


def test_best_may_have_fewer_factors_than_all():
    test = made((0.5, 0.9, 1.1, 1.0), noise=0.0)
    assert test.name(factorial.best(test)) == "SU+DP"


# ------------------------------------------------------------------------------------------------ ratios


def test_a_planted_slowdown_of_five_percent_is_found_and_nothing_else():
    """In one operation of one target: two sets of runs, the second with it."""
    rng = np.random.default_rng(5)
    before = synthetic.peers(rng, runs=10, noise=0.02)
    after = synthetic.peers(rng, runs=10, noise=0.02, planted={("mount", "node_modules", "remove"): 1.05})
    # The changed build stands beside the old one as another target, as the lab runs two builds.
    new = [s | {"target": "changed"} for s in after if s["target"] == "mount"]
    table = ratios.against_peers(samples.from_dicts([s for s in before if s["target"] == "mount"] + new), "mount", {})
    found = table[table["verdict"] == "faster"]
    assert list(found["workload"] + ": " + found["phase"]) == ["node_modules: remove"]
    assert found["low"].iloc[0] > 1 and found["low"].iloc[0] < 1.05 < found["high"].iloc[0]
    # One of the nine others leaves out 1 by chance; among so many rows that is not called a difference.
    assert sorted(table["verdict"].unique()) == ["faster", "may be chance", "no difference seen"]
    # And the table says beforehand that so many runs would find 5 %.
    assert (table["detectable"] < 1.05).all()


def test_the_interval_holds_the_truth_in_95_of_100_cases():
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(2000):
        x, y = rng.lognormal(0, 0.05, 5), 1.5 * rng.lognormal(0, 0.15, 8)
        found = ratios.ratio(x, y)
        held += found.low <= 1 / 1.5 <= found.high
    assert 0.93 < held / 2000 < 0.97


def test_a_against_a_shows_the_noise_and_is_rarely_called_different():
    found = samples.from_dicts(synthetic.peers(np.random.default_rng(3), runs=10, noise=0.03))
    floor = ratios.noise_floor(found, seed=1)
    assert floor == ratios.noise_floor(found, seed=1) and floor.cells == 50
    # Halves of five: the difference of their means has a deviation of 0.03 sqrt(2/5).
    assert np.log(floor.ratio) == pytest.approx(1.96 * 0.03 * np.sqrt(2 / 5), rel=0.15)
    assert 0.02 < floor.called < 0.08


def test_one_run_has_no_interval_and_a_modelled_one_is_exact():
    one, two = np.array([1.0]), np.array([2.0])
    assert not ratios.ratio(two, one).has_interval
    exact = ratios.ratio(two, one, exact=True)
    assert exact.is_exact and exact.value == pytest.approx(2)


def test_counts_of_zero_have_a_ratio_but_no_logarithm():
    zero, some = np.array([0.0, 0.0]), np.array([3.0, 3.0])
    assert ratios.ratio(some, zero, exact=True).value == np.inf
    assert ratios.ratio(zero, zero, exact=True).value == 1
    assert ratios.ratio(zero, some, exact=True).value == 0


def test_only_like_is_compared_with_like():
    raw = [synthetic.sample(target=t, scale=s, run=r) for t, s in (("mount", 1), ("ext4", 0.5)) for r in range(2)]
    assert ratios.against_peers(samples.from_dicts(raw), "mount", {}).empty


def test_benchmarks_of_others_stand_beside_ours_of_their_kind_by_the_operation():
    raw = synthetic.originals(np.random.default_rng(4), 5, twice="transactions")
    table = ratios.against_originals(samples.from_dicts(raw), {}).set_index("phase")
    assert sorted(table.index) == ["create", "delete", "transactions"] and set(table["ours"]) == {"postmark"}
    row = table.loc["transactions"]
    assert row["low"] < 2 < row["high"] and row["low"] > 1.8 and row["theirs_us"] == pytest.approx(100, rel=0.05)
    assert table.loc["create"]["ratio"] == pytest.approx(1, rel=0.05)
    # Another size, or another target, is not the same.
    for other in ({"size": 500}, {"target": "xfs"}, {"scale": 1.0}):
        moved = [s | other if s["suite"] == "tools" else s for s in raw]
        assert ratios.against_originals(samples.from_dicts(moved), {}).empty


# ------------------------------------------------------------------------------------------------ curves


def test_slopes_of_a_flat_and_a_linear_cost():
    sizes = np.repeat([10.0, 100.0, 1000.0, 10_000.0], 3)
    noise = np.exp(np.random.default_rng(2).normal(0, 0.03, len(sizes)))
    flat, linear = curves.slope(sizes, 5e-6 * noise), curves.slope(sizes, 1e-9 * sizes * noise)
    assert flat.low < 0 < flat.high and linear.low < 1 < linear.high
    assert linear.high - linear.low < 0.05


def test_curves_have_a_line_for_each_factor_and_an_interval_for_each_size():
    charts = curves.charts(samples.from_dicts(synthetic.dirhash(np.random.default_rng(1), 4)))
    phases = [("dirhash", phase, metric) for phase in ("create", "remove", "stat_random") for metric in (curves.SECONDS, curves.BLOCKS)]
    assert [(c.workload, c.phase, c.metric) for c in charts] == phases
    assert [c.label for c in charts[0].curves] == ["process, dirhash=off", "process, dirhash=on"]
    points = charts[0].curves[0].points
    assert len(points) == 6 and (points["low"] < points["mean"]).all() and (points["mean"] < points["high"]).all()


def test_blocks_are_drawn_as_they_were_counted():
    charts = curves.charts(samples.from_dicts(synthetic.dirhash(np.random.default_rng(1), 4)))
    off, on = charts[1].curves
    assert list(on.points["mean"].round(9)) == [10] * 6
    assert off.points["mean"].iloc[-1].round(9) == 10 + 30_000 / 150
    uncounted = [sample | {"blocks_touched": None} for sample in synthetic.dirhash(np.random.default_rng(1), 4)]
    assert all(c.metric == curves.SECONDS for c in curves.charts(samples.from_dicts(uncounted)))


def test_options_that_follow_from_factors_do_not_part_repetitions_and_others_do():
    both = ({"order": "sync", "log-size": "0", "cache": "1G"}, {"order": "log", "log-size": "64M", "cache": "1G"})
    raw = [synthetic.sample(factors={"order": o["order"]}, options=o, run=r) for o in both for r in range(2)]
    found = samples.from_dicts(raw)
    assert set(found.table["options_key"]) == {""} and len(factorial.find(found)[0]) == 1
    other = [s | {"options": s["options"] | {"cache": "2G"}} for s in raw]
    found = samples.from_dicts(raw + other)
    assert set(found.table["options_key"]) == {"cache=1G", "cache=2G"} and len(factorial.find(found)[0]) == 2


def test_a_phase_that_takes_no_time_on_the_modelled_disk_is_told():
    raw = [synthetic.sample(clock="modelled", seconds=t, factors={"order": o}) for o, t in (("sync", 0.0), ("softdep", 0.0))]
    tests, incomplete = factorial.find(samples.from_dicts(raw))
    assert not tests and "takes no time" in incomplete[0]


# ------------------------------------------------------------------------------------------------ twins


def test_medians_with_their_intervals_are_those_of_the_lab():
    """`medians_with_their_intervals` of crates/lab/src/stats.rs has the same digits."""
    # The ends differ between seeds here.
    found = twins.median_by_rounds(np.arange(40) ** 2)
    assert (found.value, found.low, found.high) == (380.5, 195.7125000000001, 676.0)


def test_twins_show_the_floor_and_a_planted_slowdown_is_found():
    raw = synthetic.twins(np.random.default_rng(6), 20, noise=0.02)
    found = samples.from_dicts(raw)
    # A alone is a measurement.
    assert len(found.table) == 20 * 2 * 2 and len(found.twins) == 3 * len(found.table)
    rows = twins.table(found).set_index(["target", "phase"])
    assert (rows["rounds"] == 20).all() and (rows["floor"] > 1).all() and (rows["floor"] < 1.05).all()
    assert rows["differs"].to_dict() == {("ext4", "remove"): False, ("ext4", "unpack"): True, ("mount", "remove"): False, ("mount", "unpack"): True}
    assert rows.loc[("mount", "unpack"), "planted"] == pytest.approx(1.05) and rows.loc[("mount", "remove"), "planted"] == 1
    assert set(rows["slow"]) == {"write_file:5%"}


def test_the_floor_stands_beside_the_ratio():
    rng = np.random.default_rng(6)
    found = samples.from_dicts(synthetic.twins(rng, 20, noise=0.02) + [synthetic.sample(workload="tree", target="xfs", run=run) for run in range(6)])
    floors = twins.floors(twins.table(found))
    table = ratios.against_peers(found, "mount", floors).set_index(["peer", "phase"])
    of = {(key[3], key[2]): floor for key, floor in floors.items()}
    assert table.loc[("ext4", "unpack"), "floor"] == max(of["mount", "unpack"], of["ext4", "unpack"])
    assert table.loc[("xfs", "unpack"), "floor"] == of["mount", "unpack"]
    without = ratios.against_peers(samples.from_dicts(synthetic.peers(rng, runs=6)), "mount", {})
    assert without["floor"].isna().all()


def test_rounds_that_lack_a_twin_do_not_count_and_few_say_nothing():
    raw = synthetic.twins(np.random.default_rng(6), 7, noise=0.02)
    lacking = [s for s in raw if not (s["run"] == 0 and s["twin"] == "b")]
    assert set(twins.table(samples.from_dicts(lacking))["rounds"]) == {6}
    fewer = [s for s in lacking if s["run"] != 1]
    assert twins.table(samples.from_dicts(fewer)).empty
    # Two files may have the same rounds: they are as many as both have.
    later = [s | {"started": "2001-01-01T00:00:00Z"} for s in raw]
    assert set(twins.table(samples.from_dicts(raw + later))["rounds"]) == {14}
    modelled = [s | {"clock": "modelled"} for s in raw]
    assert twins.table(samples.from_dicts(modelled)).empty
