"""Population: processes that play episodes with perturbed policies.

They are told which pieces of a noise table to try, and answer with returns. Weights are sent once per update, over the
bus.

parent                                     player-i
orders (numbers of pairs)   --- pipe --->  parameters + noise, a piece for every environment; whole episodes
reports (returns, lengths)  <-- pipe ----
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.core.batch import Batch
from rlrun.core.env import EnvFactory, Failure, Rows, map_rows, paid
from rlrun.core.errors import EnvError, RunFailed
from rlrun.core.evolution import FromPopulation, NoiseTable, Played, Report, Rollout
from rlrun.core.moments import Moments, merged, plain
from rlrun.core.policy import Policy
from rlrun.core.ranks import ALONE
from rlrun.core.restarts import ENV_REPEATS, PROCESS_REPEATS, Repeated, Restarts
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.stores import WeightStore
from rlrun.dataflow.weights import WeightBus
from rlrun.dataflow.workers import READY, Worker, Workers, start_sec
from rlrun.samplers.evaluator import to_torch

ALIVE_SEC = 2.0  # seconds between two messages of a player whose order takes long
FILTER_ROWS = 256  # rows of observations that are collected before their moments are computed
ORDERS = 1 << 20  # upper bound of the number of orders in one update


class Crew(NamedTuple):
    """The arguments from which players are made (pickled for each of them)."""

    make_env: EnvFactory
    make_policy: Callable[[], Policy]
    asked: FromPopulation
    noise: NoiseTable
    seeds: Seeds
    envs: int  # episodes that a player plays at the same time
    players: int
    timeout_sec: float  # a player that is silent for longer is lost


class Order(NamedTuple):
    """Part of one update: `pairs` pairs from number `first` on, and some episodes of the unperturbed policy."""

    number: int
    first: int
    pairs: int
    evaluations: int


class Task(NamedTuple):
    pair: int  # index in the order; -1 for the unperturbed policy
    sign: int


class Player:
    """Plays whole episodes, one at a time in every environment, each with its own parameters. All agents of an
    environment act with the same ones, and the sum of their rewards counts."""

    def __init__(self, crew: Crew, number: int, policy: Any):
        self.crew, self.number, self.policy = crew, number, policy
        # It is worker 0 for every player, because seeds depend on the order alone.
        self.env = crew.make_env(0, crew.envs)
        self.box = self.env.spec.action.kind == "box"

    def play(self, order: Order, clock: Clock, alive: Callable[[int], None] = lambda steps: None) -> Report:
        """Plays an order. The report depends only on the order and the clock, not on the player.

        alive: told now and then how many env steps were taken."""
        try:
            return self._play(order, clock, alive)
        except EnvError as error:
            raise error.counted_from(self.number * self.crew.envs) from error.__cause__

    def _play(self, order: Order, clock: Clock, alive: Callable[[int], None]) -> Report:
        crew, count, envs, agents = self.crew, order.pairs, self.crew.envs, self.env.spec.columns_per_env
        center, size = self.policy.vector().detach(), self.policy.size
        draw = [crew.seeds.numpy("perturbation", clock.updates, order.first + i) for i in range(count)]
        offsets = [int(rng.integers(len(crew.noise.numbers) - size + 1)) for rng in draw]
        rng = crew.seeds.generator("action-noise", clock.updates, order.number)
        tasks = deque([Task(-1, 0)] * order.evaluations + [Task(i, sign) for i in range(count) for sign in (1, -1)])
        parameters = center.repeat(envs * agents, 1)  # [B, P]
        doing: list[Task | None] = [None] * envs

        def begin(number: int) -> None:
            task = doing[number] = tasks.popleft() if tasks else None
            columns = slice(number * agents, (number + 1) * agents)
            if task is not None and task.sign:
                parameters[columns] = center + task.sign * crew.asked.noise_std * crew.noise.piece(
                    offsets[task.pair], size
                )
            else:
                parameters[columns] = center

        obs: Rows = map_rows(self.env.reset(clock.updates * ORDERS + order.number), np.array)
        is_first = np.ones(envs * agents, dtype=bool)
        for number in range(envs):
            begin(number)
        returns, signs, lengths = np.zeros(envs), np.zeros(envs), np.zeros(envs, dtype=np.int64)
        played: dict[Task, Played] = {}
        failures: list[Failure] = []
        broken: Counter[Task] = Counter()
        evaluations: list[Played] = []
        moments = _Observed(self.policy)
        steps, env_sec, policy_sec, last = 0, 0.0, 0.0, time.monotonic()
        with torch.inference_mode():
            while any(task is not None for task in doing):
                started = time.perf_counter()
                seen = to_torch(obs)
                action = self.policy.act_with(parameters, seen, torch.from_numpy(is_first))
                if self.box and crew.asked.action_noise > 0:
                    of_envs = torch.tensor([float(task is not None and task.sign != 0) for task in doing])
                    moved = of_envs.repeat_interleave(agents).view(-1, *[1] * (action.ndim - 1))
                    action = action + moved * crew.asked.action_noise * torch.randn(action.shape, generator=rng)
                acted = time.perf_counter()
                step = self.env.step(action.numpy())
                stepped = time.perf_counter()
                busy = np.array([task is not None for task in doing])
                live = step.valid & np.repeat(busy, agents)
                moments.note(seen["observation"], live)
                reward = paid(self.env.spec, step).reshape(envs, agents)[:, self.env.spec.counts].sum(1)
                moved_on = live.reshape(envs, agents).any(1)
                returns += reward
                signs += np.sign(reward)
                lengths += moved_on
                steps += int(moved_on.sum())
                obs, is_first = map_rows(step.obs, np.array), step.is_first
                failures += step.failed.values()
                for number in np.flatnonzero(step.is_first.reshape(envs, agents).all(1)).tolist():
                    task, failure = doing[number], step.failed.get(number)
                    if task is not None and failure is not None and failure.broken_off:  # it is played again
                        broken[task] += 1
                        if broken[task] > ENV_REPEATS:
                            raise RunFailed(failure.sentence)
                        returns[number], signs[number], lengths[number] = 0.0, 0.0, 0
                        continue
                    if task is not None:
                        length = int(lengths[number])
                        fitness = (
                            signs[number]
                            if crew.asked.reward_signs
                            else returns[number] - crew.asked.reward_offset * length
                        )
                        one = Played(float(returns[number]), length, float(fitness))
                        if task.sign:
                            played[task] = one
                        else:
                            evaluations.append(one)
                    returns[number], signs[number], lengths[number] = 0.0, 0.0, 0
                    begin(number)
                policy_sec += acted - started
                env_sec += stepped - acted
                if time.monotonic() - last > ALIVE_SEC:
                    last = time.monotonic()
                    alive(steps)
        rollouts = tuple(Rollout(offsets[i], played[Task(i, 1)], played[Task(i, -1)]) for i in range(count))
        seconds, seen_moments = (env_sec, policy_sec), moments.result()
        return Report(
            self.number, order.number, rollouts, tuple(evaluations), steps, seconds, seen_moments, tuple(failures)
        )

    def close(self) -> None:
        self.env.close()


class _Observed:
    """Collects moments of observations for the policy's filter."""

    def __init__(self, policy: Any):
        self.policy = policy
        self.rows: list[Any] = []
        self.live: list[np.ndarray] = []
        self.parts: list[list[Moments]] = []

    def note(self, observation: Any, live: np.ndarray) -> None:
        if self.policy.filter is not None:
            self.rows.append(observation)
            self.live.append(live.copy())
            if len(self.rows) == FILTER_ROWS:
                self._take()

    def _take(self) -> None:
        self.parts.append(self.policy.filter_moments(_stacked(self.rows), torch.from_numpy(np.stack(self.live))))
        self.rows, self.live = [], []

    def result(self) -> list[Moments] | None:
        if self.policy.filter is None:
            return None
        if self.rows:
            self._take()
        filters = self.policy.filter.filters
        return plain([merged([part[i] for part in self.parts], one.mean.shape, ALONE) for i, one in enumerate(filters)])


def _stacked(rows: list[Any]) -> Any:
    if isinstance(rows[0], Batch):
        return Batch({name: _stacked([row[name] for row in rows]) for name in rows[0]})
    return torch.stack(rows)


def player_process(pipe: Connection, number: int, crew: Crew, bus: WeightStore) -> None:
    """Receives Orders and answers each with a Report, until the pipe closes. Between them it sends the env steps that
    an order which takes long has had so far."""
    policy = crew.make_policy()
    player = Player(crew, number, policy)
    version, clock = 0, Clock()
    pipe.send(READY)
    while True:
        order = pipe.recv()
        newer = bus.read(policy, version)
        if newer is not None:
            version, clock, _ = newer
        pipe.send(player.play(order, clock, pipe.send))


class Population:
    """Players in their own processes, or one player in this process if crew.players is 0.

    A player that dies or falls silent is replaced by a new one, which plays the same order from its beginning. Its
    answer is the only one, so nothing is counted twice.
    """

    columns = 1
    queued = 0

    def __init__(self, crew: Crew, restarts: Restarts):
        """restarts: the budget of the run."""
        self.crew, self.asked, self.restarts = crew, crew.asked, restarts
        self.total_columns = crew.envs * max(1, crew.players)
        self.workers = Workers()
        self.bus: WeightStore | None = None
        self.alone: Player | None = None
        self.policy: Policy | None = None
        self.playing: dict[Worker, Order] = {}
        self.heard: dict[Worker, float] = {}
        self.taken: dict[Worker, int] = {}  # env steps of what a player is playing, as far as it has said so
        self.starting: set[Worker] = set()
        self.numbers: dict[Worker, int] = {}
        self.repeated = [Repeated(PROCESS_REPEATS) for _ in range(crew.players)]
        self.since: list[int | None] = [None] * crew.players  # env steps reported since a player was replaced
        if crew.players:
            self.bus = WeightBus(crew.make_policy())
            started = self.workers.start_all(
                player_process, {f"sampler-{i}": (i, crew, self.bus) for i in range(crew.players)}
            )
            self.numbers = {worker: i for i, worker in enumerate(started)}

    def begin(self, policy: Policy, clock: Clock) -> None:
        """Begins an update: publishes these weights to the players and hands out the first orders."""
        self.policy, self.clock = policy, clock
        self.handed = self.orders = self.pairs = self.steps = 0
        if self.bus is not None:
            self.bus.publish(policy, clock)
            for worker in list(self.workers.members):
                self._hand(worker)

    @property
    def done(self) -> bool:
        """Whether everything that was asked for has been played."""
        return not self.playing and self.handed >= self.asked.pairs and self.steps >= self.asked.min_env_steps

    def _order(self) -> Order | None:
        """Makes the next order: an equal part of half the remaining pairs, so that all players finish at about the same
        time, but at least as many pairs as fill the environments."""
        left = self.asked.pairs - self.handed
        if left <= 0 and self.steps >= self.asked.min_env_steps:
            return None
        players = max(1, len(self.workers.members))
        count = max(1, self.crew.envs // 2)
        if left > 0:
            count = left if self.bus is None else min(left, max(count, -(-left // (2 * players))))
        chance = self.crew.seeds.numpy("evaluations", self.clock.updates, self.orders)
        evaluations = int(chance.binomial(count, self.asked.eval_share))
        over = (2 * count + evaluations) % self.crew.envs  # episodes in a last round that leaves environments idle
        if self.bus is not None and 2 * count + evaluations > self.crew.envs and count > (over + 1) // 2:
            count -= (over + 1) // 2
        order = Order(self.orders, self.handed, count, evaluations)
        self.handed += count
        self.orders += 1
        return order

    def _hand(self, worker: Worker) -> None:
        order = self._order()
        if order is not None:
            self._give(worker, order)

    def _give(self, worker: Worker, order: Order) -> None:
        self.playing[worker], self.heard[worker], self.taken[worker] = order, time.monotonic(), 0
        with contextlib.suppress(OSError):  # the worker has died; take() will notice
            worker.pipe.send(order)

    def take(self) -> list[Report]:
        """Returns the reports that arrive within a moment, perhaps none. A player in this process plays everything that
        the update needs. Raises RunFailed when a player was lost that must not be replaced."""
        if self.bus is None:
            return self._take_alone()
        messages, lost = self.workers.receive_from_survivors(0.5)
        reports = []
        now = time.monotonic()
        for worker, message in messages:
            self.heard[worker] = now
            if message == READY:
                self.starting.discard(worker)
            elif isinstance(message, Report):
                self.playing.pop(worker, None)
                self.steps += message.env_steps
                self._note(worker, message.env_steps)
                reports.append(message)
            else:
                self.taken[worker] = message
        gone = {worker for worker, _ in lost}
        silent = [
            worker
            for worker in self.playing
            if worker not in gone and now - self.heard[worker] > self._patience(worker)
        ]
        lost += [
            (worker, f"{worker.name} was silent for {self._patience(worker):.0f} s: its environment may hang")
            for worker in silent
        ]
        for worker, reason in lost:
            self._replace(worker, reason)
        for worker in list(self.workers.members):
            if worker not in self.playing:
                self._hand(worker)
        return reports

    def _take_alone(self) -> list[Report]:
        if self.alone is None:
            self.alone = Player(self.crew, 0, self.policy)
        self.alone.policy = self.policy
        reports = []
        while (order := self._order()) is not None:
            reports.append(self.alone.play(order, self.clock))
            self.steps += reports[-1].env_steps
        return reports

    def _patience(self, worker: Worker) -> float:
        """Returns for how many seconds a player may say nothing."""
        return max(self.crew.timeout_sec, start_sec()) if worker in self.starting else self.crew.timeout_sec

    def _note(self, worker: Worker, env_steps: int) -> None:
        before = self.since[self.numbers[worker]]
        if before is not None:
            self.since[self.numbers[worker]] = before + env_steps

    def _replace(self, worker: Worker, reason: str) -> None:
        """Lets a new process play what a lost one was playing. Raises RunFailed if it was lost in this way again and
        again, or if the budget of the run does not allow it."""
        number, order = self.numbers.pop(worker), self.playing.pop(worker, None)
        if self.repeated[number](reason, self.since[number]):
            raise RunFailed(reason)
        self.restarts.process_failed(reason, self.taken.pop(worker, 0) if order is not None else 0)
        self.since[number] = 0
        self.starting.discard(worker)
        self.workers.bury(worker)
        new = self.workers.start(worker.name, player_process, (number, self.crew, self.bus))
        self.numbers[new] = number
        self.starting.add(new)
        if order is not None:
            self._give(new, order)

    # The methods that a Job expects of samplers. There is no state to save, because every update begins anew.

    def check(self) -> None:
        """Does nothing, because take() looks at the players."""

    def restart(self, generation: int) -> None:
        """Does nothing, because every order begins new episodes."""

    def save(self) -> dict:
        return {}

    def load(self, saved: dict) -> None:
        """Does nothing, because save() saves nothing."""

    def close(self) -> None:
        self.workers.stop()
        if self.alone is not None:
            self.alone.close()
