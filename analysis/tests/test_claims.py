"""Claims: the file is sound, and verdicts follow the rule; without data a claim is not run."""

import math

import numpy as np
import pytest
import synthetic

from myriad_lab import claims, factorial, papers, ratios, samples
from myriad_lab.claims import DIRECTION, NOT_REPRODUCED, NOT_RUN, REPRODUCED, UNDECIDED, Claim
from myriad_lab.ratios import Estimate
from myriad_lab.report import tables

GROUPS = claims.read()


def test_the_papers_own_value_would_count_as_reproduced():
    for group in GROUPS:
        for claim in group.claims:
            if claim.paper is not None:
                verdict, _ = claims.decide(claim, Estimate.exact(claim.paper))
                assert verdict == REPRODUCED, claim.id


def test_numbers_of_claims_are_those_of_the_papers_tables():
    of = {c.id: c.paper for g in GROUPS for c in g.claims}
    build = papers.buildworld()
    for name, mask in (("su", 1), ("dp", 2), ("vm", 4), ("dh", 8), ("all", 15)):
        assert f"{100 / of[f'buildworld-{name}']:.2f}" == f"{build.percent(mask):.2f}"
    two, three = (papers.table(f"ffsopt-table{n}").set_index("term")["estimate"] for n in (2, 3))
    assert of["buildworld-dpsu"] == two["DP:SU"]
    assert (of["folder-remove-su-model"], of["folder-remove-dhsu-model"]) == (three["SU"], three["DH:SU"])
    orlov = papers.table("orlov").query("system == 1").set_index("mode")
    for mode in ("async", "normal", "sync", "softdep"):
        assert of[f"ports-untar-{mode}"] == orlov.loc[mode, "tar_ratio"]
        assert of[f"ports-remove-{mode}"] == orlov.loc[mode, "rm_ratio"]
    rates = papers.table("xfs96-figure4").set_index(["series", "size"])["per_second"]
    assert of["xfs-lookup-50000"] == pytest.approx(rates["XFS", 50000] / rates["EFS", 50000], rel=1e-3)
    assert of["xfs-lookup-cliff"] == pytest.approx(rates["XFS", 90000] / rates["XFS", 150000], rel=0.01)


def test_without_samples_every_claim_is_not_run():
    nothing = samples.from_dicts([])
    for group in GROUPS:
        for claim in group.claims:
            (found,) = claims.judge(nothing, [], group, claim)
            assert found.verdict == NOT_RUN and found.estimate is None and found.why.startswith("No samples of workload")


@pytest.mark.parametrize(
    ("expect", "estimate", "verdict"),
    [
        # An effect of 2 to 8 times is claimed.
        ((2, 8), (4, 3, 5), REPRODUCED),
        ((2, 8), (1.5, 1.3, 1.7), DIRECTION),
        ((2, 8), (20, 18, 22), DIRECTION),
        ((2, 8), (0.7, 0.6, 0.8), NOT_REPRODUCED),
        ((2, 8), (1.0, 0.9, 1.1), NOT_REPRODUCED),
        ((2, 8), (1.5, 0.9, 2.5), UNDECIDED),
        ((2, 8), (3, 0.9, 10), UNDECIDED),
        ((2, 8), (4, math.nan, math.nan), UNDECIDED),
        # Something gets slower.
        ((0.5, 0.9), (0.7, 0.6, 0.8), REPRODUCED),
        ((0.5, 0.9), (0.95, 0.92, 0.98), DIRECTION),
        ((0.5, 0.9), (1.2, 1.1, 1.3), NOT_REPRODUCED),
        # No effect is claimed.
        ((0.95, 1.05), (1.01, 0.98, 1.04), REPRODUCED),
        ((0.95, 1.05), (1.03, 0.98, 1.08), UNDECIDED),
        ((0.95, 1.05), (1.2, 1.1, 1.3), NOT_REPRODUCED),
    ],
)
def test_the_rule(expect, estimate, verdict):
    claim = Claim("x", "x", "ratio", "p", expect=expect)
    assert claims.decide(claim, Estimate(*estimate))[0] == verdict


def found_of(name, raw):
    table = samples.from_dicts(raw)
    tests, _ = factorial.find(table)
    group, claim = next((g, c) for g in GROUPS for c in g.claims if c.id == name)
    return claims.judge(table, tests, group, claim)


def folder(**changes):
    return synthetic.factorial("folder", "create", (1 / 29, 1.0, 1.0, 0.98), 1 / 12, np.random.default_rng(1), 0.02, 4, **changes)


def test_a_ratio_of_two_combinations():
    (found,) = found_of("folder-create-dh", folder())
    assert found.verdict == REPRODUCED and found.estimate.value == pytest.approx(12, rel=0.1) and found.target == "process"


def test_the_machine_comes_first_then_the_modelled_disk_and_others_follow():
    modelled = [folder(target=target, clock="modelled") for target in ("disk2001", "machine2001")]
    found = found_of("folder-create-su", folder() + modelled[0] + modelled[1])
    assert [f.target for f in found] == ["machine2001", "disk2001", "process"]


def test_a_build_without_a_factor_is_told():
    without = [s for s in folder() if s["factors"].pop("dirhash") == s["options"].pop("dirhash") == "off"]
    (found,) = found_of("folder-create-dh", without)
    assert found.verdict == NOT_RUN and found.why == "Factor DH (dirhash) is absent: no samples have it."
    (other,) = found_of("folder-create-su", without)
    assert other.verdict == REPRODUCED


def test_a_choice_without_samples_is_told():
    log_only = [synthetic.sample(workload="folder", phase="create", options={"order": "log", "directory": "linear"}, run=r) for r in range(4)]
    (found,) = found_of("folder-create-su", log_only)
    assert found.verdict == NOT_RUN and "order=sync" in found.why


def test_settings_that_a_claim_does_not_name_are_never_pooled():
    # With colour=red everything is ten times faster; blue is first by the alphabet, and counts as off.
    def made(colours):
        return [
            synthetic.sample(
                workload="dirhash", phase="create", size=size, factors={"dirhash": h, "colour": d}, options={"directory": "linear"},
                seconds=t * f * (1 + r / 100), run=r,
            )
            for d, f in colours
            for h, t in (("off", 8.0), ("on", 1.0))
            for size in (10, 1000)
            for r in range(3)
        ]  # fmt: skip

    (found,) = found_of("dirhash-create-gain", made((("blue", 1), ("red", 0.1))))
    assert found.estimate.value == pytest.approx(8) and found.why.endswith("(with colour=blue).")
    assert found.estimate.n == (3, 3)
    # Where the two sides have no setting in common there is nothing to compare.
    apart = [s for s in made((("blue", 1), ("red", 0.1))) if (s["factors"]["dirhash"] == "on") == (s["factors"]["colour"] == "red")]
    (found,) = found_of("dirhash-create-gain", apart)
    assert found.verdict == NOT_RUN and found.why == "No samples that agree in colour."


def test_different_options_are_judged_apart():
    raw = [s | {"options": {"directory": "linear", "cachesize": c}} for c in ("1G", "2G") for s in folder()]
    found = found_of("folder-create-dh", raw)
    assert [f.options for f in found] == ["cachesize=1G", "cachesize=2G"] and found[0].estimate.n == (4, 4)


def test_sizes_of_the_paper_are_multiplied_by_the_scale():
    raw = [
        synthetic.sample(workload="lookup", phase="lookup", scale=0.1, size=5000, factors={"directory": d}, seconds=t * (1 + r / 100), run=r)
        for d, t in (("linear", 60.0), ("btree", 1.0))
        for r in range(3)
    ]
    (found,) = found_of("xfs-lookup-50000", raw)
    assert found.verdict == REPRODUCED
    (other,) = found_of("xfs-lookup-cliff", raw)
    assert other.verdict == NOT_RUN and "150000" in other.why


def test_counts_of_the_device_need_no_clock():
    device = {"reads": 0, "writes": 1000, "read_bytes": 0, "written_bytes": 0, "flushes": 0, "seek_blocks": None}
    raw = [
        synthetic.sample(clock="none", seconds=None, factors={"order": order}, options={"directory": "linear"}, device=device | {"writes": writes})
        for order, writes in (("sync", 3000), ("softdep", 1200))
    ]
    (found,) = found_of("writes-su", raw)
    assert found.verdict == REPRODUCED and found.estimate.is_of_one_seed and found.estimate.value == pytest.approx(2.5)
    (seeks,) = found_of("seeks-dp", [s | {"factors": {"dirpref": p}} for s, p in zip(raw, ("old", "new"), strict=True)])
    assert seeks.verdict == NOT_RUN and "seek_blocks" in seeks.why


def modelled(workload="folder", phase="create", effects=(1 / 29, 1.0, 1.0, 0.98), both=1 / 12, seeds=1, noise=0.0):
    """Runs on a modelled clock, each of a seed of its own, which moves times by `noise`."""
    rng = np.random.default_rng(1)
    raw = synthetic.factorial(workload, phase, effects, both, rng, noise, seeds, target="machine2001", clock="modelled")
    return [s | {"seed": 1 + s["run"]} for s in raw]


def test_a_modelled_clock_is_exact_of_two_seeds_and_says_so_of_one():
    # One seed counted as exact: as if another seed, with other names and sizes, could not come out otherwise.
    (one,) = found_of("folder-create-su", modelled())
    assert one.verdict == REPRODUCED and one.estimate.is_of_one_seed and not one.estimate.is_exact
    assert tables.interval(one.estimate).endswith("(one seed)")
    # Repetitions of one seed add nothing.
    (again,) = found_of("folder-create-su", [s | {"run": r} for s in modelled() for r in range(3)])
    assert again.estimate.is_of_one_seed
    (two,) = found_of("folder-create-su", modelled(seeds=2))
    assert two.verdict == REPRODUCED and two.estimate.is_exact and tables.interval(two.estimate).endswith("(exact)")
    (spread,) = found_of("folder-create-su", modelled(seeds=3, noise=0.05))
    assert spread.estimate.low < spread.estimate.value < spread.estimate.high and not spread.estimate.is_of_one_seed


def test_coefficients_of_one_seed_say_so():
    of_build = {"workload": "build", "phase": "build", "effects": (0.5729, 0.8572, 0.981, 1.0007), "both": 0.99}
    (one,) = found_of("buildworld-dpsu", modelled(**of_build))
    assert one.verdict == REPRODUCED and one.estimate.is_of_one_seed
    (two,) = found_of("buildworld-dpsu", modelled(**of_build, seeds=2))
    assert two.verdict == REPRODUCED and two.estimate.is_exact
    (test,) = factorial.find(samples.from_dicts(modelled(**of_build)))[0]
    assert test.is_of_one_seed and not test.is_exact
    terms = factorial.coefficients(test).set_index("term")
    assert terms.loc["SU:DP", "shown"]


def test_which_factor_is_largest_is_decided_by_the_runs():
    # Whatever came out first was the largest, by however little.
    def build(effects, noise, runs, **fields):
        return synthetic.factorial("build", "build", effects, 1.0, np.random.default_rng(3), noise, runs, **fields)

    apart, near = (0.57, 0.86, 0.98, 1.0), (0.80, 0.801, 0.98, 1.0)
    (clear,) = found_of("buildworld-largest", build(apart, 0.02, 4))
    assert clear.verdict == REPRODUCED and clear.value == "SU"
    (close,) = found_of("buildworld-largest", build(near, 0.05, 4))
    assert close.verdict == UNDECIDED and close.value in ("SU", "DP")
    (other,) = found_of("buildworld-largest", build((0.86, 0.57, 0.98, 1.0), 0.02, 4))
    assert other.verdict == NOT_REPRODUCED and other.value == "DP"
    (alone,) = found_of("buildworld-largest", build(apart, 0.02, 1))
    assert alone.verdict == UNDECIDED
    of_build = {"workload": "build", "phase": "build", "effects": apart, "both": 1.0}
    (one,) = found_of("buildworld-largest", modelled(**of_build))
    assert one.verdict == REPRODUCED and "one seed" in one.why
    (two,) = found_of("buildworld-largest", modelled(**of_build, seeds=2))
    assert two.verdict == REPRODUCED and "one seed" not in two.why


def test_a_coefficient_of_nothing_is_nothing():
    # Each factor multiplies what it finds, but for the second and third, which change nothing: sums of such times are not quite 0.
    exact = synthetic.factorial("andrew", "grep", (1 / 3, 0.7, 1.0, 1.0), 1.0, np.random.default_rng(1), 0.0, 1, target="machine2001", clock="modelled")
    (found,) = found_of("andrew-read-overlap", exact)
    assert found.estimate.value == 0 and found.verdict == NOT_REPRODUCED


def test_a_slope_of_blocks_needs_no_clock_either():
    sizes = (100, 1000, 10_000, 100_000)
    options = {"directory": "linear"}
    raw = [
        synthetic.sample(suite="dirhash", workload="dirhash", phase="stat_random", target="disk2001", clock="modelled", seconds=0.0, size=size,
                         factors={"dirhash": on}, options=options, count=100, blocks_touched=100 * (4 if on == "on" else size // 50))
        for size in sizes for on in ("off", "on")
    ]  # fmt: skip
    for name, value in (("linear", 1.0), ("flat", 0.0)):
        (found,) = found_of(f"dirhash-stat-random-{name}-blocks", raw)
        assert found.verdict == REPRODUCED and found.estimate.value == pytest.approx(value, abs=1e-9)
        # Time there was, but the device's alone.
        timed = [s | {"seconds": 0.001 * s["size"]} for s in raw]
        (clock,) = found_of(f"dirhash-stat-random-{name}", timed)
        assert clock.verdict == NOT_RUN and "does not count the processor's time" in clock.why
        # In a modelled machine the processor's time counts.
        machine = [s | {"target": "machine2001", "seconds": 7.0, "processor_seconds": 1e-5 * s["blocks_touched"]} for s in raw]
        (both,) = found_of(f"dirhash-stat-random-{name}", timed + machine)
        assert both.verdict == REPRODUCED and both.target == "machine2001" and both.estimate.value == pytest.approx(value, abs=1e-9)


def test_two_workloads_against_each_other():
    raw = [
        synthetic.sample(workload=f"small_files_{s}", phase="read", target="ext4", seconds=t * (1 + r / 100), run=r)
        for s, t in ((1, 4.0), (3, 1.0))
        for r in range(3)
    ]
    (found,) = found_of("small-files-scattered", raw)
    assert found.verdict == REPRODUCED and found.estimate.value == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("kind = \"ratio\"", "kind = \"guess\""), "guess"),
        (("expect = [2, 8]", "expect = [8, 2]"), "expect"),
        (("to = \"SU\"", "to = \"XX\""), "XX"),
        (("paper = 3,", ""), "paper's value"),
        # It was accepted, and ignored.
        (('kind = "ratio", from = "", to = "SU"', 'kind = "coefficient", metric = "reads", term = "SU"'), "metric"),
        (("phase = \"p\"", "phase = \"p\", phrase = \"p\""), "phrase"),
        (("[[group]]", "[group]]"), "claims"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, change, reason):
    good = (
        '[[group]]\nid = "g"\npaper = "P"\nplace = "1"\ntitle = "t"\nworkload = "w"\nmachine = "m"\nfactors = ["SU"]\nshow = []\n'
        'claims = [{ id = "c", text = "t", phase = "p", kind = "ratio", from = "", to = "SU", paper = 3, expect = [2, 8] }]\n'
    )
    path = tmp_path / "claims.toml"
    path.write_text(good)
    assert claims.read(path)[0].claims[0].expect == (2, 8)
    assert change[0] in good
    path.write_text(good.replace(*change))
    with pytest.raises(claims.BadClaims, match=reason):
        claims.read(path)


def test_estimates_of_ratios_say_what_they_rest_on():
    assert ratios.ratio(np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])).n == (2, 3)


def test_a_claim_about_linear_directories_is_not_judged_on_others():
    raw = folder()
    for sample in raw:
        sample["options"] = sample["options"] | {"directory": "indexed"}
    (found,) = found_of("folder-create-su", raw)
    assert found.verdict == NOT_RUN and found.why == "No samples with directory=linear."
    (found,) = found_of("folder-remove-su-model", [s | {"phase": "remove"} for s in raw])
    assert found.verdict == NOT_RUN


def test_what_lies_outside_is_counted_of_what_is_decided():
    verdicts = [REPRODUCED] * 17 + [claims.DIRECTION, NOT_REPRODUCED] + [UNDECIDED] * 3 + [NOT_RUN] * 5
    found = claims.predictions(verdicts)
    assert (found.decided, found.outside, found.direction, found.is_met) == (19, 2, 1, False)
    assert claims.predictions([REPRODUCED] * 18 + [NOT_REPRODUCED] * 2).is_met
    assert claims.predictions([UNDECIDED, NOT_RUN]).decided == 0
