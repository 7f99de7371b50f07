"""Throughput: the speed of each part alone, the bound that they imply, and the speed that training reaches.

A part is the run's own code at the run's batch sizes and precision, on one thread, with nothing else running. The parts
are

- env: stepping the vector environment;
- inference: acting on one row of a fragment, including what is recorded;
- learning: copy, conversion, loss, clipping and optimiser step for one train batch, counted by the env steps that one
  update stands for (fewer with runner.num_sgd_iter or replayed fragments);
- replay, where there is one: storing rows, drawing batches and writing priorities;
- drawing, in place of all but learning, where a run learns from recorded data, whose rows are counted as env steps.

Where the learner may use several threads, learning is also measured with those, and training is compared with the
fastest of them. The speed of a part is the median of three measurements before and three after training. With c cores,
no schedule of these parts can exceed c / (1/env + 1/inference + 1/learning + 1/replay) env steps/s, as long as a core
does not slow down when its neighbour works. Where a GPU acts and learns, the bound is the smaller of what the cores'
environments and the GPU can do.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rlrun.bench.parts import PartsOfData, PartsOfEvolution, PartsOfRows
from rlrun.config.run import Typed
from rlrun.core.checkpoint import Checkpoints
from rlrun.core.duties import CheckpointConfig, StopConfig
from rlrun.core.errors import UserError
from rlrun.core.estimates import NO_ESTIMATES
from rlrun.core.evaluation_duty import EvalConfig
from rlrun.core.logs import LogConfig
from rlrun.core.run import Run
from rlrun.core.signals import Signals
from rlrun.machine.machine import cores, measured
from rlrun.machine.memory import keep_freed
from rlrun.machine.resources import Resources
from rlrun.runners import offline
from rlrun.runtime.build import LearnerParts, build, train
from rlrun.runtime.plan import plan
from rlrun.runtime.rundir import command_line, hardware, versions

WARM_SHARE = 0.25  # share of the learning time that is not counted, because the run warms up
FILL_SEC = 600.0  # the longest time that a replay may take to fill, and that a few slow updates may take
ROWS = 3  # rows with new updates that a measurement needs


def measure(config: Typed, seconds: float, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measures the parts and training; returns {bound, reached, ratio, parts, ...}, where rates are env steps/s.

    say: told what is measured next, because an update of some algorithms takes a minute on a CPU."""
    keep_freed()
    parts = build(plan(config, measured()))
    torch.set_num_threads(1)
    each = _parts_of(parts)
    say("measures each part alone")
    before = each.measure()
    say(f"trains for {seconds:g} s, after at least {ROWS} updates")
    trained = _train(parts, seconds)
    parts.threads.take(1)
    say("measures each part again")
    after = each.measure()
    rates = {name: statistics.median(before[name] + after[name]) for name in before}
    made = parts.resources
    alone = {name: rates.pop(name) for name in list(rates) if name.startswith("learning, ")} or {
        "learning": rates["learning"]
    }
    fastest = max([rates["learning"], *alone.values()])
    used = min(cores(), made.num_learners * max(made.learner_threads)) if made.inference == "serial" else cores()
    bound = bound_of(made, rates, used)
    return {
        "bound": bound,
        "reached": trained.env_steps,
        "ratio": trained.env_steps / bound,
        "updates": {"learning": fastest / each.steps, "bound": bound / each.steps, "reached": trained.updates},
        "parts": rates,
        "learning_alone": alone,
        "of_learning_alone": trained.env_steps / fastest,
        "cores": used,
        "memory_pss_mb": trained.memory_mb,
        "policy_lag": trained.policy_lag,
        "learner_time": trained.learner,
        "sampler_time": _sampler_time(made, trained.env_steps, trained.samplers),
        "resources": {
            "inference": made.inference,
            "num_learners": made.num_learners,
            "num_samplers": made.num_samplers,
            "envs_per_sampler": made.envs_per_group,
            "learner_threads": "/".join(map(str, made.learner_threads)),
            "precision": made.precision,
            "device": str(made.device),
            "why": list(made.why),
        },
        "algo": parts.config.algo.name,
        "env": parts.spec.name,
        "rows": parts.needs.rows,
        "columns": parts.needs.columns,
        "hardware": hardware(),
        "versions": versions(),
        "command": command_line(),
    }


def _parts_of(parts: LearnerParts) -> PartsOfRows | PartsOfEvolution | PartsOfData:
    if parts.needs.population is not None:
        return PartsOfEvolution(parts)
    return PartsOfData(parts) if isinstance(parts.config.runner, offline.Config) else PartsOfRows(parts)


def bound_of(made: Resources, rates: dict[str, float], used: int) -> float:
    """Env steps/s that no schedule can exceed.

    With batched inference on a GPU, `used` cores only step environments while the GPU acts and learns. Otherwise every
    core does all parts, one after the other.
    """
    if made.inference == "batched" and made.device.type == "cuda":
        on_gpu = sum(1.0 / rate for name, rate in rates.items() if name != "env") / made.num_learners
        return min(rates["env"] * min(used, made.num_samplers), 1.0 / on_gpu)
    return used / sum(1.0 / rate for rate in rates.values())


class _Rows:
    """Keeps the rows with new updates that a run logs. It ends the run `seconds` after the first of them, but not
    before there are ROWS."""

    def __init__(self, seconds: float) -> None:
        self.learnt: list[dict[str, Any]] = []
        self.seconds = seconds
        self.ends_in: Callable[[float], None]

    def log(self, row: dict[str, Any]) -> None:
        if row["updates"] == (self.learnt[-1]["updates"] if self.learnt else 0):
            return
        self.learnt.append(row)
        passed = row["time_sec"] - self.learnt[0]["time_sec"]
        if len(self.learnt) == 1:
            self.ends_in(FILL_SEC)
        if len(self.learnt) >= ROWS and passed >= self.seconds:
            self.ends_in(0.0)


class Rates(NamedTuple):
    """What a run of some seconds has shown, after it had warmed up."""

    env_steps: float  # per second
    updates: float  # per second
    memory_mb: float  # peak of the process tree
    policy_lag: float | None  # updates
    learner: dict[str, float]  # the learner's shares of time by section
    samplers: dict[str, float]  # microseconds per env step in the environment and the policy


def _train(parts: LearnerParts, seconds: float) -> Rates:
    """Trains for so many seconds after learning began.

    UserError where fewer than ROWS rows with new updates were logged after FILL_SEC, as when a replay is still waiting
    for algo.learning_starts env steps.
    """

    def ends_in(more: float) -> None:
        job.stops.cfg = StopConfig(return_mean=None, wall_sec=job.wall_sec + more, no_improvement_steps=None)

    logger = _Rows(seconds)
    logger.ends_in = ends_in
    peak, done = [0.0], threading.Event()

    def watch_memory() -> None:
        while not done.wait(1.0):
            peak[0] = max(peak[0], tree_pss_mb())

    with tempfile.TemporaryDirectory() as folder:
        job = _job(logger, Path(folder))
        watcher = threading.Thread(target=watch_memory, daemon=True)
        watcher.start()
        original = job.sampler_ready

        def ready(sampler: Any) -> None:
            original(sampler)
            ends_in(FILL_SEC)

        job.sampler_ready = ready  # type: ignore[method-assign]
        train(parts.plan, job)
        done.set()
        watcher.join()
    learnt = logger.learnt
    if len(learnt) < ROWS:
        waits = parts.needs.replay
        starts = f": it waits for algo.learning_starts={waits.learning_starts}" if waits is not None else ""
        raise UserError(
            f"nothing to measure: learning made {learnt[-1]['updates'] if learnt else 0} updates in {job.wall_sec:.0f}"
            f" s{starts}"
        )
    return _measured(learnt, peak[0])


def _job(logger: _Rows, folder: Path) -> Run:
    """A run that logs often, saves nothing and never ends by itself."""
    return Run(
        env_steps=2**62,
        stop=StopConfig(return_mean=None, wall_sec=None, no_improvement_steps=None),
        evaluation=EvalConfig(
            every=None,
            episodes=1,
            env_steps=None,
            greedy=True,
            workers=0,
            parallel=False,
            function=None,
            estimate=NO_ESTIMATES,
        ),
        log=LogConfig(every_sec=0.5, every_steps=None),
        logger=logger,
        signals=Signals(),
        evaluate=None,
        exact=False,
        checkpoint=CheckpointConfig(every=None, every_sec=None, best_every_sec=None, keep=1, first_sec=None),
        checkpoints=Checkpoints(folder, 1),
        restored=None,
        save_at_end=False,
    )


def _measured(learnt: list[dict[str, Any]], memory_mb: float) -> Rates:
    """Rates and means over the rows behind the first WARM_SHARE of the time. learnt: rows with new updates."""
    warm = learnt[0]["time_sec"] + WARM_SHARE * (learnt[-1]["time_sec"] - learnt[0]["time_sec"])
    counted = [row for row in learnt if row["time_sec"] >= warm]
    if counted[0]["time_sec"] == counted[-1]["time_sec"]:  # updates take so long that few rows were logged
        counted = learnt
    first, last = (row["env_steps"] + row.get("sample/ahead", 0) for row in (counted[0], counted[-1]))
    elapsed = counted[-1]["time_sec"] - counted[0]["time_sec"]
    lags = [row["sample/policy_lag"] for row in counted if row.get("sample/policy_lag") is not None]
    names = {
        name
        for row in counted
        for name in row
        if name.startswith("time/") and name.endswith("_share") and name != "time/sampler_env_share"
    }
    spent = {
        name: [row[f"time/{name}_us"] for row in counted if row.get(f"time/{name}_us") is not None]
        for name in ("env", "policy")
    }
    return Rates(
        env_steps=(last - first) / elapsed,
        updates=(counted[-1]["updates"] - counted[0]["updates"]) / elapsed,
        memory_mb=memory_mb,
        policy_lag=statistics.mean(lags) if lags else None,
        learner={name[5:-6]: statistics.mean(row.get(name) or 0.0 for row in counted) for name in sorted(names)},
        samplers={name: statistics.mean(us) for name, us in spent.items() if us},
    )


def _sampler_time(made: Resources, reached: float, spent: dict[str, float]) -> dict[str, float]:
    """How a process that steps environments spends its time, as shares computed from microseconds per env step.

    `rest` is waiting, copying and Python around them. With batched inference, the policy's share is that of the one
    thread that acts for all samplers.
    """
    processes = made.num_samplers
    env = reached * spent.get("env", 0.0) * 1e-6 / processes
    policy = (
        reached * spent.get("policy", 0.0) * 1e-6 / (made.num_learners if made.inference == "batched" else processes)
    )
    alone = {"env": env} | ({} if made.inference == "batched" else {"policy": policy})
    shares = {**alone, "rest": max(0.0, 1.0 - sum(alone.values()))}
    return (shares | {"inference thread": policy} if made.inference == "batched" else shares) if spent else {}


def tree_pss_mb() -> float:
    """Proportional set size of this process and its children in MB, which counts shared memory once.

    It is 0 where psutil is missing or /proc has no smaps_rollup.
    """
    total, pids = 0, [os.getpid()]
    try:
        import psutil

        pids += [child.pid for child in psutil.Process().children(recursive=True)]
    except Exception:
        return 0.0
    for pid in pids:
        try:
            for line in open(f"/proc/{pid}/smaps_rollup"):
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total / 1024


def table(result: dict[str, Any]) -> str:
    """The result as a text table."""
    made = result["resources"]
    bound = f"bound of {result['cores']} core{'s' * (result['cores'] > 1)}"
    lines = [*(f"  {reason}" for reason in made["why"]), ""]
    lines += [f"{'part alone, one thread':<30}{'steps/s':>10}{'us/step':>10}"]
    lines += [f"  {name:<28}{rate:>10,.0f}{1e6 / rate:>10,.0f}" for name, rate in result["parts"].items()]
    lines += [
        *(
            f"  {name:<28}{rate:>10,.0f}{1e6 / rate:>10,.0f}"
            for name, rate in result["learning_alone"].items()
            if name not in result["parts"]
        ),
        f"{bound:<30}{result['bound']:>10,.0f}",
        f"{'reached in training':<30}{result['reached']:>10,.0f}",
        f"{'ratio':<30}{result['ratio']:>10.2f}",
        "updates/s: "
        + ", ".join(
            f"{result['updates'][name]:.3g} {said}"
            for name, said in (("learning", "learning alone"), ("bound", "the bound"), ("reached", "reached"))
        ),
        f"{'ratio to learning alone':<30}{result['of_learning_alone']:>10.2f}",
        f"{'policy lag, updates':<30}{result['policy_lag'] or 0:>10.1f}",
        f"{'memory of the tree (PSS), MB':<30}{result['memory_pss_mb']:>10,.0f}",
        *(
            ["a sampler's time: " + ", ".join(f"{name} {share:.0%}" for name, share in result["sampler_time"].items())]
            if result["sampler_time"]
            else []
        ),
        "learner's time: " + ", ".join(f"{name} {share:.0%}" for name, share in result["learner_time"].items()),
    ]
    return "\n".join(lines)
