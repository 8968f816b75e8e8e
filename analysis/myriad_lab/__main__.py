"""The command: `python -m myriad_lab report RESULTS... --out DIR`."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

import pandas as pd

from . import claims, report, samples
from .figures import memory
from .figures.style import render
from .report import build

# Of the random halves of A against A.
SEED = 20_020_610


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 the results or claims cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except (samples.BadResults, claims.BadClaims, OSError) as error:
        print(f"myriad lab report: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="myriad_lab", description="Statistics, figures and report of Myriad's lab.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    one = verbs.add_parser("report", help="write a report of result files", description=_report.__doc__)
    one.add_argument("results", nargs="*", type=Path, metavar="RESULTS", help="result files, or directories of them")
    one.add_argument("--out", required=True, type=Path, metavar="DIR", help="directory of the report; made if need be")
    one.add_argument("--ours", metavar="TARGET", help="the target that others are compared with [mount, or else process]")
    one.add_argument("--by-commit", action="store_true", help="each build is a target of its own, as in mount@1a2b3c4")
    one.add_argument("--notes", type=Path, metavar="FILE", help="TOML: CLAIM = 'what we know of why', shown beside its verdict")
    one.add_argument("--claims", type=Path, metavar="FILE", help="other claims than those of the package")
    one.add_argument("--seed", type=int, default=SEED, metavar="N", help="of the random halves of A against A [%(default)s]")
    one.set_defaults(run=_report)
    two = verbs.add_parser("claims", help="list the claims, which are predictions until they are run")
    two.set_defaults(run=_claims)
    three = verbs.add_parser("memory", help="draw the memory of hashes over directories", description=_memory.__doc__)
    three.add_argument("table", type=Path, metavar="CSV", help="a row a directory: directory, hash, in bytes")
    three.add_argument("--out", required=True, type=Path, metavar="PNG")
    three.set_defaults(run=_memory)
    return parser


def _report(options: argparse.Namespace) -> int:
    """Writes DIR/index.html, DIR/figures/*.png and DIR/data/*.csv. Without results it shows what is predicted."""
    notes = {}
    if options.notes:
        try:
            notes = tomllib.loads(options.notes.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise claims.BadClaims(f"{options.notes}: {error}") from None
    found = samples.read(options.results, options.by_commit)
    made = build.analyse(found, options.seed, options.ours, notes, options.claims)
    page = report.write(made, options.out)
    for problem in found.problems:
        print(f"note: {problem}")
    print(f"{len(found.table)} samples, {len(made.tests)} factorial tests, {len(made.pictures)} figures: {page}")
    return 0


def _claims(_options: argparse.Namespace) -> int:
    from .report.tables import expected

    for group in claims.read():
        print(f"{group.paper} {group.place}: {group.title}")
        for claim in group.claims:
            print(f"  {claim.id:32} {claim.text} Expected: {expected(claim)}.")
    return 0


def _memory(options: argparse.Namespace) -> int:
    """Draws what the example `costs` says of hashes: its last line at each size."""
    points = pd.read_csv(options.table)
    picture = render(options.out.stem, "Memory of hashes by the size of their directories", lambda shape: memory.draw(points, shape))
    options.out.write_bytes(picture.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
