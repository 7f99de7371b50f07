"""A policy that draws actions from a distribution and has a value head for the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.moments import Moments
from rlrun.core.policy import Act, Mode, Pass, Policy, action_rows_of
from rlrun.core.ranks import Ranks
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, EnvSpec, leaves
from rlrun.models.config import DistributionAndValueConfig
from rlrun.models.model import Model
from rlrun.models.normalizer import FiltersObservations
from rlrun.ops.distributions import Distribution, without_masked
from rlrun.policies.exploration import ExplorationConfig, Explorer, certain_log_prob, every_log_prob


class Outputs(NamedTuple):
    dist: Distribution  # over T+1 rows
    value: Tensor  # [T+1, B]


def without_meaning(obs: Batch, name: str | None) -> tuple[Batch, Tensor | None]:
    """Splits off the part `name` of the observation, which describes the actions.

    Returns obs without it, and that part [..., A, E] in float32, or None if name is None."""
    if name is None:
        return obs, None
    parts = obs["observation"]
    rest = Batch({key: parts[key] for key in parts if key != name})  # type: ignore[index, union-attr]
    return obs.replace(observation=rest), parts[name].float()  # type: ignore[index, union-attr]


def _of_state(spec: EnvSpec) -> EnvSpec:
    """The environment as it looks to a network that sees the state in place of the observation."""
    return replace(spec, obs={**spec.obs, "observation": spec.obs["state"]})


class DistributionPolicy(FiltersObservations, Policy):
    """Samples from a distribution over actions and has a value head for the learner.

    One trunk feeds both heads, or each head has its own (model.share_value: false). In that case the value trunk's
    memory is a second recurrent state. With model.value_sees=state, the value sees the state of all agents, which
    nobody needs who only acts. An observation filter then comes with a second one, for the state."""

    def __init__(self, spec: EnvSpec, model: Model, explorer: Explorer | None = None):
        """explorer: who chooses the actions of training; None: they are sampled."""
        super().__init__()
        self.spec = spec
        self.explorer = explorer or Explorer(spec, ExplorationConfig(kind="sampled", kwargs={}))
        self.filter = model.filter(spec)
        self.trunk = model.trunk(spec)
        outputs = model.outputs(DistributionAndValueConfig)
        self.central = outputs.central  # values see obs["state"]
        # What describes the actions is a part of the observation, and no part of the state.
        apart = self.central and spec.image and not _of_state(spec).image  # what they see is unlike what actors see
        own = outputs.without_images() if apart else outputs
        of_state = Model(replace(own, action_embedding=None), model.precision)
        self.state_filter = of_state.filter(_of_state(spec)) if self.central else None
        if outputs.share_value:
            self.value_trunk = None
        else:
            self.value_trunk = of_state.trunk(_of_state(spec)) if self.central else model.trunk(spec)
        self.action_head = model.action_head(spec, self.trunk.features)
        self.value_head = model.last_layer("value_head", self.trunk.features, 1)
        self.embedding = model.action_embedding  # name of the observation part that describes the actions

    def seen(self, obs: Batch) -> Batch:
        made = super().seen(obs)
        if self.state_filter is None or "state" not in obs:
            return made
        return made.replace(state=self.state_filter(obs["state"]))

    def moments(self, batch: Batch) -> list[Moments] | None:
        """The moments of the observation's parts and, where values see the state, those of the state behind them."""
        made = super().moments(batch)
        if made is None or self.state_filter is None:
            return made
        return made + self.state_filter.moments(batch["obs"]["state"][:-1], batch["valid"])

    def absorb(self, moments: Sequence[list[Moments]], ranks: Ranks) -> None:
        super().absorb(moments, ranks)
        if self.state_filter is not None:
            self.state_filter.merge([parts[-1:] for parts in moments], ranks)

    def recordable(self, what: Pass) -> bool:
        return what == "learning" or self.explorer.recordable

    def value_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters that only the value uses. Raises ValueError if the value shares the policy's trunk."""
        if self.value_trunk is None:
            raise ValueError("the value shares its trunk with the policy")
        return [*self.value_trunk.parameters(), *self.value_head.parameters()]

    @property
    def linear_value_head(self) -> nn.Linear:
        """The value's last layer. Raises ValueError if model.value_head has replaced it by a module of another kind."""
        if not isinstance(self.value_head, nn.Linear):
            raise ValueError("normalize_value rescales a linear last layer, which model.value_head replaces")
        return self.value_head

    def core_spec(self) -> RowSpec:
        spec = dict(self.trunk.core_spec())
        if self.value_trunk is not None:
            spec |= {f"value_{name}": field for name, field in self.value_trunk.core_spec().items()}
        return spec

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        core: dict[str, Any] = self.core_spec()
        state = {name: torch.zeros(columns, *field.shape, device=device) for name, field in core.items()}
        return Batch(state | self.explorer.initial_state(columns, place, device))

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows log_prob and value [B], and dist, all parameters of one row's distribution.

        Raises UserError for log_prob if actions are greedy and have no probability, but a density."""
        if "log_prob" in names:
            self.need_probabilities()
        known: RowSpec = {
            "log_prob": Field((), torch.float32),
            "value": Field((), torch.float32),
            "dist": self.action_head.dist_spec,
        }
        return {name: known[name] for name in names}

    def need_probabilities(self) -> None:
        """Raises UserError if actions are greedy numbers. At the peak of a density, the policy gradient of its mean is
        0."""
        numbers = [part for _, part in leaves(self.spec.action) if isinstance(part, Box)]
        if numbers and not self.explorer.explores:
            raise UserError(
                "algo.explore=false: the algorithm learns from the probabilities of actions, and a greedy choice of"
                f" {numbers[0]} has none; evaluations are greedy anyway (eval.greedy)"
            )

    def _split(self, state: Batch) -> tuple[Batch, Batch]:
        own = Batch({name: state[name] for name in state if not name.startswith("value_")})
        return own, Batch({name[6:]: state[name] for name in state if name.startswith("value_")})

    def _forward(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Outputs, Batch]:
        own, value_state = self._split(state)
        obs, meaning = without_meaning(self.seen(obs), self.embedding)
        features, own = self.trunk(obs, is_first, own)
        value_features = features
        if self.central and "state" not in obs:
            value = torch.full_like(features[..., 0], torch.nan)  # nobody can know it, and acting does not need it
        else:
            if self.value_trunk is not None:
                seen = obs.replace(observation=obs["state"]) if self.central else obs
                value_features, value_state = self.value_trunk(seen, is_first, value_state)
            value = self.value_head(value_features).squeeze(-1)
        after = Batch({**own, **{f"value_{name}": value_state[name] for name in value_state}})
        mask = obs["action_mask"] if "action_mask" in obs else None
        dist = self.action_head(features, mask) if meaning is None else self.action_head(features, mask, meaning)
        return Outputs(dist, value), after

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
        outputs, after = self.acting(obs.map(lambda x: x.unsqueeze(0)), is_first.unsqueeze(0), state)
        dist, who = outputs.dist[0], self.explorer.stand_in(mode, clock)
        changed: dict[str, Tensor] = {}
        if who is not None:
            action, log_prob, changed = self.explorer.choose(who, dist, obs, is_first, state, clock, rng)
        else:
            action = dist.mode() if mode == "greedy" else dist.sample(rng)
            log_prob = None
            if mode == "greedy":  # a choice is certain, and a number has no density
                known = torch.nan if any(isinstance(part, Box) for _, part in leaves(self.spec.action)) else 0.0
                log_prob = torch.full(is_first.shape, known, device=is_first.device)
        dist = dist.given(action) if record else dist
        recorded: dict[str, Tensor | Batch] = {}
        for name in record:
            if name == "log_prob":
                if who is not None and log_prob is None:
                    raise UserError(f"{type(who).__name__} gives no log_prob, which this algorithm learns from")
                recorded[name] = dist.log_prob(action) if log_prob is None else log_prob
            elif name == "value":
                recorded[name] = outputs.value[0]
            else:
                recorded[name] = dist.record()
        return Act(action, Batch({**state, **after, **changed}), Batch(recorded))

    def acting(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Outputs, Batch]:
        """The outputs for one row, obs leaves [1, B, ...] and is_first [1, B], and the recurrent state after it."""
        return self._forward(obs, is_first, Batch({name: state[name] for name in self.core_spec()}))

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        outputs, after = self._forward(obs.map(lambda x: x.unsqueeze(0)), is_first.unsqueeze(0), state)
        return outputs.dist[0].mode(), after

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        mode, rows, action = self.explorer.mode(mode), action_rows_of(batch), batch["action"]
        obs: Batch = batch["obs"][:rows]  # type: ignore[assignment]
        dist = self._forward(obs, batch["is_first"][:rows], self.state_before(batch))[0].dist
        if mode == "greedy":
            return certain_log_prob(self.spec.action, dist.mode(), action)
        who = self.explorer.stand_in(mode, clock)
        if who is not None:
            return self.explorer.log_prob(who, dist, obs, action, clock)
        return without_masked(dist.given(action).log_prob(action))

    def log_probs(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        space, mode, obs, first = self.spec.action, self.explorer.mode(mode), batch["obs"], batch["is_first"]
        if not isinstance(space, Discrete):
            return super().log_probs(batch, mode, clock)
        dist = self._forward(obs, first, self.state_before(batch))[0].dist  # type: ignore[arg-type]
        return every_log_prob(self.explorer, space, dist, obs, first.shape, mode, clock)  # type: ignore[arg-type, union-attr]

    @torch.no_grad()
    def last_value(self, batch: Batch) -> Tensor:
        """Returns V(obs[T]) [B], from which the rows before the fragment's end bootstrap."""
        state = batch["core"].map(lambda x: x[-1]) if "core" in batch else Batch()
        outputs, _ = self._forward(batch["obs"].map(lambda x: x[-1:]), batch["is_first"][-1:], state)
        return outputs.value[0]

    def unroll(self, batch: Batch, burn_in: int = 0) -> Outputs:
        """Returns distribution and value of all rows but the first burn_in ones, from the recurrent state stored at row
        0. Rows of burn-in bring that state up to date, and no gradient goes through them.

        obs is [T+1, B, ...], or has any other number of rows."""
        obs, is_first = batch["obs"], batch["is_first"]
        state = batch["core"].map(lambda x: x[0]) if "core" in batch else Batch()
        if burn_in:
            with torch.no_grad():
                _, state = self._forward(obs[:burn_in], is_first[:burn_in], state)
        return self._forward(obs[burn_in:], is_first[burn_in:], state)[0]
