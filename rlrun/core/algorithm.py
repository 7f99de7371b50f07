"""Algorithm: the base class of what the files of rlrun/algos hold, each with a frozen dataclass `Config` of options."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.core.errors import Notice, RunFailed
from rlrun.core.evolution import FromPopulation, NoiseTable
from rlrun.core.follower import Follower
from rlrun.core.found_state import find_state
from rlrun.core.masked import explained_variance, masked_mean, masked_normalize
from rlrun.core.moments import Moments, RunningMoments, merged, moments_of
from rlrun.core.open_loop import OpenLoop
from rlrun.core.optimizer import MAX_SKIPPED, Optimizer, OptimizerConfig
from rlrun.core.policy import Policy, fix_kernels
from rlrun.core.ranks import ALONE, Ranks
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.core.tasks import FromTasks


@dataclass(frozen=True, kw_only=True)
class FromReplay:
    """What an algorithm that learns from replayed rows asks for, in addition to Needs.rows and Needs.columns."""

    fragment_length: int  # rows per env that a sampler hands over at once
    num_envs: int  # environments of all samplers together, unless the resources say otherwise
    learning_starts: int  # env steps that must be in replay before the first update
    ratio: float  # rows learnt from per env step; an update learns from columns * rows_learnt
    rows_learnt: int = 1  # rows of a fragment that are learnt from; 1 where a fragment is folded into a transition
    rows_from: int = 1  # the number of rows in a fragment is drawn from rows_from .. Needs.rows
    obs: Literal["all", "ends"] = "ends"  # observations of every row, or only of a fragment's first row and its end
    starts_every: int = 1  # fragments begin at multiples of this number of rows
    sequences: bool = False  # a fragment whose first row is dead still counts if a later row is live
    priorities: bool = True  # updates write priorities of fragments; without them, replay=prioritized is refused
    new_first: bool = False  # every row is drawn once with the fragments that are new, before any is drawn at random
    first_priority: bool = False  # Algorithm.first_priority gives the priority of fragments that are new to replay
    # A discount, for algorithms that learn from data alone and from single rows: the batch then also holds
    # return_to_go [1, B], the discounted sum of raw rewards from the row to the end of its trajectory, end_discount
    # [1, B], discount ** (steps to that end), or 0 if the trajectory was terminated, and end, a Batch with obs and
    # is_first [1, B, ...] of the observation at that end.
    returns: float | None = None
    # A discount, for algorithms that learn from how episodes ended: rows are drawn once their episode is over, and the
    # batch then also holds return_to_go [1, B], the discounted sum of raw rewards from the row to the end, and
    # episode_return [1, B], the sum of all rewards of the episode. Where a time limit cut an episode off, the recorded
    # `value` of its last observation stands for what would have followed in return_to_go.
    outcomes: float | None = None
    drawn: str | None = None  # with outcomes: the name of a recorded bool field; only rows where it is true are drawn

    def of_sequences(self, rows_learnt: int, burn_in: int, stride: int) -> FromReplay:
        """The same with sequences that begin at every stride-th row. burn_in rows only bring a memory up to date."""
        return replace(
            self,
            rows_from=burn_in + rows_learnt,
            rows_learnt=rows_learnt,
            obs="all",
            sequences=True,
            starts_every=stride,
        )


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an algorithm requires of the data flow. It is made from the algorithm's config and read only by
    runtime/plan.py, runtime/build.py and layouts."""

    rows: int  # T of the fragments that one update reads
    columns: int  # B of the batch that one update reads
    record: tuple[str, ...] = ()  # policy outputs stored with each row
    core_every: int = 0  # recurrent state is stored every core_every rows; 0: only at row 0 of a fragment
    core_first: int = 0  # the row of a fragment to which the first recurrent state in Update.writes belongs
    return_discount: float | None = None  # samplers keep moments of returns with this discount, to normalise rewards
    # kinds of action space that the algorithm supports
    actions: tuple[str, ...] = ("discrete", "multi_discrete", "multi_binary", "box", "nested")
    joint: bool = False  # learns all agents of an environment together, in one column
    simulator: bool = False  # the policy searches in the environment's simulator (core/games.py)
    # All of the algorithm's networks can make their products in bf16; otherwise only convolutions can.
    low_precision: bool = False
    rewards_play: bool = False  # adds a reward for what is played, so that it cannot learn from recorded data alone
    sees_reward: bool = False  # the policy is told the last reward, whether its memory asks for it or not
    several: bool = False  # has several policies (policies/several.py), each for some of an environment's agents
    on_policy: bool = False  # learns only from rows of the newest policy
    every_process_learns: bool = False  # samplers are learners: num_learners=auto takes every core, or every GPU
    shared: tuple[int, ...] = ()  # counts that several learners must be able to divide evenly, besides the columns
    # An update changes only what its optimisers step, and targets by a Follower, so that processes can share both.
    only_weights: bool = False
    cut_share: float = 1.0  # once this share of the learners has filled its fragments, the others stop short
    replay: FromReplay | None = None
    population: FromPopulation | None = None
    tasks: FromTasks | None = None
    counted_from: float = 0.0  # episodes count in statistics from this place (0 .. 1) among all columns on


class Update(NamedTuple):
    """What one update reports. Metrics are 0-d tensors or floats. `writes` holds row fields by name, which are written
    back to replay at batch.key: priority [B], and any recorded fields (Replay.write)."""

    metrics: dict[str, Any]
    writes: dict[str, Tensor | Batch] | None = None


Method = TypeVar("Method", bound=Callable[..., Any])
First = TypeVar("First")
Second = TypeVar("Second")


class Recorder(Protocol):
    """Records functions that launch the same kernels at every call, so that a GPU replays them in one launch
    (machine/graphs.py)."""

    def recorded(
        self, function: Callable[[Batch, Clock], Any], rngs: Callable[[], Iterable[torch.Generator]]
    ) -> Callable[[Batch, Clock], Any]:
        """rngs returns the generators that the function draws from; it is called when the function is recorded."""
        ...


def recorded(method: Method) -> Method:
    """Marks a method(batch, clock, **choices) of an Algorithm that launches the same kernels at every call, so that a
    GPU can replay it in one launch. Algorithm records it once for each combination of choices. Such a method must not
    read anything back from the device."""
    method.is_recorded = True  # type: ignore[attr-defined]
    return method


class Beside(Protocol):
    """Calls two functions, possibly at the same time; they must not write to the same memory (machine/threads.py)."""

    def __call__(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]: ...


def in_turn(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """Calls one function after the other."""
    return first(), second()


def nothing() -> None:
    """Does nothing."""


class LearnerContext(NamedTuple):
    """Where and how a learner runs."""

    device: torch.device
    rng: torch.Generator
    beside: Beside = in_turn  # calls two functions, at the same time where there are threads for it
    recorder: Recorder | None = None  # records functions that launch the same kernels at every call
    ranks: Ranks = ALONE
    model: Any = None  # a models.model.Model, from which an algorithm builds the nets that are not sent to samplers
    # Many rows of a batch are dead because fragments are complete episodes; minibatches are then drawn from live rows.
    sparse: bool = False
    minibatch_done: Callable[[], None] = nothing  # called after every minibatch of an update that has several

    def another_rng(self) -> torch.Generator:
        """A new generator, for work that runs at the same time as other work that draws from rng. If it is kept as an
        attribute of an Algorithm, it is part of the algorithm's state."""
        seed = torch.randint(2**62, (), generator=self.rng, device=self.device)
        return torch.Generator(self.device).manual_seed(int(seed))

    @property
    def learners(self) -> int:
        """The number of learners that make every update together."""
        return self.ranks.world

    def randn(self, shape: Sequence[int], rng: torch.Generator | None = None) -> Tensor:
        """This learner's part, of this shape, of standard normal numbers. Every learner draws those of all."""
        return torch.randn(self.ranks.world, *shape, generator=rng or self.rng, device=self.device)[self.ranks.rank]

    def rand(self, shape: Sequence[int], rng: torch.Generator | None = None) -> Tensor:
        """This learner's part, of this shape, of uniform numbers in [0, 1). Every learner draws those of all."""
        return torch.rand(self.ranks.world, *shape, generator=rng or self.rng, device=self.device)[self.ranks.rank]

    def rsample(self, dist: Any, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """This learner's part of sampled actions and their log densities, both differentiable. Every learner draws the
        random numbers of all."""
        return dist.rsample(rng or self.rng, self.ranks.rank, self.ranks.world)

    def optimizer(
        self, parameters: Iterable[nn.Parameter], cfg: OptimizerConfig, lr: Schedule, max_grad_norm: float
    ) -> Optimizer:
        """An optimiser that sums its gradients over all learners."""
        return Optimizer(
            parameters, cfg, lr, max_grad_norm, self.ranks, deferred=True if self.recorder is not None else None
        )


@dataclass(frozen=True)
class Inner:
    """An algorithm nested in another algorithm's config."""

    algorithm: type[Algorithm]
    cfg: Any


class Algorithm(nn.Module):
    """A loss and an update. Everything that changes over a run must be a parameter, a buffer, an Optimizer or a
    Generator, so that state() saves it.

    Critics, mixers and target networks are attributes here and stay with the learner; only `policy` is published to
    samplers."""

    policy: Policy
    # update() calls ctx.beside. A second thread is better spent on that than on each operation by itself.
    side_by_side: ClassVar[bool] = False
    knows_first_priority: ClassVar[bool] = False  # first_priority() is implemented and needs only what samplers record
    has_world_model: ClassVar[bool] = False  # open_loop() is implemented
    has_rating: ClassVar[bool] = False  # rating() is implemented, and judges weights in place of their returns
    filters_pixels: ClassVar[bool] = False  # model.observation_filter=auto is mean_std for images
    holds_another: ClassVar[bool] = False  # whether it has the options of another algorithm, algo.inner
    reward_scale: RunningMoments | None  # set by algorithms that normalise rewards; needs() then sets return_discount

    @classmethod
    def needs(cls, cfg) -> Needs:
        raise NotImplementedError

    @classmethod
    def make_policy(cls, spec: EnvSpec, model, cfg) -> Policy:
        raise NotImplementedError

    @classmethod
    def first_priority(cls, cfg, rows: Batch) -> Tensor:
        """rows [T + 1, N] without observations -> priorities [N]. Of the last row only the recorded fields are set."""
        raise NotImplementedError

    @classmethod
    def teams(cls, cfg, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Sets of agents, by name, whose returns are worth a look. names: all agents."""
        return {}

    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        """None, or the reason why this algorithm cannot contain the inner one. It is called before the inner
        algorithm's options are read."""
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
        """Learns from one batch [T(+1), B, ...] with any number of optimiser steps."""
        raise NotImplementedError

    def can_be_recorded(self) -> bool:
        """Whether methods marked with @recorded are recorded. They are not if there is no recorder, if several learners
        exchange gradients, or if the policy cannot be recorded."""
        return self.ctx.recorder is not None and self.ctx.ranks.world == 1 and self.policy.recordable("learning")

    def recorded(self, function: Callable[[Batch, Clock], Any]) -> Callable[[Batch, Clock], Any]:
        """The function as one launch of a GPU (machine/graphs.py), or the function itself if it cannot be recorded."""
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

    def open_loop(self, batch: Batch, context: int, rng: torch.Generator) -> OpenLoop:
        """What the world model says of a batch, of which it sees the first `context` observations only. Nothing is
        changed, and nothing is drawn but from rng.

        batch: T rows of B columns, and obs and is_first of T + 1, with the recurrent state before row 0, or a state
        of zeros."""
        raise NotImplementedError

    def check(self, most: int = MAX_SKIPPED) -> None:
        """Raises RunFailed if learning has come to a stop: the last `most` updates, or the last 20, changed nothing. It
        is called only now and then because reading numbers from a GPU means waiting for it."""
        for _, optimizer in self.optimizers():
            optimizer.check(min(most, MAX_SKIPPED))

    def rating(self) -> float:
        """Returns how good the newest weights are, of a class that has_rating: the higher, the better."""
        raise NotImplementedError

    def absorb_returns(self, moments: Sequence[Moments | None]) -> None:
        """Merges the moments of new fragments' discounted returns, before the update that uses the fragments."""
        if self.reward_scale is not None:
            self.reward_scale.merge(
                merged([m for m in moments if m is not None], self.reward_scale.mean.shape, self.ctx.ranks)
            )

    def absorb_rows(self, moments: Sequence[Any]) -> None:
        """Updates the policy's filters with what Policy.moments() returned for new fragments, after the update that
        used those fragments. The filters of targets, those of inner algorithms too, become the same."""
        self.policy.absorb([m for m in moments if m is not None], self.ctx.ranks)
        for part in self.modules():
            for follower in part.followers() if isinstance(part, Algorithm) else ():
                follower.renew_filters()

    def merge_filters(self, filters: Any, moments: Sequence[Any]) -> None:
        """Merges moments of observations, over all learners, into filters that are the algorithm's own and not the
        policy's (models.normalizer.ObservationFilters)."""
        filters.merge(moments, self.ctx.ranks)

    def followers(self) -> list[Follower]:
        """What moves the targets of this algorithm, every cfg.target_update_interval updates by cfg.target_tau."""
        return [value for value in vars(self).values() if isinstance(value, Follower)]

    def move_targets(self, before: int, after: int) -> None:
        """Moves the targets as the updates from number `before` to number `after` do. For a runner that counts the
        updates of several processes, whose own copies then move no targets (Follower.held)."""
        for follower in self.followers():
            every = self.cfg.target_update_interval
            for _ in range(after // every - before // every):
                follower.move(self.cfg.target_tau)

    def renew_targets(self) -> None:
        """Copies the policy into the target policy again, after the policy has been given other weights."""
        target = getattr(self, "target", None)
        if isinstance(target, Policy):
            target.load_state_dict(self.policy.state_dict())

    def attach_noise(self, noise: NoiseTable) -> None:
        """Receives the table that perturbations are pieces of; called by runner=evolution."""
        raise NotImplementedError

    def adapt(self, batch: Batch | None) -> None:
        """Makes the policies of the tasks for the next round. None: every task begins with the policy itself. batch:
        the round that was played last [T(+1), B, ...]. Called by runner=meta."""
        raise NotImplementedError

    def live(self, valid: Tensor) -> Tensor:
        """The number of live rows in valid [T, B] over all learners [], at least 1. A sum over this learner's rows is
        divided by it."""
        return self.ctx.ranks.sum(valid.sum()).clamp(min=1)

    def mean(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """This learner's share [] of the mean of x over the whole batch; the shares of all learners add up to the mean.
        Without valid, the mean is over all of x [...], whose size must be the same on every learner. With valid [T, B],
        it is over the live rows of x [T, B]."""
        if valid is not None:
            return self.mean_over(valid)(x)
        return x.mean() / self.ctx.ranks.world if self.ctx.ranks.world > 1 else x.mean()

    def mean_over(self, valid: Tensor) -> Callable[[Tensor], Tensor]:
        """mean(x, valid) as a function of x. For several means over the same rows it counts the live rows of all
        learners only once."""
        count = self.live(valid)
        return lambda x: masked_mean(x, valid, count)

    def total(self, share: Tensor) -> Tensor:
        """The sum of all learners' shares."""
        return self.ctx.ranks.sum(share)

    def of_all(self, x: Tensor) -> Tensor:
        """The numbers x [N] of all learners, one learner's behind the other's."""
        if self.ctx.ranks.world == 1:
            return x
        return torch.cat(self.ctx.ranks.gather(x.double().cpu())).to(x)

    def share(self, count: int) -> int:
        """This learner's part of a count that learners divide evenly."""
        return count // self.ctx.ranks.world

    def own(self, count: int) -> slice:
        """This learner's part of `count` things in a row that learners divide evenly."""
        each = self.share(count)
        return slice(self.ctx.ranks.rank * each, (self.ctx.ranks.rank + 1) * each)

    def part(self, x: float) -> float:
        """This learner's part of a coefficient whose term every learner adds to its share of the loss."""
        return x / self.ctx.ranks.world

    def normalize(self, x: Tensor, valid: Tensor) -> Tensor:
        """x [T, B] with mean 0 and standard deviation 1 over the live rows of all learners; dead rows become 0."""
        return masked_normalize(x, valid, self.ctx.ranks)

    def explained_variance(self, target: Tensor, value: Tensor, valid: Tensor) -> Tensor:
        """1 - Var(target - value) / Var(target) [] over the live rows of all learners; target, value, valid [T, B]."""
        return explained_variance(target, value, valid, self.ctx.ranks)

    def moments(self, x: Tensor, valid: Tensor) -> Moments:
        """Moments of x [T, B] over the live rows of all learners."""
        return merged([moments_of(x[valid])], torch.Size(), self.ctx.ranks)

    def minibatches(self, rows: Batch, epochs: int, columns: int) -> Iterator[Batch]:
        """Yields this learner's parts of random minibatches, as Batch.minibatches() does, of `columns` columns or all.

        Where the learners have different numbers of columns (complete episodes), all get the same number of
        minibatches, as many as their columns fill together, and each spreads its own columns over them."""
        own, ctx = rows["reward"].shape[1], self.ctx
        if ctx.learners == 1 or not ctx.sparse:
            for part in rows.minibatches(epochs, min(columns, own), ctx.rng):
                yield part
                ctx.minibatch_done()
            return
        counts = [int(part) for part in ctx.ranks.gather(torch.tensor([own], dtype=torch.float64))]
        number = max(1, min(sum(counts) // (columns * ctx.learners), *counts))
        rng = ctx.another_rng()  # shuffles of different lengths must not make the learners' own generators differ
        for _ in range(epochs):
            for part in itertools.islice(rows.minibatches(1, own // number, rng), number):
                yield part
                ctx.minibatch_done()

    def report(self, shares: Mapping[str, Tensor | float], *same: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of an update. `shares` are this learner's shares, which are detached and summed over all learners
        in one exchange; `same` are metrics that are equal on every learner, such as an optimiser's."""
        metrics = self.ctx.ranks.sum_each(
            {name: value.detach() if isinstance(value, Tensor) else value for name, value in shares.items()}
        )
        for more in same:
            metrics |= more
        return metrics

    def optimizers(self) -> Iterable[tuple[str, Optimizer]]:
        """(name, Optimizer) pairs, found wherever they are kept: in attributes, lists, dicts, inner algorithms, nested
        modules and helper objects. The name is the path, as in "optimizer", "inner.optimizer" or "optimizers.actor"."""
        return find_state(self).optimizers.items()

    def more_rngs(self) -> Iterable[tuple[str, torch.Generator]]:
        """(name, Generator) pairs of all generators except ctx.rng, found in the same way as optimisers."""
        return find_state(self).rngs.items()

    def state(self) -> dict:
        """Everything that changes over a run: parameters, buffers, optimisers and random streams, as tensors and plain
        containers. The entry "modules" exists only if the algorithm keeps modules that are not registered with PyTorch,
        in a list for example."""
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
        """Restores what state() returned. Raises RunFailed if shapes or names differ."""
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
            raise RunFailed(
                f"the checkpoint does not fit this config: {str(error).splitlines()[-1].strip()}"
            ) from error
        if all(saved.numel() == rng.get_state().numel() for rng, saved in streams):
            for rng, saved in streams:
                rng.set_state(saved.cpu())
        else:
            warnings.warn(
                "the checkpoint is from another kind of device: the learner's random stream begins anew",
                Notice,
                stacklevel=2,
            )
