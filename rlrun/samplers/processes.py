"""What samplers with worker processes have in common: their plan, their slots, starting and stopping."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlrun.core.batch import RowSpec
from rlrun.core.callbacks import EnvCallback, make_callbacks
from rlrun.core.env import EnvFactory, VectorEnv
from rlrun.core.policy import Policy
from rlrun.core.pulse import DEFAULT, Limits, Pulses
from rlrun.core.restarts import Restarts
from rlrun.core.seeding import Seeds
from rlrun.core.tasks import FromTasks, TaskGiver
from rlrun.dataflow.slots import Fragment, Header, Slots
from rlrun.dataflow.stores import FragmentStore
from rlrun.dataflow.supervision import Supervised
from rlrun.dataflow.workers import Worker, Workers


@dataclass(frozen=True, kw_only=True)
class SamplerPlan:
    """The arguments from which a sampler is made (pickled for each of its processes)."""

    make_env: EnvFactory
    make_policy: Callable[[], Policy]  # makes a policy that is ready to act, in the acting precision
    layout: RowSpec  # full shapes of one fragment
    record: tuple[str, ...]
    core_every: int
    return_discount: float | None
    envs: int  # environments whose rows are in one fragment
    agents: int  # columns of one environment
    workers: int  # number of processes
    in_flight: int  # number of slots per producer of fragments
    seeds: Seeds
    generation: int
    timeout_sec: float  # the run fails after this many seconds of silence
    whole_after: int | None = None  # see Columns: collect whole episodes of at least this many rows in all
    first: int = 0  # number of the first worker, which continues the numbers of the learners before this one
    total: int = 0  # number of environments of all learners together
    tasks: FromTasks | None = None
    callbacks: tuple[str, ...] = ()  # the run's callbacks, of which EnvCallbacks are made with the environments
    limits: Limits = DEFAULT  # how long environments may take

    @property
    def columns(self) -> int:
        """Columns in one fragment."""
        return self.envs * self.agents

    def again(self, restart: int) -> SamplerPlan:
        """Returns the plan of a process that was replaced so often. Its seeds are new, as those of a resumed run."""
        return replace(self, generation=self.generation + (restart << RESTART_BITS)) if restart else self

    def env_callbacks(self) -> list[EnvCallback]:
        """Makes the callbacks of one group of environments."""
        return make_callbacks(self.callbacks, EnvCallback)

    def giver(self, env: VectorEnv, producer: int) -> TaskGiver | None:
        """Returns what gives this producer's environments their tasks, or None if they have none."""
        if self.tasks is None or not self.tasks.sampled:
            return None
        return TaskGiver(env, self.tasks, producer * self.envs, functools.partial(self.seeds.integer, "tasks"))

    def place(self, producer: int) -> torch.Tensor:
        """Returns the relative positions [columns] of this producer's environments among all, from 0 to 1. The columns
        of an environment have the same."""
        envs = torch.arange(producer * self.envs, (producer + 1) * self.envs) / max(1, self.total - 1)
        return envs.repeat_interleave(self.agents) if self.agents > 1 else envs


RESTART_BITS = 24  # generations that a run can have before they meet those of its restarted processes


class Unsaved:
    """A base for samplers with processes, whose columns are not saved in checkpoints."""

    workers: Workers

    def restart(self, generation: int) -> None:
        """Does nothing, because only bit-exact (serial) runs break their columns at a checkpoint."""

    def save(self) -> dict:
        return {}

    def load(self, saved: dict) -> None:
        """Does nothing: columns begin new episodes with seeds of the resumed run's generation."""

    def close(self) -> None:
        self.workers.stop()


class ProcessSampler(Unsaved):
    """A sampler whose `producers` fill slots at the same time: the workers, or the groups of environments in them."""

    supervised: Supervised

    def __init__(
        self,
        plan: SamplerPlan,
        producers: int,
        make_store: Callable[[RowSpec, int], FragmentStore] = Slots,
        restarts: Restarts | None = None,
    ):
        """make_store(layout, count): makes the memory for `count` fragments. restarts: the run's budget for processes
        that die or hang; None: the first one ends the run."""
        self.plan, self.restarts = plan, restarts or Restarts(0, 1.0)
        self.pulses = Pulses(plan.workers)
        self.beats: Tensor | None = None  # what the processes had done when at_work() was asked last
        self.columns, self.total_columns = plan.columns, plan.columns * producers
        self.slots: FragmentStore = make_store(plan.layout, producers * plan.in_flight)
        self.views = {key: self.slots.view(key) for key in self.slots.keys}
        # For each slot, the number of the producer that fills it.
        self.producer = {key: number // plan.in_flight for number, key in enumerate(self.slots.keys)}

    def at_work(self) -> bool:
        now = self.supervised.beats()
        before, self.beats = self.beats, now
        return before is None or self.supervised.at_work(before)

    def fragment(self, header: Header) -> Fragment:
        """The rows of the slot that a header names."""
        whole = self.slots.whole(header.slot) if isinstance(self.slots, Slots) else None
        return Fragment(header, self.views[header.slot], whole)

    def pin(self) -> None:
        """Page-locks the slots, for a learner on a GPU."""
        self.slots.pin()

    def close(self) -> None:
        self.slots.unpin()
        super().close()

    def start(
        self, target: Callable, job: Callable[[int, SamplerPlan], tuple], envs: int, wait: bool = True
    ) -> list[Worker]:
        """Starts target(pipe, job(i, plan)) for every worker i and waits until all have sent READY. envs: environments
        that a worker steps at once. wait: False leaves the waiting to workers.until_ready()."""
        plan = self.plan
        self.supervised = Supervised(
            target,
            [f"sampler-{plan.first + i}" for i in range(plan.workers)],
            lambda i, restart: (job(i, plan.again(restart)),),
            self.pulses,
            self.restarts,
            plan.limits,
            envs,
            wait,
        )
        self.workers = self.supervised.workers
        return self.supervised.members
