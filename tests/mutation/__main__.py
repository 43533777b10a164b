"""Damages as many files as one likes and prints a table of outcomes by format."""

import argparse
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from kit.models import share
from mutation import __doc__ as description
from mutation.runner import OUTCOMES, Case, run
from mutation.whole import FORMATS


def main() -> int:
    """Print the table; returns 1 where anything but a whole model or one line came out."""
    parser = argparse.ArgumentParser(
        prog="python -m mutation",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--cases", type=int, default=200, help="of each format (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: 0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="for a case (default: 60)")
    parser.add_argument(
        "--samples", type=Path, metavar="DIR", help="where whole files are kept for the next run"
    )
    parser.add_argument("--all", action="store_true", help="list every case's outcome")
    args = parser.parse_args()
    names = args.formats or list(FORMATS)
    if unknown := set(names) - FORMATS.keys():
        parser.error(f"no format {min(unknown)!r}: one of {', '.join(FORMATS)}")
    numbers, width = range(args.first, args.first + args.cases), max(map(len, names))
    print(f"{'format':<{width}}", *(f"{outcome:>9}" for outcome in OUTCOMES))
    listed: dict[tuple[str, str], list[Case]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="kvcast-mutation-") as scratch:
        share(args.samples or Path(scratch))
        for name in names:
            cases = list(run(name, FORMATS[name].written(), args.seed, numbers, args.seconds))
            counts = Counter(case.outcome for case in cases)
            print(f"{name:<{width}}", *(f"{counts[o]:>9}" for o in OUTCOMES), flush=True)
            for case in cases:
                if args.all or not case.well:
                    listed[name, f"{case.outcome}: {case.message}"].append(case)
    for (name, what), cases in sorted(listed.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(str(case.number) for case in cases[:8])
        print(f"{name}: {len(cases)} x {what!r} (cases {shown})")
    return int(any(not case.well for cases in listed.values() for case in cases))


if __name__ == "__main__":
    sys.exit(main())
