"""python -m mutants"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import Queue

import mutants

from .coverage_map import CoverageMap
from .planting import ROOT, Mutant, drawn, found_again
from .showing import Workplace

EXPLAINED = ROOT / "tests" / "support" / "damage_and_defects" / "mutants.toml"


def main() -> int:
    arguments = _arguments()
    output = Path(arguments.output or ROOT / "build" / "mutants" / f"{arguments.seed}.json")
    coverage = CoverageMap(Path(arguments.coverage or ROOT / "build" / "mutants" / "coverage"))
    if arguments.again:
        before = _of_file(Path(arguments.again))
        reasons = explained()
        kept = [mutant for mutant in before if mutant.seen or mutant.key in reasons]
        planted = [mutant for known in before if known not in kept and (mutant := found_again(known))]
    else:
        planted = drawn(arguments.seed, arguments.count, arguments.only)
        kept = _of_file(output) if arguments.resume and output.exists() else []
        planted = [mutant for mutant in planted if not any(mutant.place == other.place for other in kept)]
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as scratch:
        done = kept + _shown(planted, coverage, arguments, Path(scratch), kept, output)
    print(report(done))
    return 0


def _of_file(path: Path) -> list[Mutant]:
    return [Mutant(**row) for row in json.loads(path.read_text())]


def _shown(
    planted: list[Mutant], coverage: CoverageMap, arguments: argparse.Namespace, scratch: Path, kept: list[Mutant],
    output: Path,
) -> list[Mutant]:  # fmt: skip
    places: Queue[Workplace] = Queue()
    extra = ["-m", arguments.tier] if arguments.tier else []
    for number in range(arguments.jobs):
        places.put(Workplace(scratch / str(number), coverage, extra))

    def show(mutant: Mutant) -> Mutant:
        place = places.get()
        try:
            if arguments.tier:
                return place.show(mutant, place.all_tests(mutant), arguments.seconds)
            return place.show(mutant, coverage.tests(mutant, arguments.seconds))
        finally:
            places.put(place)

    done: list[Mutant] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant in pool.map(show, planted):
            done.append(mutant)
            print(f"{len(done):4} {'seen' if mutant.seen else 'NOT SEEN':8} {mutant.path}:{mutant.line} "
                  f"{mutant.before!r} -> {mutant.after!r}", flush=True)  # fmt: skip
            output.write_text(json.dumps([asdict(mutant) for mutant in [*kept, *done]], indent=1))
    while not places.empty():
        places.get().close()
    return done


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mutants", description=mutants.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose path has this text")
    parser.add_argument("--again", metavar="FILE", help="the defects that an earlier run's output says were not seen")
    parser.add_argument(
        "--resume", action="store_true", help="goes on with what the output has of a run that was ended"
    )
    parser.add_argument(
        "--tier", metavar="MARKERS", help="with other tests than the default ones, as `pytest -m` has them"
    )
    parser.add_argument("--seconds", type=float, default=40, help="tests per defect, in seconds of an ordinary run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--coverage", metavar="DIR", help="where the map of lines to tests is kept")
    parser.add_argument("--output", metavar="FILE", help="default: build/mutants/SEED.json")
    return parser.parse_args()


def explained() -> dict[tuple[str, str, str], str]:
    """Defects that change nothing a user could notice, with the reason, by path, line before and line after."""
    if not EXPLAINED.exists():
        return {}
    entries = tomllib.loads(EXPLAINED.read_text())["mutant"]
    return {(entry["path"], entry["before"], entry["after"]): entry["why"] for entry in entries}


def report(done: Iterable[Mutant]) -> str:
    reasons = explained()
    planted, seen, known = Counter[str](), Counter[str](), Counter[str]()
    for mutant in done:
        planted[mutant.folder] += 1
        seen[mutant.folder] += bool(mutant.seen)
        known[mutant.folder] += not mutant.seen and mutant.key in reasons
    rows = [f"| {folder} | {planted[folder]} | {seen[folder]} | {known[folder]} |" for folder in sorted(planted)]
    total = planted.total() - known.total()
    share = 100 * seen.total() / total if total else 100
    return "\n".join([
        "| folder | planted | seen | explained |", "|---|---|---|---|", *rows,
        f"| all | {planted.total()} | {seen.total()} | {known.total()} |",
        f"{share:.1f} % of what a user could notice was seen",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
