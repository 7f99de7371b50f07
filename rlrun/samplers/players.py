"""Players: processes that play episodes with perturbed policies.

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
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch

from rlrun.core.awake import awake
from rlrun.core.batch import Batch
from rlrun.core.env import EnvFactory, Failure, Rows, map_rows, paid
from rlrun.core.errors import EnvError, RunFailed
from rlrun.core.evolution import FromPopulation, NoiseTable, Played, Report, Rollout
from rlrun.core.moments import Moments, merged, plain
from rlrun.core.policy import Policy
from rlrun.core.pulse import STEP, doing
from rlrun.core.ranks import ALONE
from rlrun.core.restarts import AT_ONCE, ENV_REPEATS, PROCESS_REPEATS, Repeated, Restarts, without_numbers
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.dataflow.stores import WeightStore
from rlrun.dataflow.weights import WeightBus
from rlrun.dataflow.workers import READY, Workers, at_end, start_sec
from rlrun.samplers.evaluator import check_end, to_torch

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
    lost: int = 0  # players that were lost while they played it


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
        self.episodes: _Episodes | None = None  # those of the order that it is playing
        self.steps = 0  # env steps of all finished orders
        self.lasting = False  # whether it has told of more env steps than a fault allows that comes back at once

    def play(self, order: Order, clock: Clock, alive: Callable[[int], None] = lambda steps: None) -> Report:
        """Plays an order. alive: told now and then how many env steps were taken."""
        self.begin(order, clock)
        while (report := self.go_on(ALIVE_SEC)) is None:
            assert self.episodes is not None
            alive(self.episodes.steps)
        return report

    def begin(self, order: Order, clock: Clock) -> None:
        """Begins an order. Its report depends only on the order and the clock, not on the player."""
        with self._counted():
            self.episodes = _Episodes(self, order, clock)

    def go_on(self, seconds: float) -> Report | None:
        """Plays on for about so many seconds. Returns the report if all episodes of the order are over by then."""
        episodes, started = self.episodes, time.monotonic()
        assert episodes is not None
        with self._counted(), torch.inference_mode():
            while episodes.unfinished:
                episodes.step()
                # The first pause lets play() say that a fault after it is none that comes back at once.
                first = not self.lasting and self.steps + episodes.steps > AT_ONCE
                if first or time.monotonic() - started > seconds:
                    self.lasting = self.lasting or first
                    return None
        self.steps += episodes.steps
        self.episodes = None
        return episodes.report()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Lets errors of environments name their numbers among those of all players."""
        try:
            yield
        except EnvError as error:
            raise error.counted_from(self.number * self.crew.envs) from error.__cause__

    def close(self) -> None:
        self.env.close()


class _Episodes:
    """The episodes of an order: each environment plays one at a time, and begins the next task when it is over."""

    def __init__(self, player: Player, order: Order, clock: Clock):
        self.player, self.crew, self.env, self.order = player, player.crew, player.env, order
        seeds, updates, envs = self.crew.seeds, clock.updates, self.crew.envs
        self.agents = self.env.spec.columns_per_env
        self.center, self.size = player.policy.vector().detach(), player.policy.size
        draw = [seeds.numpy("perturbation", updates, order.first + i) for i in range(order.pairs)]
        self.offsets = [int(rng.integers(len(self.crew.noise.numbers) - self.size + 1)) for rng in draw]
        # An order of a player that was lost has other games, because the same ones might be lost again.
        self.rng = seeds.generator("action-noise", updates, order.number, *([order.lost] if order.lost else []))
        pairs = [Task(i, sign) for i in range(order.pairs) for sign in (1, -1)]
        self.tasks = deque([Task(-1, 0)] * order.evaluations + pairs)
        self.parameters = self.center.repeat(envs * self.agents, 1)  # [B, P]
        self.doing: list[Task | None] = [None] * envs
        self.obs: Rows = map_rows(self.env.reset((order.lost << 60) + updates * ORDERS + order.number), np.array)
        self.is_first = np.ones(envs * self.agents, dtype=bool)
        self.returns, self.signs, self.lengths = np.zeros(envs), np.zeros(envs), np.zeros(envs, dtype=np.int64)
        self.played: dict[Task, Played] = {}
        self.evaluations: list[Played] = []
        self.failures: list[Failure] = []
        self.broken: Counter[Task] = Counter()  # how often each was broken off by a fault of its environment
        self.moments = _Observed(player.policy)
        self.steps, self.env_sec, self.policy_sec = 0, 0.0, 0.0
        for number in range(envs):
            self.begin(number)

    @property
    def unfinished(self) -> bool:
        return any(task is not None for task in self.doing)

    def begin(self, number: int) -> None:
        """Gives an environment the next task, and its columns the parameters of that task."""
        task = self.doing[number] = self.tasks.popleft() if self.tasks else None
        columns = slice(number * self.agents, (number + 1) * self.agents)
        if task is not None and task.sign:
            piece = self.crew.noise.piece(self.offsets[task.pair], self.size)
            self.parameters[columns] = self.center + task.sign * self.crew.asked.noise_std * piece
        else:
            self.parameters[columns] = self.center
        self.returns[number], self.signs[number], self.lengths[number] = 0.0, 0.0, 0

    def step(self) -> None:
        """Takes a step in all environments."""
        started = time.perf_counter()
        seen = to_torch(self.obs)
        action = self.player.policy.act_with(self.parameters, seen, torch.from_numpy(self.is_first))
        if self.player.box and self.crew.asked.action_noise > 0:
            of_envs = torch.tensor([float(task is not None and task.sign != 0) for task in self.doing])
            moved = of_envs.repeat_interleave(self.agents).view(-1, *[1] * (action.ndim - 1))
            action = action + moved * self.crew.asked.action_noise * torch.randn(action.shape, generator=self.rng)
        acted = time.perf_counter()
        with doing(STEP, longest=True):
            step = self.env.step(action.numpy())
        self.policy_sec += acted - started
        self.env_sec += time.perf_counter() - acted
        busy = np.array([task is not None for task in self.doing])
        live, envs = step.valid & np.repeat(busy, self.agents), len(self.doing)
        self.moments.note(seen["observation"], live)
        reward = paid(self.env.spec, step).reshape(envs, self.agents)[:, self.env.spec.counts].sum(1)
        moved_on = live.reshape(envs, self.agents).any(1)
        self.returns += reward
        self.signs += np.sign(reward)
        self.lengths += moved_on
        self.steps += int(moved_on.sum())
        check_end(self.env.spec, self.lengths, "evolution learns from whole episodes")
        self.obs, self.is_first = map_rows(step.obs, np.array), step.is_first
        self.failures += step.failed.values()
        for number in np.flatnonzero(step.is_first.reshape(envs, self.agents).all(1)).tolist():
            self.over(number, step.failed.get(number))

    def over(self, number: int, failure: Failure | None) -> None:
        """Keeps what an episode that has ended was worth, and begins the next one, or the same one if a fault of the
        environment broke it off."""
        task = self.doing[number]
        if task is not None and failure is not None and failure.broken_off:
            self.broken[task] += 1
            if self.broken[task] > ENV_REPEATS:
                raise RunFailed(failure.sentence)
            self.returns[number], self.signs[number], self.lengths[number] = 0.0, 0.0, 0
            return
        if task is not None:
            asked, length = self.crew.asked, int(self.lengths[number])
            signs, fitness = self.signs[number], self.returns[number] - asked.reward_offset * length
            one = Played(float(self.returns[number]), length, float(signs if asked.reward_signs else fitness))
            if task.sign:
                self.played[task] = one
            else:
                self.evaluations.append(one)
        self.begin(number)

    def report(self) -> Report:
        played, pairs = self.played, enumerate(self.offsets)
        return Report(
            self.player.number,
            self.order.number,
            tuple(Rollout(offset, played[Task(i, 1)], played[Task(i, -1)]) for i, offset in pairs),
            tuple(self.evaluations),
            self.steps,
            (self.env_sec, self.policy_sec),
            self.moments.result(),
            tuple(self.failures),
        )


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
    at_end(player.close)
    version, clock = 0, Clock()
    pipe.send(READY)
    while True:
        order = pipe.recv()
        newer = bus.read(policy, version)
        if newer is not None:
            version, clock, _ = newer
        pipe.send(player.play(order, clock, pipe.send))


class Players:
    """The players of one machine, each in a process of its own. Their numbers are those among all players of the run.

    A player that dies or falls silent is replaced by a new one, which plays the same order from its beginning, with
    other seeds of its environments. Its answer is the only one, so nothing is counted twice.
    """

    def __init__(self, crew: Crew, restarts: Restarts, first: int = 0, wait: bool = True):
        """restarts: the budget of the run. first: the number of the first player here. wait: False leaves the waiting
        for new processes to workers.until_ready(), which comes before all else."""
        self.crew, self.restarts = crew, restarts
        self.workers = Workers()
        self.bus: WeightStore = WeightBus(crew.make_policy())
        self.playing: dict[int, Order] = {}
        self.heard: dict[int, float] = {}
        self.taken: dict[int, int] = {}  # env steps of what a player is playing, as far as it has said so
        self.starting: set[int] = set()
        numbers = range(first, first + crew.players)
        self.repeated = {number: Repeated(PROCESS_REPEATS) for number in numbers}
        self.since: dict[int, int] = {}  # env steps reported since a player was replaced
        jobs = {f"sampler-{i}": (i, crew, self.bus) for i in numbers}
        started = self.workers.start_all(player_process, jobs, wait=wait)
        self.members = dict(zip(numbers, started, strict=True))

    def publish(self, policy: Policy, clock: Clock) -> None:
        self.bus.publish(policy, clock)

    @property
    def idle(self) -> list[int]:
        """The numbers of players that have no order."""
        return [number for number in self.members if number not in self.playing]

    def give(self, number: int, order: Order) -> None:
        """Lets a player play this order."""
        self.playing[number], self.heard[number], self.taken[number] = order, awake(), 0
        with contextlib.suppress(OSError):  # it has died; receive() will notice
            self.members[number].pipe.send(order)

    def receive(self, timeout: float) -> list[Report]:
        """Returns the reports that arrive within `timeout` seconds, perhaps none. Raises RunFailed when a player was
        lost that must not be replaced."""
        messages, lost = self.workers.receive_from_survivors(timeout)
        numbers = {worker: number for number, worker in self.members.items()}
        reports = []
        now = awake()
        for worker, message in messages:
            number = numbers[worker]
            self.heard[number] = now
            if message == READY:
                self.starting.discard(number)
            elif isinstance(message, Report):
                self.playing.pop(number, None)
                if number in self.since:
                    self.since[number] += message.env_steps
                reports.append(message)
            else:
                self.taken[number] = message
        gone = {numbers[worker]: reason for worker, reason in lost}
        for number in self.playing:
            if number not in gone and now - self.heard[number] > self._patience(number):
                name, seconds = self.members[number].name, self._patience(number)
                gone[number] = f"{name} was silent for {seconds:.0f} s: its environment may hang"
        for number, reason in gone.items():
            self._replace(number, reason)
        return reports

    def _patience(self, number: int) -> float:
        """Returns for how many seconds a player may say nothing."""
        return max(self.crew.timeout_sec, start_sec()) if number in self.starting else self.crew.timeout_sec

    def _replace(self, number: int, reason: str) -> None:
        """Lets a new process play what a lost one was playing. Raises RunFailed if it was lost in this way again and
        again, or if the budget of the run does not allow it."""
        worker, order = self.members[number], self.playing.pop(number, None)
        taken = self.taken.pop(number, 0) if order is not None else 0
        since = None if number not in self.since else self.since[number] + taken
        if self.repeated[number](without_numbers(reason), since):
            raise RunFailed(
                f"{reason}\nThis has happened {self.repeated[number].times} times in a row, soon after each start."
            )
        self.restarts.process_failed(reason, taken)
        self.since[number] = 0
        self.workers.bury(worker)
        self.members[number] = self.workers.start(worker.name, player_process, (number, self.crew, self.bus))
        self.starting.add(number)
        if order is not None:
            self.give(number, order._replace(lost=order.lost + 1))

    def close(self) -> None:
        self.workers.stop()
