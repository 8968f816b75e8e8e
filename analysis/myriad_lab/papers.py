"""Tables that the papers print, as data: read from `data/`, never computed here.

FFSOPT's Table 1 has means and standard errors of all 16 combinations, so its Table 2 can be computed from it. The coefficients
come out to the last printed digit. The errors do so only if Table 1's deviations divide by n, and the model's by n - 1.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pandas as pd

from . import factors as known
from .factorial import Cell, Factorial, coefficients
from .factors import Factor


def table(name: str) -> pd.DataFrame:
    """A file of `data/` by its name without `.csv`."""
    with files(__package__).joinpath("data", f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def _factor(short: str) -> Factor:
    row = known.named(short)
    return Factor(short, row["title"], row["option"], row["off"][0], row["on"][0])


def buildworld(divides_by_n: bool = True) -> Factorial:
    """FFSOPT's Table 1. `divides_by_n`: its deviations are those of the four runs, not estimates from them."""
    shorts, cells = ["SU", "DP", "VM", "DH"], {}
    rows = table("ffsopt-table1")
    base = float(rows.loc[rows[shorts].sum(axis=1) == 0, "mean"].iloc[0])
    for row in rows.itertuples():
        mask = sum(1 << i for i, short in enumerate(shorts) if getattr(row, short))
        sd = row.error / 100 * base * np.sqrt(row.n)
        if divides_by_n:
            sd *= np.sqrt(row.n / (row.n - 1))
        cells[mask] = Cell(row.mean, float(sd), int(row.n))
    about = {"suite": "ffsopt", "workload": "buildworld", "phase": "build", "target": "the paper's machine"}
    return Factorial("buildworld: build (as the paper measured it)", [_factor(s) for s in shorts], cells, about, unit="seconds")


def table2() -> pd.DataFrame:
    """Table 2 as printed beside what follows from Table 1: term, estimate and error printed, computed, and computed with
    deviations that divide by n - 1."""
    printed = table("ffsopt-table2")
    by_n, by_less = coefficients(buildworld()), coefficients(buildworld(divides_by_n=False))
    # The paper orders the factors of a term by the alphabet.
    names = by_n["term"].map(lambda term: ":".join(sorted(term.split(":"))))
    ours = pd.DataFrame(
        {
            "term": names,
            "computed": by_n["estimate"],
            "computed_sigma": by_n["sigma"],
            "usual_sigma": by_less["sigma"],
            "shown": by_n["shown"],
        }
    )
    return printed.merge(ours, on="term", how="outer", sort=False).query("shown or estimate.notna()").reset_index(drop=True)
