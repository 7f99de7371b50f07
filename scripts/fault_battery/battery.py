"""The fault battery: tries every row on real runs and prints one table.

scripts/faults [--only NAME ...] [--quick] [--list] [--write]

--only: rows with this name, or whose name begins with it. --quick: fewer tries, and without the rows that take long.
--list: the rows. --write: writes the table of docs/faults.md. The exit status is 1 when a row fails its expectation."""

from __future__ import annotations

import argparse
import platform
import signal
import sys
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from fault_battery import rows_environments, rows_files, rows_processes, rows_services  # noqa: E402, F401  they fill ROWS
from fault_battery.harness import ROWS, Result, attempt  # noqa: E402

PAGE = ROOT / "docs" / "faults.md"
COLUMNS = ("fault", "tries", "survived", "ended cleanly", "seconds", "what was lost", "result")


def cells(one: Result) -> tuple[str, ...]:
    result = f"not tried: {one.skipped}" if one.skipped else "FAILED" if one.problems else "as promised"
    return (
        one.row.fault, str(one.tries), str(one.survived), str(one.ended), f"{one.seconds:.0f}", one.lost, result
    )  # fmt: skip


def table(results: list[Result]) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *map(cells, results)]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def page(results: list[Result], command: str) -> str:
    from rlrun.runtime.rundir import git_commit, hardware

    facts = hardware()
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    problems = [f"- {one.row.name}: {said}" for one in results for said in one.problems if not said.startswith("the runs")]
    known = ["", "What is not as promised:", "", *problems] if problems else []
    return "\n".join([
        "# The fault battery",
        "",
        "Every row is a fault that was put into real runs of `rlrun train`, in processes of their own. A run must survive it,",
        "or end with a sentence and the right exit status, so that `rlrun resume` goes on. After each run nothing may be",
        "left: no process, no shared memory, no lock and no half-written file. Env steps may be counted once only.",
        "[When something fails](failures.md) says what is promised.",
        "",
        f"Made by `{command}` on {date.today():%-d %B %Y} at commit {(git_commit() or 'unknown')[:12]}, on",
        f"{facts['cpu']}, {facts['cores']} cores, {gpus}, Python {platform.python_version()}.",
        "",
        table(results),
        *known,
        "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    for flag in ("--quick", "--list", "--write"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    wrong = [name for name in asked.only if not any(row.startswith(name) for row in ROWS)]
    if wrong:
        print(f"There is no row {wrong[0]}; there are {', '.join(ROWS)}.", file=sys.stderr)
        return 2
    rows = [name for name in ROWS if not asked.only or any(name.startswith(word) for word in asked.only)]
    if asked.quick and not asked.only:
        rows = [name for name in rows if not ROWS[name].full_only]
    if asked.list:
        print("\n".join(f"{name:<24}{ROWS[name].fault}" for name in rows))
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # runs that are going on are ended then
    results = []
    for name in rows:
        print(f"{name} ...", flush=True)
        results.append(attempt(name, asked.quick))
        _, tries, survived, ended, took, lost, result = cells(results[-1])
        print(f"  {tries} tries, {survived} survived, {ended} ended cleanly, {took} s, lost: {lost}; {result}", flush=True)
        for said in results[-1].problems:
            print(f"  problem: {said}", flush=True)
    print(f"\n{table(results)}")
    if asked.write:
        words = [*(["--quick"] if asked.quick else []), *(["--only", *asked.only] if asked.only else [])]
        PAGE.write_text(page(results, " ".join(["scripts/faults", *words])))
        print(f"\n{PAGE.relative_to(ROOT)} is written")
    return int(any(one.problems for one in results))


if __name__ == "__main__":
    sys.exit(main())
