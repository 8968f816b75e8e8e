"""Everything of one report: judges the claims, draws, writes the page and what lies beside it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from .. import claims, curves, factorial, ratios, twins
from ..samples import CELL, Samples, cells
from . import html, sections
from .content import Report


def analyse(samples: Samples, seed: int, ours: str | None, notes: dict[str, str], path: Path | None = None) -> Report:
    """All numbers; nothing drawn yet. `ours` is the target that peers are compared with: a mount where there is one."""
    groups = claims.read(path)
    known = {claim.id for group in groups for claim in group.claims}
    unknown = sorted(notes.keys() - known)
    if unknown:
        raise claims.BadClaims(f"notes: no claim is called {', '.join(unknown)}")
    tests, incomplete = factorial.find(samples)
    findings = {c.id: claims.judge(samples, tests, g, c) for g in groups for c in g.claims}
    targets = set(samples.table["target"])
    ours = ours or ("mount" if "mount" in targets else "process")
    pairs = twins.table(samples)
    floors = twins.floors(pairs)
    peers, originals = ratios.against_peers(samples, ours, floors), ratios.against_originals(samples, floors)
    floor = ratios.noise_floor(samples, seed)
    return Report(samples, seed, ours, notes, groups, tests, incomplete, findings, curves.charts(samples), peers, originals, floor, pairs)


def write(report: Report, out: Path) -> Path:
    """Writes the page, figures/ and data/ into `out`, over those of an earlier report. Gives the page."""
    frames = _tables(report)
    page = html.page(*sections.page(report, list(frames)))
    for folder in ("figures", "data"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for picture in report.pictures:
        (out / "figures" / f"{picture.name}.png").write_bytes(picture.png)
    for name, frame in frames.items():
        frame.to_csv(out / "data" / f"{name}.csv", index=False, lineterminator="\n")
    target = out / "index.html"
    target.write_text(page, "utf-8")
    return target


def _tables(report: Report) -> dict[str, pd.DataFrame]:
    ranks, models = [], []
    for test in report.tests:
        about = test.about | {"factors": "·".join(f"{f.short}({f.option}={f.off}|{f.on})" for f in test.factors)}
        for row in factorial.rank_table(test).to_dict("records"):
            ranks.append(about | {"combination": test.name(row["mask"])} | {k: row[k] for k in ("mean", "percent", "error", "n")})
        for log in (False, True):
            table = factorial.coefficients(test, log).drop(columns="mask")
            models += [about | {"on": "log" if log else "plain"} | row for row in table.to_dict("records")]
    lines = [
        {"workload": chart.workload, "phase": chart.phase, "metric": chart.metric, "curve": curve.label} | point
        for chart in report.charts
        for curve in chart.curves
        for point in curve.points.to_dict("records")
    ]
    frames = {
        "cells": _cells(report.samples),
        "claims": _claims(report),
        "ranks": pd.DataFrame(ranks),
        "coefficients": pd.DataFrame(models),
        "curves": pd.DataFrame(lines),
        "ratios": report.peers,
        "originals": report.originals,
        "twins": report.twins,
    }
    return {name: frame for name, frame in frames.items() if len(frame)}


def _cells(samples: Samples) -> pd.DataFrame:
    """Each measurement: cost in seconds per operation (the clock's), and what the device did per operation."""
    rows = []
    for key, data in cells(samples):
        costs = data["cost"].dropna().to_numpy(float)
        row = {**{k: key[k] for k in CELL}, "n": len(data)}
        if len(costs):
            row |= {"cost_mean": costs.mean(), "cost_median": float(pd.Series(costs).median())}
            row |= {"cost_min": costs.min(), "cost_max": costs.max()}
        if len(costs) and (costs > 0).all():
            found = curves.mean(costs)
            row |= {"cost_geometric": found.value, "low": found.low, "high": found.high}
        for name in [c for c in data if c.startswith("device.")]:
            row[f"{name}_per_operation"] = (data[name] / data["count"]).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def _claims(report: Report) -> pd.DataFrame:
    rows = []
    for group in report.groups:
        for findings in report.findings_of(group):
            for first, found in enumerate(findings):
                claim, e = found.claim, found.estimate
                rows.append(
                    {"id": claim.id, "paper": group.paper, "place": group.place, "workload": group.workload, "phase": claim.phase}
                    | {"claim": claim.text, "kind": claim.kind, "metric": claim.metric, "counts": first == 0, "paper_value": claim.paper}
                    | {"paper_text": claim.paper_text, "expect_low": claim.expect[0], "expect_high": claim.expect[1]}
                    | {"target": found.target, "clock": found.clock, "scale": found.scale, "conditions": found.conditions, "options": found.options}
                    | {"value": e.value if e else found.value or None}
                    | {"low": e.low if e else None, "high": e.high if e else None, "verdict": found.verdict, "why": found.why}
                )
    return pd.DataFrame(rows)
