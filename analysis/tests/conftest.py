"""Fixtures: one report of made-up samples for all tests of the page, for drawing takes longest."""

import sys
from pathlib import Path

import pytest

# Neither the package nor the helpers beside this file are installed.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import synthetic  # noqa: E402

from myriad_lab import __main__ as command  # noqa: E402


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Directory of a report of `synthetic.everything()`."""
    home = tmp_path_factory.mktemp("report")
    results = synthetic.write(synthetic.everything(), home / "made-up.jsonl")
    assert command.main(["report", str(results), "--out", str(home / "out")]) == 0
    return home / "out"
