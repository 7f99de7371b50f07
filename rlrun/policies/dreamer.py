"""The policies of Dreamer and DreamerV3: they follow observations with a world model and act on the model's states."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.conditions import OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Pass, Policy
from rlrun.core.ranges import NotNegative
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from rlrun.models.encoders import flat_size, flatten, one_hot
from rlrun.models.gaussian_world_model import (
    Belief,
    GaussianEncoder,
    GaussianRSSM,
    GaussianWorldModelConfig,
    check_images,
    dense,
)
from rlrun.models.model import Model
from rlrun.models.observations import WorldEncoder, entries_of
from rlrun.models.world_model import RSSM, Product, State, WorldModelConfig, stack
from rlrun.ops.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, SquashedGaussian
from rlrun.ops.gumbel import gumbel
from rlrun.policies.exploration import EXPLORING, ExplorationConfig, Explorer


class FlatActions(nn.Module):
    """A network whose actions have two forms: that of rows, and flat [..., A], where choices are one-hot."""

    def __init__(self, space: Any):
        super().__init__()
        self.space, self.size = space, flat_size(space)

    def rows(self, flat: Tensor) -> Tensor:
        """Flat actions [..., A] in the form that rows have."""
        space = self.space
        if isinstance(space, Discrete):
            return flat.argmax(-1)
        if isinstance(space, MultiDiscrete):
            picks = [part.argmax(-1) for part in flat.split(list(space.sizes), -1)]
            return torch.stack(picks, -1).unflatten(-1, space.shape)
        shaped = flat.reshape(*flat.shape[:-1], *space.shape)  # the shape may be ()
        return shaped if isinstance(space, Box) else shaped.long()

    def flat(self, action: Tensor) -> Tensor:
        """Actions of rows [N, ...] -> [N, A]; the inverse of rows()."""
        return flatten(self.space, action)


class WorldActor(FlatActions):
    """Layers from the features of a state to a distribution over actions.

    Choices are mixed with unimix of a uniform distribution. Numbers are normal, with a mean in (-1, 1) and a deviation
    from min_std to max_std; whoever steps the environment clips what is drawn."""

    def __init__(self, space: Any, inputs: int, cfg: WorldModelConfig, compute: torch.dtype):
        super().__init__(space)
        self.unimix, self.stds = cfg.unimix, (cfg.min_std, cfg.max_std)
        units = cfg.widths.units
        self.layers = stack(inputs, units, cfg.policy_layers, compute)
        self.last = Product(units, self.size, compute, cfg.policy_outscale)
        self.deviation = Product(units, self.size, compute, cfg.policy_outscale) if isinstance(space, Box) else None

    def forward(self, features: Tensor) -> Any:
        """Features [..., F] -> a distribution of actions in the form that rows have."""
        hidden, space = self.layers(features), self.space
        made = self.last(hidden)
        if self.deviation is not None:
            low, high = self.stds
            std = (high - low) * (self.deviation(hidden) + 2.0).sigmoid() + low
            return Gaussian(made.tanh(), std.log(), space.shape)
        if isinstance(space, Discrete):
            return Categorical(self._mixed(made))
        if isinstance(space, MultiDiscrete):
            parts = [self._mixed(part) for part in made.split(list(space.sizes), -1)]
            return MultiCategorical(torch.cat(parts, -1), space.sizes, space.shape)
        if self.unimix == 0.0:  # a switch that is certain would be an infinite logit
            return Bernoulli(made, space.shape)
        return Bernoulli(torch.logit((1.0 - self.unimix) * made.sigmoid() + 0.5 * self.unimix), space.shape)

    def _mixed(self, logits: Tensor) -> Tensor:
        if self.unimix == 0.0:
            return logits.log_softmax(-1)
        soft = logits.softmax(-1)
        return torch.add(self.unimix / soft.shape[-1], soft, alpha=1.0 - self.unimix).log()

    def chosen(self, features: Tensor, noise: Tensor) -> Tensor:
        """Flat actions [N, A] drawn with noise [N, A]: standard normal for numbers, else uniform in [0, 1)."""
        hidden = self.layers(features)
        made = self.last(hidden)
        if self.deviation is not None:
            low, high = self.stds
            return made.tanh() + ((high - low) * (self.deviation(hidden) + 2.0).sigmoid() + low) * noise
        if isinstance(self.space, MultiBinary):
            return (noise < (1.0 - self.unimix) * made.sigmoid() + 0.5 * self.unimix).float()
        sizes = [self.space.n] if isinstance(self.space, Discrete) else list(self.space.sizes)
        parts = zip(made.split(sizes, -1), noise.split(sizes, -1), strict=True)
        picks = [(self._mixed(part) + gumbel(one)).argmax(-1) for part, one in parts]
        return torch.cat([one_hot(pick, n) for pick, n in zip(picks, sizes, strict=True)], -1)


class DreamActor(FlatActions):
    """The actor of Dreamer (2020): numbers are tanh of a normal variable, and choices are one-hot.

    What it chooses has gradients: those of the normal variable, or those of a choice's probabilities (straight-through,
    Bengio et al. 2013, arXiv:1308.3432)."""

    def __init__(self, space: Any, inputs: int, cfg: GaussianWorldModelConfig, compute: torch.dtype):
        super().__init__(space)
        self.numbers = isinstance(space, Box)
        self.mean_scale, self.min_std = cfg.mean_scale, cfg.action_min_std
        self.raw_std = cfg.init_std + math.log(-math.expm1(-cfg.init_std))  # softplus of it is init_std
        outputs = 2 * self.size if self.numbers else self.size
        self.layers = dense(inputs, cfg.units, cfg.policy_layers, outputs, cfg.activation, compute)

    def flat(self, action: Tensor) -> Tensor:
        """Actions of rows [N, ...] -> [N, A], with numbers as the environment executes them: within [-1, 1].

        This policy draws no others, but data of a policy with a normal distribution has them, and the world model would
        learn about actions that were never executed."""
        made = super().flat(action)
        return made.clamp(-1.0, 1.0) if self.numbers else made

    def normal(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation [..., A] of numbers before tanh."""
        mean, raw = self.layers(features).chunk(2, -1)
        return self.mean_scale * (mean / self.mean_scale).tanh(), F.softplus(raw + self.raw_std) + self.min_std

    def forward(self, features: Tensor) -> Any:
        """Features [..., F] -> a distribution of actions in the form that rows have."""
        if self.numbers:
            mean, std = self.normal(features)
            return SquashedGaussian(mean, std.log(), self.space.shape)
        return Categorical(self.layers(features))

    def chosen(self, features: Tensor, noise: Tensor) -> Tensor:
        """Flat actions [N, A] drawn with noise [N, A]: standard normal for numbers, else uniform in [0, 1)."""
        if self.numbers:
            mean, std = self.normal(features)
            return (mean + std * noise).tanh()
        chances = self.layers(features).softmax(-1)
        hard = one_hot((chances.detach().log() + gumbel(noise)).argmax(-1), self.size)
        return hard + (chances - chances.detach())


class WorldPolicy(Policy):
    """Encoder, state-space model and actor.

    The state before a row is h alone: it holds what came before, the last action included, and z is drawn from h and
    the row's observation. Greedy acting takes the most probable z and action, and draws nothing."""

    algo: ClassVar[str]
    networks: ClassVar[tuple[str, type]]  # the file of conf/model, and its options
    cfg: Any
    rssm: Any
    actor: Any
    encoder: Any

    def __init__(self, spec: EnvSpec, model: Model, explorer: Explorer):
        super().__init__()
        cfg: Any = model.cfg
        file, options = self.networks
        if not isinstance(cfg, options):
            raise UserError(f"{self.algo} has networks of its own: model={file}")
        if "action_mask" in spec.obs:
            raise UserError(
                f"{spec.name} masks its actions, and {self.algo} imagines observations without a mask: it would dream"
                " of illegal actions"
            )
        if isinstance(spec.action, Box) and not spec.action.bounded:
            raise UserError(f"{spec.name} has unbounded actions, {spec.action}, and {self.algo} needs bounds")
        self.spec, self.cfg, self.explorer = spec, cfg, explorer
        self.compute = torch.bfloat16 if model.precision == "bf16" else torch.float32
        self.fixed_kernels = False

    @abstractmethod
    def belief(self, h: Tensor, obs: Batch) -> Any:
        """What is believed of z after a row's observation, given h [B, deter]."""

    @abstractmethod
    def drawn(self, belief: Any, rng: torch.Generator) -> Tensor:
        """z [B, S] drawn from a belief."""

    @abstractmethod
    def best(self, belief: Any) -> Tensor:
        """The most probable z [B, S]."""

    @abstractmethod
    def after(self, state: State, action: Tensor) -> Tensor:
        """h [B, deter] of the next row, given the action of this one in the form that rows have."""

    def disturbed(self, action: Tensor, clock: Clock, rng: torch.Generator) -> Tensor:
        """An action [B, ...] that training takes in place of one that was drawn from the policy."""
        return action

    def recordable(self, what: Pass) -> bool:
        return what == "learning" or self.explorer.recordable

    def core_spec(self) -> RowSpec:
        """h lies in (-1, 1), so that half precision loses less than DreamerV3's bfloat16."""
        return {"deter": Field((self.rssm.deter,), torch.float16)}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        state = {"deter": torch.zeros(columns, self.rssm.deter, device=device)}
        return Batch(state | self.explorer.initial_state(columns, place, device))

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows nothing: the probability of an action is a mean over all z, which has no formula."""
        known: RowSpec = {}
        return {name: known[name] for name in names}

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """Raises UserError: see record_spec()."""
        raise UserError(
            f"{self.algo} draws its world model's state and then an action: the probability of the action alone is a"
            " mean over all states, which has no formula"
        )

    def believed(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Any]:
        """h [B, deter] at a row, and what is believed of z after its observation."""
        h: Tensor = state["deter"].float()  # type: ignore[union-attr]
        # To look whether an episode begins pays on a CPU; a GPU would be waited for.
        fixed = self.fixed_kernels or h.is_cuda or torch.compiler.is_exporting()
        if fixed or bool(is_first.any()):
            h = torch.where(is_first.unsqueeze(-1), self.rssm.first(), h)
        return h, self.belief(h, obs)

    def act(
        self,
        obs: Batch,
        is_first: Tensor,
        state: Batch,
        clock: Clock,
        mode: Mode,
        rng: torch.Generator,
        record: tuple[str, ...] = (),
    ) -> Act:
        mode = self.explorer.mode(mode)
        h, belief = self.believed(obs, is_first, state)
        z = self.best(belief) if mode == "greedy" else self.drawn(belief, rng)
        now, changed = State(h, z), dict(state.items())
        dist, who = self.actor(now.features), self.explorer.stand_in(mode, clock)
        if who is not None:
            action, _, own = self.explorer.choose(who, dist, obs, is_first, state, clock, rng)
            changed |= own
        else:
            action = dist.mode() if mode == "greedy" else self.disturbed(dist.sample(rng), clock, rng)
        changed["deter"] = self.after(now, action)
        return Act(action, Batch(changed), Batch())

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        h, belief = self.believed(obs, is_first, state)
        now = State(h, self.best(belief))
        action = self.actor(now.features).mode()
        return action, Batch({**state, "deter": self.after(now, action)})


class DreamerPolicy(WorldPolicy):
    """The policy of DreamerV3."""

    algo = "dreamerv3"
    networks = ("world_model", WorldModelConfig)

    def __init__(self, spec: EnvSpec, model: Model, explorer: Explorer):
        super().__init__(spec, model, explorer)
        cfg = self.cfg
        self.encoder = WorldEncoder(entries_of(spec), cfg, self.compute)
        self.rssm: RSSM = RSSM(cfg, flat_size(spec.action), self.encoder.features, self.compute)
        self.actor = WorldActor(spec.action, self.rssm.features, cfg, self.compute)

    def belief(self, h: Tensor, obs: Batch) -> Tensor:
        """The probabilities of z [B, classes, stoch]."""
        return self.rssm.probabilities(self.rssm.believed(h, self.encoder(obs["observation"])))

    def drawn(self, belief: Tensor, rng: torch.Generator) -> Tensor:
        uniform = torch.rand(len(belief), self.rssm.stoch, generator=rng, device=belief.device)
        return self.rssm.draw(belief, uniform)

    def best(self, belief: Tensor) -> Tensor:
        return self.rssm.best(belief)

    def after(self, state: State, action: Tensor) -> Tensor:
        return self.rssm.core(state.h)(*state, self.rssm.embedded(self.actor.flat(action)))


@dataclass(frozen=True, kw_only=True)
class DisturbedConfig(ExplorationConfig):
    """How a policy explores whose drawn actions are disturbed."""

    KINDS: ClassVar[tuple[str, ...]] = ("noise", "sampled", "random")
    noise: Annotated[Schedule, NotNegative, EXPLORING, OnlyWith("kind", "noise")]


class GaussianDreamerPolicy(WorldPolicy):
    """The policy of Dreamer (2020), which explores by disturbing what it draws: numbers by normal noise, and choices by
    random ones."""

    algo = "dreamer"
    networks = ("gaussian_world_model", GaussianWorldModelConfig)

    def __init__(self, spec: EnvSpec, model: Model, explorer: Explorer):
        super().__init__(spec, model, explorer)
        cfg, entries, options = self.cfg, entries_of(spec), explorer.cfg
        check_images(spec.name, entries)
        assert isinstance(options, DisturbedConfig)
        self.noise = options.noise if options.kind == "noise" else None
        if self.noise is not None and not isinstance(spec.action, Box) and max(self.noise.values) > 1.0:
            raise UserError(
                f"algo.exploration.noise={max(self.noise.values):g} is the share of random choices in {spec.name}, and"
                " must not be above 1"
            )
        self.encoder = GaussianEncoder(entries, cfg, self.compute)
        self.rssm = GaussianRSSM(cfg, flat_size(spec.action), self.encoder.features, self.compute)
        self.actor = DreamActor(spec.action, self.rssm.features, cfg, self.compute)

    def belief(self, h: Tensor, obs: Batch) -> Belief:
        return self.rssm.posterior(h, self.encoder(obs["observation"]))

    def drawn(self, belief: Belief, rng: torch.Generator) -> Tensor:
        return belief.drawn(torch.randn(belief.mean.shape, generator=rng, device=belief.mean.device))

    def best(self, belief: Belief) -> Tensor:
        return belief.mean

    def after(self, state: State, action: Tensor) -> Tensor:
        return self.rssm.step(state, self.actor.flat(action))

    def disturbed(self, action: Tensor, clock: Clock, rng: torch.Generator) -> Tensor:
        if self.noise is None:
            return action
        amount = self.noise(clock)
        if isinstance(self.spec.action, Box):
            noise = torch.randn(action.shape, generator=rng, device=action.device)
            return (action + amount * noise).clamp(-1.0, 1.0)
        other = torch.randint(self.actor.size, action.shape, generator=rng, device=action.device)
        return torch.where(torch.rand(action.shape, generator=rng, device=action.device) < amount, other, action)

    def explored(self, clock: Clock) -> dict[str, float]:
        """Returns the schedule's noise as a metric."""
        noise = self.noise
        return {} if noise is None else self.explorer.measured("exploration_noise", lambda: noise(clock))
