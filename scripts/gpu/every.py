"""python3 scripts/gpu/every.py FOLDER [--jobs N] [--device auto] [--again cuda] [ALGO | ALGO@ENV ...]

Trains every algorithm by the command line until it has made some updates, goes on with the run from its checkpoint on
the device of --again, and evaluates it, several at a time. Some learn Pong from its screens too. It prints a line for
each algorithm, and its exit status is 1 where one of them failed. Run directories and outputs are in FOLDER.
scripts/gpu_check runs it as its part `every`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlrun.bench.throughput_all import DATA, words_of
from rlrun.config.paths import options

# These environments come with rlrun, where those of throughput_all need packages that a GPU machine may lack.
OWN = {
    "dreamer": ["algo=dreamer", "env=Pendulum-v1"],
    "dreamerv3": ["algo=dreamerv3", "env=CartPole-v1"],
    "maddpg": ["algo=maddpg", "env=TwoStepGame-v0"],
    "mbmpo": ["tuned=mbmpo/cartpole"],
    "multi": ["algo=multi", "env=MultiAgentCartPole-v0"],
    "self_play": ["algo=self_play", "env=ConnectFour-v0"],
}
# These learn from screens too, beside those of tests/gpu.
SCREENS = ["a2c", "apex", "c51", "ddppo", "dreamerv3", "icm", "iqn", "pqn", "qr_dqn", "r2d2", "rnd"]
# Options with which the first update comes within seconds.
SOON = {
    "alphazero": ["algo.search.simulations=8", "algo.batch_size=32"],
    "dreamer": ["algo.learning_starts=300"],
    "dreamerv3": ["algo.learning_starts=200"],
}
EARLY = ["algo.learning_starts=300"]
LONG_SEC = 90.0  # a command that takes longer is ended, and its algorithm has failed
DATA_STEPS = 5_000


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--again", default="auto", help="the device on which runs are resumed")
    parser.add_argument("--env-steps", type=int, default=4000, help="of training, before and again after the resume")
    parser.add_argument("--seconds", type=float, default=20.0, help="after which a training is ended before that")
    parser.add_argument("algos", nargs="*")
    asked = parser.parse_intermixed_args(words)
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = asked.algos or [*options("algo"), *(f"{algo}@Pong" for algo in SCREENS)]
    for env in sorted({DATA[algo] for algo in chosen if algo in DATA}):
        said = run(["train", "algo=a2c", f"env={env}", f"env_steps={DATA_STEPS}", "logger=[]", "resources=debug",
                    f"record={folder / env}", f"run_dir={folder / (env + '-run')}"], folder / f"{env}.log")  # fmt: skip
        if said:
            print(f"data of {env}: {said}")
    # The slowest come first, so that none of them runs alone at the end.
    slow = [algo for algo in ("maml", "mbmpo", "dreamer", "dreamerv3", "dreamerv3@Pong", "alphazero") if algo in chosen]
    with ThreadPoolExecutor(asked.jobs) as pool:
        order = [*slow, *(algo for algo in chosen if algo not in slow)]
        told = list(pool.map(lambda algo: one(algo, asked, folder), order))
    failed = [line for line in told if "FAILED" in line]
    print(f"{len(told) - len(failed)} algorithms trained, went on and were evaluated; {len(failed)} failed")
    return int(bool(failed))


def one(algo: str, asked: argparse.Namespace, folder: Path) -> str:
    line = f"{algo:<16}{_one(algo, asked, folder)}"
    print(line, flush=True)
    return line


def _one(algo: str, asked: argparse.Namespace, folder: Path) -> str:
    started, place, log = time.monotonic(), folder / algo, folder / f"{algo}.log"
    seconds, steps = asked.seconds, asked.env_steps
    name, _, env = algo.partition("@")
    given = [f"algo={name}", f"env={env}"] if env else OWN.get(algo) or words_of(algo, [], folder)
    words = ["train", *given, *SOON.get(name, []), f"resources.device={asked.device}", f"env_steps={steps}",
             f"stop.wall_sec={seconds:g}", "stop.return_mean=null", "logger=[console]", "log_every_sec=2", "seed=1",
             f"run_dir={place}"]  # fmt: skip
    # Many runs share the machine, so that each gets few samplers. Some algorithms refuse one option or both.
    more = {"learning_starts": EARLY, "num_samplers": ["resources.num_samplers=2"]}
    while said := run([*words, *(word for part in more.values() for word in part)], log):
        refused = [name for name in more if name in said]
        if not refused:
            return f"FAILED: train: {said}"
        for name in refused:
            del more[name]
    first = summary(place)
    more_steps = f"env_steps={2 * max(steps, first['env_steps'])}"
    again = ["resume", str(place), more_steps, f"stop.wall_sec={first['wall_sec'] + seconds:g}"]
    said = run([*again, f"resources.device={asked.again}"], log)
    if said and "CPU" in said:  # it learns on the CPU only, and says so
        said = run(again, log)
    if said:
        return f"FAILED: resume: {said}"
    second = summary(place)
    if said := run(["evaluate", str(place), "episodes=2"], log):
        return f"FAILED: evaluate: {said}"
    counts = f"{first['updates']:,} updates, then {second['updates']:,}; return {second.get('return_mean')}, {second['status']}"
    if not 0 < first["updates"] < second["updates"]:
        return f"FAILED: {counts}"
    return f"{counts}; {time.monotonic() - started:.0f} s"


def summary(place: Path) -> dict:
    return json.loads((place / "summary.json").read_text())


def run(words: list[str], log: Path) -> str | None:
    """Runs a command of rlrun; returns why it failed, or None."""
    environment = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    with open(log, "a") as file:
        file.write(f"---- rlrun {' '.join(words)}\n")
        file.flush()
        begin = file.tell()
        try:
            done = subprocess.run([sys.executable, "-m", "rlrun", *words], stdout=file, stderr=subprocess.STDOUT,
                                  env=environment, timeout=LONG_SEC)  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"took longer than {LONG_SEC:.0f} s"
    if done.returncode == 0:
        return None
    lines = [line for line in log.read_bytes()[begin:].decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"exit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
