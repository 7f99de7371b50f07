"""rlrun benchmark throughput algo=... env=... [any option of rlrun train] [seconds=30] [--json FILE]
rlrun benchmark throughput --all [algo=NAME,NAME] [env=...] [any option] [seconds=10] [--json FILE]
rlrun benchmark replay [capacity=10000,100000,1000000] [replay.compress=true] [replay.directory=DIR] [--json FILE]
rlrun benchmark growth [algo=...] [env=...] [--axes samplers,learners,envs,fragment,model] [--plot FILE.png]
rlrun benchmark reproduce-tables [table=...] [game=...] [algo=...] [seeds=1,2,3] [budget=1.0]
rlrun benchmark tuned [NAME ...] [--fast]
rlrun benchmark cluster --simulate nodes=64 | --measure | --table

throughput measures the environment, inference and learning each on its own, computes the bound that they imply for this
machine, and measures the speed that training reaches. With --all, every algorithm is measured on a small environment,
or on the one that env= names, each in a process of its own, and a table has the bounds and ratios; an algorithm that
cannot be measured is listed with the reason. replay measures how many rows can be stored and drawn per second
on one thread, uniformly and by priority, and the memory that they take (7.3 GB for a million rows of Atari).
growth --help, reproduce-tables --help, tuned --help and cluster --help describe the others."""

from __future__ import annotations

import importlib
from typing import Any

from rlrun.bench.arguments import check_results_file, check_seconds, write_results
from rlrun.cli import compose
from rlrun.core.errors import UserError, closest
from rlrun.core.numbers import number

OF_PRIORITIES = ("replay.alpha", "replay.beta", "replay.priority_epsilon")
OTHERS = {
    "growth": "rlrun.bench.growth",
    "reproduce-tables": "rlrun.bench.reproduce",
    "tuned": "rlrun.bench.tuned",
    "cluster": "rlrun.bench.cluster",
}


def main(words: list[str]) -> int:
    kinds = ("throughput", "replay", *OTHERS)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    if words[0] not in kinds:
        raise UserError(f"There is no benchmark {words[0]!r}.{closest(words[0], kinds)} There are {', '.join(kinds)}.")
    if words[0] in OTHERS:
        return importlib.import_module(OTHERS[words[0]]).main(words[1:])
    kind, words = words[0], words[1:]
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return 0
    json_file = None
    at = next((number for number, word in enumerate(words) if word.partition("=")[0] == "--json"), None)
    if at is not None:
        _, equals, json_file = words[at].partition("=")
        json_file = json_file if equals else "".join(words[at + 1 : at + 2])
        if not json_file:
            raise UserError("--json needs a file name")
        check_results_file(json_file)
        words = words[:at] + words[at + (1 if equals else 2) :]
    if kind == "replay":
        return replay(words, json_file)
    each = "--all" in words
    words = [word for word in words if word != "--all"]
    seconds = 10.0 if each else 30.0
    for word in [w for w in words if w.startswith("seconds=")]:
        words.remove(word)
        try:
            seconds = float(word.partition("=")[2])
        except ValueError:
            raise UserError(f"{word}: seconds must be a number") from None
    check_seconds(seconds)
    if each:
        from rlrun.bench.throughput_all import measure_all

        measure_all(words, seconds, lambda results: keep(results, json_file))
        return 0

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        from rlrun.bench.throughput import measure, table
        from rlrun.commands.train import check_tuned
        from rlrun.config.run import type_config
        from rlrun.config.types import plain

        values = plain(cfg)
        for note in check_tuned(choices, values):
            print(f"  {note}", flush=True)
        print(
            f"rlrun benchmark throughput: {values['algo']['name']} on {values['env']['name']}, {seconds:.0f} s",
            flush=True,
        )
        result = measure(type_config(values), seconds, lambda line: print(f"  {line}", flush=True))
        print(table(result))
        keep(result, json_file)
        return 0

    return compose(words, job)


def keep(result: dict[str, Any], json_file: str | None) -> None:
    if json_file:
        write_results(result, json_file)


def replay(words: list[str], json_file: str | None) -> int:
    """`rlrun benchmark replay`."""
    capacities = "10000,100000,1000000"
    for word in [w for w in words if w.startswith("capacity=")]:
        words.remove(word)
        capacities = word.partition("=")[2]
    try:
        sizes = [int(float(size if (read := number(size)) is None else read)) for size in capacities.split(",")]
    except (ValueError, OverflowError):
        raise UserError(f"capacity={capacities}: capacity must be numbers of rows, separated by commas") from None
    if min(sizes) < 2000:
        raise UserError(f"capacity={capacities}: a measurement needs at least 2000 rows")

    others = [word for word in words if not word.startswith("replay.")]
    capacity = next((word for word in words if word.startswith("replay.capacity=")), None)
    if others or capacity:
        raise UserError(
            f"{others[0] if others else capacity}: benchmark replay takes capacity=ROWS and options of the replay, such"
            " as replay.compress=true; it measures replay=uniform and replay=prioritized"
        )
    kinds: list[Any] = []

    def job(cfg: Any, choices: dict[str, Any]) -> int:
        from rlrun.config.run import type_config
        from rlrun.config.types import plain

        config = type_config(plain(cfg)).run.replay
        assert config is not None
        kinds.append(config)
        return 0

    for name in ("uniform", "prioritized"):
        own = [word for word in words if name == "prioritized" or not word.startswith(OF_PRIORITIES)]
        compose(["algo=dqn", "env=CartPole-v1", f"replay={name}", *own], job)
    return measured_replay(kinds, sizes, json_file)


def measured_replay(kinds: list[Any], sizes: list[int], json_file: str | None) -> int:
    """Measures these replays (ReplayConfig) at these capacities, and shows what was found."""
    import torch

    from rlrun.bench.replay import measure, table
    from rlrun.machine.machine import free_memory

    torch.set_num_threads(1)
    if kinds[0].directory is None and not kinds[0].compress and max(sizes) * 7400 > free_memory():
        raise UserError(
            f"capacity={max(sizes)} takes {max(sizes) * 7400 / 1e9:.1f} GB, but only {free_memory() / 1e9:.1f} GB"
            " are free"
        )
    result = measure(kinds, sizes)
    print(table(result))
    keep(result, json_file)
    return 0
