"""Reads result files into one table, a row a sample.

A result file is JSON lines, plain, `.gz` or `.zst`. Its first line may be a header: `{"schema": 1, "header": {...}}` with the
fields that are the same in all samples of the file; a sample's own field wins.

A line that cannot be read is an error that names file and line: a sample left out in silence would change a result. A sample
that did no operation (`count` 0) is no measurement. It is left out, and `Samples.problems` says so.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import zstandard

SCHEMA = 1
CLOCKS = ("wall", "modelled", "none")
TWINS = ("a", "b", "slowed")
# What a sample must have, and of which type.
FIELDS: dict[str, type | tuple[type, ...]] = {
    "suite": str,
    "workload": str,
    "phase": str,
    "target": str,
    "factors": dict,
    "scale": (int, float),
    "seed": int,
    "run": int,
    "count": int,
    "clock": str,
}
DEVICE = ("reads", "writes", "read_bytes", "written_bytes", "flushes", "seek_blocks")
# What is counted of a sample beside its time: requests of the device, blocks of its cache that the engine looked at, and what the processor of a
# modelled machine took.
COUNTS = (*DEVICE, "blocks_touched", "processor_seconds")
# Samples that agree in these are repetitions of one measurement, a *cell*; `factors`, conditions and `options` as text.
CELL = ("suite", "workload", "phase", "target", "clock", "scale", "size", "factors_key", "conditions_key", "options_key")
# What a run asks for that changes what is measured on every target, by its name in a header's `asked`.
CONDITIONS = ("age", "memory", "sparse", "check", "trace")


class BadResults(Exception):
    """A result file that cannot be read; the text names file, line and reason."""


@dataclass
class Samples:
    """All samples of one report.

    `table` has a column for each field, `device.*` for what is counted (`COUNTS`) and `factor.NAME` for each factor
    (text; missing where a sample does not have it). `cost` is seconds per operation. Of a target that ran against itself `table` has A alone;
    `twins` has A, A' and what was slowed. `absent` has, by what was asked for, why a build or machine did not have it.
    """

    table: pd.DataFrame
    factors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    twins: pd.DataFrame = field(default_factory=pd.DataFrame)

    def why_absent(self, option: str) -> str:
        """What the runs said of a factor that they did not have, to be put behind a clause; empty if nothing."""
        found = [why for asked, why in self.absent.items() if asked.split("=")[0] == option]
        return f" ({found[0]})" if found else ""

    @property
    def is_synthetic(self) -> bool:
        """Whether a generator of the tests made any of it."""
        return bool(len(self.table)) and bool(self.table["commit"].eq("synthetic").any())


def read(paths: list[Path], by_commit: bool = False) -> Samples:
    """Reads files, and of directories all result files in them. Raises `BadResults`.

    `by_commit`: each build is a target of its own, as in mount@1a2b3c4, so that two builds can be compared.
    """
    rows, problems, seen, absent = [], [], set(), {}
    for path in _files(paths):
        idle = again = 0
        for place, sample in _lines(path, absent):
            identity = json.dumps(sample, sort_keys=True)
            if identity in seen:
                again += 1
            elif sample["count"] <= 0:
                idle += 1
            else:
                rows.append(_row(sample))
            seen.add(identity)
        if idle:
            problems.append(f"{path.name}: {idle} samples did no operation and are left out")
        if again:
            problems.append(f"{path.name}: {again} samples are there twice and count once")
    if by_commit:
        for row in rows:
            row["target"] += f"@{row['commit'][:7]}"
    found = _samples(rows, problems)
    found.absent = absent
    mixed = sum(data["commit"].nunique() > 1 for _, data in cells(found))
    if mixed:
        found.problems.append(f"{mixed} measurements have samples of several commits; --by-commit tells them apart")
    return found


def from_dicts(samples: list[dict]) -> Samples:
    """The same from samples in memory."""
    return _samples([_row(_checked(sample, f"sample {i}")) for i, sample in enumerate(samples)], [])


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")))
            if not found:
                raise BadResults(f"{path}: no result file (*.jsonl, *.jsonl.gz, *.jsonl.zst) in this directory")
            yield from found
        else:
            yield path


def _open(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".zst":
        return io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True), "utf-8")
    return path.open(encoding="utf-8")


def _lines(path: Path, absent: dict[str, str]) -> Iterator[tuple[str, dict]]:
    """Samples with their places; what the header calls absent goes into `absent`."""
    header: dict = {}
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                place = f"{path}:{number}"
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except json.JSONDecodeError as error:
                    raise BadResults(f"{place}: not JSON: {error.msg}") from None
                if not isinstance(value, dict):
                    raise BadResults(f"{place}: not an object")
                if value.get("schema") != SCHEMA:
                    raise BadResults(f"{place}: schema {value.get('schema')!r}; this build reads {SCHEMA}")
                if "header" in value:
                    if number != 1 or not isinstance(value["header"], dict):
                        raise BadResults(f"{place}: a header is an object on the first line")
                    header = value["header"]
                    absent |= {str(one["factor"]): str(one["why"]) for one in header.get("absent", [])}
                    absent |= {str(target): str(why) for target, why in header.get("left_out", {}).items()}
                else:
                    yield place, _checked({**header, **value}, place)
    except (OSError, UnicodeDecodeError, EOFError, zstandard.ZstdError) as error:
        raise BadResults(f"{path}: {error}") from None


def _checked(sample: dict, place: str) -> dict:
    for name, kind in FIELDS.items():
        if name not in sample:
            raise BadResults(f"{place}: no field {name!r}")
        if not isinstance(sample[name], kind) or isinstance(sample[name], bool):
            raise BadResults(f"{place}: field {name!r} is {sample[name]!r}")
    if sample["clock"] not in CLOCKS:
        raise BadResults(f"{place}: clock {sample['clock']!r}; known are {', '.join(CLOCKS)}")
    if sample.get("twin") not in (None, *TWINS):
        raise BadResults(f"{place}: twin {sample['twin']!r}; known are {', '.join(TWINS)}")
    seconds = sample.get("seconds")
    if seconds is None and sample["clock"] != "none":
        raise BadResults(f"{place}: clock {sample['clock']!r} without seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9):
        raise BadResults(f"{place}: {seconds!r} seconds")
    return sample


def _text(choice: object) -> str:
    return {True: "on", False: "off"}.get(choice, str(choice)) if isinstance(choice, bool) else str(choice)


def _row(sample: dict) -> dict:
    factors = {name: _text(choice) for name, choice in sample["factors"].items()}
    options = sample.get("options") or {}
    machine = sample.get("machine") or {}
    device = sample.get("device") or {}
    seconds = sample.get("seconds")
    row = {name: sample.get(name) for name in ("suite", "workload", "phase", "target", "clock", "seed", "run", "order", "count")}
    row |= {"scale": float(sample["scale"]), "size": sample.get("size"), "commit": sample.get("commit") or ""}
    row |= {"started": sample.get("started") or "", "seconds": seconds}
    row["cost"] = None if seconds is None else seconds / sample["count"] if sample["count"] > 0 else None
    row["factors_key"] = ",".join(f"{name}={factors[name]}" for name in sorted(factors))
    row["conditions"] = _conditions(sample, machine)
    row["options"] = {name: _text(options[name]) for name in sorted(options) if name not in factors}
    row |= {f"factor.{name}": choice for name, choice in factors.items()}
    row |= {f"device.{name}": device.get(name) for name in DEVICE}
    slowed = sample.get("slowed") or {}
    row |= {"twin": sample.get("twin")} | {f"slowed.{name}": slowed.get(name) for name in ("operation", "percent", "added_ns")}
    row |= {f"device.{name}": sample.get(name) for name in COUNTS[len(DEVICE) :]}
    row |= {f"machine.{name}": machine.get(name) for name in ("kernel", "cpu", "cores", "memory_bytes")}
    return row


def _conditions(sample: dict, machine: dict) -> dict[str, str]:
    """What holds for the sample beside its options. A modelled clock does not see the machine, nor where the images lie."""
    asked = [str(one).partition("=") for one in sample.get("asked") or []]
    found = {name: f"{name}{equals}{value}" for name, equals, value in asked if name in CONDITIONS}
    if sample["clock"] == "wall":
        found["folder"] = f"on {sample.get('folder') or 'an unknown file system'}"
        parts = [machine.get("cpu"), f"{machine.get('cores')} cores", f"{round((machine.get('memory_bytes') or 0) / 2**30)} GiB", machine.get("kernel")]
        found["machine"] = " ".join(str(part) for part in parts)
    return found


def _samples(rows: list[dict], problems: list[str]) -> Samples:
    columns = list(_row({"factors": {}, "scale": 1, "count": 1, "clock": "none"})) if not rows else None
    table = pd.DataFrame(rows, columns=columns)
    for name in ("cost", "seconds", "size", "scale", *(f"device.{name}" for name in COUNTS)):
        table[name] = pd.to_numeric(table[name])
    table["conditions_key"] = _differing_conditions(table)
    table["options_key"] = _differing_options(table)
    factors = sorted(name.removeprefix("factor.") for name in table.columns if name.startswith("factor."))
    alone = table["twin"].isna() | (table["twin"] == TWINS[0])
    return Samples(table[alone].reset_index(drop=True), factors, problems, twins=table[table["twin"].notna()])


def _differing_conditions(table: pd.DataFrame) -> list[str]:
    """Of each sample the conditions that are not those of all others with its sort of clock, as text."""
    seen: dict[tuple[str, str], set] = {}
    for clock, conditions in zip(table["clock"], table["conditions"], strict=True):
        for name in (*CONDITIONS, "folder", "machine"):
            seen.setdefault((clock, name), set()).add(conditions.get(name))
    return [
        ", ".join(text for name, text in conditions.items() if len(seen[clock, name]) > 1)
        for clock, conditions in zip(table["clock"], table["conditions"], strict=True)
    ]


def _differing_options(table: pd.DataFrame) -> list[str]:
    """Of each sample the options that tell it from others with the same factors, as text. Samples carry all options of their volume;
    most are the same everywhere or follow from the factors, and would only hide that samples are repetitions of each other."""
    keys = [name for name in CELL if name != "options_key"]
    differing: set[str] = set()
    for _, rows in table.groupby(keys, dropna=False):
        first = rows["options"].iloc[0]
        for other in rows["options"]:
            if other != first:
                differing |= {name for name in first.keys() | other.keys() if first.get(name) != other.get(name)}
    return [",".join(f"{name}={value}" for name, value in options.items() if name in differing) for options in table["options"]]


def cells(samples: Samples) -> list[tuple[dict, pd.DataFrame]]:
    """Repetitions together: for each cell its fields and its samples, in an order that depends on the fields alone."""
    if samples.table.empty:
        return []
    groups = samples.table.groupby(list(CELL), dropna=False, sort=True)
    return [(dict(zip(CELL, key, strict=True)), rows) for key, rows in groups]


def identity(key: dict) -> tuple:
    """A cell's fields as something to look up by: a missing size equals a missing size."""
    return tuple(None if pd.isna(key[name]) else key[name] for name in CELL)


def choices_of(table: pd.DataFrame, option: str) -> pd.Series:
    """The choice of an option in each sample: as a factor, or as it was set in all; missing where a target has no such option."""
    set_in_all = table["options"].map(lambda options: options.get(option))
    column = f"factor.{option}"
    return table[column].where(table[column].notna(), set_in_all) if column in table else set_in_all


def same(column: pd.Series, value: object) -> pd.Series:
    """Which rows have the value; a missing one equals a missing one."""
    return column.isna() if pd.isna(value) else column == value
