"""scripts/gpu_check [PART ...] [--out FOLDER] [--minutes 9.2] [--pong-seconds 190] [--list]

Checks rlrun on a machine with a GPU, part by part. Each part has a time limit, and parts for which no time is left are
reported as not run. A part that fails is reported in the table and in the exit status, and the others still run. FOLDER
(out/gpu_check by default) gets table.txt, results.json (every figure with its command, versions and hardware) and
logs.txt (all output).

These parts are run by default:

  emulator    Pong's emulator alone, with one process for each core: an upper bound for training
  impala      training speed of IMPALA on Pong at 84x84
  pong        PPO on Pong until its return is 18; the wall time counts from the start of the command
  ppo         training speed of PPO with 4 epochs and 120 environments
  dqn         training speed of DQN with batches of 512
  tests       the tests that need a GPU, in the remaining time; they take about two minutes. Run this part first and
              alone on a new kind of machine

These parts are run only when they are named:

  compiling   the slow one among the tests that need a GPU
  every       trains every algorithm by the command line, goes on with the run on the GPU and evaluates it
  eager       impala without CUDA graphs
  compiled    impala with torch.compile
  spare       impala with two cores that do not step environments
  impala_pong IMPALA on Pong until its return is 18
  dreamer     DreamerV3 on Boxing, as far as the seconds of --pong-seconds go, like the following ones
  dreamer_ms_pacman, dreamer_swingup, dreamer_walker, dreamer_crafter, dreamer_v1
              DreamerV3 on MsPacman, DM Control's cartpole and walker, and Crafter, and Dreamer on the cartpole
  dreamerv3   training speed of DreamerV3 on Pong
  rainbow, appo, apex, local
  sac, sac_cpu, ppo_vectors, ppo_vectors_cpu
              whether small networks are faster on the GPU or on the CPU of this machine
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# macOS has no sched_getaffinity.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
IMPALA = ["tuned=impala/pong_gpu"]
# Whole trainings: the options of each, and the return that it should reach in BAR_SEC, or none.
TRAINED: dict[str, tuple[list[str], float | None]] = {
    "pong": (["tuned=ppo/pong_gpu"], 18.0),
    "impala_pong": (IMPALA, 18.0),
    "dreamer": (["tuned=dreamerv3/boxing"], None),
    "dreamer_ms_pacman": (["tuned=dreamerv3/ms_pacman"], None),
    "dreamer_swingup": (["tuned=dreamerv3/cartpole_swingup", "resources.inference=batched"], None),
    "dreamer_walker": (["tuned=dreamerv3/walker_walk"], None),
    "dreamer_crafter": (["tuned=dreamerv3/crafter"], None),
    "dreamer_v1": (["tuned=dreamer/cartpole_swingup"], None),
}
BAR_SEC = 180.0
SMALL = {"sac": ["algo=sac", "env=Pendulum-v1"], "ppo_vectors": ["algo=ppo", "env=CartPole-v1"]}
# The options of each speed measurement, and its bar in env steps/s or 0 where there is none.
SPEED: dict[str, tuple[list[str], float]] = {
    "impala": (IMPALA, 30_000),
    "ppo": (["algo=ppo", "env=Pong", "algo.batch_size=15360", "algo.minibatch_size=3840"], 12_000),
    "dqn": (
        [
            "algo=dqn",
            "env=Pong",
            "algo.batch_size=512",
            "algo.num_envs=64",
            "algo.fragment_length=4",
            "algo.learning_starts=20000",
            "replay.capacity=200000",
        ],
        5_000,
    ),
    "eager": ([*IMPALA, "resources.cuda_graphs=false"], 0),
    "compiled": ([*IMPALA, "resources.compile=true"], 0),
    "spare": ([*IMPALA, f"resources.num_samplers={max(1, CORES - 2)}"], 0),
    "local": ([*IMPALA, "resources.inference=local"], 0),
    "rainbow": (
        [
            "algo=rainbow",
            "env=Pong",
            "algo.batch_size=512",
            "algo.num_envs=64",
            "algo.fragment_length=4",
            "algo.learning_starts=20000",
            "replay.capacity=200000",
        ],
        0,
    ),
    "appo": (["algo=appo", "env=Pong", "algo.batch_size=800"], 0),
    "dreamerv3": (["algo=dreamerv3", "env=Pong"], 0),
    **{
        f"{name}{'' if device == 'cuda' else '_cpu'}": ([*words, f"resources.device={device}"], 0)
        for name, words in SMALL.items()
        for device in ("cuda", "cpu")
    },
    "apex": (
        [
            "algo=apex",
            "env=Pong",
            "algo.inner.batch_size=512",
            "algo.inner.learning_starts=20000",
            "algo.inner.num_envs=60",
        ],
        0,
    ),
}
USUAL = ["emulator", "impala", "pong", "ppo", "dqn", "tests"]
# These entries of a benchmark's result are kept.
KEPT = (
    "reached",
    "bound",
    "ratio",
    "parts",
    "learner_time",
    "sampler_time",
    "policy_lag",
    "memory_pss_mb",
    "resources",
)
EMULATOR_SEC, SPEED_SEC = 8.0, 15
LIMIT_SEC = {"tests": 400.0, "compiling": 200.0, "every": 400.0, "emulator": 60.0, "speed": 100.0}
STACKS_SEC = 5.0  # time in which a process that is ended writes the stacks of its threads
START_SEC = 40.0  # time beyond a run's own limit, for its start and its last checkpoint
LEAST_SEC = 30.0  # a part is not begun when less time is left


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu_check")
    parser.add_argument("--minutes", type=float, default=9.2, help="time after which the last part is ended")
    parser.add_argument("--pong-seconds", type=float, default=190.0)
    parser.add_argument("--list", action="store_true", help="only print what would be run")
    asked = parser.parse_args(words)
    asked.out, asked.end = asked.out.resolve(), time.monotonic() + 60 * asked.minutes
    asked.work = Path(tempfile.mkdtemp(prefix="gpu_check-"))
    known = [
        *USUAL,
        "compiling",
        "every",
        *(name for name in TRAINED if name not in USUAL),
        *(name for name in SPEED if name not in USUAL),
    ]
    if unknown := [name for name in asked.parts if name not in known]:
        print(f"gpu_check: there is no part {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    parts = asked.parts or USUAL
    if asked.list:
        print("\n".join(f"{name:<18}{' '.join(command_of(name, asked))}" for name in parts))
        return 0
    try:
        import torch
    except ImportError:
        print(
            f"gpu_check: {sys.executable} has no torch; choose a Python that has torch with CUDA:"
            " PYTHON=... scripts/gpu_check",
            file=sys.stderr,
        )
        return 2
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA GPU is visible to torch", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "logs.txt").unlink(missing_ok=True)
    shared = os.statvfs("/dev/shm")  # PPO's slots need half a GB of it
    results: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cores": CORES,
        "shared_memory_gb": round(shared.f_bavail * shared.f_frsize / 2**30, 2),
        "parts": {},
    }
    head = f"{results['gpu']}, {results['cores']} cores, {results['shared_memory_gb']} GB of /dev/shm free, torch {results['torch']}"
    table = Table(asked.out / "table.txt", head)
    for name in parts:
        started = time.monotonic()
        try:
            figures, sentence = (
                emulator()
                if name == "emulator"
                else run(name, asked, results["parts"].get("emulator", {}).get("env_steps_per_sec"))
            )
        except Exception as error:  # whatever the error is, the other parts still run
            said_of = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            figures, sentence = {"failed": said_of}, f"FAILED: {said_of}"
        log = asked.work / f"{name}.log"
        with open(asked.out / "logs.txt", "a") as file:
            file.write(f"==== {name}\n{log.read_text(errors='replace')[-200_000:] if log.is_file() else ''}\n")
        figures["seconds"] = round(time.monotonic() - started, 1)
        results["parts"][name] = figures
        table.row(name, f"{sentence}  ({figures['seconds']:.0f} s)")
        # Results are written after every part, because the machine may be taken away.
        (asked.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"table.txt, results.json and logs.txt are in {asked.out}")
    return int(any("failed" in figures or figures.get("met") is False for figures in results["parts"].values()))


class Failed(Exception):
    """Raised where a part could not give its figures; the message says why."""


class Table:
    def __init__(self, path: Path, head: str):
        self.path = path
        path.write_text(head + "\n")
        print(head, flush=True)

    def row(self, name: str, sentence: str) -> None:
        line = f"{name:<18}{sentence}"
        print(line, flush=True)
        with open(self.path, "a") as file:
            file.write(line + "\n")


def command_of(name: str, asked: argparse.Namespace) -> list[str]:
    if name in ("tests", "compiling"):
        there = {plugin: importlib.util.find_spec(plugin) is not None for plugin in ("xdist", "pytest_timeout")}
        spread = ["-n", "8", "--dist", "worksteal"] if there["xdist"] and name == "tests" else []
        # A test that hangs must not use up the others' time.
        bound = ["--timeout", "100"] if there["pytest_timeout"] else []
        return [
            sys.executable,
            "-m",
            "pytest",
            "-o",
            "addopts=",
            "-m",
            "gpu and slow" if name == "compiling" else "gpu and not slow",
            "-v",
            "--tb=short",
            "--durations=10",
            *spread,
            *bound,
            "tests/gpu",
        ]
    if name == "every":
        script = ROOT / "scripts" / "gpu" / "every.py"
        return [sys.executable, str(script), str(asked.work / name), "--seconds", "10", "--again", "cuda"]
    if name in TRAINED:
        return [
            sys.executable,
            "-m",
            "rlrun",
            "train",
            *TRAINED[name][0],
            "seed=1",
            f"stop.wall_sec={asked.pong_seconds:g}",
            "logger=[console]",
            f"run_dir={asked.work / name}",
        ]
    if name == "emulator":
        return ["(in this process)"]
    words, _ = SPEED[name]
    return [
        sys.executable,
        "-m",
        "rlrun",
        "benchmark",
        "throughput",
        *words,
        f"seconds={SPEED_SEC}",
        "--json",
        str(asked.work / f"{name}.json"),
    ]


def run(name: str, asked: argparse.Namespace, emulated: float | None = None) -> tuple[dict[str, Any], str]:
    """Runs one part and returns its figures and a sentence about them. Failed where there are none.

    emulated: env steps/s of the emulator alone; a bar asks for at most three quarters of it.
    """
    command = command_of(name, asked)
    limit = asked.pong_seconds + START_SEC if name in TRAINED else LIMIT_SEC.get(name, LIMIT_SEC["speed"])
    log, started = asked.work / f"{name}.log", time.monotonic()
    limit = min(limit, asked.end - started)
    if limit < LEAST_SEC:
        raise Failed("not run, because no time was left")
    with open(log, "w") as file:
        # With the fault handler, a process that is aborted writes the stacks of its threads.
        environment = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),  # no files of gigabytes
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            said_last = last_line(log)
            stacks_of(process)
            raise Failed(f"took longer than {limit:.0f} s; {said_last}; logs.txt has the stacks") from None
    wall = time.monotonic() - started
    figures: dict[str, Any] = {"command": " ".join(["rlrun", *command[3:]] if "rlrun" in command else command[1:])}
    if name in ("tests", "compiling", "every"):
        if status:
            raise Failed(last_line(log))
        return figures | {"met": True}, last_line(log)
    if status:
        raise Failed(last_line(log))
    if name in TRAINED:
        summary = json.loads((asked.work / name / "summary.json").read_text())
        reached, wanted = summary.get("return_mean"), TRAINED[name][1]
        figures |= {
            "return": reached,
            "env_steps": summary["env_steps"],
            "updates": summary["updates"],
            "wall_sec": round(wall, 1),
            "train_sec": summary["wall_sec"],
        }
        sentence = f"return {reached} at {summary['env_steps']:,} env steps in {wall:.0f} s; {summary['reason']}"
        if wanted is not None:
            figures["met"] = reached is not None and reached >= wanted and wall <= BAR_SEC
            sentence += f"; bar {wanted:g} in {BAR_SEC:.0f} s {said(figures['met'])}"
        return figures, sentence
    measured, bar = json.loads((asked.work / f"{name}.json").read_text()), SPEED[name][1]
    figures |= {key: measured[key] for key in KEPT}
    sentence = f"{measured['reached']:,.0f} env steps/s, ratio {measured['ratio']:.2f}"
    if bar:
        bar = bar if emulated is None else min(bar, 0.75 * emulated)
        figures["met"] = measured["reached"] >= bar
        sentence += f"; bar {bar:,.0f} {said(figures['met'])}"
    return figures, sentence


def stacks_of(process: subprocess.Popen) -> None:
    """Ends a process that hangs, and all that it started, after they have written the stacks of their threads to the
    log."""
    end = time.monotonic() + STACKS_SEC
    with contextlib.suppress(ProcessLookupError):  # nothing of the group is left
        os.killpg(process.pid, signal.SIGABRT)
        while time.monotonic() < end:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def said(met: bool) -> str:
    return "met" if met else "NOT met"


def last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


def emulator() -> tuple[dict[str, Any], str]:
    """Env steps/s of Pong with random actions in one process per core, and a sentence about it."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(CORES) as pool:
        rates = pool.map(steps_per_sec, [EMULATOR_SEC] * CORES, chunksize=1)
    total = sum(rates)
    return {
        "env_steps_per_sec": total,
        "processes": CORES,
    }, f"{total:,.0f} env steps/s by {CORES} processes of 16 environments"


def steps_per_sec(seconds: float) -> float:
    import numpy as np
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("pong", num_envs=16, num_threads=1)
    env.reset(seed=os.getpid() % 1000)
    rng, steps = np.random.default_rng(0), 0
    env.step(rng.integers(6, size=16))
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        env.step(rng.integers(6, size=16))
        steps += 16
    return steps / (time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
