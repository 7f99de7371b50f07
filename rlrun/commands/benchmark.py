"""rlrun benchmark throughput algo=... env=... [any option of rlrun train] [seconds=30] [--json FILE]

Measures env, inference and learning alone, the bound that they imply for this machine, and what training reaches."""

from __future__ import annotations

from typing import Any

from rlrun.cli import compose
from rlrun.core.errors import UserError, closest


def main(words: list[str]) -> int:
    kinds = ("throughput",)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    if words[0] not in kinds:
        raise UserError(f"There is no benchmark {words[0]!r}.{closest(words[0], kinds)} Today there is throughput; the tables come with a later issue.")
    words = words[1:]
    json_file = None
    if "--json" in words:
        at = words.index("--json")
        if at + 1 >= len(words):
            raise UserError("--json needs a file name")
        json_file = words[at + 1]
        words = words[:at] + words[at + 2 :]
    seconds = 30.0
    for word in [w for w in words if w.startswith("seconds=")]:
        words.remove(word)
        try:
            seconds = float(word.partition("=")[2])
        except ValueError:
            raise UserError(f"{word}: seconds must be a number") from None
    if seconds < 5:
        raise UserError("seconds must be at least 5: the first rows of a run are no measure")

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        from rlrun.bench.throughput import measure, table
        from rlrun.commands.train import check_tuned
        from rlrun.config import plain
        from rlrun.wiring import type_config

        values = plain(cfg)
        check_tuned(choices, values)
        print(f"rlrun benchmark throughput: {values['algo']['name']} on {values['env']['name']}, {seconds:.0f} s", flush=True)
        result = measure(type_config(values), seconds)
        print(table(result))
        if json_file:
            import json
            from pathlib import Path

            Path(json_file).write_text(json.dumps(result, indent=1) + "\n")
        return 0

    return compose(words, job)
