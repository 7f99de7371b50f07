"""Evaluation by a plan: in the trainer, or in processes beside it that receive weights as samplers do.

trainer                                 eval-i
begin(policy)     --- weights, pipe --> plays its part of the games
                  <-- "playing" ------  every PLAYING_SEC, so that it notices in a long game that the trainer has ended
                  <-- Said -----------  what the user should know of a game that goes on for long
result()          <-- Evaluated ------

Each process writes its pulse (core/pulse.py), from which the trainer sees that an environment hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from rlrun.core.env import EnvFactory, VectorEnv
from rlrun.core.errors import RunFailed
from rlrun.core.evaluation import Evaluated, Games, make_evaluation, own_numbers
from rlrun.core.long_games import FIRST_SEC
from rlrun.core.outputs import tell
from rlrun.core.policy import Policy
from rlrun.core.pulse import POLICY, STARTING, WAITING, Limits, Pulses, doing, watch
from rlrun.core.restarts import PROCESS_REPEATS, Repeated, Restarts
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.stores import WeightStore
from rlrun.dataflow.weights import WeightBus
from rlrun.dataflow.workers import Worker, Workers, at_end
from rlrun.samplers.evaluator import TOGETHER, Evaluator, together

PLAYING, PLAYING_SEC = "playing", 1.0


class Said(NamedTuple):
    """A note from a process that evaluates. The trainer prints it, whose live view other output would spoil."""

    text: str


def say(text: str) -> None:
    """Prints a note below the name of the run."""
    tell(f"  note: {text}")


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """How a run evaluates (pickled for each process)."""

    make_env: EnvFactory
    make_policy: Callable[[], Policy]
    seeds: Seeds
    episodes: int
    env_steps: int | None  # played in place of `episodes`
    greedy: bool
    function: str | None  # the user's own evaluation, package.module:Name
    workers: int  # number of processes; 0: the trainer evaluates

    def part(self, number: int) -> tuple[int, int | None]:
        """Returns the episodes, and the env steps if they are counted, of one of the processes."""
        among = max(1, self.workers)
        episodes = self.episodes // among + (number < self.episodes % among)
        return episodes, None if self.env_steps is None else -(-self.env_steps // among)


class Evaluating:
    """One process's part of every evaluation of a run."""

    def __init__(self, plan: EvaluationPlan, number: int = 0, say: Callable[[str], None] = say):
        self.plan, self.number, self.say = plan, number, say
        self.episodes, self.env_steps = plan.part(number)
        self.own = None if plan.function is None else make_evaluation(plan.function)
        self.evaluator: Evaluator | None = None

    def __call__(self, policy: Policy, clock: Clock, round_: int, stop: Callable[[], bool]) -> Evaluated:
        """Evaluates, until stop() is true at the latest."""

        def play(episodes: int, greedy: bool = True, env_steps: int | None = None) -> list[tuple[float, int]]:
            if self.evaluator is None:
                envs = together(self.plan.make_env.spec, TOGETHER if env_steps is not None else episodes)
                with self._starting():
                    self.evaluator = Evaluator(self.plan.make_env, envs, self.plan.seeds, self.number, self.say)
            mode: Any = "greedy" if greedy else "explore"
            return self.evaluator.play(policy, episodes, mode, clock, round_, stop, env_steps)

        if self.own is None:
            games = play(self.episodes, self.plan.greedy, self.env_steps)
            return Evaluated([ret for ret, _ in games])
        made = Games(
            policy=policy,
            clock=clock,
            number=round_,
            episodes=self.episodes,
            greedy=self.plan.greedy,
            make_env=self._make_env,
            play=play,
            stopped=stop,
        )
        return Evaluated([], own_numbers(self.own, made))

    def _make_env(self, count: int) -> VectorEnv:
        with self._starting():
            return self.plan.make_env(self.number, count)

    def _starting(self) -> AbstractContextManager[None]:
        """A context in which environments are made. A process beside the trainer may take as long for it as it may take
        to start."""
        return doing(STARTING) if self.plan.workers else nullcontext()

    def close(self) -> None:
        """Closes the environments, if there are any yet. The next evaluation makes new ones."""
        evaluator, self.evaluator = self.evaluator, None
        if evaluator is not None:
            evaluator.close()


def evaluation_process(pipe: Connection, plan: EvaluationPlan, number: int, bus: WeightStore, pulses: Pulses) -> None:
    """Receives numbers of evaluations and answers each with the number and Evaluated, until the pipe closes. Meanwhile
    it sends PLAYING and Said."""
    policy, seen = plan.make_policy(), 0
    evaluate = Evaluating(plan, number, lambda text: pipe.send(Said(text)))
    at_end(evaluate.close)
    pulse = pulses.of(number)
    watch(pulse)
    told = time.monotonic()

    def stop() -> bool:
        """Says that games go on; it raises if the trainer has ended."""
        nonlocal told
        if time.monotonic() - told >= PLAYING_SEC:
            pipe.send(PLAYING)
            told = time.monotonic()
        return False

    while True:
        pulse.beat(WAITING)
        round_ = pipe.recv()
        pulse.beat(POLICY)
        newer = bus.read(policy, seen)
        assert newer is not None, "begin() publishes weights"
        seen, clock, _ = newer
        pipe.send((round_, evaluate(policy, clock, round_, stop)))


class EvaluationCrew:
    """The processes that evaluate, as the trainer sees them (core.evaluation.Evaluators)."""

    def __init__(self, plan: EvaluationPlan, limits: Limits, restarts: Restarts | None = None):
        """limits: a process whose environment takes longer is lost. What else an evaluation does may take as long as it
        likes. restarts: the budget of the run, within which lost processes are replaced; None: none is."""
        self.plan, self.limits = plan, limits
        self.restarts = restarts or Restarts(0, 1.0)
        self.workers = Workers()
        self.bus: WeightBus | None = None
        self.round = 0
        self.names = [f"eval-{number}" for number in range(plan.workers)]
        self.parts: dict[str, Evaluated] = {}
        self.pulses = Pulses(plan.workers)
        for number in range(plan.workers):
            self.pulses.begin(number)
        self.repeated = {name: Repeated(PROCESS_REPEATS) for name in self.names}
        self.said = -FIRST_SEC  # when a note was printed last
        self.replaced_in: dict[str, int] = {}  # the evaluation in which a process was replaced last

    def begin(self, policy: Policy, clock: Clock, round_: int) -> None:
        if self.bus is None:
            self.bus = WeightBus(self.plan.make_policy())
            for name in self.names:
                self._start(name)
        self.bus.publish(policy, clock)
        self.parts, self.round = {}, round_
        for worker in list(self.workers.members):
            try:
                self.workers.send(worker, round_)
            except RunFailed as error:
                self._replace(worker, str(error))

    def _start(self, name: str) -> Worker:
        number = self.names.index(name)
        self.pulses.begin(number)
        return self.workers.start(name, evaluation_process, (self.plan, number, self.bus, self.pulses))

    def _replace(self, worker: Worker, reason: str, kind: str | None = None) -> None:
        """Lets a new process play the part of one that is lost, from its first game. Raises RunFailed if the budget of
        the run does not allow it. kind: what two losses of the same cause have in common; None: the reason."""
        name = worker.name
        same = self.replaced_in.get(name) == self.round
        if self.repeated[name](kind or reason, 0 if same else None):
            raise RunFailed(reason)
        self.restarts.process_failed(reason)
        self.replaced_in[name] = self.round
        self.workers.bury(worker)
        new = self._start(name)
        if name not in self.parts:
            self.workers.send(new, self.round)

    def result(self, timeout_sec: float = 0.0) -> Evaluated | None:
        messages, dead = self.workers.receive_from_survivors(timeout_sec)
        for worker, message in messages:
            if isinstance(message, Said):
                # Processes whose games are alike send their notes at the same time, and one of them is enough.
                if time.monotonic() - self.said >= FIRST_SEC / 2:
                    say(message.text)
                    self.said = time.monotonic()
            elif message != PLAYING and message[0] == self.round:
                self.parts[worker.name] = message[1]
        for worker, reason in dead:
            self._replace(worker, reason)
        if len(self.parts) == self.plan.workers:
            parts = [self.parts[name] for name in self.names]
            return Evaluated([ret for part in parts for ret in part.returns], parts[0].numbers)
        for worker in list(self.workers.members):
            hang = self.pulses.of(self.names.index(worker.name)).hang(self.limits)
            if hang is not None:
                self._replace(worker, f"{worker.name} {hang}", "it hangs")
        return None

    def close(self) -> None:
        self.workers.stop()
