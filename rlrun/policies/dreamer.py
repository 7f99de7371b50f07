"""The policy of DreamerV3: it follows observations with a world model and acts on the model's states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Pass, Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete
from rlrun.models.encoders import flat_size, flatten, one_hot
from rlrun.models.model import Model
from rlrun.models.observations import WorldEncoder, entries_of
from rlrun.models.world_model import RSSM, Core, Product, State, WorldModelConfig, stack
from rlrun.ops.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical
from rlrun.ops.gumbel import gumbel
from rlrun.policies.exploration import Explorer


class WorldActor(nn.Module):
    """Layers from the features of a state to a distribution over actions.

    Choices are mixed with unimix of a uniform distribution. Numbers are normal, with a mean in (-1, 1) and a deviation
    from min_std to max_std; whoever steps the environment clips what is drawn."""

    def __init__(self, space: Any, inputs: int, cfg: WorldModelConfig, compute: torch.dtype):
        super().__init__()
        self.space, self.unimix, self.stds = space, cfg.unimix, (cfg.min_std, cfg.max_std)
        units = cfg.widths.units
        self.layers = stack(inputs, units, cfg.policy_layers, compute)
        self.size = flat_size(space)  # numbers in a flat action
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
        return Bernoulli(torch.logit((1.0 - self.unimix) * made.sigmoid() + 0.5 * self.unimix), space.shape)

    def _mixed(self, logits: Tensor) -> Tensor:
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

    def rows(self, flat: Tensor) -> Tensor:
        """Flat actions [..., A] in the form that rows have."""
        space = self.space
        if isinstance(space, Discrete):
            return flat.argmax(-1)
        if isinstance(space, MultiDiscrete):
            picks = [part.argmax(-1) for part in flat.split(list(space.sizes), -1)]
            return torch.stack(picks, -1).unflatten(-1, space.shape)
        return flat.unflatten(-1, space.shape) if isinstance(space, Box) else flat.long().unflatten(-1, space.shape)

    def flat(self, action: Tensor) -> Tensor:
        """Actions of rows [N, ...] -> [N, A]; the inverse of rows()."""
        return flatten(self.space, action)


class DreamerPolicy(Policy):
    """Encoder, state-space model and actor.

    The state before a row is h alone: it holds what came before, the last action included, and z is drawn from h and
    the row's observation. Greedy acting takes the most probable z and action, and draws nothing."""

    def __init__(self, spec: EnvSpec, model: Model, explorer: Explorer):
        super().__init__()
        cfg: Any = model.cfg
        if not isinstance(cfg, WorldModelConfig):
            raise UserError("dreamerv3 has networks of its own: model=world_model")
        if "action_mask" in spec.obs:
            raise UserError(
                f"{spec.name} masks its actions, and dreamerv3 imagines observations without a mask: it would dream of"
                " illegal actions"
            )
        if isinstance(spec.action, Box) and not spec.action.bounded:
            raise UserError(f"{spec.name} has unbounded actions, {spec.action}, and dreamerv3 needs bounds")
        self.spec, self.cfg, self.explorer = spec, cfg, explorer
        self.compute = torch.bfloat16 if model.precision == "bf16" else torch.float32
        self.encoder = WorldEncoder(entries_of(spec), cfg, self.compute)
        self.rssm = RSSM(cfg, flat_size(spec.action), self.encoder.features, self.compute)
        self.actor = WorldActor(spec.action, self.rssm.features, cfg, self.compute)
        self.fixed_kernels = False

    def recordable(self, what: Pass) -> bool:
        return what == "learning" or self.explorer.recordable

    def core_spec(self) -> RowSpec:
        """h lies in (-1, 1), so that half precision loses less than the author's bfloat16."""
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
            "dreamerv3 draws its world model's state and then an action: the probability of the action alone is a mean"
            " over all states, which has no formula"
        )

    def believed(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Tensor]:
        """h [B, deter] at a row, and the probabilities of z [B, classes, stoch] after its observation."""
        h: Tensor = state["deter"].float()  # type: ignore[union-attr]
        if self.fixed_kernels or torch.compiler.is_exporting() or bool(is_first.any()):
            h = torch.where(is_first.unsqueeze(-1), self.rssm.first(), h)
        return h, self.rssm.probabilities(self.rssm.believed(h, self.encoder(obs["observation"])))

    def after(self, state: State, action: Tensor) -> Tensor:
        """h [B, deter] of the next row, given the action of this one in the form that rows have."""
        return Core(self.rssm)(*state, self.rssm.embedded(self.actor.flat(action)))

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
        h, chances = self.believed(obs, is_first, state)
        if mode == "greedy":
            z = self.rssm.best(chances)
        else:
            z = self.rssm.draw(chances, torch.rand(len(h), self.rssm.stoch, generator=rng, device=h.device))
        now, changed = State(h, z), dict(state.items())
        dist, who = self.actor(now.features), self.explorer.stand_in(mode, clock)
        if who is not None:
            action, _, own = self.explorer.choose(who, dist, obs, is_first, state, clock, rng)
            changed |= own
        else:
            action = dist.mode() if mode == "greedy" else dist.sample(rng)
        changed["deter"] = self.after(now, action)
        return Act(action, Batch(changed), Batch())

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        h, chances = self.believed(obs, is_first, state)
        now = State(h, self.rssm.best(chances))
        action = self.actor(now.features).mode()
        return action, Batch({**state, "deter": self.after(now, action)})
