"""Options for how policies explore, and explorations that stand in for a policy's own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch, allocate, at, fragment_layout
from rlrun.core.conditions import EXPERIENCE, SEVERAL_ENVS, OnlyFor, OnlyWith
from rlrun.core.errors import FAILURES, UserError, closest, told
from rlrun.core.plugins import is_path, load_object
from rlrun.core.policy import Act, Mode, Policy
from rlrun.core.ranges import NotNegative, Positive, PositiveShare, PositiveShareBelowOne, Range, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested, Space, leaves
from rlrun.ops.distributions import Bernoulli, Categorical, MultiCategorical, of_every_choice, without_masked

EXPLORING = OnlyWith("..explore")


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """How a policy that is a distribution explores: by sampling from it, uniformly at random, or as a class says."""

    KINDS: ClassVar[tuple[str, ...]] = ("sampled", "random")
    kind: Annotated[str, EXPLORING]
    kwargs: Annotated[dict[str, Any], EXPLORING]  # keyword arguments of the user's own class

    def __post_init__(self):
        if self.kind not in self.KINDS and not is_path(self.kind):
            kinds = ", ".join(self.KINDS)
            raise ValueError(
                f"kind must be {kinds} or package.module:Name, not {self.kind!r}.{closest(self.kind, self.KINDS)}"
            )
        if self.kwargs and not is_path(self.kind):
            raise ValueError(f"kwargs are for an exploration of your own, not for {self.kind}")


@dataclass(frozen=True, kw_only=True)
class ValueExplorationConfig(ExplorationConfig):
    """How a policy of action values explores; eval_epsilon is the epsilon of greedy acting."""

    KINDS: ClassVar[tuple[str, ...]] = ("epsilon_greedy", "soft_q", "parameter_noise", "random")
    epsilon: Annotated[Schedule, Share, EXPLORING, OnlyWith("kind", "epsilon_greedy", "soft_q", "parameter_noise")]
    # Columns' values are log-spaced from epsilon to this.
    epsilon_min: Annotated[
        Annotated[float, PositiveShare] | None,
        EXPLORING,
        OnlyWith("kind", "epsilon_greedy", "soft_q", "parameter_noise"),
        OnlyWith("epsilon"),
        OnlyFor(SEVERAL_ENVS),
    ]
    eval_epsilon: Annotated[float, Share]
    temperature: Annotated[float, Positive, EXPLORING, OnlyWith("kind", "soft_q")]
    noise_std: Annotated[float, Positive, EXPLORING, OnlyWith("kind", "parameter_noise")]
    noise_epsilon: Annotated[float, PositiveShareBelowOne, EXPLORING, OnlyWith("kind", "parameter_noise")]

    def __post_init__(self):
        super().__post_init__()
        highest = max(self.epsilon.values)
        if self.epsilon_min is not None and 0 < highest < self.epsilon_min and self.kind in self.KINDS[:3]:
            raise ValueError(f"exploration.epsilon_min={self.epsilon_min:g} is more than epsilon, which is {highest:g}")


@dataclass(frozen=True, kw_only=True)
class ActionNoiseConfig(ExplorationConfig):
    """How a deterministic policy explores."""

    KINDS: ClassVar[tuple[str, ...]] = ("ou", "gaussian", "parameter_noise", "random")
    std: Annotated[float, Positive, EXPLORING, OnlyWith("kind", "ou", "gaussian", "parameter_noise"), OnlyWith("scale")]
    # From 2 on the process would grow without bound.
    theta: Annotated[float, Range(0, 2, below_highest=True), EXPLORING, OnlyWith("kind", "ou"), OnlyWith("scale")]
    scale: Annotated[Schedule, NotNegative, EXPLORING, OnlyWith("kind", "ou", "gaussian", "parameter_noise")]
    # Columns' values are log-spaced from scale to this.
    scale_min: Annotated[
        Annotated[float, Positive] | None,
        EXPLORING,
        OnlyWith("kind", "ou", "gaussian"),
        OnlyWith("scale"),
        OnlyFor(SEVERAL_ENVS),
    ]

    def __post_init__(self):
        super().__post_init__()
        if self.kind == "parameter_noise" and self.scale_min is not None:
            raise ValueError("scale_min is only for noise in actions (ou, gaussian)")
        highest = max(self.scale.values)
        if self.scale_min is not None and 0 < highest < self.scale_min:
            raise ValueError(f"exploration.scale_min={self.scale_min:g} is more than scale, which is {highest:g}")


@dataclass(frozen=True, kw_only=True)
class ActingConfig:
    """The options of every algorithm whose policy acts in training. conf/ explains each."""

    explore: bool
    random_steps: Annotated[int, NotNegative, OnlyWith("explore"), OnlyFor(EXPERIENCE)]
    exploration: ExplorationConfig

    def explorer(self, spec: EnvSpec) -> Explorer:
        return Explorer(spec, self.exploration, self.random_steps, self.explore)


class Chosen(NamedTuple):
    """What an Exploration chose for one row."""

    action: Tensor | Batch  # [B, ...] as EnvSpec.action_row
    log_prob: Tensor | None = None  # log-probability of the action under this exploration [B]; None: unknown
    state: dict[str, Tensor] = {}  # noqa: RUF012  # leaves [B, ...], as initial_state() returned them


class Exploration:
    """Chooses the actions of training in place of a policy's own exploration. Subclasses are named by
    algo.exploration.kind=package.module:Name. One is made for every copy of the policy.

    What changes from row to row belongs to the state, with one row for each environment. It travels with the policy's
    state, so that an exact run (resources=debug) that is resumed within an episode goes on with it. Others begin new
    episodes, with a new state."""

    def __init__(self, spec: EnvSpec, **kwargs: Any):
        """spec: the environment's spaces. kwargs: algo.exploration.kwargs."""
        if kwargs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(kwargs)}")
        self.spec = spec

    def initial_state(self, columns: int, place: Tensor | None, device: torch.device) -> dict[str, Tensor]:
        """Returns the state of `columns` environments, leaves [B, ...].

        place [B]: each one's place among all environments of the run, from 0 to 1; None outside of training."""
        return {}

    def choose(
        self, wanted: Any, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, rng: torch.Generator
    ) -> Chosen:
        """Chooses one action for each of B environments.

        wanted is what the policy says: a distribution over actions (ops/distributions.py), the values of all actions
        [B, A], or, from ddpg and td3, its actions [B, *shape] in [-1, 1]; from maddpg, the logits of all agents'
        choices [B, N, A], or their actions [B, N, *shape]. obs has leaves [B, ...]. is_first [B] tells
        where an episode begins. All random numbers must come from rng.

        Algorithms that learn with importance weights (ppo, appo, impala) need Chosen.log_prob."""
        raise NotImplementedError

    def log_prob(self, wanted: Any, obs: Batch, action: Tensor | Batch, clock: Clock) -> Tensor | None:
        """Returns the log-probabilities [T, B] of given actions, for rows [T, B, ...] of what choose() gets, or None if
        they are not known, as when they depend on the state. Estimates of a policy's value from data need them."""
        return None


def softened(values: Tensor, temperature: float) -> Tensor:
    """Logits [..., A] of a soft choice by values [..., A]. The best one's is 0, so that the smallest temperature makes
    no number infinite that counts."""
    return (values - values.amax(-1, keepdim=True)) / temperature


class Uniform(Exploration):
    """Chooses uniformly among all legal actions, as RLlib's Random does. Numbers without bounds are standard normal,
    and so are distances from a bound that is the only one."""

    def choose(
        self, wanted: Any, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, rng: torch.Generator
    ) -> Chosen:
        mask = obs["action_mask"].bool() if "action_mask" in obs else None
        return Chosen(*uniform(self.spec.action, len(is_first), mask, rng, is_first.device))

    def log_prob(self, wanted: Any, obs: Batch, action: Tensor | Batch, clock: Clock) -> Tensor | None:
        return uniform_log_prob(self.spec.action, action, obs["action_mask"].bool() if "action_mask" in obs else None)


def uniform(
    space: Space, count: int, mask: Tensor | None, rng: torch.Generator, device: torch.device
) -> tuple[Any, Tensor]:
    """Returns uniformly random actions [B, *shape] in the form that rows have, and their log-probabilities [B].

    mask [B, M]: the legal choices, of discrete spaces. The log-probability of bounded numbers is the logarithm of a
    density on [-1, 1]^D, which is -D log 2. Where a bound is missing, that of every number is in the env's units."""
    if isinstance(space, Nested):
        made = {name: uniform(part, count, None, rng, device) for name, part in space.spaces}
        log_prob = torch.stack([part for _, part in made.values()]).sum(0)
        return Batch({name: action for name, (action, _) in made.items()}), log_prob
    if isinstance(space, Discrete) and mask is None:
        action = torch.randint(space.n, (count,), generator=rng, device=device)
        return action, torch.full((count,), -math.log(space.n), device=device)
    if isinstance(space, Box) and space.bounded:
        action = torch.rand(count, space.size, generator=rng, device=device) * 2.0 - 1.0
        return action.reshape(count, *space.shape), torch.full((count,), -space.size * math.log(2.0), device=device)
    dist: Any
    if isinstance(space, Discrete):
        dist = Categorical(torch.zeros(count, space.n, device=device), mask)
    elif isinstance(space, MultiDiscrete):
        dist = MultiCategorical(torch.zeros(count, sum(space.sizes), device=device), space.sizes, space.shape, mask)
    elif isinstance(space, MultiBinary):
        dist = Bernoulli(torch.zeros(count, space.size, device=device), space.shape)
    else:
        dist = roaming(space, device)
        action = dist.within(torch.randn(count, space.size, generator=rng, device=device))
        return action, dist.log_prob(action)
    action = dist.sample(rng)
    return action, dist.log_prob(action)


class Roaming:
    """Random numbers of a Box that lacks a bound: standard normal without bounds, at a distance with half of a normal
    distribution from a single bound, and uniform between two."""

    def __init__(self, space: Box, device: torch.device):
        low, high = (np.asarray(bound, dtype=np.float32).reshape(-1) for bound in (space.low, space.high))
        self.shape = space.shape
        self.low, self.high = torch.from_numpy(low.copy()).to(device), torch.from_numpy(high.copy()).to(device)
        self.from_low, self.from_high = self.low.isfinite(), self.high.isfinite()
        self.between = self.from_low & self.from_high

    def within(self, normal: Tensor) -> Tensor:
        """Standard normal numbers [B, D] -> actions [B, *shape] in the env's units."""
        share = torch.special.ndtr(normal)
        made = torch.where(self.from_low, self.low + normal.abs(), normal)
        made = torch.where(self.from_high & ~self.from_low, self.high - normal.abs(), made)
        made = torch.where(self.between, self.low * (1 - share) + self.high * share, made)
        return made.reshape(-1, *self.shape)

    def log_prob(self, action: Tensor) -> Tensor:
        """The logarithms [...] of the densities of actions [..., *shape]."""
        flat = action.reshape(*action.shape[: action.ndim - len(self.shape)], -1)
        distance = torch.where(self.from_low, flat - self.low, torch.where(self.from_high, self.high - flat, flat))
        alone = (self.from_low | self.from_high).float() * math.log(2.0)
        normal = alone - 0.5 * distance.square() - 0.5 * math.log(2 * math.pi)
        return torch.where(self.between, -(self.high.double() - self.low).log().float(), normal).sum(-1)


@functools.cache
def roaming(space: Box, device: torch.device) -> Roaming:
    """Roaming of a space, made once: a CUDA graph that records acting could not copy its bounds to the GPU."""
    return Roaming(space, device)


def uniform_log_prob(space: Space, action: Any, mask: Tensor | None) -> Tensor:
    """Returns the log-probabilities [...] that uniform() has for given actions [..., *shape], with mask [..., M]."""
    if isinstance(space, Nested):
        return torch.stack([uniform_log_prob(part, action[name], None) for name, part in space.spaces]).sum(0)
    leading = action.shape[: action.ndim - len(space.field.shape)]
    if isinstance(space, Box) and space.bounded:
        return torch.full(leading, -space.size * math.log(2.0), device=action.device)
    size = 0 if isinstance(space, Discrete | MultiDiscrete) else space.size
    dist: Any
    if isinstance(space, Discrete):
        dist = Categorical(torch.zeros(*leading, space.n, device=action.device), mask)
    elif isinstance(space, MultiDiscrete):
        flat = torch.zeros(*leading, sum(space.sizes), device=action.device)
        dist = MultiCategorical(flat, space.sizes, space.shape, mask)
    else:
        flat = torch.zeros(*leading, size, device=action.device)
        dist = Bernoulli(flat, space.shape) if isinstance(space, MultiBinary) else roaming(space, action.device)
    return without_masked(dist.log_prob(action))


def certain_log_prob(space: Space, chosen: Any, action: Any) -> Tensor:
    """Returns the log-probabilities [...] of given actions where those that are chosen [..., *shape] are certain: 0, or
    -inf for any other. Raises UserError for numbers, of which none has a probability above 0 and none a density."""
    same: Tensor | None = None
    for path, part in leaves(space):
        if isinstance(part, Box):
            raise UserError(
                f"a greedy choice of {part} has neither probability nor density; greedy=false draws actions"
            )
        a, b = (at(tree, path) for tree in (chosen, action))
        equal = (a == b).reshape(*a.shape[: a.ndim - len(part.field.shape)], -1).all(-1)
        same = equal if same is None else same & equal
    assert same is not None
    return torch.zeros(same.shape, device=same.device).masked_fill(~same, -math.inf)


def every_log_prob(
    explorer: Explorer, space: Discrete, dist: Any, obs: Batch, shape: tuple[int, ...], mode: Mode, clock: Clock
) -> Tensor:
    """Returns the log-probabilities [T, B, A] of all choices where a policy's distribution is `dist`, for the mode that
    explorer.mode() gives. shape: (T, B)."""
    if mode == "explore" and explorer.stand_in(mode, clock) is None:
        return of_every_choice(dist, shape, space.n)

    def of(choice: int) -> Tensor:
        action = torch.full(shape, choice, device=next(obs.leaves()).device)
        who = explorer.stand_in(mode, clock)
        if who is None:
            return certain_log_prob(space, dist.mode(), action)
        return explorer.log_prob(who, dist, obs, action, clock)

    return torch.stack([of(choice) for choice in range(space.n)], -1)


class Explorer:
    """Decides who chooses an action: the policy itself, its own exploration, or an Exploration that stands in for it.

    With explore=False actions are greedy in training too."""

    PREFIX = "exploration_"  # of the names of the Exploration's state within the policy's state

    def __init__(self, spec: EnvSpec, cfg: ExplorationConfig, random_steps: int = 0, explore: bool = True):
        """random_steps: env steps of the run before which all actions are uniformly random."""
        self.cfg, self.random_steps, self.explores = cfg, random_steps, explore
        self.uniform = Uniform(spec)
        self.other: Exploration | None = None  # stands in for the policy's own exploration in the whole run
        if cfg.kind == "random":
            self.other = self.uniform
        elif is_path(cfg.kind):
            self.other = own_exploration(spec, cfg)

    def mode(self, mode: Mode) -> Mode:
        return mode if self.explores else "greedy"

    def stand_in(self, mode: Mode, clock: Clock) -> Exploration | None:
        """Returns who chooses this row's actions in place of the policy; None if nobody does."""
        if mode == "greedy":
            return None
        return self.uniform if self.random_steps and clock.env_steps < self.random_steps else self.other

    def initial_state(self, columns: int, place: Tensor | None, device: torch.device) -> dict[str, Tensor]:
        made = {} if self.other is None else self.other.initial_state(columns, place, device)
        return {self.PREFIX + name: value for name, value in made.items()}

    def choose(
        self, who: Exploration, wanted: Any, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, rng: Any
    ) -> tuple[Any, Tensor | None, dict[str, Tensor]]:
        """Returns actions [B, ...], their log-probabilities [B] and what changes in the policy's state."""
        own = {name.removeprefix(self.PREFIX): state[name] for name in state if name.startswith(self.PREFIX)}
        made = who.choose(wanted, obs, is_first, Batch(own), clock, rng)
        return made.action, made.log_prob, {self.PREFIX + name: value for name, value in made.state.items()}

    def log_prob(self, who: Exploration, wanted: Any, obs: Batch, action: Tensor | Batch, clock: Clock) -> Tensor:
        """Returns the log-probabilities [T, B] of given actions under who stands in. Raises UserError if it has
        none."""
        made = who.log_prob(wanted, obs, action, clock)
        if made is None:
            raise UserError(f"{type(who).__name__} gives no probabilities of actions (Exploration.log_prob)")
        return made

    @property
    def recordable(self) -> bool:
        """Whether a GPU may record acting: nothing looks at the number of env steps, and no code is the user's."""
        return not self.random_steps and (self.other is None or self.other is self.uniform)

    def measured(self, name: str, amount: Callable[[], float]) -> dict[str, float]:
        """Returns how much the policy's own exploration explores as a metric; nothing if another one stands in."""
        return {name: amount()} if self.explores and self.other is None else {}


def own_exploration(spec: EnvSpec, cfg: ExplorationConfig) -> Exploration:
    """Makes the user's own Exploration. Raises UserError if the name or the arguments do not fit."""
    return load_exploration(cfg.kind, spec, cfg.kwargs, "algo.exploration.kind")


def load_exploration(name: str, spec: EnvSpec, kwargs: Mapping[str, Any], option: str) -> Exploration:
    """Makes the Exploration package.module:Name that an option names."""
    kind = load_object(name, option, Exploration)
    if not (isinstance(kind, type) and issubclass(kind, Exploration)):
        raise UserError(f"{option}={name} is no subclass of rlrun.Exploration")
    try:
        return kind(spec, **kwargs)
    except FAILURES as error:  # the user's own code may raise anything
        raise UserError(f"{option}={name} cannot be made: {told(error, __file__)}") from None


def check_exploration(policy: Policy, spec: EnvSpec, record: tuple[str, ...]) -> None:
    """Lets a policy with an exploration of the user's own act once. Raises UserError if what it chooses does not fit.

    record: the outputs that are stored with each row."""
    explorer = getattr(policy, "explorer", None)
    if not isinstance(explorer, Explorer) or not is_path(explorer.cfg.kind) or not explorer.explores:
        return
    device, named, count = next(policy.parameters()).device, f"algo.exploration.kind={explorer.cfg.kind}", 2
    rows = allocate(fragment_layout(spec.obs_rows, spec.action_row, {}, {}, 1, count, 0)).map(torch.zeros_like)
    rows = rows.to(device).map(lambda x: x[0])
    late, first = Clock(env_steps=explorer.random_steps), torch.ones(count, dtype=torch.bool, device=device)
    rng = torch.Generator(device).manual_seed(0)
    try:
        with torch.inference_mode():
            state = policy.initial_state(count, torch.linspace(0, 1, count))
            act: Act = policy.act(rows["obs"], first, state, late, "explore", rng, record)  # type: ignore[arg-type]
        wanted, made = (_forms(Batch(action=action)) for action in (rows["action"], act.action))
        kept, after = _forms(state), _forms(act.state)
    except UserError:
        raise
    except FAILURES as error:  # the user's own code may raise anything
        raise UserError(f"{named} fails for {spec.name}: {told(error, __file__)}") from None
    if made != wanted:
        raise UserError(f"{named} chooses {made} for {count} observations of {spec.name}, and not {wanted}")
    if after != kept:
        raise UserError(
            f"{named} begins with {kept or 'no state'} and goes on with {after or 'no state'}: choose() must return a"
            " state with the parts and shapes of initial_state()"
        )


def _forms(tree: Batch, path: str = "") -> dict[str, str]:
    """Returns the shape of every tensor of a tree, and whether it holds whole numbers."""
    made: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, Batch):
            made |= _forms(value, f"{path}{name}.")
        else:
            made[path + name] = f"{list(value.shape)} {'numbers' if value.is_floating_point() else 'whole numbers'}"
    return made
