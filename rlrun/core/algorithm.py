"""Algorithm: what one file of rlrun/algos holds, beside the frozen dataclass `Config` of its options."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.core.errors import Notice, RunFailed
from rlrun.core.evolution import FromPopulation, NoiseTable
from rlrun.core.found_state import find_state
from rlrun.core.masked import explained_variance, masked_mean, masked_normalize
from rlrun.core.moments import Moments, RunningMoments, merged, moments_of
from rlrun.core.optimizer import Optimizer, OptimizerConfig
from rlrun.core.policy import Policy, fix_kernels
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
    """What an algorithm asks of the data flow, made from its config; read by runtime/plan.py, runtime/build.py and layouts only."""

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
    """What one update reports. Metrics are 0-d tensors or floats; `writes` are row fields by name that go back to replay at batch.key: priority [B], and
    whatever was recorded (Replay.write)."""

    metrics: dict[str, Any]
    writes: dict[str, Tensor | Batch] | None = None


Method = TypeVar("Method", bound=Callable[..., Any])
First = TypeVar("First")
Second = TypeVar("Second")


class Recorder(Protocol):
    """How functions that are the same kernels every time are recorded, for a GPU to launch as one (machine/graphs.py)."""

    def recorded(self, function: Callable[[Batch, Clock], Any], rngs: Callable[[], Iterable[torch.Generator]]) -> Callable[[Batch, Clock], Any]:
        """rngs: the generators that the function draws from, asked for when it is recorded."""
        ...


def recorded(method: Method) -> Method:
    """Marks a method(batch, clock, **choices) of an Algorithm that is the same kernels every time, for a GPU to launch as one. Algorithm records it, once for
    each combination of choices. Inside such a method nothing is read back from the device."""
    method.is_recorded = True  # type: ignore[attr-defined]
    return method


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

    @property
    def learners(self) -> int:
        """How many learners make every update together."""
        return self.ranks.world

    def randn(self, shape: Sequence[int], rng: torch.Generator | None = None) -> Tensor:
        """This learner's part of standard normal numbers that every learner draws for all of them; its shape is `shape`."""
        return torch.randn(self.ranks.world, *shape, generator=rng or self.rng, device=self.device)[self.ranks.rank]

    def rand(self, shape: Sequence[int], rng: torch.Generator | None = None) -> Tensor:
        """This learner's part of numbers from [0, 1) that every learner draws for all of them; its shape is `shape`."""
        return torch.rand(self.ranks.world, *shape, generator=rng or self.rng, device=self.device)[self.ranks.rank]

    def rsample(self, dist: Any, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """This learner's part of actions that every learner draws for all of them, and their log densities, both differentiable."""
        return dist.rsample(rng or self.rng, self.ranks.rank, self.ranks.world)

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
        for name in dir(type(self)):
            if getattr(getattr(type(self), name, None), "is_recorded", False) and self.can_be_recorded():
                setattr(self, name, self._recorded_by_choices(getattr(self, name)))

    def update(self, batch: Batch, clock: Clock) -> Update:
        """Consume one batch [T(+1), B, ...] with any number of optimiser steps."""
        raise NotImplementedError

    def can_be_recorded(self) -> bool:
        """Whether methods that are marked as @recorded are recorded. They are not where there is no recorder, where learners
        exchange gradients in between, and where the policy says that it cannot be recorded."""
        return self.ctx.recorder is not None and self.ctx.ranks.world == 1 and self.policy.recordable("learning")

    def recorded(self, function: Callable[[Batch, Clock], Any]) -> Callable[[Batch, Clock], Any]:
        """The function as one launch of a GPU (machine/graphs.py), or as it is where it cannot be recorded."""
        if self.ctx.recorder is None or not self.can_be_recorded():
            return function
        fix_kernels(self)
        return self.ctx.recorder.recorded(function, lambda: [self.ctx.rng, *(rng for _, rng in self.more_rngs())])

    def _recorded_by_choices(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, recorded once for each combination of its keyword arguments."""
        ways: dict[tuple, Callable[[Batch, Clock], Any]] = {}

        def call(batch: Batch, clock: Clock, **choices: Any) -> Any:
            key = tuple(sorted(choices.items()))
            if key not in ways:
                ways[key] = self.recorded(functools.partial(method, **choices))
            return ways[key](batch, clock)

        return call

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

    def mean(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """This learner's share [] of the mean of x over the whole batch: over all of x [...], of which every learner has as much, or over the live rows of
        x [T, B], which valid [T, B] names. Shares of all learners add up to the mean."""
        if valid is not None:
            return self.mean_over(valid)(x)
        return x.mean() / self.ctx.ranks.world if self.ctx.ranks.world > 1 else x.mean()

    def mean_over(self, valid: Tensor) -> Callable[[Tensor], Tensor]:
        """mean(x, valid) as a function of x, for several means over the same rows: the live rows of all learners are counted once."""
        count = self.live(valid)
        return lambda x: masked_mean(x, valid, count)

    def total(self, share: Tensor) -> Tensor:
        """The sum of all learners' shares."""
        return self.ctx.ranks.sum(share)

    def share(self, count: int) -> int:
        """This learner's part of a count that learners divide evenly."""
        return count // self.ctx.ranks.world

    def part(self, x: float) -> float:
        """This learner's part of a coefficient whose term every learner adds to its share of the loss."""
        return x / self.ctx.ranks.world

    def normalize(self, x: Tensor, valid: Tensor) -> Tensor:
        """x [T, B] with mean 0 and standard deviation 1 over the live rows of all learners; dead rows become 0."""
        return masked_normalize(x, valid, self.ctx.ranks)

    def explained_variance(self, target: Tensor, value: Tensor, valid: Tensor) -> Tensor:
        """1 - Var(target - value) / Var(target) [] over the live rows of all learners, for target, value and valid [T, B]."""
        return explained_variance(target, value, valid, self.ctx.ranks)

    def moments(self, x: Tensor, valid: Tensor) -> Moments:
        """Moments of x [T, B] over the live rows of all learners."""
        return merged([moments_of(x[valid])], torch.Size(), self.ctx.ranks)

    def report(self, shares: Mapping[str, Tensor | float], *same: Mapping[str, Any]) -> dict[str, Any]:
        """Metrics from this learner's shares of them, which are detached and summed over all learners in one exchange, and from what is the same on every
        learner, such as an optimiser's metrics."""
        metrics = self.ctx.ranks.sum_each({name: value.detach() if isinstance(value, Tensor) else value for name, value in shares.items()})
        for more in same:
            metrics |= more
        return metrics

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
