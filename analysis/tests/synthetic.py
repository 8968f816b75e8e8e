"""Made-up result files, from a seed: for tests and for looking at the page. Every sample says `"commit": "synthetic"`, and a report
of them says so at its top. Run it to write one: `python tests/synthetic.py OUT.jsonl`.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np

MACHINE = {"kernel": "0.0-synthetic", "cpu": "made up", "cores": 2, "memory_bytes": 4 << 30}
# Option, off, on.
PAPER_FACTORS = (("order", "sync", "softdep"), ("dirpref", "old", "new"), ("dircache", "bounded", "unified"), ("dirhash", "off", "on"))
# Workload, phase, and what each of the four factors multiplies time by; the last number is a further one of SU and DH together.
TESTS = (
    ("tar", "unpack", (0.3, 0.86, 0.99, 1.0), 1.0),
    ("tar", "find", (1.01, 0.8, 0.95, 1.0), 1.0),
    ("folder", "create", (1 / 29, 1.0, 1.0, 0.98), 1 / 12),
    ("build", "build", (0.5729, 0.8572, 0.981, 1.0007), 0.99),
    ("postmark", "transactions", (0.4, 1.0, 1.0, 1.0), 0.985),
)


def sample(**fields: object) -> dict:
    """One with all that a sample has; fields given win."""
    return {
        "schema": 1, "suite": "tests", "workload": "tar", "phase": "unpack", "target": "process", "factors": {}, "options": {},
        "scale": 0.01, "seed": 1, "run": 0, "order": 0, "count": 1000, "seconds": 1.0, "clock": "wall",
        "device": {"reads": 10, "writes": 20, "read_bytes": 40960, "written_bytes": 81920, "flushes": 2, "seek_blocks": 5000},
        "commit": "synthetic", "started": "2000-01-01T00:00:00Z", "machine": MACHINE, "size": None, **fields,
    }  # fmt: skip


def factorial(workload: str, phase: str, effects: tuple, both: float, rng: np.random.Generator, noise: float, runs: int, **fields) -> list[dict]:
    """All combinations of the paper's factors, with log-normal noise; `both` where the first and the last are on."""
    out = []
    for run in range(runs):
        for on in itertools.product((0, 1), repeat=len(effects)):
            time = 4.0 * np.prod([e for e, x in zip(effects, on, strict=True) if x]) * (both if on[0] and on[-1] else 1.0)
            factors = {name: (off, yes)[x] for (name, off, yes), x in zip(PAPER_FACTORS[: len(on)], on, strict=True)}
            seconds = float(time * np.exp(rng.normal(0, noise)))
            # All options of the volume, as the lab writes them: some follow from a factor.
            options = {**factors, "directory": "linear", "log-size": "0" if on[0] else "64M", "cachesize": "128M"}
            out.append(sample(suite="ffsopt", workload=workload, phase=phase, factors=factors, options=options, run=run, seconds=seconds, **fields))
    return out


def dirhash(rng: np.random.Generator, runs: int) -> list[dict]:
    out = []
    for phase, (fixed, each) in {"create": (40e-6, 20e-9), "remove": (35e-6, 0), "stat_random": (6e-6, 15e-9)}.items():
        for size, hashed, run in itertools.product((10, 100, 1000, 3000, 10_000, 30_000), ("off", "on"), range(runs)):
            cost = (fixed + (each * size if hashed == "off" else 0)) * np.exp(rng.normal(0, 0.04))
            fields = {"size": size, "count": size, "seconds": float(cost * size), "run": run, "factors": {"dirhash": hashed}}
            fields["blocks_touched"] = 10 * size + (size * size // 150 if hashed == "off" and each else 0)
            out.append(sample(suite="dirhash", workload="dirhash", phase=phase, options={"directory": "linear"}, **fields))
    return out


def xfs(rng: np.random.Generator, runs: int) -> list[dict]:
    out = []
    for size, kind, run in itertools.product((100, 500, 1000, 10_000, 50_000, 90_000, 150_000), ("linear", "btree", "indexed"), range(runs)):
        cost = {"linear": 2e-6 + 3e-9 * size, "btree": 4e-6 * (30 if size > 1e5 else 1), "indexed": 3e-6 * (20 if size > 1e5 else 1)}[kind]
        seconds = float(cost * 1000 * np.exp(rng.normal(0, 0.05)))
        fields = {"size": size, "seconds": seconds, "run": run, "factors": {"directory": kind}}
        out.append(sample(suite="lookup", workload="lookup", phase="lookup", scale=1.0, **fields))
    return out


def peers(rng: np.random.Generator, runs: int, noise: float = 0.03, planted: dict | None = None) -> list[dict]:
    """Several targets; `planted` multiplies the time of (target, workload, phase)."""
    out, order = [], 0
    factors = {"mount": 1.0, "ext4": 0.8, "xfs": 1.1, "btrfs": 1.7, "tmpfs": 0.3}
    phases = [("tar", p) for p in ("unpack", "find", "remove")] + [("node_modules", p) for p in ("unpack", "read everything", "remove")]
    phases += [("postmark", "transactions"), ("kernel-tree", "copy"), ("kernel-tree", "grep"), ("folder", "create")]
    for run in range(runs):
        for (target, factor), (w, (workload, phase)) in itertools.product(factors.items(), enumerate(phases)):
            twist = 1.0 if target == "mount" else float(np.exp(0.5 * np.sin(7 * w + 3 * len(target))))
            twist *= (planted or {}).get((target, workload, phase), 1.0)
            seconds = float(2.0 * factor * twist * np.exp(rng.normal(0, noise)))
            out.append(sample(suite="peers", workload=workload, phase=phase, target=target, run=run, order=order, seconds=seconds))
            order += 1
    return out


def originals(rng: np.random.Generator, runs: int, twice: str = "create") -> list[dict]:
    """Postmark of others and ours on one target; theirs takes twice as long in one phase, and does another number of operations."""
    out = []
    for run, phase in itertools.product(range(runs), ("create", "transactions", "delete")):
        for suite, workload, count in (("tools", "postmark_tool", 2000), ("postmark", "postmark", 1000)):
            cost = 50e-6 * (2 if suite == "tools" and phase == twice else 1) * float(np.exp(rng.normal(0, 0.02)))
            out.append(sample(suite=suite, workload=workload, phase=phase, target="ext4", size=1000, count=count, seconds=cost * count, run=run))
    return out


def twins(rng: np.random.Generator, runs: int, noise: float) -> list[dict]:
    """Two targets, each against itself and with a slowdown of 5 % in one of two phases; whole rounds are slower or faster."""
    out = []
    for run, target, phase in itertools.product(range(runs), ("mount", "ext4"), ("unpack", "remove")):
        whole = float(np.exp(rng.normal(0, 0.2)))
        for twin in ("a", "b", "slowed"):
            seconds = whole * float(np.exp(rng.normal(0, noise)))
            added = 0.05 * seconds if (twin, phase) == ("slowed", "unpack") else 0.0
            slowed = {"operation": "write_file", "percent": 5.0 if twin == "slowed" else 0.0, "calls": 1000}
            slowed |= {"took_ns": int(1e9 * seconds), "added_ns": int(1e9 * added)}
            fields = {"target": target, "phase": phase, "run": run, "seconds": seconds + added, "twin": twin, "slowed": slowed}
            out.append(sample(workload="tree", **fields))
    return out


def everything(seed: int = 1) -> list[dict]:
    """A file with something for every part of the report."""
    rng = np.random.default_rng(seed)
    out = []
    for workload, phase, effects, both in TESTS:
        size = {"size": 100} if workload == "postmark" else {}
        out += factorial(workload, phase, effects, both, rng, 0.02, 4, **size)
        if workload == "folder":
            out += factorial(workload, phase, effects, both, rng, 0.0, 1, target="disk2001", clock="modelled", **size)
    out += dirhash(rng, 4) + xfs(rng, 4) + peers(rng, 6, planted={("xfs", "tar", "find"): 1.001})
    out += originals(rng, 3) + twins(rng, 8, 0.02)
    # An option that no claim knows.
    for run, on in itertools.product(range(5), ("small", "wide")):
        seconds = float((1.0 if on == "small" else 0.9) * np.exp(rng.normal(0, 0.02)))
        out.append(sample(suite="new", workload="listing", phase="all", run=run, seconds=seconds, factors={"window": on}))
    return out


def write(samples: list[dict], path: Path) -> Path:
    path.write_text("".join(json.dumps(s) + "\n" for s in samples), "utf-8")
    return path


if __name__ == "__main__":
    print(write(everything(), Path(sys.argv[1])))
