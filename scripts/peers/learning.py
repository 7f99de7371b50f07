"""scripts/compare_peers --learning [--only ppo/CartPole-v1,...] [--seeds 5] [--jobs 1] [--folder tuned/results/learning]
                                 [--markdown docs/learning.md] [--only-render]

Trains rlrun and other libraries with their defaults on the same env steps, and compares the final score (the mean
return of the last 100 episodes), the area under the curve of that mean, and CPU seconds. Each run is kept in FOLDER as
a JSON file, so that a comparison that was interrupted goes on; --fresh runs all of them again, and --only-render
draws the table of those that are there. LunarLander needs
rlrun setup box2d. Runs of all sides take about ten hours of one core. The exit code is 1 if a run failed, or if
rlrun is below Stable-Baselines3 or below what it must reach by itself."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from compare import ROOT, Failed, last, make_environment

from rlrun.commands.compare import commit
from rlrun.runtime.rundir import hardware

HERE = Path(__file__).resolve().parent
POINTS = 100
LIMIT_SEC = 3600.0  # for one run


class Task(NamedTuple):
    """A comparison of one algorithm on one environment."""

    algo: str
    env: str
    env_steps: int
    peers: tuple[str, ...]
    floor: float | None = None  # what rlrun must reach by itself, where the peer fails

    @property
    def name(self) -> str:
        return f"{self.algo}/{self.env}"


SB3 = ("stable_baselines3",)
BOTH = ("stable_baselines3", "rllib")
RLLIB = ("rllib",)
TASKS = (
    Task("ppo", "CartPole-v1", 50_000, BOTH),
    Task("ppo", "Acrobot-v1", 100_000, BOTH),
    Task("ppo", "LunarLander-v3", 300_000, BOTH),
    Task("a2c", "CartPole-v1", 50_000, SB3),
    Task("a2c", "Acrobot-v1", 100_000, SB3),
    Task("dqn", "CartPole-v1", 50_000, BOTH),
    Task("dqn", "Acrobot-v1", 100_000, BOTH, -150.0),
    Task("sac", "Pendulum-v1", 10_000, BOTH),
    Task("td3", "Pendulum-v1", 10_000, SB3),
    Task("ddpg", "Pendulum-v1", 10_000, SB3),
    Task("impala", "CartPole-v1", 100_000, RLLIB, 300.0),
    Task("appo", "CartPole-v1", 100_000, RLLIB, 300.0),
)
TITLES = {"rlrun": "rlrun", "stable_baselines3": "Stable-Baselines3", "rllib": "RLlib"}


def at_points(curve: list[list[float]], env_steps: int) -> list[list[float]]:
    """Returns the values at every hundredth of the env steps. Until the first episode ends, they are the first value."""
    known = [(steps, value) for steps, value in curve if value is not None]
    if not known:
        raise Failed("no episode ended")
    made = []
    for point in range(1, POINTS + 1):
        steps = env_steps * point / POINTS
        before = [value for at, value in known if at <= steps]
        made.append([steps, before[-1] if before else known[0][1]])
    return made


def rlrun_command(task: Task, seed: int, folder: Path) -> list[str]:
    words = [f"algo={task.algo}", f"env={task.env}", f"env_steps={task.env_steps}", f"seed={seed}", "logger=[]"]
    saves = [f"checkpoint.{name}=null" for name in ("every", "every_sec", "best_every_sec")]
    return [sys.executable, "-m", "rlrun", "train", *words, *saves, "log_every_sec=0.1", f"run_dir={folder / 'run'}"]


def metered(command: list[str], folder: Path, env: dict[str, str]) -> tuple[int, list[str], float]:
    """Runs a command in a folder. Returns its exit code, the lines that it printed, and the CPU seconds of all its
    processes. Raises Failed if it takes longer than LIMIT_SEC."""
    told = folder / "cpu_sec"
    with (folder / "out").open("w+") as out:
        whole = [sys.executable, str(HERE / "metered.py"), str(told), *command]
        process = subprocess.Popen(
            whole, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=env, start_new_session=True
        )
        try:
            code = process.wait(LIMIT_SEC)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end within {LIMIT_SEC:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        used = float(told.read_text()) if told.is_file() else math.nan
        return code, out.read().strip().splitlines(), used


def run(side: str, task: Task, seed: int, python: Path | None) -> dict[str, Any]:
    """Trains once and returns curve, final score, area and CPU seconds. Raises Failed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        script = str(HERE / f"{side}_learning.py")
        words = [task.algo, task.env, str(task.env_steps), str(seed)]
        command = rlrun_command(task, seed, folder) if python is None else [str(python), script, *words]
        code, lines, cpu_sec = metered(command, folder, env)
        if code:
            raise Failed(last(lines, code))
        if python is None:
            rows = [json.loads(line) for line in (folder / "run" / "progress.jsonl").read_text().splitlines()]
            summary = json.loads((folder / "run" / "summary.json").read_text())
            curve = [[row["env_steps"], row.get("sample/return_mean")] for row in rows]
            versions = {name: summary["versions"][name] for name in ("rlrun", "torch", "gymnasium")}
            git_commit = summary["git_commit"]
        else:
            told = json.loads(lines[-1])
            curve, versions, git_commit = told["curve"], told["versions"], None
            cpu_sec = told.get("cpu_sec", cpu_sec)
    points = at_points(curve, task.env_steps)
    return {
        "side": side,
        "task": task.name,
        "env_steps": task.env_steps,
        "seed": seed,
        "final": points[-1][1],
        "area": statistics.mean(value for _, value in points),
        "cpu_sec": cpu_sec,
        "curve": points,
        "hardware": hardware(),
        "versions": versions,
        "git_commit": git_commit,
    }


def kept(folder: Path, side: str, task: Task, seed: int) -> Path:
    return folder / f"{side}-{task.name.replace('/', '-')}-{task.env_steps}-seed{seed}.json"


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Returns the mean and its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.mean(values), error


def verdict(task: Task, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """Says whether rlrun's mean final score is at least the task's floor, and whether its mean final score and area are
    at least the peer's mean minus one standard error. theirs: the peer's runs, which may be none."""
    said = []
    final = statistics.mean(one["final"] for one in ours)
    if task.floor is not None:
        said.append(f"{'at least' if final >= task.floor else 'BELOW'} {task.floor:g}")
    if theirs:
        below = []
        for name in ("final", "area"):
            mean, error = mean_and_error([one[name] for one in theirs])
            if statistics.mean(one[name] for one in ours) < mean - error:
                below.append(name)
        said.append(f"BELOW in {' and '.join(below)}" if below else "at least as good")
    return ", ".join(said)


def shown(values: list[float]) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.1f} ± {error:.1f}" if len(values) > 1 else f"{mean:.1f}"


def markdown(found: dict[str, dict[str, list[dict[str, Any]]]], command: str) -> str:
    lines = [
        "<!-- scripts/compare_peers --learning makes this page; change what it is made from. -->",
        "# Defaults beside other libraries'",
        "",
        "Each library trains with its own defaults on the same env steps. The figures are the mean over seeds and its",
        "standard error. `final` is the mean return of the last 100 training episodes, and `area` is the mean of that",
        "over the run. CPU seconds include the start of the program. The last column compares rlrun with",
        "Stable-Baselines3. It says `at least as good` where rlrun's mean is no more than one standard error (of",
        "Stable-Baselines3) below Stable-Baselines3's mean, both for `final` and for `area`. `at least 300` means that",
        "rlrun's mean of `final` must reach 300, whatever the other library reaches.",
        "",
        "RLlib's scores cannot be compared with the others'. Ray 2.60 gives the mean of the few episodes that ended since",
        "its last report, and not of the last 100. Its `final` is therefore the score of its newest policy, while the means",
        "of the others lag behind: in 10,000 env steps of Pendulum, theirs is the mean of all 50 episodes. RLlib's DQN also",
        "makes an update after every env step, and rlrun's after every fourth. CPU seconds are those of equal env steps,",
        "and not of equal scores. RLlib has one seed.",
        "",
        "| algorithm, environment | env steps | library | seeds | final | area | CPU seconds | rlrun |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in TASKS:
        sides = found.get(task.name, {})
        for side, runs in sides.items():
            said = verdict(task, runs, sides.get("stable_baselines3", [])) if side == "rlrun" else ""
            cells = [f"{task.algo}, {task.env}", f"{task.env_steps:,}", TITLES[side], str(len(runs))]
            cells += [shown([one[name] for one in runs]) for name in ("final", "area", "cpu_sec")]
            lines.append(f"| {' | '.join([*cells, said])} |")
    versions = sorted({f"{k} {v}" for sides in found.values() for runs in sides.values() for one in runs
                       for k, v in one["versions"].items()})  # fmt: skip
    commits = sorted({commit(one["git_commit"]) for sides in found.values() for one in sides.get("rlrun", [])})
    machines = sorted({f"{one['hardware']['cores']} cores of an {one['hardware']['cpu']}" for sides in found.values()
                       for runs in sides.values() for one in runs})  # fmt: skip
    lines += [
        "",
        f"Made by `{command}` with {', '.join(versions)}, rlrun at {', '.join(commits)}, on "
        f"{' and '.join(machines)}. Each run is a file of tuned/results/learning.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--learning", action="store_true")
    parser.add_argument("--only", default=",".join(task.name for task in TASKS))
    parser.add_argument("--sides", default=",".join(TITLES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=ROOT / "tuned" / "results" / "learning")
    parser.add_argument("--environments", type=Path, default=ROOT / ".peers")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--only-render", action="store_true")
    said = parser.parse_args()
    tasks = [task for task in TASKS if task.name in said.only.split(",")]
    unknown = set(said.only.split(",")) - {task.name for task in TASKS}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(task.name for task in TASKS)}")
    if not set(said.sides.split(",")) <= set(TITLES):
        parser.error(f"--sides: choose from {', '.join(TITLES)}")
    if said.seeds < 1 or said.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    said.folder.mkdir(parents=True, exist_ok=True)
    wanted = [
        (side, task, seed)
        for seed in range(1, said.seeds + 1)
        for task in tasks
        for side in said.sides.split(",")
        if side == "rlrun" or side in task.peers
    ]
    pythons: dict[str, Path | None] = {"rlrun": None}
    failed = False
    for side in {side for side, _, _ in wanted} - {"rlrun"} if not said.only_render else ():
        pythons[side] = make_environment(side, said.environments.resolve())

    def one(side: str, task: Task, seed: int) -> None:
        nonlocal failed
        path = kept(said.folder, side, task, seed)
        if said.only_render or (path.is_file() and not said.fresh):
            return
        try:
            made = run(side, task, seed, pythons[side])
        except Failed as error:
            failed = True
            print(f"{side:<18} {task.name:<20} seed {seed}: failed: {error}", flush=True)
            return
        path.write_text(json.dumps(made) + "\n")
        told = f"final {made['final']:8.1f}  area {made['area']:8.1f}  {made['cpu_sec']:6.1f} CPU s"
        print(f"{side:<18} {task.name:<20} seed {seed}: {told}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(said.jobs) as pool:
        list(pool.map(lambda args: one(*args), wanted))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for side, task, seed in wanted:
        path = kept(said.folder, side, task, seed)
        if path.is_file():
            found.setdefault(task.name, {}).setdefault(side, []).append(json.loads(path.read_text()))
    kept_words = [f"--only {said.only}"] if said.only != parser.get_default("only") else []
    kept_words += [f"--sides {said.sides}"] if said.sides != parser.get_default("sides") else []
    kept_words += [f"--seeds {said.seeds}"] if said.seeds != parser.get_default("seeds") else []
    kept_words += [f"--markdown {said.markdown}"] if said.markdown else []
    kept_words += ["--only-render"] if said.only_render else []
    if not found:
        parser.error(f"--folder: {said.folder} holds none of these runs")
    text = markdown(found, " ".join(["scripts/compare_peers --learning", *kept_words]))
    print(text)
    if said.markdown:
        said.markdown.parent.mkdir(parents=True, exist_ok=True)
        said.markdown.write_text(text)
    return 1 if failed or "BELOW" in text else 0


if __name__ == "__main__":
    sys.exit(main())
