"""scripts/compare_peers --dreamer [--rounds 10] [--updates 3] [--games cartpole,pendulum] [--threads 1,2]
                      [--peers plain,sheeprl] [--folder .peers] [--json FILE] [options of rlrun train, for rlrun's side]

Compares the speed of DreamerV3's updates: batches of 16 x 64 rows of vectors, networks of size1m, dreams of 15 steps.
Against rlrun at the precision that it chooses stand a plain PyTorch loop in float32 (dreamerv3_peer.py), SheepRL's
DreamerV3 (dreamerv3_sheeprl_peer.py; that of 2023, whose one GRU in place of blocks has twice the weights), and rlrun in
float32. All processes are there from the beginning and take turns, a few updates each, so that what else the machine
does meets all of them. The output is milliseconds per update of the clock and of the CPU (all threads together), and
how many times as fast as each other program rlrun is: the median over rounds, with the lowest and the highest."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from compare import HERE, PACKAGES, ROOT, Failed, make_environment

GAMES = ("cartpole", "pendulum")
PEERS = ("plain", "sheeprl")
PACKAGES["sheeprl"] = ["sheeprl==0.8.4"]
ALONE = ("rlrun", "rlrun fp32")


class Contestant:
    """A program that makes updates when it is asked to, and says how long they took."""

    def __init__(self, python: Path | str, script: str, words: list[str]):
        """Failed where the program ends before it is ready."""
        env = {**os.environ, "OMP_NUM_THREADS": words[1], "PYTHONWARNINGS": "ignore"}
        if script != "dreamerv3_rlrun.py":
            env.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [str(python), str(HERE / script), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.told = self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        lines = self.process.stderr.read().strip().splitlines()
        raise Failed(f"{lines[-1] if lines else 'it printed nothing'} (exit code {self.process.wait()})")

    def updates(self, count: int) -> dict[str, float]:
        """Milliseconds per update, {"wall", "cpu"}."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return {name: 1e3 * seconds / count for name, seconds in self._line().items()}

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=60)


def started(said: argparse.Namespace, game: str, threads: str) -> dict[str, Contestant | str]:
    """The programs by name, or why one cannot be had."""
    made: dict[str, Contestant | str] = {}
    wanted = [(name, "dreamerv3_rlrun.py") for name in ALONE]
    wanted += [(name, f"dreamerv3_{name}_peer.py" if name != "plain" else "dreamerv3_peer.py") for name in said.peers]
    for name, script in wanted:
        words = [game, threads]
        if name in ALONE:
            words += [*said.words, *(["resources.precision=fp32"] if name == "rlrun fp32" else [])]
        try:
            python = make_environment(name, said.folder.resolve()) if name in PACKAGES else sys.executable
            made[name] = Contestant(python, script, words)
        except Failed as error:
            made[name] = str(error)
    return made


def measured(programs: dict[str, Contestant | str], rounds: int, updates: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds per update in each round; every other round is in reverse order."""
    running = {name: program for name, program in programs.items() if isinstance(program, Contestant)}
    found: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in running}
    for number in range(rounds):
        for name in list(running) if number % 2 == 0 else list(reversed(running)):
            for kind, ms in running[name].updates(updates).items():
                found[name][kind].append(ms)
    return found


def times(found: dict[str, dict[str, list[float]]], name: str, kind: str) -> list[float]:
    """How many times as fast as another program rlrun was, in each round."""
    return [theirs / ours for ours, theirs in zip(found["rlrun"][kind], found[name][kind], strict=True)]


def table(game: str, threads: str, programs: dict[str, Contestant | str], found: dict[str, Any]) -> str:
    title = f"dreamerv3 on {game}, {threads} thread{'s' * (threads != '1')}"
    lines = [f"{title:<32}{'ms wall':>9}{'ms CPU':>9}{'updates/s':>11}  {'rlrun is, by the clock':<26}by the CPU"]
    for name, program in programs.items():
        if isinstance(program, str):
            lines.append(f"  {name:<30}failed: {program}")
            continue
        wall, cpu = (statistics.median(found[name][kind]) for kind in ("wall", "cpu"))
        said = ["", ""]
        if name != "rlrun":
            each = [times(found, name, kind) for kind in ("wall", "cpu")]
            said = [f"{statistics.median(x):.2f} x ({min(x):.2f} to {max(x):.2f})" for x in each]
        of = ", ".join(f"{key} {value}" for key, value in program.told["settings"].items() if key != "threads")
        lines.append(f"  {name:<30}{wall:>9.0f}{cpu:>9.0f}{1e3 / wall:>11.2f}  {said[0]:<26}{said[1]:<26}{of}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--dreamer", action="store_true", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--games", default=",".join(GAMES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers")
    parser.add_argument("--json", type=Path)
    parser.add_argument("words", nargs="*", help="options of rlrun train, for rlrun's side")
    said = parser.parse_args()
    for name, known in (("games", GAMES), ("threads", ("1", "2")), ("peers", PEERS)):
        setattr(said, name, [one for one in getattr(said, name).split(",") if one])
        for one in getattr(said, name):
            if one not in known:
                parser.error(f"--{name}: {one} is none of {', '.join(known)}")
    if said.rounds < 1 or said.updates < 1:
        parser.error("--rounds and --updates must be at least 1")
    if said.json and not said.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {said.json.resolve().parent}")
    results, good = {}, True
    for game in said.games:
        for threads in said.threads:
            programs = started(said, game, threads)
            if isinstance(programs["rlrun"], str):
                print(f"rlrun failed: {programs['rlrun']}", flush=True)
                return 1
            try:
                found = measured(programs, said.rounds, said.updates)
            finally:
                for program in programs.values():
                    if isinstance(program, Contestant):
                        program.close()
            print(table(game, threads, programs, found) + "\n", flush=True)
            good &= not any(isinstance(program, str) for program in programs.values())
            results[f"{game}, threads {threads}"] = {
                name: program if isinstance(program, str) else {**program.told, "ms_per_update": found[name]}
                for name, program in programs.items()
            }
            if said.json:
                command = ["scripts/compare_peers", *sys.argv[1:]]
                said.json.write_text(json.dumps({"command": command, "results": results}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
