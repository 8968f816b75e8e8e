"""Factors: an option with two choices, one of which counts as off.

`factors.toml` says this for the factors of the papers. Any other option that takes two values in the samples is a factor too.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Factor:
    """`short` is what figures print, as in "SU"; `off` and `on` are choices of `option`."""

    short: str
    title: str
    option: str
    off: str
    on: str


@cache
def _table() -> dict:
    return tomllib.loads(files(__package__).joinpath("factors.toml").read_text("utf-8"))


def _first(names: list[str], levels: set[str]) -> str | None:
    return next((name for name in names if name in levels), None)


def of_option(option: str, levels: set[str]) -> list[Factor]:
    """The factors that an option with these choices in the samples makes: one for each pair of off and on.

    More than two choices make several factors, as order=sync|softdep|log does: soft updates, and the log, each against sync.
    """
    found = []
    for row in _table()["factor"]:
        if row["option"] == option:
            off, on = _first(row["off"], levels), _first(row["on"], levels)
            if off is not None and on is not None:
                found.append(Factor(row["short"], row["title"], option, off, on))
    if found or len(levels) < 2:
        return found
    off = base(option, levels)
    return [Factor(_short(option, on, len(levels)), f"{option}={on}", option, off, on) for on in sorted(levels - {off})]


def base(option: str, levels: set[str]) -> str:
    """The choice among these that counts as off; where none does, the first."""
    offs = [name for row in _table()["factor"] if row["option"] == option for name in row["off"]]
    return min(levels, key=lambda level: (level not in offs, level not in _table()["off-words"], level))


def _short(option: str, on: str, levels: int) -> str:
    word = option if levels == 2 else on
    return "".join(c for c in word if c.isalnum())[:4].capitalize()


def rank(option: str) -> tuple[int, str]:
    """Where an option comes among others: those of the papers in the order of the file, so that a factor has one colour throughout."""
    known = [row["option"] for row in _table()["factor"]]
    return (known.index(option) if option in known else len(known), option)


def is_known(option: str) -> bool:
    """Whether a paper has it as a factor."""
    return any(row["option"] == option for row in _table()["factor"])


def named(short: str) -> dict:
    """The row of a factor of the papers. A name that is not there is a mistake in the claims."""
    return next(row for row in _table()["factor"] if row["short"] == short)


def choices(short: str) -> tuple[str, list[str], list[str]]:
    """Option, names of its off, names of its on."""
    row = named(short)
    return row["option"], row["off"], row["on"]
