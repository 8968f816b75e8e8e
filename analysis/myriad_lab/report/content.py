"""What the page is made of, before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from .. import claims, curves, factorial, ratios
from ..figures.style import Picture
from ..samples import Samples
from . import html


@dataclass
class Report:
    """What the sections are made of; `pictures` collects what they draw."""

    samples: Samples
    seed: int
    ours: str
    notes: dict[str, str]
    groups: list[claims.Group]
    tests: list[factorial.Factorial]
    incomplete: list[str]
    findings: dict[str, list[claims.Finding]]
    charts: list[curves.Chart]
    peers: pd.DataFrame
    originals: pd.DataFrame
    floor: ratios.Floor | None
    twins: pd.DataFrame
    pictures: list[Picture] = field(default_factory=list)

    def findings_of(self, group: claims.Group) -> list[list[claims.Finding]]:
        return [self.findings[claim.id] for claim in group.claims]

    def draw(self, picture: Picture, caption: str) -> str:
        """Keeps the picture for its file, and gives its element."""
        assert picture.name not in {p.name for p in self.pictures}, picture.name
        self.pictures.append(picture)
        return html.figure(picture, caption)
