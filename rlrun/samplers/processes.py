"""What samplers made of worker processes share: the plan they are made from, their slots, their start and their end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rlrun.core.batch import RowSpec
from rlrun.core.env import EnvFactory
from rlrun.core.policy import Policy
from rlrun.core.seeding import Seeds
from rlrun.dataflow.slots import Slots
from rlrun.dataflow.stores import FragmentStore
from rlrun.dataflow.workers import Worker, Workers


@dataclass(frozen=True, kw_only=True)
class SamplerPlan:
    """What a sampler of several processes is made from (pickled for each of them)."""

    make_env: EnvFactory
    make_policy: Callable[[], Policy]  # ready to act: lower precision applied
    layout: RowSpec  # of one fragment
    record: tuple[str, ...]
    core_every: int
    return_discount: float | None
    columns: int  # of one fragment
    workers: int  # processes
    in_flight: int  # slots per producer of fragments
    seeds: Seeds
    generation: int
    timeout_sec: float  # silence after which the run fails
    whole_after: int | None = None  # Columns: whole episodes, of at least so many rows in all
    first: int = 0  # producers of learners before this one: their numbers go on from there
    total: int = 0  # columns of all learners

    def place(self, producer: int) -> torch.Tensor:
        """[columns]: where this producer's columns stand among all, 0 .. 1."""
        return torch.arange(producer * self.columns, (producer + 1) * self.columns) / max(1, self.total - 1)


class Unsaved:
    """A sampler of processes, whose columns are not in checkpoints."""

    workers: Workers

    def restart(self, generation: int) -> None:
        """Not needed: only bit-exact (serial) runs break their columns at a checkpoint."""

    def save(self) -> dict:
        return {}

    def load(self, saved: dict) -> None:
        """Columns begin anew with seeds of the resumed run's generation."""

    def close(self) -> None:
        self.workers.stop()


class ProcessSampler(Unsaved):
    """`producers` fill slots at a time: the workers, or the groups of environments within them."""

    def __init__(self, plan: SamplerPlan, producers: int, make_store: Callable[[RowSpec, int], FragmentStore] = Slots):
        """make_store(layout, count): where fragments lie."""
        self.plan = plan
        self.columns, self.total_columns = plan.columns, plan.columns * producers
        self.slots: FragmentStore = make_store(plan.layout, producers * plan.in_flight)
        self.views = {key: self.slots.view(key) for key in self.slots.keys}
        self.producer = {key: number // plan.in_flight for number, key in enumerate(self.slots.keys)}  # which fills the place
        self.workers = Workers()

    def pin(self) -> None:
        """For a learner on a GPU."""
        self.slots.pin()

    def close(self) -> None:
        self.slots.unpin()
        super().close()

    def start(self, target: Callable, job: Callable[[int], tuple]) -> list[Worker]:
        """Starts target(pipe, job(i)) for every worker i and waits until all have said READY."""
        return self.workers.start_all(target, {f"sampler-{self.plan.first + i}": (job(i),) for i in range(self.plan.workers)})
