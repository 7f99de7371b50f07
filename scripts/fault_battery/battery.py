"""The fault battery: tries every row on real runs and prints one table.

scripts/faults [--only NAME ...] [--quick] [--tries N] [--patience TIMES] [--list] [--write]

--only: rows with this name, or whose name begins with it. --quick: fewer tries, and without the rows that take long.
--tries: how often faults come that are tried at random moments (20 kills, 50 signals; 2 and 4 with --quick). --patience:
by which all times are multiplied after which a run counts as hanging, for a busy machine. --list: the rows. --write:
writes the table of docs/faults.md. The exit status is 1 when a row fails its expectation."""

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
from fault_battery.harness import PATIENCE, ROWS, Result, attempt  # noqa: E402

PAGE = ROOT / "docs" / "faults.md"
COLUMNS = ("row", "fault", "tries", "survived", "ended cleanly", "seconds", "what was lost", "result")
NOT_AS_PROMISED = "What is not as promised:"
HEAD = """<!-- scripts/faults --write makes this page; change what it is made from. -->
# The fault battery

Every row is a fault that was put into real runs of `rlrun train`, in processes of their own. A run must survive it, or end
with a sentence and the right exit status, so that `rlrun resume` goes on. After each run nothing may be left: no process,
no shared memory, no lock and no half-written file. No env step may be counted twice, and those that are lost are counted
as lost. [When something fails](failures.md) says what is promised.

`scripts/faults` tries all rows, and `scripts/faults --write --only ROW` writes one of them anew. Each row says at which
commit, on which day and with which options it was made. The machine was
"""


def cells(one: Result) -> tuple[str, ...]:
    result = f"not tried: {one.skipped}" if one.skipped else "FAILED" if one.problems else "as promised"
    numbers = (str(one.tries), str(one.survived), str(one.ended), f"{one.seconds:.0f}")
    return (one.row.name, one.row.fault, *numbers, one.lost, result)


def table(lines: list[tuple[str, ...]], columns: tuple[str, ...] = COLUMNS) -> str:
    made = [columns, tuple("---" for _ in columns), *lines]
    return "\n".join("| " + " | ".join(text.replace("|", "/") for text in line) + " |" for line in made)


def stamp(quick: bool, tries: int | None, patience: float = 1.0) -> str:
    """The commit, the day and the options with which rows are made."""
    from rlrun.commands.compare import commit
    from rlrun.runtime.rundir import git_commit

    options = f"{', --quick' * quick}{f', --tries {tries}' * (tries is not None)}"
    options += f", --patience {patience:g}" * (patience != 1)
    return f"{commit(git_commit())}, {date.today():%Y-%m-%d}{options}"


def write(results: list[Result], made: str) -> None:
    """Writes the page. Rows of an earlier page stay, unless they were tried again or come from another machine.

    made: the stamp of these results, from before the first was tried."""
    from rlrun.runtime.rundir import hardware

    facts = hardware()
    machine = f"{facts['cpu']}, {facts['cores']} cores, {', '.join(facts['gpus']) or 'no GPU'}, Python {platform.python_version()}."
    before = PAGE.read_text() if PAGE.exists() else ""
    rows: dict[str, tuple[str, ...]] = {}
    problems: dict[str, list[str]] = {}
    if machine in before:
        for line in before.splitlines():
            parts = tuple(text.strip() for text in line.strip("|").split(" | "))
            if line.startswith("| ") and parts[0] in ROWS:
                rows[parts[0]] = parts
            elif line.startswith("- ") and NOT_AS_PROMISED in before:
                problems.setdefault(line[2:].partition(": ")[0], []).append(line)
    for one in results:
        rows[one.row.name] = (*cells(one), made)
        said = [text for text in one.problems if not text.startswith("the runs are in")]
        problems[one.row.name] = [f"- {one.row.name}: {' '.join(text.split())[:300]}" for text in said]
    text = HEAD + machine + "\n\n" + table([rows[name] for name in ROWS if name in rows], (*COLUMNS, "made")) + "\n"
    left = [line for name in ROWS for line in problems.get(name, ())]
    if left:
        text += "\n".join(["", NOT_AS_PROMISED, "", *left, ""])
    PAGE.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--tries", type=int, metavar="N")
    parser.add_argument("--patience", type=float, default=1.0, metavar="TIMES")
    for flag in ("--quick", "--list", "--write"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    wrong = [name for name in asked.only if not any(row.startswith(name) for row in ROWS)]
    if wrong:
        print(f"There is no row {wrong[0]}; there are {', '.join(ROWS)}.", file=sys.stderr)
        return 2
    rows = [name for name in ROWS if not asked.only or any(name.startswith(word) for word in asked.only)]
    PATIENCE[0] = asked.patience
    if asked.quick and not asked.only:
        rows = [name for name in rows if not ROWS[name].full_only]
    if asked.list:
        print("\n".join(f"{name:<24}{ROWS[name].fault}" for name in rows))
        return 0
    # A shell lets what it starts in the background ignore SIGINT, and so would the runs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # runs that are going on are ended then
    results, made = [], stamp(asked.quick, asked.tries, asked.patience) if asked.write else ""
    for name in rows:
        print(f"{name} ...", flush=True)
        results.append(attempt(name, asked.quick, tries=asked.tries))
        _, _, tries, survived, ended, took, lost, result = cells(results[-1])
        print(f"  {tries} tries, {survived} survived, {ended} ended cleanly, {took} s, lost: {lost}; {result}", flush=True)
        for said in results[-1].problems:
            print(f"  problem: {said}", flush=True)
        if asked.write:  # after each row, because the battery takes long
            write(results, made)
    print(f"\n{table(list(map(cells, results)))}")
    return int(any(one.problems for one in results))


if __name__ == "__main__":
    sys.exit(main())
