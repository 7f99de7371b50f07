"""A process of async_gradients: it samples, computes gradients and applies them to weights in shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from rlrun.core.algorithm import Algorithm, Update
from rlrun.core.checkpoint import load_part
from rlrun.core.errors import Diverged, explained
from rlrun.core.learners import replay_part
from rlrun.core.moments import Moments, plain
from rlrun.core.pulse import WAITING, Pulses, own, watch
from rlrun.dataflow.reuse import gather
from rlrun.dataflow.shared import SharedLearner
from rlrun.dataflow.slots import Header
from rlrun.dataflow.workers import READY
from rlrun.replay.buffer import Replay
from rlrun.replay.late import Writes
from rlrun.replay.limiter import Limiter
from rlrun.runners.base import Factories
from rlrun.samplers.base import Sampler

HELD = "held"  # sent by a process in place of a GradientReport when it begins to wait
SAVE, LOAD, STATE = "save", "load", "state"  # what a waiting process is asked to do with its part of the replay


class GradientReport(NamedTuple):
    """What a process has done since its last report."""

    headers: list[Header]  # of new rows
    lags: list[int]  # for each header, gradients that others applied from the copy of the weights until it was used
    metrics: dict[str, float] | None  # of the gradient that it applied, if it did
    moments: list[list[Moments] | None]  # of the new rows, for the policy's filter


class ReplayPart:
    """One process's part of the replay, and the limiter of its updates."""

    def __init__(self, make: Factories, algorithm: Algorithm, number: int, generation: int):
        needs = algorithm.needs(algorithm.cfg)
        assert needs.replay is not None
        self.number = number
        replay = make.replay(generation)
        assert isinstance(replay, Replay), "check_fitting() refuses several policies"
        self.replay = replay
        starts = math.ceil(needs.replay.learning_starts / make.learners)
        batch = needs.columns * needs.replay.rows_learnt
        self.limiter = Limiter(starts, needs.replay.ratio, batch, make.learners)

    def serve(self, what: str, *facts: Any) -> Any:
        """Answers _Crew.ask()."""
        if what == STATE:
            return self._state(), self.replay.saved
        if what == SAVE:
            (folder,) = facts
            try:
                self.replay.save_rows(folder)
                if self.number > 0:
                    torch.save({"replay": self._state()}, folder / f"{replay_part(self.number)}.pt")
            except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
                return OSError(str(error))
            return None
        state, folder = facts
        if self.number > 0 and folder is not None:
            state = load_part(folder, replay_part(self.number))["replay"]
        self.replay.load(state, folder)
        return self.limiter.load(state["limiter"], folder)

    def _state(self) -> dict:
        return {**self.replay.state(), "limiter": self.limiter.state()}


def worker_process(
    pipe: Connection,
    make: Callable[[int, int], Factories],
    number: int,
    shared: SharedLearner,
    generation: int,
    pulses: Pulses,
) -> None:
    """Samples, computes and applies gradients, and sends a GradientReport after each, until the pipe closes."""
    factories = make(number, generation)
    algorithm = factories.algorithm()
    part = ReplayPart(factories, algorithm, number, generation) if factories.learns_from_replay else None
    sampler = factories.sampler(generation)
    shared.attach(algorithm, number)
    pulse = pulses.of(number)
    watch(pulse)
    pulse.beat(WAITING)
    pipe.send(READY)

    def wait() -> None:
        """Serves the replay until the process may go on."""
        while (asked := pipe.recv()) != READY:
            assert part is not None
            pipe.send(part.serve(*asked))

    def obey(untold: GradientReport | None = None) -> bool:
        """Waits if the processes are held. Rows that are not reported yet are reported before. Returns whether it
        waited."""
        if not shared.hold.item():
            return False
        if untold is not None and untold.headers:
            pipe.send(untold)
        pipe.send(HELD)
        wait()
        return True

    try:
        wait()
        if part is None:
            learn(pipe, factories, algorithm, sampler, shared, obey)
        else:
            learn_from_replay(pipe, factories, algorithm, sampler, part, shared, obey)
    finally:
        sampler.close()  # a recording is finished then


def learn(
    pipe: Connection,
    make: Factories,
    algorithm: Algorithm,
    sampler: Sampler,
    shared: SharedLearner,
    obey: Callable[[], bool],
) -> None:
    """Learns from every new row once."""
    count = make.columns // sampler.columns
    batch = None
    while True:
        obey()
        before = shared.others
        shared.refresh(algorithm)
        clock = shared.clock
        sampler.publish(algorithm.policy, clock)
        fragments = sampler.take(count)
        batch = gather([fragment.batch for fragment in fragments], batch, algorithm.ctx.device)
        with _learning(), make.threads:
            update = algorithm.update(batch, clock)
        shared.applied()
        lags = [shared.others - before] * len(fragments)
        moments = plain(algorithm.policy.moments(batch))
        _handed()
        pipe.send(GradientReport([fragment.header for fragment in fragments], lags, _floats(update), [moments]))
        sampler.free(fragments)


def learn_from_replay(
    pipe: Connection,
    make: Factories,
    algorithm: Algorithm,
    sampler: Sampler,
    part: ReplayPart,
    shared: SharedLearner,
    obey: Callable[[GradientReport], bool],
) -> None:
    """Learns from rows of this process's replay."""
    stored, limiter, write = part.replay, part.limiter, Writes(part.replay.write, algorithm.ctx.device)
    told = GradientReport([], [], None, [])  # new rows that are not reported yet

    def due() -> bool:
        return limiter.due and stored.starts > 0

    while True:
        if obey(told):
            told = GradientReport([], [], None, [])
        before = shared.others
        shared.refresh(algorithm)
        clock = shared.clock
        if due():
            with _learning():
                batch = stored.sample(make.columns, clock)
                with make.threads:
                    update = algorithm.update(batch, clock)
                if update.writes:
                    write(batch.key, **update.writes)
            shared.applied()
            limiter.sampled()
            pipe.send(told._replace(metrics=_floats(update)))
            told = GradientReport([], [], None, [])
            continue
        sampler.publish(algorithm.policy, clock)
        (fragment,) = sampler.take(1)
        stored.add(fragment)
        limiter.inserted(fragment.header.env_steps, stored.starts > 0)
        told.headers.append(fragment.header)
        told.lags.append(shared.others - before)
        told.moments.append(plain(algorithm.policy.moments(fragment.batch)))
        sampler.free([fragment])
        _handed()
        if not due():
            pipe.send(told)
            told = GradientReport([], [], None, [])


@contextmanager
def _learning() -> Iterator[None]:
    """An error inside the block is the learner's own. It ends the run, because a new process would fail again."""
    try:
        yield
    except Exception as error:
        raise Diverged(explained(error)) from error


def _handed() -> None:
    pulse = own()
    if pulse is not None:
        pulse.handed()


def _floats(update: Update) -> dict[str, float]:
    return {name: float(value) for name, value in update.metrics.items()}
