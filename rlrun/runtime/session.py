"""One session of a run: trains a typed config in a run directory, from the start or a checkpoint, to whatever end."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.config.run import Typed
from rlrun.core.algorithm import Algorithm
from rlrun.core.callbacks import Callback, make_callbacks
from rlrun.core.errors import EnvError, ProcessLost, RunFailed, UserError, explained, refused
from rlrun.core.evaluation import Evaluated
from rlrun.core.logs import LogConfig
from rlrun.core.metrics import finite
from rlrun.core.open_loop import FOLDER, Excerpt
from rlrun.core.outputs import announce, same_output, tell
from rlrun.core.passwords import masked, whole
from rlrun.core.restarts import Restarts
from rlrun.core.run import Run
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.core.watchdog import Watchdog
from rlrun.dataflow.workers import cool, start_within, warm
from rlrun.loggers.console import End, console, say
from rlrun.loggers.histograms import Histograms
from rlrun.loggers.imagined import Imagining
from rlrun.loggers.jsonl import Jsonl, Moment
from rlrun.loggers.mirror import Mirror, MlflowPlace
from rlrun.loggers.mirroring import Mirroring
from rlrun.loggers.mlflow import available, store_root
from rlrun.loggers.sinks import CLOSE_SEC, Sink, Sinks
from rlrun.loggers.tensorboard import Hidden, TensorBoard, has_events
from rlrun.machine.memory import keep_freed
from rlrun.runtime.advice import ended_rates, notes
from rlrun.runtime.afterwards import last_words, own_env_failed
from rlrun.runtime.again import Again, Restored
from rlrun.runtime.build import train
from rlrun.runtime.given_weights import given_weights, other_functions
from rlrun.runtime.plan import Plan
from rlrun.runtime.room import evaluators
from rlrun.runtime.rundir import RunDir, checkpoints_of, command_line, git_commit, hardware, started_at, versions
from rlrun.runtime.training_estimates import TrainingEstimates
from rlrun.samplers.evaluators import Evaluating, EvaluationCrew


@dataclass(kw_only=True)
class Watch:
    """What a Python program asks of a session (rlrun/api.py), and what it learns of it."""

    callback: Callable[[dict[str, Any]], Any] | None = None  # called with every row; False ends the run
    console: bool = True  # whether the run may show its progress
    command: str | None = None  # as summary.json has it; None: the words of this process
    run_dir: Path | None = None
    error: BaseException | None = None  # what ended the run
    stop: signal.Signals | None = None  # the signal that did


class WatchedRows(Callback):
    """Hands every row to a function, and ends the run when that returns False."""

    called = "the callback of the Python program"

    def __init__(self, function: Callable[[dict[str, Any]], Any]):
        self.function = function
        self.error: Exception | None = None

    def on_start(self, run: Any) -> None:
        self.run = run

    def on_log(self, row: dict[str, Any]) -> None:
        try:
            answer = self.function(dict(row))
            if isinstance(answer, bool | np.bool_) and not answer:
                self.run.stops.asked = "the callback returned False"
        except Exception as error:
            self.error = error
            raise


def run(
    plan: Plan,
    values: dict[str, Any],
    directory: RunDir,
    restored: Restored | None,
    watch: Watch | None = None,
    callbacks: list[Callback] | None = None,
) -> int:
    """Trains and returns the exit code. values: the plain config that was saved. watch: for a run from Python.
    callbacks: the user's, if they have been made already."""
    keep_freed()
    torch.set_num_threads(1)  # until the learner sets its own number
    if plan.resources.inference == "serial" or plan.resources.nodes:
        cool()
    else:
        warm()  # it imports while this process builds the run
    signals = Signals()
    signals.install()
    announce(
        "nobody reads this output any more, and the run goes on (Ctrl-C saves and ends it);"
        f" {directory.path / 'progress.jsonl'} has its rows"
    )
    again = Again(plan.restarts(), signals)
    try:
        while True:
            start_within(plan.config.run.resources.start_timeout_sec)
            _introduce(plan, values, None if restored is None else restored[1]["env_steps"])
            ended = _Session(plan, values, directory, restored, watch or Watch(), signals, again, callbacks).run()
            if isinstance(ended, int):
                return ended
            again.pause()
            again.count_lost_time(ended)
            restored, callbacks = ended, None
            let_go()
    except OSError as error:  # outside of the training itself, as where a resumed run finds no space for its files
        if (said := refused(error)) is None:
            raise
        with contextlib.suppress(OSError):
            directory.summary(**directory.known | {"status": "FAILED", "reason": said})
        raise RunFailed(said) from error
    finally:
        announce("")
        signals.restore()
        directory.release()


def let_go() -> None:
    """Frees what a session held, which may be a large replay, before the next one is made. Its objects know each other,
    so that they would wait for Python's collector, which does not know how large tensors are."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class _Session:
    """Trains once: from the start or a checkpoint, until the run ends or has to begin again."""

    def __init__(
        self,
        plan: Plan,
        values: dict,
        directory: RunDir,
        restored: Restored | None,
        watch: Watch,
        signals: Signals,
        again: Again,
        callbacks: list[Callback] | None,
    ):
        self.plan, self.config, self.directory, self.restored = plan, plan.config, directory, restored
        self.values, self.callbacks = values, callbacks
        self.watch, self.signals, self.again = watch, signals, again
        watch.run_dir = directory.path
        self.resume_at = restored[1]["env_steps"] if restored else None
        took_over = directory.known.get("took_over")  # of another member of a population
        self.facts = self._facts()
        saved = None if restored is None else Moment(*(restored[1][name] for name in Moment._fields))
        if saved is not None and took_over == saved.env_steps:
            saved = Moment(saved.env_steps, sys.maxsize, math.inf)  # another run's updates and time say nothing here
        self.logger = _loggers(self.config, directory.path, saved, watch.console)
        self.mirroring = _mirroring(self.config, values, directory.path, self.facts)
        self.watched = [] if watch.callback is None else [WatchedRows(watch.callback)]
        self.crew = _evaluators(plan, again.restarts)
        self.evaluation = _Evaluation(plan, again.restarts) if plan.evaluates and self.crew is None else None
        try:
            self.job = self._job()
        except Exception as error:
            self._never_began(masked(explained(error)))
            raise

    def _never_began(self, reason: str) -> None:
        """Says in summary.json why the run failed before it trained, and closes what it has opened."""
        began_at = self.resume_at or 0
        summary = _summary(self.directory, status="FAILED", reason=reason, env_steps=began_at, **self.facts)
        if self.mirroring is not None:
            self.mirroring.close("FAILED")
        self.logger.close("FAILED", summary)
        if self.mirroring is not None:
            self.mirroring.wait()

    def run(self) -> int | Restored:
        """Returns the exit code, or the checkpoint from which the run begins again."""
        error, checkpoint = self._train()
        job, signals = self.job, self.signals
        if checkpoint is None:
            announce("")  # the run no longer goes on
        summary = _summary(
            self.directory,
            status=job.status,
            reason=job.reason,
            env_steps=job.clock.env_steps,
            updates=job.clock.updates,
            wall_sec=round(job.wall_sec, 2),
            return_mean=job.episodes.mean,
            episodes=job.episodes.count,
            eval_return_mean=job.eval_mean,
            best_return_mean=job.best,
            **self.facts,
        )
        self.watch.error = next((one.error for one in self.watched if one.error is not None), error)
        self.watch.stop = signals.stop
        self.logger.close_direct(job.status, summary)
        if checkpoint is None:  # How the run ended is said now, because the other loggers may need a while.
            self._say_how_it_ended()
        heard = signals.stop
        hurried = (lambda: signals.stop is not heard) if checkpoint is None else (lambda: False)
        if self.mirroring is not None:
            self.mirroring.close(job.status)
        # A scheduler that has sent SIGTERM kills the process soon.
        at_most = CLOSE_SEC if heard == signal.SIGTERM and checkpoint is None else math.inf
        self.logger.close(job.status, summary, hurried=hurried, at_most=at_most)
        if self.mirroring is not None:
            self.mirroring.wait(hurried=hurried)
        if checkpoint is not None:
            return checkpoint
        odd = self.again.restarts.odd != "" or own_env_failed(self.config, job.status, job.reason)
        tell(last_words(self.config, self.directory.path, job.ending, odd))
        if isinstance(error, KeyboardInterrupt):
            return job.exit_code or 130
        return 2 if isinstance(error, UserError) else job.exit_code

    def _train(self) -> tuple[BaseException | None, Restored | None]:
        """Returns what ended the training, if anything did, and the checkpoint from which the run begins again."""
        job, places = self.job, checkpoints_of(self.directory.path)
        steps = self.plan.resources.inference == "serial" or self.evaluation is not None
        dog = Watchdog(self.plan.limits(), self._stuck) if steps else None
        try:
            train(self.plan, job, None if self.resume_at is None else places.directory / f"{self.resume_at:012d}")
        except BaseException as caught:
            if isinstance(caught, KeyboardInterrupt):
                job.failed("INTERRUPTED", "interrupted twice")
            elif isinstance(caught, ProcessLost) and self.signals.stop is not None:
                job.failed("INTERRUPTED", f"{self.signals.stop.name} received; {caught}")
            else:
                job.failed("FAILED", masked(explained(caught)))
            if isinstance(caught, RunFailed | EnvError | OSError) and (saved := job.rescue(caught)) is not None:
                tell(f"  {saved}")
            try:
                return caught, self.again.checkpoint(caught, places, job.clock.env_steps, job.wall_sec)
            except RunFailed as too_often:
                job.failed("FAILED", str(too_often))
                return caught, None
        finally:
            if dog is not None:
                dog.close()
            if self.crew is not None:
                self.crew.close()
            if self.evaluation is not None:
                self.evaluation.close()
        return None, None

    def _stuck(self, reason: str) -> None:
        """Ends a run whose own process hangs in code that nothing can interrupt. Called by another thread."""
        job, directory = self.job, self.directory
        job.failed("FAILED", reason)
        if (saved := job.rescue(None)) is not None:
            tell(f"  {saved}")
        _summary(directory, status=job.status, reason=reason, env_steps=job.clock.env_steps, **self.facts)
        tell(f"FAILED: {reason}\n{directory.path}")
        tell(f"rlrun: {reason}", sys.stderr)
        directory.release()
        os._exit(1)

    def _say_how_it_ended(self) -> None:
        job = self.job
        held = checkpoints_of(self.directory.path).names() if job.status == "INTERRUPTED" else []
        where = f"; saved at {int(held[-1]):,} env steps" if held else ""
        whole = job.status == "FAILED" and self.watch.command is None  # a Python program gets an exception
        first = job.reason.splitlines()[0] if job.reason else ""
        together = whole and same_output()
        tell(f"{job.ending}: {job.reason if together else first}{where}")
        if whole and not together:
            tell(f"rlrun: {job.reason}", sys.stderr)

    def _facts(self) -> dict[str, Any]:
        """Writes where the run comes from into summary.json, and returns it. A resumed run keeps the command and the
        commit of its first session. What its sessions were made with is listed where that is not always the same."""
        config, command = self.config, self.watch.command or command_line()
        facts = {
            "seed": config.run.seed,
            "algo": config.algo.name,
            "env": self.plan.spec.name,
            "versions": versions(),
            "git_commit": git_commit(),
            "hardware": hardware(),
            "command": command,
            "started": started_at(),
            "resources": list(self.plan.resources.why),
        }
        before = self.directory.known if self.restored else {}
        if self.restored is not None and not self.plan.resources.exact:
            # A session that ends before its first save leaves no other trace. The next one must not take its seeds, or
            # it would record the same rows, and a failure that depends on them would come back for ever.
            run = self.restored[1]
            run["generation"] = max(run["generation"], before.get("generation", 0))
            facts["generation"] = run["generation"] + 1
        if before.get("command"):
            sessions, now = before.get("sessions") or [made_with(before)], made_with(facts)
            if sessions != [now]:
                facts["sessions"] = sessions if sessions[-1] == now else [*sessions, now]
            if resumed := [*before.get("resumed_by", []), *([] if self.again.times else [command])]:
                facts["resumed_by"] = resumed
            facts |= {name: before[name] for name in ("command", "started", "git_commit") if name in before}
        self.directory.summary(status="RUNNING", **facts)
        return facts

    def _job(self) -> Run:
        plan, config, logger = self.plan, self.config, self.logger
        callbacks = self.callbacks
        if callbacks is None:
            callbacks = make_callbacks(config.run.callbacks, Callback)
        return Run(
            env_steps=config.run.env_steps,
            stop=config.run.stop,
            evaluation=config.run.eval,
            checkpoint=config.run.checkpoint,
            log=LogConfig(every_sec=config.run.log_every_sec, every_steps=config.run.log_every_steps),
            checkpoints=checkpoints_of(self.directory.path, config.run.checkpoint.keep),
            logger=logger,
            signals=self.signals,
            evaluate=self.evaluation,
            estimate=TrainingEstimates(plan) if plan.estimates else None,
            evaluators=self.crew,
            exact=plan.resources.exact,
            restored=self.restored,
            callbacks=[
                *callbacks,
                *_histograms(config, logger),
                *_imagining(plan, self.directory.path, logger),
                *self.watched,
            ],
            spec=plan.spec,
            update_rows=plan.needs.rows * plan.needs.columns,
            episode_window=config.run.episode_window,
            from_data=config.runner.name == "offline",
            restarts=self.again.restarts,
            learning_starts=None if plan.needs.replay is None else plan.needs.replay.learning_starts,
            options=self.values,
            judge_env_sec=None if plan.resources.pace is None else plan.resources.pace.second_look,
        )


def _introduce(plan: Plan, values: dict[str, Any], resume_at: int | None) -> None:
    """Says what was decided for the run, and what its user may want to know of it. values: its plain config. resume_at:
    env steps of the checkpoint from which it goes on; None: it begins."""
    for sentence in [*plan.spec.notes, *plan.resources.why]:
        say(sentence)
    if plan.config.run.init is not None and resume_at is None:
        say(f"begins with the weights of {plan.config.run.init}")
    if resume_at is None:
        for option, path in given_weights(plan.config).items():
            if (note := other_functions(values, path, option)) is not None:
                say(f"note: {note}")
    for note in notes(plan):
        say(f"note: {note}")
    if ended := ended_rates(plan.config.algo, resume_at or 0):
        say(
            f"note: the schedule of {' and '.join(ended)} has ended with 0, so this learning rate changes no weight;"
            " rlrun train --from-run RUN init=RUN starts a new run with these weights and runs the schedule again"
        )


def made_with(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers of a session may depend on: rlrun's commit, versions of packages and the machine."""
    return {name: facts.get(name) for name in ("git_commit", "versions", "hardware")}


def _summary(directory: RunDir, **values: Any) -> dict[str, Any]:
    """Writes summary.json, or says that it could not be written. Returns it in any case."""
    values = finite(values)  # the user's own evaluation may return what is not a number
    try:
        return directory.summary(**values)
    except OSError as error:
        why = refused(error) or error.strerror
        tell(f"rlrun: {directory.path / 'summary.json'} could not be written: {why}", sys.stderr)
        return values


def _loggers(config: Typed, path: Path, resumed: Moment | None, shown: bool) -> Sinks:
    chosen = {name: node for name, node in config.run.logger.items() if node["enabled"]}
    rows = Jsonl(path / "progress.jsonl", resumed)
    resume_at = None if resumed is None else resumed.env_steps
    direct: list[Sink] = [rows]
    slow: dict = {}
    if "console" in chosen and shown:
        title = f"{config.algorithm_name} on {config.env.name}, seed {config.run.seed}"
        end = End(config.run.env_steps, config.run.stop.wall_sec)
        direct.append(console(end, title, config.run.episode_window))
    if "tensorboard" in chosen:
        slow["tensorboard"] = lambda: TensorBoard(path, resume_at, rows.again)
    elif rows.cut and resume_at is not None and has_events(path):
        slow["tensorboard"] = lambda: Hidden(path, resume_at, rows.again)
    return Sinks(direct, slow)


def _mirroring(config: Typed, values: dict, path: Path, facts: dict) -> Mirroring | None:
    """Returns what sends the run to MLflow, if it is logged there."""
    mlflow = config.run.logger.get("mlflow")
    if mlflow is None or not mlflow["enabled"]:
        return None
    if not available():
        tell(
            f"rlrun: mlflow: mlflow is not installed (pip install mlflow); rlrun sync {shlex.quote(str(path))} sends"
            " the run later",
            sys.stderr,
        )
        return None
    place = MlflowPlace(
        whole(mlflow["uri"]), store_root(config.run.runs_root, path), mlflow["experiment"], mlflow["parent"]
    )
    return Mirroring(Mirror(path, place), values, facts, mlflow["wait_sec"])


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


class _Evaluation:
    """Evaluates in this process. Where an environment fails, all are made anew and play this evaluation from its
    beginning, once and within the run's budget of failures."""

    def __init__(self, plan: Plan, restarts: Restarts):
        self.plan, self.restarts = plan, restarts
        self.evaluating: Evaluating | None = None

    def __call__(self, algorithm: Algorithm, clock: Clock, round_: int, stop: Callable[[], bool]) -> Evaluated:
        if self.evaluating is None:
            self.evaluating = Evaluating(dataclasses.replace(self.plan.evaluation(), workers=0))
        try:
            return self.evaluating(algorithm.policy, clock, round_, stop)
        except EnvError as error:
            if self.restarts.limit == 0:
                raise
            self.restarts.env_failed(f"in an evaluation, {error}")
        self.close()
        return self.evaluating(algorithm.policy, clock, round_, stop)

    def close(self) -> None:
        """Closes the environments, if there are any."""
        if self.evaluating is not None:
            with contextlib.suppress(Exception):  # it is the user's code, and may have failed before
                self.evaluating.close()


def _evaluators(plan: Plan, restarts: Restarts) -> EvaluationCrew | None:
    """Returns the processes that evaluate, which start with the first evaluation; None where there are none."""
    if not evaluators(plan):
        return None
    return EvaluationCrew(plan.evaluation(), plan.limits(), restarts)
