"""Run does what every runner needs between updates: it stops, saves, evaluates and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlrun.core.algorithm import Algorithm, Update
from rlrun.core.callbacks import Callback, add_to_row, call
from rlrun.core.checkpoint import Checkpoints, copied
from rlrun.core.duties import CheckpointConfig, Progress, Saves, StopConfig, Stops, improves
from rlrun.core.errors import Diverged, EnvError, RunFailed
from rlrun.core.estimates import Estimates, Estimating
from rlrun.core.evaluation import Evaluators
from rlrun.core.evaluation_duty import EvalConfig, Evaluations, Play
from rlrun.core.health import CutEpisodes, Health
from rlrun.core.learners import (
    LOST,
    ON,
    OVER,
    SAVE,
    FragmentHeader,
    Kept,
    check_equal,
    exchange,
    load_kept,
    save_rows,
    tell_state,
)
from rlrun.core.logs import LogConfig, Logger, Logs, SecondLook
from rlrun.core.metrics import EpisodeStatistics, finite
from rlrun.core.outputs import tell
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.restarts import Restarts, say
from rlrun.core.schedule import Clock
from rlrun.core.signals import Signals
from rlrun.core.specs import EnvSpec
from rlrun.core.timing import Timers


class Run:
    """One run, from its first or its restored state to its end.

    At the end, `status` is COMPLETED (env_steps was reached), STOPPED (`reason` names the stop condition), INTERRUPTED
    (by a signal) or FAILED (its recording did)."""

    def __init__(
        self,
        *,
        env_steps: int,
        stop: StopConfig,
        evaluation: EvalConfig,
        checkpoint: CheckpointConfig,
        log: LogConfig,
        checkpoints: Checkpoints,
        logger: Logger,
        signals: Signals,
        evaluate: Play | None,
        exact: bool,
        restored: tuple[dict[str, dict], dict] | None,
        callbacks: Sequence[Callback] = (),
        save_at_end: bool = True,
        spec: EnvSpec | None = None,
        update_rows: int | None = None,
        episode_window: int = 100,
        judge_env_sec: Callable[[float, float], str | None] | None = None,
        evaluators: Evaluators | None = None,
        from_data: bool = False,
        estimate: Estimating | None = None,
        restarts: Restarts | None = None,
        learning_starts: int | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        """spec: the environment's, for notes on the entropy of its actions; None: without those. update_rows: rows that
        an update learns from; None: many. episode_window: number of finished episodes that statistics look at.
        judge_env_sec: see SecondLook. evaluators: processes that evaluate in place of this one. from_data: whether
        nothing is sampled, and env steps count the rows learnt from. estimate: estimates the policy's value from
        data. restarts: the budget for failures that the run survives; None: it survives none. learning_starts: env
        steps before the first update; None: those of its batch. options: the run's plain config, so that notes name
        options that it has."""
        self.checkpoints, self.signals, self.restored, self.callbacks = checkpoints, signals, restored, callbacks
        self.exact = exact  # columns are broken at every checkpoint, so that a resumed run equals one without a pause
        self.restarts = restarts or Restarts(0, 1.0)
        self.timers = Timers()
        self.progress = Progress(episode_window)
        self.stops = Stops(env_steps, stop, signals, self.progress, learning_starts)
        self.evaluations = Evaluations(evaluation, evaluate, signals, evaluators)
        self.estimates = Estimates(evaluation.every, estimate, signals)
        self.saves = Saves(checkpoint, signals, self.progress, self.evaluations, save_at_end)
        self.logs = Logs(log, env_steps, logger, self.progress, self.timers, from_data)
        self.health = Health(env_steps, spec, say, update_rows, plays=not from_data, options=options)
        self.cuts = CutEpisodes(say)
        self.second_look = SecondLook(judge_env_sec)
        self.hold_learners: Callable[[], Clock] | None = None
        self.breaks: list[Callable[[int], None]] = []
        self.generation = 0
        self.ahead = 0
        self.rescued: str | None = None  # what rescue() said
        self.kept: dict[str, Kept] = {}  # the names are the runner's
        if restored is not None:  # now, because a summary has these counts even where the run fails before it begins
            self.progress.load(restored[1])
            self.evaluations.load(restored[1])
            self.health.rewarded = bool(self.progress.best)
        self.join(ALONE, 0)

    def join(self, ranks: Ranks, first_counted: int) -> None:
        """Makes this run the first of several learners.

        Episodes of environments before first_counted do not count, because these explore too much (Ape-X)."""
        self.ranks, self.first_counted = ranks, first_counted

    # -- what callbacks and summaries read -----------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self.progress.clock

    @property
    def episodes(self) -> EpisodeStatistics:
        return self.progress.episodes

    @property
    def best(self) -> float | None:
        return self.progress.best_return

    @property
    def eval_mean(self) -> float | None:
        return self.evaluations.mean

    @property
    def wall_sec(self) -> float:
        return self.progress.wall_sec

    @property
    def status(self) -> str:
        return self.stops.status

    @property
    def ending(self) -> str:
        """The status as users are told it: REACHED where the run stopped because its return is what it was to reach."""
        return "REACHED" if self.stops.reached and self.status == "STOPPED" else self.status

    @property
    def reason(self) -> str:
        return self.stops.reason

    @property
    def exit_code(self) -> int:
        """The command's exit code: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 1 if the run failed, or 0."""
        if self.status == "FAILED":
            return 1
        stop = self.signals.stop
        return 0 if stop is None else 128 + stop

    def failed(self, status: str, reason: str) -> None:
        """Records that an exception ended the run."""
        self.stops.status, self.stops.reason = status, reason

    # -- the runner's side ---------------------------------------------------------------------------------------------

    def begin(self, algorithm: Algorithm) -> Clock:
        """Restores the algorithm of a resumed run and what is not restored yet. Returns the clock to start from."""
        self.algorithm = algorithm
        self.saves.judge_by(algorithm)
        if self.restored is not None:
            tensors, run = self.restored
            algorithm.load_state(tensors["algorithm"])
            self.estimates.load(run)
            # A best one that was left behind is no longer there, and must not keep another from becoming the best.
            self.saves.best = None if self.checkpoints.best() is None else run["saved_best"]
            # One that was found beside this process may be newer than the checkpoint, if the run was killed since.
            if improves(found := self.checkpoints.best_metric(self.saves.judged_by), self.saves.best):
                self.saves.best = found
            if run.get("judged_by", self.saves.judged_by) != self.saves.judged_by:  # the two cannot be compared
                self.saves.best = self.progress.best = None
                self.progress.best_at = self.clock.env_steps
            self.restarts.load(run.get("restarts", (0, 0, 0)))
            self.generation = run["generation"] + (0 if self.exact else 1)
        for duty in (self.evaluations, self.estimates, self.saves, self.logs):
            duty.begin(self.clock)
        if self.ranks.apart:
            tell_state(algorithm, self.clock, self.generation, self.ranks)
        else:
            self.ranks.first(self.generation)
        check_equal(algorithm, self.ranks)
        return self.clock

    def sampler_ready(self, sampler: Any) -> None:
        """Restores the sampler's state if the run is exact. Starts the clocks of rates and of time limits."""
        self.sampler = sampler
        if self.restored is not None and self.exact:  # other runs begin new episodes, with this generation's seeds
            sampler.load(self.restored[0]["sampler"])
            sampler.restart(self.generation)
        self.restored_rows = (
            None if self.restored is None else self.checkpoints.directory / f"{self.restored[1]['env_steps']:012d}"
        )
        self.restored = None
        self._tell("on_start", self)
        self.saves.begin_clock()
        self.logs.begin_clock()
        self.timers.result()

    def keeps(self, name: str, thing: Kept) -> None:
        self.kept[name] = thing
        self.stops.waits_for = getattr(thing, "waits_for", self.stops.waits_for)
        if self.restored_rows is not None and (said := load_kept(name, thing, self.restored_rows, 0)) is not None:
            tell(f"  {said}")

    def collected(self, headers: Sequence[FragmentHeader]) -> int:
        """Records the episodes of new fragments and the age of the weights that acted in them.

        Returns the env steps that all learners took for them."""
        steps = 0
        for report in exchange(headers, self.clock, self.ranks):
            steps += report.env_steps
            self.progress.agent_steps += report.agent_steps
            for sentence, _, made_anew in report.failures:
                (self.restarts.env_failed if made_anew else self.restarts.env_odd)(sentence)
            for sentence, lost in report.replaced:
                self.restarts.process_failed(sentence, lost)
            for env, ret, length, info in report.episodes:
                if env < self.first_counted:
                    continue
                self.episodes.add(ret, length, info)
                self._tell("on_episode", ret, length, info)
            env_sec, policy_sec = report.seconds
            self.second_look.note(env_sec, report.env_steps)
            self.logs.sample.add(
                {
                    "policy_lag": float(report.lag),
                    "env_sec": env_sec,
                    "policy_sec": policy_sec,
                    "fragment_steps": float(report.env_steps),
                }
            )
        return steps

    def tick(self, clock: Clock, update: Update | None) -> bool:
        """Is called between two updates. Returns False if the run is over, and has then saved it."""
        return self.ranks.first(ON if self._tick(clock, update) else OVER) == ON

    def stopping(self) -> bool:
        """Whether the next tick ends the run, for runners that work for long before it. All learners ask together."""
        return self.ranks.first(OVER if self.stops.due(self.clock) else ON) == OVER

    def _tick(self, clock: Clock, update: Update | None) -> bool:
        self.progress.clock = clock
        if update is not None:
            self.logs.learn.add(update.metrics)
            self._tell("on_update", clock, update.metrics)
        self.held = self.stops.saving = False
        self.stops.updated = update is not None
        over = self.stops.due(clock, getattr(self.sampler, "trouble", None))  # of a recording
        if over:
            self._hold()
            self.stops.count_again(self.clock)
            if self.status == "COMPLETED" and self.clock.updates > 0:
                # A short run has failed if the later half of its updates changed nothing. Its weights are not saved.
                self.algorithm.check((self.clock.updates + 1) // 2)
        self.evaluations.fresh = False
        if self.evaluations.running is not None:
            self._collect(over)
        if self.evaluations.due(clock):
            if self.evaluations.row:
                self._log()  # before the numbers of the next evaluation replace it
            self._hold()
            self._evaluate(over)
        if self.estimates.due(clock):
            self._hold()
            with self.timers("estimate"):
                self.estimates.make(self.algorithm, self.clock)
        self.progress.judge(self.saves.metric, self.evaluations.at if self.saves.by_evaluations else None)
        if self.saves.due(clock, over):
            self._hold()
            self._save()
        if over or self.evaluations.row or self.estimates.row or self.logs.due(clock):
            self._log()
        if over:
            self._tell("on_end", self.status)
        return not over

    def _hold(self) -> None:
        """Stops learners that do not wait for each other, before weights are read for more than a moment."""
        if self.hold_learners is not None and not self.held:
            self.progress.clock, self.held = self.hold_learners(), True

    def _tell(self, event: str, *facts: Any) -> None:
        """Calls a method of every callback. Raises RunFailed with the name of a callback that raised."""
        for callback in self.callbacks:
            call(callback, event, *facts)

    # -- the duties ----------------------------------------------------------------------------------------------------

    def _evaluate(self, over: bool) -> None:
        """Evaluates the current weights, or begins to if processes beside this one do so. over: whether this is the
        last tick."""
        evaluations = self.evaluations
        if evaluations.crew is None:
            with self.timers("evaluate"):
                made = evaluations.make(self.algorithm, self.clock, self._interrupted)
            if made is not None:
                self._tell("on_evaluate", self.clock, made.returns)
            return
        evaluations.start(self.algorithm, self.clock, self._snapshot)
        if over or not evaluations.cfg.beside:
            self._collect(wait=True)

    def _collect(self, wait: bool) -> None:
        """Takes the result of the evaluation that runs beside this process, if it is there.

        If it is the best one, the weights that it evaluated, and not newer ones, become the best checkpoint."""
        with self.timers("evaluate"):
            finished = self.evaluations.finish(wait and self.signals.stop is None, self._interrupted)
        if finished is None:
            return
        ran, made = finished
        if ran.clock == self.clock:
            self.evaluations.fresh = True  # the weights are still these
        elif self.saves.by_evaluations and self.saves.better:
            metric = self.saves.metric
            tensors, run = ran.snapshot
            run |= {**self.evaluations.state(), "evaluating": False, "saved_best": metric, "metric": metric}
            run["unlogged"] = finite(self.evaluations.row)  # a run that is resumed from there has no row of it yet
            with self.timers("save"):
                saved = self.checkpoints.save_earlier(ran.clock.env_steps, tensors, run)
            if saved is not None:
                self.saves.best = metric
                self._tell("on_save", saved, ran.clock)
        self.progress.judge(self.saves.metric, self.evaluations.at if self.saves.by_evaluations else None)
        self._tell("on_evaluate", ran.clock, made.returns)

    def _snapshot(self) -> tuple[dict[str, dict], dict]:
        """Returns copies of what a checkpoint of this moment holds, without replayed rows."""
        return copied(self._tensors()), copied(self._facts(None, None))

    def _interrupted(self) -> bool:
        """Returns whether a signal came. Raises RunFailed if a sampler died, which nothing else notices now."""
        self.sampler.check()
        return self.signals.stop is not None

    def _save(self) -> None:
        with self.timers("save"):
            metric, best = self.saves.metric, self.saves.as_best
            if self.exact:
                self.generation += 1
                if self.status == "RUNNING" and not self.logs.from_data:
                    self.cuts.look(self.progress.episodes.count)
            saved = self._written(metric, best)
            if saved is None and self.status != "RUNNING":
                names = self.checkpoints.names()
                newest = f"the newest one is from {int(names[-1])}" if names else "there is none"
                raise RunFailed(
                    f"the run ended ({self.reason}), but its last checkpoint could not be written: {newest}; free some"
                    " space and resume"
                )
            if self.exact:
                self.sampler.restart(self.generation)
                for forget in self.breaks:
                    forget(self.generation)
            if saved is not None:
                self._tell("on_save", saved, self.clock)
            self.saves.made(metric, best, saved is not None)

    def _written(self, metric: float | None, best: bool, kept: bool = True) -> Path | None:
        """Returns the path of the new checkpoint, or None if it could not be written. kept: whether it holds what a
        runner keeps, such as a replay."""
        run = self._facts(metric, metric if best else self.saves.best)
        rows = self._save_rows if kept and not self.saves.early and self._others_save else None
        return self.checkpoints.save(self.clock.env_steps, self._tensors(kept), run, best, rows)

    @property
    def _others_save(self) -> bool:
        """Whether a checkpoint has parts that only the others can write: rows, or what other learners keep."""
        return (self.ranks.world > 1 and bool(self.kept)) or self._has_rows

    @property
    def _has_rows(self) -> bool:
        """Whether checkpoints hold the rows of a replay."""
        return any(getattr(thing, "saved", False) for thing in self.kept.values())

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        try:
            yield
        except (RunFailed, EnvError, OSError) as error:
            self.rescued = self.rescue(error)
            raise

    def rescue(self, error: BaseException | None) -> str | None:
        """Saves what was learnt before a failure that was not the learner's own, unless that is saved already. Returns
        a sentence that says so, or None.

        An exact run is not saved, because it could not be resumed to the bit. Nor are replays of several learners,
        which would wait for one that has failed."""
        if self.rescued is not None:
            return self.rescued
        clock = self.clock
        saved = self.checkpoints.names()
        if self.exact or not hasattr(self, "sampler") or (saved and int(saved[-1]) >= clock.env_steps):
            return None
        if clock.updates == 0 or isinstance(error, Diverged) or not self.algorithm.policy.all_finite():
            return None
        self.saves.early = self.ranks.world > 1  # other learners may have failed, and are not waited for
        try:
            if self.ranks.world > 1 and self._has_rows:
                return None
            return self._rescued(self.kept != {})
        except Exception as problem:  # whatever has broken the run may have broken this too
            said = str(problem).splitlines()
            return f"what it had learnt could not be saved: {said[0] if said else repr(problem)}"

    def _rescued(self, kept: bool) -> str | None:
        """Saves all that can be saved. Processes that hold a replay may be what failed."""
        without = ""
        try:
            written = self._written(self.saves.metric, False)
        except Exception:
            if not kept or self.ranks.world > 1:
                raise
            written = self._written(self.saves.metric, False, kept=False)
            without = ", without its replay"
        if written is None:
            return None
        saved = f"what it had learnt after {self.clock.env_steps} env steps is saved{without}"
        return f"{saved}: rlrun resume goes on from there"

    def _tensors(self, kept: bool = True) -> dict[str, dict]:
        """The parts of a checkpoint that torch.save writes."""
        tensors = {
            "policy": self.algorithm.policy.state_dict(),
            "algorithm": self.algorithm.state(),
            "sampler": self.sampler.save(),
        }
        if self.kept:
            tensors["replay"] = {name: thing.state() for name, thing in self.kept.items()} if kept else {LOST: {}}
        return tensors

    def _facts(self, metric: float | None, saved_best: float | None) -> dict[str, Any]:
        """What a checkpoint's run.json holds."""
        return {
            **self.progress.state(),
            **self.evaluations.state(),
            **self.estimates.state(),
            "restarts": self.restarts.state(),
            **finite({"saved_best": saved_best, "metric": metric}),
            "judged_by": self.saves.judged_by,
            "generation": self.generation,
        }

    def _save_rows(self, folder: Path) -> None:
        self.stops.saving = True
        try:
            self.ranks.first(SAVE)
            save_rows(self.kept, self.ranks, folder)
        finally:
            self.stops.saving = False

    def _log(self) -> None:
        self.algorithm.check()
        judged = {**self.evaluations.take_row(), **self.estimates.take_row(), **self.restarts.row()}
        row = self.logs.row(judged, getattr(self.sampler, "queued", None), self.ahead)
        self.health.look(row)
        for callback in self.callbacks:
            add_to_row(callback, row)
        self.logs.write(row)
