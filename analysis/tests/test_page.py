"""The report as files: self-contained, accessible, the same each time; honest about what was not run."""

import re
import tomllib
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import synthetic

from myriad_lab import __main__ as command
from myriad_lab import claims
from myriad_lab.curves import Curve
from myriad_lab.figures import style, ticks
from myriad_lab.figures.style import DARK, LIGHT, SERIES
from myriad_lab.report import sections


class Reader(HTMLParser):
    """Elements with their attributes; checks that each is closed."""

    VOID = {"meta", "link", "br"}

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.open = [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(made):
    return (made / "index.html").read_text()


@pytest.fixture(scope="module")
def read(page):
    return Reader(page)


def test_nothing_comes_from_outside(page, read):
    assert not read.all("script") and not read.all("img") and "@import" not in page
    for tag, attributes in read.elements:
        for name in ("src", "href", "xlink:href"):
            link = attributes.get(name, "")
            assert link.startswith(("#", "data:", "figures/", "data/")) or not link, (tag, link)
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", page))


def test_links_lead_somewhere(made, read):
    names = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for _, attributes in read.elements:
        link = attributes.get("href") or attributes.get("xlink:href") or ""
        if link.startswith("#"):
            assert link[1:] in names, link
        elif link and not link.startswith("data:"):
            assert (made / link).is_file(), link


def test_pictures_say_in_words_what_they_show(read):
    pictures = read.all("svg")
    # Each in two shapes.
    assert len(pictures) == 2 * len(read.all("figure")) > 40
    assert all(p["role"] == "img" and len(p["aria-label"]) > 40 for p in pictures)
    # Claims, coefficients and ratios are tables too.
    assert len(read.all("table")) > 20 and len(read.all("caption")) == len(read.all("table"))


def test_pictures_follow_the_readers_scheme(page):
    # Colours that are no role would stay as they are in the dark. Styles that pictures share stand in the page's head.
    svgs = re.findall(r"<svg.*?</svg>", page, flags=re.S)
    rules = dict(re.findall(r"\.(k\d+)\{([^}]*)\}", page))
    plain = {c for text in [*svgs, *rules.values()] for c in re.findall(r"#[0-9a-f]{6}\b", text)}
    assert not plain, plain
    assert {name for svg in svgs for name in re.findall(r'class="([^"]*)"', svg)} == rules.keys()
    assert any("var(--ink)" in rule for rule in rules.values())


def test_every_figure_and_table_is_there_as_a_file(made, read):
    assert len(list((made / "figures").glob("*.png"))) == len(read.all("figure"))
    rows = {p.stem: len(pd.read_csv(p)) for p in (made / "data").glob("*.csv")}
    assert set(rows) == {"cells", "claims", "ranks", "coefficients", "curves", "ratios", "originals", "twins"} and all(rows.values())


def test_each_claim_is_shown_and_those_without_data_are_not_run(made, page):
    table = pd.read_csv(made / "data" / "claims.csv")
    everything = {c.id for g in claims.read() for c in g.claims}
    assert set(table["id"]) == everything
    idle = table[table["verdict"] == claims.NOT_RUN]
    assert len(idle) > 10 and idle["value"].isna().all() and idle["why"].str.len().gt(10).all()
    for workload in ("bonnie", "netnews", "simplefs"):
        assert set(table.loc[table["workload"] == workload, "verdict"]) == {claims.NOT_RUN}
        assert f"No samples of workload {workload}." in page


def test_made_up_numbers_are_called_so(page):
    assert "Made-up numbers" in page


def test_a_factor_that_no_claim_knows_shows_by_itself(page):
    assert "What no claim asks for" in page and "listing: all (process)" in page


def test_a_test_says_what_was_held_in_all_of_it(page):
    assert "In all of it directory=linear." in page


def test_without_results_the_report_is_a_list_of_predictions(tmp_path):
    assert command.main(["report", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "No samples." in page and "the paper's EFS" in page and "Made-up" not in page
    table = pd.read_csv(tmp_path / "data" / "claims.csv")
    assert set(table["verdict"]) == {claims.NOT_RUN}


# One group, so that little is drawn.
FEW = """[[group]]
id = "tar"
paper = "P"
place = "1"
title = "t"
workload = "tar"
machine = "process"
factors = ["SU", "DP"]
show = ["ranks", "model", "triangles", "lattice"]
claims = [{ id = "c", text = "t", phase = "unpack", kind = "ratio", from = "", to = "SU", paper = 3, expect = [2, 8] }]
"""


def test_the_same_results_give_the_same_bytes(tmp_path):
    few = tmp_path / "few.toml"
    few.write_text(FEW)
    raw = synthetic.factorial("tar", "unpack", (0.3, 0.9), 1.0, np.random.default_rng(1), 0.02, 4)
    results = synthetic.write(raw + synthetic.peers(np.random.default_rng(2), 4), tmp_path / "r.jsonl")
    for name in ("a", "b"):
        assert command.main(["report", str(results), "--claims", str(few), "--out", str(tmp_path / name)]) == 0
    text = (tmp_path / "a" / "index.html").read_text()
    assert "✓ reproduced" in text
    assert "0 of 1 decided claims (0 %) lie outside of what was expected" in text and "is met." in text
    files = [sorted(p.relative_to(tmp_path / name) for p in (tmp_path / name).rglob("*.*")) for name in ("a", "b")]
    assert files[0] == files[1]
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files[0])


def test_names_of_workloads_and_targets_are_text_never_markup(tmp_path):
    evil = '<b>&"x'
    raw = [synthetic.sample(workload=evil, phase=evil, target=t, options={"o": evil}, run=r) for t in ("mount", evil) for r in range(4)]
    raw += [synthetic.sample(workload=evil, phase=evil, factors={"f": f}, run=r, size=s) for f in (evil, "off") for r in range(2) for s in (1, 2, 3)]
    results = synthetic.write(raw, tmp_path / "r.jsonl")
    few = tmp_path / "few.toml"
    few.write_text(FEW)
    assert command.main(["report", str(results), "--claims", str(few), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    Reader(page)
    assert evil not in page and "&lt;b&gt;&amp;" in page


def test_notes_stand_beside_their_claim(tmp_path):
    notes = tmp_path / "notes.toml"
    notes.write_text('folder-create-su = "The modelled disk has no write cache."\n')
    assert command.main(["report", "--notes", str(notes), "--out", str(tmp_path / "out")]) == 0
    assert "The modelled disk has no write cache." in (tmp_path / "out" / "index.html").read_text()
    notes.write_text('folder-crate-su = "x"\n')
    assert command.main(["report", "--notes", str(notes), "--out", str(tmp_path / "out")]) == 2


def test_bad_results_are_an_error_that_names_the_line(tmp_path, capsys):
    (tmp_path / "r.jsonl").write_text("{")
    assert command.main(["report", str(tmp_path / "r.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert f"{tmp_path / 'r.jsonl'}:1: not JSON" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_predictions_can_be_listed(capsys):
    assert command.main(["claims"]) == 0
    said = capsys.readouterr().out
    assert "Expected: ×10 to ×90." in said and len(said.splitlines()) > 80


# ------------------------------------------------------------------------------------------------ colours and labels


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_have_contrast(scheme):
    assert contrast(scheme["ink"], scheme["surface"]) > 7 and contrast(scheme["muted"], scheme["surface"]) > 4.5
    for role in SERIES:
        assert contrast(scheme[role], scheme["surface"]) > 3, role
    assert len(set(LIGHT.values())) == len(LIGHT)


# Machado, Oliveira and Fernandes 2009, severity 1: what those without one kind of cones see, in linear light.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def seen(colour, matrix):
    linear = [(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))]
    out = np.clip(np.array(matrix) @ linear, 0, 1)
    # Roughly uniform to the eye: OKLab.
    lms = np.cbrt(np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]) @ out)
    return np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]) @ lms


@pytest.mark.parametrize("kind", BLIND)
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colours_of_four_factors_differ_for_colour_blind_readers(scheme, kind):
    # Beyond four, and in any case, markers and dashes differ too.
    colours = [seen(scheme[role], BLIND[kind]) for role in SERIES[:4]]
    for i, a in enumerate(colours):
        for b in colours[i + 1 :]:
            assert np.linalg.norm(a - b) > 0.045


def test_labels_are_moved_apart_and_stay_inside():
    moved = ticks.spread([1.0, 1.01, 1.02, 5.0], 0.5, 0.8, 6.0)
    assert np.diff(moved).min() >= 0.5 - 1e-9 and moved[0] >= 0.8 and moved[3] == 5.0
    assert ticks.spread([3.0, 1.0], 0.5, 0.0, 4.0) == [3.0, 1.0]


@pytest.mark.parametrize(("low", "high"), [(1, 1.04), (0.9, 2.2), (1, 400), (1e-6, 1e-2), (0.98, 3), (1, 1)])
def test_an_axis_has_two_to_eight_round_numbers(low, high):
    found = ticks.nice(low, high)
    assert 1 <= len(found) <= 8 and all(low * 0.999 <= t <= high * 1.001 for t in found)
    assert len(found) >= 2 or low == high


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.5e-5, "35 µs"), (0.001, "1 ms"), (0.9999e-3, "1e+03 µs"), (2.5, "2.5 s"), (4345.38, "4,345 s"), (2e-10, "0.2 ns")],
)
def test_times_are_written_with_their_unit(value, text):
    assert style.seconds(value).replace("1 ms", "1 ms") == text.replace("1e+03 µs", "1 ms")


def test_versions_are_pinned():
    root = command.Path(__file__).parents[1]
    lines = [x for x in (root / "requirements.txt").read_text().splitlines() if x and not x.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9-]+==[0-9.]+", x) for x in lines)
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["requires-python"] == ">=3.11"


def test_curves_that_no_picture_has_room_for_keep_the_others_beside():
    def curves(*targets):
        return [Curve(f"{target} {i}", pd.DataFrame(), target=target) for i, target in enumerate(targets)]

    def found(made):
        return [[curve.target for curve in part] for part in sections._parts(made)]

    few = curves("process", "process", "mount", "ext4")
    assert found(few) == [["process", "process", "mount", "ext4"]] and sections._parts([]) == [[]]
    kernels = ["ext4", "xfs", "btrfs"]
    assert found(curves(*["process"] * 3, *kernels, *["mount"] * 3)) == [["process"] * 3 + kernels, ["mount"] * 3 + kernels]
    # Of one target there are more than fit: seven at a time, in their order.
    assert found(curves(*["process"] * 8, "ext4")) == [["process"] * 7, ["process", "ext4"]]


def test_the_memory_of_hashes_is_drawn(tmp_path):
    table, picture = tmp_path / "hashes.csv", tmp_path / "hashes.png"
    table.write_text("directory,hash\n32768,9000\n327680,90000\n3276800,900000\n")
    assert command.main(["memory", str(table), "--out", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
