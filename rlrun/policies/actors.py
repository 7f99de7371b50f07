"""Actors that learn from a critic of state and action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Policy, action_rows_of
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.models.config import SquashedDistributionConfig
from rlrun.models.critic import Critics
from rlrun.models.encoders import NetConfig
from rlrun.models.heads import SMALL_GAIN, OwnHead, action_head, temper
from rlrun.models.model import Model, Seen
from rlrun.models.normalizer import FiltersObservations
from rlrun.ops.distributions import ActionDistribution, without_masked
from rlrun.policies.exploration import ActionNoiseConfig, Explorer, certain_log_prob, every_log_prob
from rlrun.policies.noise import NoisyEpisodes, ladder


class ActorNet(nn.Module):
    """A network of encoder, hidden layers and head."""

    def __init__(self, model: Model, spec: EnvSpec, cfg: NetConfig, head: Callable[[int], nn.Module]):
        """head(number of features) returns a module of features [..., F] and a mask of legal actions, or None."""
        super().__init__()
        self.trunk = model.trunk(spec)
        self.hidden = model.hidden(self.trunk.features, cfg)
        self.head = head(cfg.hidden[-1] if cfg.hidden else self.trunk.features)

    def forward(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Any, Batch]:
        """Returns the head's output for filtered observations [T, B, ...], and the state after the last row."""
        features, after = self.trunk(obs, is_first, state)
        return self.head(self.hidden(features), obs["action_mask"] if "action_mask" in obs else None), after

    def of(self, seen: Seen) -> Any:
        """Returns the head's output for rows [N, ...]."""
        return self.head(self.hidden(self.trunk.of(seen)), seen.mask)


class TanhHead(nn.Module):
    """Outputs one action inside (-1, 1)."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return torch.tanh(self.linear(features))


class Actor(FiltersObservations, Policy):
    """An observation filter and a network.

    It may carry critics, so that samplers can record values for first priorities."""

    def __init__(
        self, spec: EnvSpec, model: Model, cfg: NetConfig, explorer: Explorer, head: Callable[[int], nn.Module]
    ):
        super().__init__()
        space = spec.action
        if isinstance(space, Box) and not space.bounded:
            raise UserError(
                f"{spec.name} has unbounded actions, {space}: "
                "this algorithm squashes its actions into bounds, which the env must define"
            )
        self.spec, self.explorer = spec, explorer
        self.filter = model.filter(spec)
        self.net = ActorNet(model, spec, cfg, head)
        self.critic: Critics | None = None

    def core_spec(self) -> RowSpec:
        return self.net.trunk.core_spec()

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        core: dict[str, Any] = self.core_spec()
        state = {name: torch.zeros(columns, *field.shape, device=device) for name, field in core.items()}
        return Batch(state | self.explorer.initial_state(columns, place, device))

    def row(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Any, Batch]:
        """Returns the network's output for one row of observations [B, ...], and the recurrent state after it."""
        core = Batch({name: state[name] for name in self.core_spec()})
        rows = self.seen(obs).map(lambda x: x.unsqueeze(0))
        output, after = self.net(rows, is_first.unsqueeze(0), core)
        return output[0], after

    def shaped(self, action: Tensor) -> Tensor:
        """Reshapes actions from [..., D] to [..., *shape], the form that rows have."""
        return (
            action.reshape(*action.shape[:-1], *self.spec.action.shape) if isinstance(self.spec.action, Box) else action
        )

    def flat(self, action: Tensor) -> Tensor | None:
        """Reshapes a row's actions from [B, *shape] to [B, D]. Returns None if actions are discrete."""
        return action.reshape(len(action), -1) if isinstance(self.spec.action, Box) else None


class DeterministicPolicy(Actor):
    """Maps every observation to one action inside (-1, 1), and explores by adding noise.

    Sources: Silver et al. 2014; Lillicrap et al. 2016, arXiv:1509.02971."""

    def __init__(
        self,
        spec: EnvSpec,
        model: Model,
        cfg: NetConfig,
        explorer: Explorer,
        critic: Critics | None,
    ):
        size = spec.action.size  # type: ignore[union-attr]
        super().__init__(spec, model, cfg, explorer, lambda inputs: TanhHead(model.linear(inputs, size, SMALL_GAIN)))
        assert isinstance(explorer.cfg, ActionNoiseConfig)
        self.explore, self.size, self.critic = explorer.cfg, size, critic
        if self.explore.kind == "parameter_noise" and self.core_spec():
            raise UserError("exploration.kind=parameter_noise perturbs networks without memory (model/memory=none)")
        self.episodes = NoisyEpisodes(self.net, self.explore.std) if self.explore.kind == "parameter_noise" else None

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows q_taken and q_max [B], the critic's values of the action taken and of the policy's own action.

        The critic is the one that samplers receive with the policy."""
        known: RowSpec = {"q_taken": Field((), torch.float32), "q_max": Field((), torch.float32)}
        return {name: known[name] for name in names}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        state: dict[str, Any] = dict(super().initial_state(columns, place))
        if place is not None and self.explore.scale_min is not None:
            state["place"] = place.to(device)
        if self.explore.kind == "ou":
            state["ou"] = torch.zeros(columns, self.size, device=device)
        if self.episodes is not None:
            state |= self.episodes.state(columns, device)
        return Batch(state)

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        action, after = self.row(obs, is_first, state)
        return self.shaped(action), Batch({**state, **after})

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """Raises UserError: noisy actions are clipped to their bounds, on which they then lie with a probability above
        0, and other noise depends on what was before."""
        raise UserError(
            "a policy of one action and noise, as that of ddpg and td3, gives no densities of actions: greedy ones are"
            " certain, and noisy ones are clipped to their bounds"
        )

    def explored(self, clock: Clock) -> dict[str, float]:
        """Returns the schedule's noise scale as a metric."""
        return self.explorer.measured("noise_scale", lambda: self.explore.scale(clock))

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
        best, after = self.row(obs, is_first, state)
        action, carried, mode = best, dict(state.items()) | dict(after.items()), self.explorer.mode(mode)
        if mode == "explore" and self.explorer.other is None:
            action, changed = self._explored(self.seen(obs), is_first, state, best, clock, rng)
            carried |= changed
        who = self.explorer.stand_in(mode, clock)
        if who is not None:
            chosen, _, changed = self.explorer.choose(who, self.shaped(best), obs, is_first, state, clock, rng)
            action, carried = chosen.reshape(len(best), -1), {**carried, **changed}
        recorded = {}
        if record:
            critic = self.critic
            assert critic is not None, "recording values needs a critic that samplers receive with the policy"
            rows = self.seen(obs).map(lambda x: x.unsqueeze(0))
            features = critic.features(Seen(rows, is_first.unsqueeze(0), Batch()))
            # The target has the least of the critics, and an update's priority is a mean over them.
            known = {
                "q_taken": lambda: critic.of(features, action)[:, :, 0].mean(0),
                "q_max": lambda: critic.of(features, best)[:, :, 0].min(0).values,
            }
            recorded = {name: known[name]() for name in record}
        return Act(self.shaped(action), Batch(carried), Batch(recorded))

    def _explored(
        self, obs: Batch, is_first: Tensor, state: Batch, best: Tensor, clock: Clock, rng: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns exploring actions [B, D] for filtered observations [B, ...], and what changes in the state."""
        explore, changed, action = self.explore, {}, best
        if self.episodes is not None:
            # Plappert et al. 2018, appendix C: the perturbed actions should differ from the policy's by as much as
            # action noise of this standard deviation would move them.
            noise, deviation = self.episodes.begin(state, is_first, explore.std * explore.scale(clock), torch.sqrt, rng)
            action = self.episodes.outputs(obs, is_first, noise * deviation.unsqueeze(1))
            changed = self.episodes.note(state, is_first, noise, deviation, (action - best).square().mean(-1))
        else:
            drawn = torch.randn(best.shape, generator=rng, device=best.device) * explore.std
            if explore.kind == "ou":
                # Uhlenbeck & Ornstein 1930; Lillicrap et al. 2016, section 3. The process makes one step per env step
                # and restarts at 0 in every episode.
                before = state["ou"] * ~is_first.unsqueeze(1)
                drawn = before * (1.0 - explore.theta) + drawn
                changed["ou"] = drawn
            scale = ladder(explore.scale(clock), explore.scale_min, state["place"] if "place" in state else None)
            action = (best + (scale.unsqueeze(-1) if isinstance(scale, Tensor) else scale) * drawn).clamp(-1.0, 1.0)
        return action, changed


class StochasticActor(Actor):
    """Samples from a distribution: squashed Gaussian or Beta for Box actions, categorical for discrete actions."""

    def __init__(self, spec: EnvSpec, model: Model, cfg: NetConfig, explorer: Explorer, improved: bool = True):
        """improved: whether a critic improves the actions that the actor draws in learning, for which a user's own
        distribution needs rsample()."""
        out = model.outputs(SquashedDistributionConfig)

        def head(inputs: int) -> nn.Module:
            head = action_head(spec.action, inputs, model.linear, out.action_distribution, out.log_std)
            if isinstance(head, OwnHead):
                self._check(head, improved)
            return temper(head, out.temperature)

        super().__init__(spec, model, cfg, explorer, head)
        self.kind = out.action_distribution if isinstance(spec.action, Box) else "categorical"

    @staticmethod
    def _check(head: OwnHead, improved: bool) -> None:
        """Raises UserError unless the algorithm can learn with the user's own distribution."""
        name = f"{head.kind.__module__}:{head.kind.__name__}"
        if not isinstance(head.space, Box):
            raise UserError(f"model.action_distribution={name} is for continuous actions here, not for {head.space}")
        if improved and head.kind.rsample is ActionDistribution.rsample:
            raise UserError(
                f"model.action_distribution={name} needs a method rsample(rng, rank, world) for this algorithm, with "
                "which it draws actions in learning"
            )

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        dist, after = self.row(obs, is_first, state)
        return dist.mode(), Batch({**state, **after})

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows log_prob [B]. It is NaN for greedy actions that are numbers, and for an exploration that gives none."""
        known: RowSpec = {"log_prob": Field((), torch.float32)}
        return {name: known[name] for name in names}

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
        if mode == "greedy":
            certain = None if self.kind != "categorical" else torch.zeros(is_first.shape, device=is_first.device)
            return Act(*self.greedy(obs, is_first, state), self._told(record, is_first, certain))  # type: ignore[arg-type]
        who = self.explorer.stand_in(mode, clock)
        if who is self.explorer.uniform:
            after = self.row(obs, is_first, state)[1] if self.core_spec() else Batch()
            chosen, log_prob, _ = self.explorer.choose(who, None, obs, is_first, state, clock, rng)
            return Act(chosen, Batch({**state, **after}), self._told(record, is_first, log_prob))
        dist, after = self.row(obs, is_first, state)
        if who is None:
            action = dist.sample(rng)
            log_prob = dist.log_prob(action) if record else None
            return Act(action, Batch({**state, **after}), self._told(record, is_first, log_prob))
        action, log_prob, changed = self.explorer.choose(who, dist, obs, is_first, state, clock, rng)
        return Act(action, Batch({**state, **after, **changed}), self._told(record, is_first, log_prob))

    @staticmethod
    def _told(names: tuple[str, ...], is_first: Tensor, log_prob: Tensor | None) -> Batch:
        unknown = torch.full(is_first.shape, torch.nan, device=is_first.device)
        return Batch(dict.fromkeys(names, unknown if log_prob is None else log_prob))

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        mode, action = self.explorer.mode(mode), batch["action"]
        rows, space = action_rows_of(batch), self.spec.action
        obs: Batch = batch["obs"][:rows]  # type: ignore[assignment]
        who = self.explorer.stand_in(mode, clock)
        if who is self.explorer.uniform:
            return self.explorer.log_prob(who, None, obs, action, clock)
        dist, _ = self.net(self.seen(obs), batch["is_first"][:rows], self.state_before(batch))
        if mode == "greedy":
            return certain_log_prob(space, dist.mode(), action)
        if who is not None:
            return self.explorer.log_prob(who, dist, obs, action, clock)
        return without_masked(dist.log_prob(action))

    def log_probs(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        space, mode, obs = self.spec.action, self.explorer.mode(mode), batch["obs"]
        if not isinstance(space, Discrete):
            return super().log_probs(batch, mode, clock)
        first: Tensor = batch["is_first"]  # type: ignore[assignment]
        dist, _ = self.net(self.seen(obs), first, self.state_before(batch))  # type: ignore[arg-type]
        return every_log_prob(self.explorer, space, dist, obs, first.shape, mode, clock)  # type: ignore[arg-type]
