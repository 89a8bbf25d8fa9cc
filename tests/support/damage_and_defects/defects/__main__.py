"""`python -m defects` lists the defects; with ``NAME[,NAME…] COMMAND…`` it runs minibroker with them."""

from __future__ import annotations

import sys

from defects import DEFECTS, named, plant
from minibroker.cli import main as minibroker


def main(arguments: list[str]) -> int:
    if not arguments:
        for defect in DEFECTS.values():
            print(f"{defect.name}: {defect.breaks}")
        return 0
    try:
        defects = named(arguments[0].split(","))
    except ValueError as error:
        print(f"defects: {error}", file=sys.stderr)
        return 2
    with plant(*defects):
        return minibroker(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
