"""Result files: what is read, and what is refused with file and line."""

import gzip
import json

import pytest
import synthetic
import zstandard

from myriad_lab import ratios, samples


def test_plain_gzip_and_zstd_are_the_same(tmp_path):
    lines = "".join(json.dumps(synthetic.sample(run=r)) + "\n" for r in range(3)).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    # Two frames, as a run that was taken up again appends them.
    half = lines.index(b"\n") + 1
    frames = [zstandard.compress(part) for part in (lines[:half], lines[half:])]
    (tmp_path / "c.jsonl.zst").write_bytes(b"".join(frames))
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        assert len(samples.read([tmp_path / name]).table) == 3
    # A directory stands for all files in it. Here they are the same samples three times, which count once.
    together = samples.read([tmp_path])
    assert len(together.table) == 3 and len(together.problems) == 2


def test_a_header_holds_for_all_samples_and_a_sample_wins(tmp_path):
    shared = {"commit": "abc", "scale": 0.5}
    one = {k: v for k, v in synthetic.sample(run=0).items() if k not in shared}
    two = one | {"run": 1, "scale": 1.0}
    text = "\n".join(json.dumps(x) for x in ({"schema": 1, "header": shared}, one, two))
    (tmp_path / "r.jsonl").write_text(text)
    table = samples.read([tmp_path / "r.jsonl"]).table
    assert list(table["scale"]) == [0.5, 1.0]
    assert list(table["commit"]) == ["abc", "abc"]


def check_refused(tmp_path, line, reason):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(synthetic.sample()) + "\n" + (line if isinstance(line, str) else json.dumps(line)) + "\n")
    with pytest.raises(samples.BadResults) as error:
        samples.read([path])
    assert f"{path}:2" in str(error.value) and reason in str(error.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 2}, "schema 2"),
        ({"count": "many"}, "'count'"),
        ({"count": True}, "'count'"),
        ({"factors": []}, "'factors'"),
        ({"clock": "sun"}, "clock 'sun'"),
        ({"twin": "c"}, "twin 'c'"),
        ({"seconds": None}, "without seconds"),
        ({"seconds": -1}, "-1 seconds"),
        ({"seconds": "1"}, "'1' seconds"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(tmp_path, change, reason):
    check_refused(tmp_path, synthetic.sample(**change), reason)


def test_lines_that_are_no_samples_are_refused(tmp_path):
    check_refused(tmp_path, "{", "not JSON")
    check_refused(tmp_path, "[]", "not an object")
    check_refused(tmp_path, {"schema": 1, "header": {}}, "first line")
    one = synthetic.sample()
    del one["phase"]
    check_refused(tmp_path, one, "no field 'phase'")


def test_truncated_archives_and_missing_files_are_refused(tmp_path):
    whole = zstandard.compress(json.dumps(synthetic.sample()).encode() * 50)
    for name, content in (("t.jsonl.gz", gzip.compress(b"{}" * 100)[:-9]), ("t.jsonl.zst", b"nothing" + whole)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(samples.BadResults):
            samples.read([tmp_path / name])
    with pytest.raises(samples.BadResults):
        samples.read([tmp_path / "none.jsonl"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(samples.BadResults, match="no result file"):
        samples.read([tmp_path / "empty"])


def test_a_sample_that_did_nothing_is_left_out_and_told(tmp_path):
    path = synthetic.write([synthetic.sample(), synthetic.sample(count=0, run=1), synthetic.sample()], tmp_path / "r.jsonl")
    found = samples.read([path])
    assert len(found.table) == 1
    assert len(found.problems) == 2 and "did no operation" in found.problems[0] and "twice" in found.problems[1]


def test_samples_of_two_builds_are_told_and_can_be_told_apart(tmp_path):
    path = synthetic.write([synthetic.sample(commit=c, run=r) for c in ("a" * 40, "b" * 40) for r in range(2)], tmp_path / "r.jsonl")
    mixed = samples.read([path])
    assert mixed.problems == ["1 measurements have samples of several commits; --by-commit tells them apart"]
    apart = samples.read([path], by_commit=True)
    assert set(apart.table["target"]) == {"process@aaaaaaa", "process@bbbbbbb"} and not apart.problems


def test_what_a_run_did_not_have_is_kept_with_the_reason(tmp_path):
    header = {"absent": [{"factor": "order=sync/softdep", "why": "order=sync is not in this build"}], "left_out": {"mount": "no FUSE"}}
    (tmp_path / "r.jsonl").write_text(json.dumps({"schema": 1, "header": header}) + "\n" + json.dumps(synthetic.sample()))
    found = samples.read([tmp_path / "r.jsonl"])
    assert found.absent == {"order=sync/softdep": "order=sync is not in this build", "mount": "no FUSE"}
    assert found.why_absent("order") == " (order=sync is not in this build)" and found.why_absent("dirhash") == ""


def test_a_line_as_the_lab_writes_it():
    raw = {
        "schema": 1, "suite": "tar", "workload": "tar", "phase": "find", "target": "process", "factors": {"placement": "rotor"},
        "options": {"placement": "rotor"}, "seed": 1, "run": 0, "order": 4, "count": 7, "bytes": 0, "seconds": 0.5, "clock": "wall",
        "device": {"reads": 3, "writes": None, "read_bytes": None, "written_bytes": None, "flushes": None, "seek_blocks": None},
        "blocks_touched": None, "started": "2026-01-01T00:00:00Z", "size": None, "scale": 0.25,
    }  # fmt: skip
    row = samples.from_dicts([raw]).table.iloc[0]
    assert row["cost"] == 0.5 / 7 and row["device.reads"] == 3 and row["device.writes"] != row["device.writes"]


def test_other_conditions_are_other_measurements(tmp_path):
    """A kernel's file system has no options: with less memory, aged, elsewhere or on another machine it is measured anew all the same."""
    common = {"asked": ["cachesize=1G"], "folder": "ext4 on /dev/vda"}
    for change in (
        {"asked": ["cachesize=1G", "memory=1024M"]},
        {"asked": ["age=40"]},
        {"asked": ["sparse"]},
        {"asked": ["check"]},
        {"folder": "xfs on /dev/vdb"},
        {"machine": synthetic.MACHINE | {"kernel": "0.1-synthetic"}},
    ):
        plain = [synthetic.sample(target="ext4", run=run, **common) for run in range(3)]
        others = [synthetic.sample(target="ext4", run=run, **common | change) for run in range(3)]
        found = samples.from_dicts(plain + others)
        assert [len(data) for _, data in samples.cells(found)] == [3, 3], change
        # Where all are alike nothing is said.
        assert set(samples.from_dicts(others).table["conditions_key"]) == {""}
    both = samples.from_dicts(plain + [synthetic.sample(target="ext4", **common | {"asked": ["memory=1024M", "age=40"]})])
    assert sorted(set(both.table["conditions_key"])) == ["", "memory=1024M, age=40"]
    # A modelled clock sees neither the machine nor the folder.
    modelled = [synthetic.sample(clock="modelled", run=run, folder=folder) for run, folder in enumerate(("a", "b"))]
    assert [len(data) for _, data in samples.cells(samples.from_dicts(modelled))] == [2]


def test_peers_are_compared_under_the_same_conditions():
    def of(target: str, seconds: float, *asked: str) -> list[dict]:
        return [synthetic.sample(target=target, seconds=seconds, run=run, asked=list(asked)) for run in range(3)]

    found = samples.from_dicts(of("mount", 1.0, "memory=1024M") + of("ext4", 2.0, "memory=1024M") + of("ext4", 8.0))
    rows = ratios.against_peers(found, "mount", {})
    assert [(round(row.ratio, 6), row.n_peer, row.conditions_key) for row in rows.itertuples()] == [(2.0, 3, "memory=1024M")]
