"""Algorithm: what one file of rlrun/algos holds, beside the frozen dataclass `Config` of its options."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.core.errors import Notice, RunFailed
from rlrun.core.evolution import FromPopulation, NoiseTable
from rlrun.core.found_state import find_state
from rlrun.core.moments import Moments, RunningMoments, merged
from rlrun.core.optimizer import Optimizer, OptimizerConfig
from rlrun.core.policy import Policy
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec


@dataclass(frozen=True, kw_only=True)
class FromReplay:
    """What an algorithm that learns from replayed rows asks for beside Needs.rows and columns."""

    fragment_length: int  # rows per env that samplers hand over at once
    num_envs: int  # of all samplers together, unless resources say otherwise
    learning_starts: int  # env steps in replay before the first update
    ratio: float  # rows learnt from per env step; an update learns from columns * rows_learnt
    rows_learnt: int = 1  # of a fragment: 1 where it is folded into a transition
    rows_from: int = 1  # rows of a fragment are drawn from rows_from .. Needs.rows
    obs: Literal["all", "ends"] = "ends"  # of every row, or of a fragment's first row and of its end only
    starts_every: int = 1  # fragments begin at multiples of it
    sequences: bool = False  # a fragment whose first row is dead counts as long as a later one lives
    first_priority: bool = False  # Algorithm.first_priority says what fragments are worth that nobody has learnt from


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an algorithm asks of the data flow, made from its config; read by wiring only."""

    rows: int  # T of the fragments that one update reads
    columns: int  # B of the batch that one update reads
    record: tuple[str, ...] = ()  # policy outputs stored with each row
    core_every: int = 0  # recurrent state is stored at every so-many-th row; 0 means only at row 0 of a fragment
    return_discount: float | None = None  # samplers keep the moments of returns with this discount, to normalise rewards by
    actions: tuple[str, ...] = ("discrete", "multi_discrete", "multi_binary", "box", "nested")  # kinds of action space it can do
    on_policy: bool = False  # learns from the newest policy's rows alone
    every_process_learns: bool = False  # samplers are learners: num_learners=auto takes every core, or every GPU
    shared: tuple[int, ...] = ()  # what several learners share evenly beside the columns
    only_weights: bool = False  # an update changes nothing but what its optimisers step, so that others may apply it
    cut_share: float = 1.0  # of learners that have filled their fragments, after which the others stop short
    replay: FromReplay | None = None
    population: FromPopulation | None = None
    counted_from: float = 0.0  # where a column stands among all (0 .. 1) from which on its episodes count in statistics


class Update(NamedTuple):
    """What one update reports. Metrics are 0-d tensors or floats; `writes` go back to replay at batch.key."""

    metrics: dict[str, Any]
    writes: dict[str, Tensor] | None = None


First = TypeVar("First")
Second = TypeVar("Second")


class Recorder(Protocol):
    """How functions that are the same kernels every time are recorded, for a GPU to launch as one (machine/graphs.py)."""

    def recorded(self, function: Callable[[Batch, Clock], Any], rngs: Callable[[], Iterable[torch.Generator]]) -> Callable[[Batch, Clock], Any]:
        """rngs: the generators that the function draws from, asked for when it is recorded."""
        ...


class Beside(Protocol):
    """Does two things that have nothing to write in common (machine/threads.py)."""

    def __call__(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]: ...


def in_turn(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """One after the other."""
    return first(), second()


class LearnerContext(NamedTuple):
    """Where and how a learner runs."""

    device: torch.device
    rng: torch.Generator
    beside: Beside = in_turn  # does two things, at the same time where there are threads for it
    recorder: Recorder | None = None  # of functions that are the same kernels every time
    ranks: Ranks = ALONE
    model: Any = None  # models.model.Model, of which an algorithm makes nets that never travel
    sparse: bool = False  # many rows of a batch are dead (complete episodes): what draws minibatches draws from the live ones

    def another_rng(self) -> torch.Generator:
        """For what is worked out beside something else that draws from rng. Kept as an attribute of an Algorithm it is part of its state."""
        seed = torch.randint(2**62, (), generator=self.rng, device=self.device)
        return torch.Generator(self.device).manual_seed(int(seed))

    def optimizer(self, parameters: Iterable[nn.Parameter], cfg: OptimizerConfig, lr: Schedule, max_grad_norm: float) -> Optimizer:
        """One whose steps reach all learners."""
        return Optimizer(parameters, cfg, lr, max_grad_norm, self.ranks, deferred=True if self.recorder is not None else None)


@dataclass(frozen=True)
class Inner:
    """An algorithm inside another one's config."""

    algorithm: type[Algorithm]
    cfg: Any


class Algorithm(nn.Module):
    """A loss and an update. Anything that changes over a run is a parameter, a buffer, an Optimizer or a Generator, so that state() saves it.

    Critics, mixers and targets are attributes here and never travel; only `policy` is published to samplers."""

    policy: Policy
    side_by_side: ClassVar[bool] = False  # update() does things by ctx.beside, which two threads are better spent on than on one thing after the other
    knows_first_priority: ClassVar[bool] = False  # whether first_priority is there, for samplers' records alone
    reward_scale: RunningMoments | None  # set by algorithms that normalise rewards; their needs() then ask for return_discount

    @classmethod
    def needs(cls, cfg) -> Needs:
        raise NotImplementedError

    @classmethod
    def make_policy(cls, spec: EnvSpec, model, cfg) -> Policy:
        raise NotImplementedError

    @classmethod
    def first_priority(cls, cfg, rows: Batch) -> Tensor:
        """rows [T + 1, N] without observations, of which the last holds only what was recorded there -> priorities [N]."""
        raise NotImplementedError

    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        """None, or why this algorithm cannot be around that one; asked before the inner one's options are looked at."""
        return None

    def __init__(self, policy: Policy, spec: EnvSpec, cfg, ctx: LearnerContext):
        super().__init__()
        self.policy = policy
        self.spec, self.cfg, self.ctx = spec, cfg, ctx
        self.reward_scale = None

    def update(self, batch: Batch, clock: Clock) -> Update:
        """Consume one batch [T(+1), B, ...] with any number of optimiser steps."""
        raise NotImplementedError

    def recorded(self, function: Callable[[Batch, Clock], Any]) -> Callable[[Batch, Clock], Any]:
        """A part of update() that is the same kernels every time, for a GPU to launch as one (machine/graphs.py). As it is where there is no recorder, where
        learners exchange gradients in between, and with memory, whose resets depend on the rows."""
        if self.ctx.recorder is None or self.ctx.ranks.world > 1 or self.policy.core_spec():
            return function
        return self.ctx.recorder.recorded(function, lambda: [self.ctx.rng, *(rng for _, rng in self.more_rngs())])

    def check(self) -> None:
        """RunFailed where learning has come to a stop. Asked now and then, since a GPU's numbers have to be waited for."""
        for _, optimizer in self.optimizers():
            optimizer.check()

    def absorb_returns(self, moments: Sequence[Moments | None]) -> None:
        """Takes note of new fragments' discounted returns, before the update that uses them."""
        if self.reward_scale is not None:
            self.reward_scale.merge(merged([m for m in moments if m is not None], self.reward_scale.mean.shape, self.ctx.ranks))

    def absorb_rows(self, moments: Sequence[Any]) -> None:
        """Lets the policy's filters learn from what Policy.moments() made of new fragments, after the update that used them."""
        self.policy.absorb([m for m in moments if m is not None], self.ctx.ranks)

    def renew_targets(self) -> None:
        """The policy was given other weights: what began as a copy of it becomes one again."""
        target = getattr(self, "target", None)
        if isinstance(target, Policy):
            target.load_state_dict(self.policy.state_dict())

    def attach_noise(self, noise: NoiseTable) -> None:
        """The table that perturbations are pieces of, by runner=evolution."""
        raise NotImplementedError

    def live(self, valid: Tensor) -> Tensor:
        """How many rows of valid [T, B] count, over all learners [], at least 1: what a sum over this learner's rows is divided by."""
        return self.ctx.ranks.sum(valid.sum()).clamp(min=1)

    def optimizers(self) -> Iterable[tuple[str, Optimizer]]:
        """(name, Optimizer) pairs, found wherever they are kept: in attributes, lists, dicts, inner algorithms, nested modules and helper objects. The name is
        the path, as in "optimizer", "inner.optimizer" or "optimizers.actor"."""
        return find_state(self).optimizers.items()

    def more_rngs(self) -> Iterable[tuple[str, torch.Generator]]:
        """(name, Generator) pairs beside ctx.rng, found as optimisers are."""
        return find_state(self).rngs.items()

    def state(self) -> dict:
        """Everything that changes: parameters, buffers, optimisers, the learner's random stream. Tensors and plain containers only. The entry
        "modules" is there where modules are kept that PyTorch does not know of (in a list, say)."""
        found = find_state(self)
        state = {
            "module": self.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in found.optimizers.items()},
            "rng": self.ctx.rng.get_state(),
            "rngs": {name: rng.get_state() for name, rng in found.rngs.items()},
        }
        if found.modules:
            state["modules"] = {name: module.state_dict() for name, module in found.modules.items()}
        return state

    def load_state(self, state: dict) -> None:
        """The reverse of state(). RunFailed when shapes or names differ."""
        found = find_state(self)
        streams = [(self.ctx.rng, state["rng"])]
        try:
            self.load_state_dict(state["module"])
            for name, module in found.modules.items():
                module.load_state_dict(state["modules"][name])
            for name, optimizer in found.optimizers.items():
                optimizer.load_state_dict(state["optimizers"][name])
            if "rngs" in state:  # checkpoints of the first versions have none
                streams += [(rng, state["rngs"][name]) for name, rng in found.rngs.items()]
        except (ValueError, KeyError, RuntimeError) as error:
            raise RunFailed(f"the checkpoint does not fit this config: {str(error).splitlines()[-1].strip()}") from error
        if all(saved.numel() == rng.get_state().numel() for rng, saved in streams):
            for rng, saved in streams:
                rng.set_state(saved.cpu())
        else:
            warnings.warn("the checkpoint is from another kind of device: the learner's random stream begins anew", Notice, stacklevel=2)


class Follower:
    """A target net behind the net that it began as a copy of."""

    def __init__(self, target: nn.Module, source: nn.Module):
        self.olds: list[Tensor] = list(target.parameters())
        self.news: list[Tensor] = list(source.parameters())
        self.buffers = list(zip(target.buffers(), source.buffers(), strict=True))
        assert [old.shape for old in self.olds] == [new.shape for new in self.news]

    @torch.no_grad()
    def move(self, tau: float) -> None:
        """The target's parameters by tau towards the source's (1: a copy). Buffers (counts, filters) are copied."""
        torch._foreach_lerp_(self.olds, self.news, tau)
        for kept, now in self.buffers:
            kept.copy_(now)
