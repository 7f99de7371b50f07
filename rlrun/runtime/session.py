"""One session of a run: trains a typed config in a run directory, from the start or a checkpoint, to whatever end."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlrun.config.run import Typed
from rlrun.core.algorithm import Algorithm
from rlrun.core.callbacks import Callback, make_callbacks
from rlrun.core.duties import LogConfig, Play
from rlrun.core.errors import EnvError, RunFailed, UserError
from rlrun.core.evaluation import Evaluated
from rlrun.core.open_loop import FOLDER, Excerpt
from rlrun.core.passwords import masked, whole
from rlrun.core.run import Run
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.loggers.console import console
from rlrun.loggers.histograms import Histograms
from rlrun.loggers.imagined import Imagining
from rlrun.loggers.jsonl import Jsonl
from rlrun.loggers.mlflow import Mlflow
from rlrun.loggers.sinks import CLOSE_SEC, Alive, Sink, Sinks
from rlrun.loggers.tensorboard import TensorBoard
from rlrun.machine.memory import keep_freed
from rlrun.runtime.advice import notes
from rlrun.runtime.afterwards import last_words
from rlrun.runtime.build import checkpoints_of, train
from rlrun.runtime.plan import Plan
from rlrun.runtime.rundir import RunDir, command_line, git_commit, hardware, started_at, versions
from rlrun.runtime.training_estimates import TrainingEstimates
from rlrun.samplers.evaluators import Evaluating, EvaluationCrew


def run(
    plan: Plan,
    values: dict[str, Any],
    directory: RunDir,
    restored: tuple[dict, dict] | None,
    command: str | None = None,
) -> int:
    """Trains and returns the exit code. values: the plain config that was saved."""
    keep_freed()
    torch.set_num_threads(1)  # until the learner sets its own number
    signals = Signals()
    signals.install()
    try:
        return _run(plan, values, directory, restored, command or command_line(), signals)
    finally:
        signals.restore()
        directory.release()


def _run(
    plan: Plan, values: dict, directory: RunDir, restored: tuple[dict, dict] | None, command: str, signals: Signals
) -> int:
    config = plan.config
    for sentence in plan.spec.notes:
        print(f"  {sentence}", flush=True)
    for reason in plan.resources.why:
        print(f"  {reason}", flush=True)
    if config.run.init is not None and restored is None:
        print(f"  begins with the weights of {config.run.init}", flush=True)
    for note in notes(plan):
        print(f"  note: {note}", flush=True)
    facts = {
        "seed": config.run.seed,
        "algo": config.algo.name,
        "env": plan.spec.name,
        "versions": versions(),
        "git_commit": git_commit(),
        "hardware": hardware(),
        "command": command,
        "started": started_at(),
        "resources": list(plan.resources.why),
    }
    before = directory.known if restored else {}
    if before.get("command"):  # a resumed run keeps the facts of its first session
        facts["resumed_by"] = [*before.get("resumed_by", []), command]
        facts |= {name: before[name] for name in ("command", "started", "git_commit") if name in before}
    resume_at = restored[1]["env_steps"] if restored else None
    directory.summary(status="RUNNING", **facts)
    logger = _loggers(config, values, directory.path, resume_at, facts)
    crew = _evaluators(plan)
    job = Run(
        env_steps=config.run.env_steps,
        stop=config.run.stop,
        evaluation=config.run.eval,
        checkpoint=config.run.checkpoint,
        log=LogConfig(every_sec=config.run.log_every_sec, every_steps=config.run.log_every_steps),
        checkpoints=checkpoints_of(directory.path, config.run.checkpoint.keep),
        logger=logger,
        signals=signals,
        evaluate=_evaluation(plan) if plan.evaluates and crew is None else None,
        estimate=TrainingEstimates(plan) if plan.estimates else None,
        evaluators=crew,
        exact=plan.resources.exact,
        restored=restored,
        callbacks=[
            *make_callbacks(config.run.callbacks, Callback),
            *_histograms(config, logger),
            *_imagining(plan, directory.path, logger),
        ],
        spec=plan.spec,
        update_rows=plan.needs.rows * plan.needs.columns,
        episode_window=config.run.episode_window,
        from_data=config.runner.name == "offline",
        judge_env_sec=None if plan.resources.pace is None else plan.resources.pace.second_look,
    )
    error: BaseException | None = None
    try:
        train(plan, job, None if resume_at is None else checkpoints_of(directory.path).directory / f"{resume_at:012d}")
    except BaseException as caught:
        error = caught
        status, reason = (
            ("INTERRUPTED", "interrupted twice") if isinstance(caught, KeyboardInterrupt) else ("FAILED", str(caught))
        )
        if not isinstance(caught, RunFailed | EnvError | UserError | KeyboardInterrupt):
            reason = masked("".join(traceback.format_exception(caught)).rstrip())
        job.failed(status, reason)
    finally:
        if crew is not None:
            crew.close()
    summary = directory.summary(
        status=job.status,
        reason=job.reason,
        env_steps=job.clock.env_steps,
        updates=job.clock.updates,
        wall_sec=round(job.wall_sec, 2),
        return_mean=job.episodes.mean,
        episodes=job.episodes.count,
        eval_return_mean=job.eval_mean,
        best_return_mean=job.best,
        **facts,
    )
    heard = signals.stop
    # A scheduler that has sent SIGTERM kills the process soon.
    at_most = CLOSE_SEC if heard == signal.SIGTERM else math.inf
    logger.close(job.status, summary, hurried=lambda: signals.stop is not heard, at_most=at_most)
    print(last_words(config, directory.path, job.ending, job.reason), flush=True)
    if isinstance(error, KeyboardInterrupt):
        return job.exit_code or 130
    if job.status == "FAILED":
        print(f"rlrun: {job.reason}", file=sys.stderr, flush=True)
    return 2 if isinstance(error, UserError) else job.exit_code


def _loggers(config: Typed, values: dict, path: Path, resume_at: int | None, facts: dict) -> Sinks:
    chosen = {name: node for name, node in config.run.logger.items() if node["enabled"]}
    direct: list[Sink] = [Jsonl(path / "progress.jsonl", resume_at)]
    slow: dict = {}
    alive = Alive()
    if "console" in chosen:
        title = f"{config.algo.name} on {config.env.name}, seed {config.run.seed}"
        direct.append(console(config.run.env_steps, title, config.run.episode_window))
    if "tensorboard" in chosen:
        slow["tensorboard"] = lambda: TensorBoard(path, resume_at)
    if "mlflow" in chosen:
        mlflow = chosen["mlflow"]
        slow["mlflow"] = lambda: Mlflow(
            whole(mlflow["uri"]),
            Path(config.run.runs_root),
            mlflow["experiment"],
            path,
            values,
            facts,
            mlflow["parent"],
            alive,
        )
    return Sinks(direct, slow, alive)


def _histograms(config: Typed, logger: Sinks) -> list[Histograms]:
    node = config.run.logger.get("tensorboard")
    return [Histograms(logger.draw)] if node is not None and node["enabled"] and node["histograms"] else []


def _imagining(plan: Plan, path: Path, logger: Sinks) -> list[Imagining]:
    """Returns what looks at the world model, if the algorithm has one and the run wants it."""
    config = plan.config
    if not config.algorithm.has_world_model or config.run.imagine.every is None:
        return []

    def show(steps: int, excerpts: list[Excerpt]) -> None:
        def draw() -> Path:
            from rlrun.bench.imagined import picture

            return picture(path / FOLDER, f"{steps:012d}", excerpts, plan.spec.stack)

        logger.picture(steps, draw)

    rng = plan.seeds.generator("imagine", device=str(plan.resources.device))
    return [Imagining(config.run.imagine, show, rng)]


def _evaluation(plan: Plan) -> Play:
    """Returns the function that evaluates in this process."""
    evaluating: list[Evaluating] = []

    def evaluate(algorithm: Algorithm, clock: Clock, round_: int, stop: Callable[[], bool]) -> Evaluated:
        if not evaluating:
            evaluating.append(Evaluating(dataclasses.replace(plan.evaluation(), workers=0)))
        return evaluating[0](algorithm.policy, clock, round_, stop)

    return evaluate


def _evaluators(plan: Plan) -> EvaluationCrew | None:
    """Returns the processes that evaluate, which start with the first evaluation. In a bit-exact run there are none,
    because when they are done would depend on the clock."""
    cfg = plan.config.run.eval
    if not plan.evaluates or cfg.workers == 0 or plan.resources.exact:
        return None
    return EvaluationCrew(plan.evaluation(), plan.config.runner.queue_timeout_sec)
