"""Batched: N processes only step environments, and a thread of the learner's process acts for all of them.

    sampler-i, group g                      inference thread (its own copy of the policy, its own stream on a GPU)
    begin: row 0's observation  ---->       act on row t of every group that is ready, one batch
    step t: reward, ends, row t+1  <----    action and records of row t
    ...                                     after row T-1 the fragment is the learner's

Each sampler has two groups of environments: one group steps while the thread acts for the other. Groups are handed over
by a short message on the sampler's own pipe; the rows stay in shared memory. Acting is done by a thread and not by a
process, because two processes would take turns on the GPU.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.core.awake import awake
from rlrun.core.batch import Batch, RowSpec, at, paths
from rlrun.core.env import Failure
from rlrun.core.errors import RunFailed
from rlrun.core.moments import Moments
from rlrun.core.policy import Policy
from rlrun.core.pulse import STEP, WAITING, Pulses, watch
from rlrun.core.restarts import Restarts
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment, Header, Slots
from rlrun.dataflow.stores import FragmentStore, Key
from rlrun.dataflow.workers import READY, Worker, at_end, no_word
from rlrun.machine.graphs import GraphRecorder
from rlrun.machine.resources import BATCHED_GROUPS as GROUPS
from rlrun.samplers.acting import ActingCopy
from rlrun.samplers.collector import store_core
from rlrun.samplers.columns import Columns
from rlrun.samplers.processes import ProcessSampler, SamplerPlan

BEGIN = -1  # sent in place of a row number
PATIENCE = 3  # times plan.timeout_sec that take() waits, where the inference thread has noticed nothing


class EnvJob(NamedTuple):
    """The arguments of a sampler process (pickled)."""

    number: int
    plan: SamplerPlan  # plan.columns counts the columns of one group
    slots: FragmentStore
    pulse: tuple[Pulses, int]  # those of all samplers, and the number of this one's


def env_process(pipe: Connection, job: EnvJob) -> None:
    """Steps environments for the inference thread.

    Receives (group, slot, t), where t is BEGIN to write the observation of row 0, or the row to step. Answers with
    (group, over, (live, agent_steps), episodes, row, seconds, returns, failures) when that is done. over: whether the
    fragment is complete. Episodes, returns and failures are sent then alone, because they are those of the whole
    fragment. Where it consists of whole episodes, the rows behind them are made dead ones at once.
    """
    plan, first = job.plan, job.number * GROUPS
    groups = [
        Columns(
            plan.make_env(first + g, plan.envs),
            (first + g) * plan.envs,
            plan.generation,
            plan.return_discount,
            plan.whole_after,
            plan.env_callbacks(),
        )
        for g in range(GROUPS)
    ]
    for columns in groups:
        at_end(columns.env.close)
    views: dict[Key, dict] = {}
    stepped = [0] * GROUPS  # rows of each group's fragment that were stepped; dead ones behind whole episodes are not
    last = plan.layout["reward"].shape[0] - 1  # type: ignore[union-attr]
    pulses, index = job.pulse
    pulse = pulses.of(index)
    watch(pulse)
    pulse.beat(WAITING)
    pipe.send(READY)
    while True:
        group, slot, t = pipe.recv()
        if slot not in views:
            views[slot] = job.slots.view(slot).numpy()
        columns = groups[group]
        started = time.perf_counter()
        pulse.beat(STEP)
        over = t == last
        if t == BEGIN:
            columns.begin(views[slot])
        elif columns.over.all():
            columns.skip(views[slot], t)
            for rest in range(t + 1, last + 1):
                columns.skip(views[slot], rest, blank=True)
            over = True
        else:
            columns.step(views[slot], t)
            pulse.stepped()
            stepped[group] += 1
        if over:
            pulse.handed(stepped[group])  # the other group may be in the middle of a fragment
            stepped[group] = 0
        pulse.beat(WAITING)
        pipe.send(
            (
                group,
                over,
                (columns.live, columns.agent_steps),
                tuple(columns.episodes) if over else (),
                columns.row,
                time.perf_counter() - started,
                columns.return_moments() if over else None,
                tuple(columns.failures) if over else (),
            )
        )


class _Row(NamedTuple):
    """Views of one row of a slot. They are cached, because with many small groups creating views would dominate the
    thread's time."""

    seen: Batch  # obs, is_first
    acted: list[Tensor]  # the leaves of the action and of every record


@dataclass
class _Group:
    """What the inference thread knows about one group."""

    worker: Worker
    number: int  # index among the groups of its worker
    index: int  # index among all groups, which is Header.worker
    state: Batch
    slot: Key = -1
    t: int = BEGIN  # the row that the environments step now
    first_row: int = 0
    version: int = 0
    updates: int = 0
    env_sec: float = 0.0
    policy_sec: float = 0.0


class BatchedSampler(ProcessSampler):
    """Every process has two groups of environments, each a producer of fragments."""

    def __init__(
        self,
        plan: SamplerPlan,
        device: torch.device,
        recorder: GraphRecorder | None = None,
        newest_only: bool = False,
        make_store: Callable[[RowSpec, int], FragmentStore] = Slots,
        restarts: Restarts | None = None,
    ):
        super().__init__(plan, plan.workers * GROUPS, make_store, restarts)
        self.device = device
        self.rows = plan.layout["reward"].shape[0]  # type: ignore[union-attr]
        self.acted = paths({name: plan.layout[name] for name in ("action", *plan.record)})
        rng = plan.seeds.generator("policy", plan.first, plan.generation, device=str(device))
        self.rows_of: dict[Key, list[_Row]] = {key: [] for key in self.views}  # by slot; filled when first used
        self.copy = ActingCopy(
            plan.make_policy(), device, rng, plan.record, plan.columns, plan.workers * GROUPS, recorder, newest_only
        )
        self.change = threading.Condition()  # guards filled, spare, error and closing
        self.filled: deque[Header] = deque()
        # For each group, its free slots.
        self.spare = [
            deque(key for key, group in self.producer.items() if group == g) for g in range(plan.workers * GROUPS)
        ]
        self.error: BaseException | None = None
        self.closing = False
        self.thread: threading.Thread | None = None
        self.idle: list[_Group] = []  # groups without a slot
        started = self.start(
            env_process,
            lambda i, again: EnvJob(plan.first + i, again, self.slots, (self.pulses, i)),
            plan.envs,
        )
        policy = self.copy.policy
        self.groups = {
            (worker.name, g): _Group(
                worker, g, index, policy.initial_state(plan.columns, plan.place(plan.first * GROUPS + index))
            )
            for i, worker in enumerate(started)
            for g in range(GROUPS)
            for index in (i * GROUPS + g,)
        }
        self.idle += self.groups.values()

    # -- the learner's side ------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Filled fragments that nobody has taken yet."""
        return len(self.filled)

    def begin(self) -> None:
        if self.thread is None:
            assert self.copy.published > 0, "publish() comes first"
            self.heard = self.spoke = awake()
            self.thread = threading.Thread(target=self._serve, name="inference", daemon=True)
            self.thread.start()

    def handles(self) -> list:
        return []  # the inference thread reads the pipes

    def take(self, count: int) -> Sequence[Fragment]:
        self.begin()
        with self.change:
            began = awake()
            while len(self.filled) < count and self.error is None:
                self.change.wait(1.0)  # notified by every new and every freed fragment, and by every error
                if awake() - max(began, self.spoke) >= PATIENCE * self.plan.timeout_sec:
                    raise RunFailed(no_word(self.supervised.names, PATIENCE * self.plan.timeout_sec))
            self.check()
            return [self.fragment(self.filled.popleft()) for _ in range(count)]

    def free(self, fragments: Sequence[Fragment]) -> None:
        with self.change:
            for fragment in fragments:
                self.spare[self.producer[fragment.header.slot]].append(fragment.header.slot)
            self.change.notify_all()

    def publish(self, policy: Policy | None, clock: Clock) -> None:
        self.copy.publish(policy, clock)

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        with self.change:
            self.closing = True
            self.change.notify_all()
        try:
            if self.thread is not None:
                self.thread.join(10)
        finally:  # a Ctrl-C may come while it waits
            super().close()

    # -- the inference thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            # The stream has priority over the learner's, because environments wait for it.
            stream = torch.cuda.Stream(self.device, priority=-1) if self.device.type == "cuda" else None
            # no_grad() and not inference_mode(), because recorded graphs share memory with those of the learner.
            with torch.no_grad(), torch.cuda.stream(stream):
                self._loop()
        except BaseException as error:
            with self.change:
                self.error = error
                self.change.notify_all()

    def _loop(self) -> None:
        idle = self.idle
        self.seen = self.supervised.beats()
        while not self.closing:
            with self.change:
                for group in [group for group in idle if self.spare[group.index]]:
                    idle.remove(group)
                    group.slot, group.t = self.spare[group.index].popleft(), BEGIN
                    group.env_sec = group.policy_sec = 0.0
                    self.supervised.send(group.worker, (group.number, group.slot, BEGIN))
                # True when the learner holds every slot, for example during a long evaluation.
                nobody_steps = len(idle) == len(self.groups)
                if nobody_steps:
                    self.change.wait(0.5)
            if nobody_steps:
                self.supervised.messages(0.0, self._replaced)  # no message is expected, but a worker may have died
                self.heard = awake()
                continue
            ready, messages = [], self._messages()
            self.copy.refresh()
            for worker, (number, over, live, episodes, row, seconds, returns, failures) in messages:
                group = self.groups[worker.name, number]
                group.env_sec += seconds
                if group.t == BEGIN:
                    group.first_row = row
                    group.version, group.updates = self.copy.version, self.copy.made
                if over:
                    for rest in range(group.t + 1, self.rows + 1):
                        store_core(self.views[group.slot], rest, group.state, self.plan.core_every)
                    self._finish(group, live, episodes, returns, failures)
                    idle.append(group)
                else:
                    group.t += 1
                    ready.append(group)
            if ready:
                self._act(ready)

    def _messages(self) -> list:
        """Returns the samplers' messages. Waits only a moment, so that freed slots and close() are noticed.
        Raises RunFailed after timeout_sec of silence in which no environment was at work."""
        messages = self.supervised.messages(0.05, self._replaced)
        now = awake()
        if messages:
            self.heard = self.spoke = now
        elif now - self.heard >= self.plan.timeout_sec:  # a slow step or reset may take longer
            if not self.supervised.at_work(self.seen):
                raise RunFailed(no_word(self.supervised.names, self.plan.timeout_sec))
            self.heard = self.spoke = now
            self.seen = self.supervised.beats()
        return messages

    def _replaced(self, number: int, old: Worker, new: Worker) -> None:
        """Gives a new sampler's groups the slots that the old one had not filled, from their first rows on."""
        for group in self.groups.values():
            if group.worker is not old:
                continue
            group.worker = new
            place = self.plan.place(self.plan.first * GROUPS + group.index)
            group.state = self.copy.policy.initial_state(self.plan.columns, place)
            if group not in self.idle:
                group.t, group.env_sec, group.policy_sec = BEGIN, 0.0, 0.0
                self.supervised.send(new, (group.number, group.slot, BEGIN))

    def _act(self, groups: list[_Group]) -> None:
        started = time.perf_counter()
        for group in groups:
            store_core(self.views[group.slot], group.t, group.state, self.plan.core_every)
        rows = [self._row(group) for group in groups]
        action, record, state = self.copy.act([row.seen for row in rows], [group.state for group in groups])
        acted = record.replace(action=action)
        # By name, because the parts of a user's action may stand in another order than those of the row.
        made = [at(acted, path).split(self.columns) for path in self.acted]
        stateless = next(state.leaves(), None) is None
        given = [theirs[i] for i in range(len(rows)) for theirs in made]
        torch._foreach_copy_([mine for row in rows for mine in row.acted], given)
        for i, group in enumerate(groups):
            group.state = state if stateless else state[i * self.columns : (i + 1) * self.columns]
            if group.t + 1 == self.rows:
                store_core(self.views[group.slot], self.rows, group.state, self.plan.core_every)
            group.policy_sec += (time.perf_counter() - started) / len(groups)
            self.supervised.send(group.worker, (group.number, group.slot, group.t))

    def _row(self, group: _Group) -> _Row:
        """Returns the row on which the group acts next."""
        rows, batch = self.rows_of[group.slot], self.views[group.slot]
        if not rows:
            rows += [
                _Row(
                    Batch(obs=batch.obs[t], is_first=batch.is_first[t]),
                    [at(batch, path)[t] for path in self.acted],
                )
                for t in range(self.rows)
            ]
        return rows[group.t]

    def _finish(
        self,
        group: _Group,
        live: tuple[int, int],
        episodes: tuple,
        returns: Moments | None,
        failures: tuple[Failure, ...],
    ) -> None:
        header = Header(
            group.index,
            group.slot,
            group.first_row,
            group.version,
            group.updates,
            live[0],
            episodes,
            (group.env_sec, group.policy_sec),
            returns,
            live[1],
            failures,
        )
        with self.change:
            self.filled.append(header)
            self.change.notify_all()
