"""A policy for all agents of an environment, each of which has an actor that learns from a critic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, RowSpec
from rlrun.core.conditions import CHOICES, CONTINUOUS, OnlyFor, OnlyWith
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Policy
from rlrun.core.ranges import NotNegative, Positive, Share
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import Box, EnvSpec
from rlrun.models.encoders import NetConfig, flat_size, flatten
from rlrun.models.heads import SMALL_GAIN
from rlrun.models.model import Model, Seen
from rlrun.ops.distributions import legal_logits
from rlrun.ops.gumbel import gumbel, straight_through
from rlrun.policies.actors import ActorNet
from rlrun.policies.exploration import EXPLORING, ExplorationConfig, Explorer

SAMPLED = OnlyWith("kind", "sampled")


@dataclass(frozen=True, kw_only=True)
class JointExplorationConfig(ExplorationConfig):
    """How a policy of several actors explores: choices are drawn by Gumbel noise, and numbers get Gaussian noise."""

    epsilon: Annotated[Schedule, Share, EXPLORING, SAMPLED, OnlyFor(CHOICES)]
    std: Annotated[float, Positive, EXPLORING, SAMPLED, OnlyFor(CONTINUOUS)]
    scale: Annotated[Schedule, NotNegative, EXPLORING, SAMPLED, OnlyFor(CONTINUOUS)]


class RawHead(nn.Module):
    """Outputs numbers that are no actions yet: logits of choices, or continuous actions before tanh."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return self.linear(features)


def seen_by(rows: Tensor) -> Seen:
    """Rows [R, D] in the form that networks without memory take."""
    rows = rows.unsqueeze(0)
    return Seen(Batch(observation=rows), torch.zeros_like(rows[..., 0], dtype=torch.bool), Batch())


def vectors(size: int) -> Box:
    """The space of `size` numbers without bounds."""
    return Box(shape=(size,), dtype="float32", low=(-np.inf,), high=(np.inf,))


class JointActorPolicy(Policy):
    """Every agent acts by its own observation: choices by logits, continuous actions by tanh of the same numbers.

    Agents have a network each or share one, which is then told, if asked for, which agent it acts for. Observations are
    flattened, so images are not meant."""

    def __init__(self, spec: Any, model: Model, cfg: NetConfig, explorer: Explorer, share: bool, agent_id: bool):
        """spec: an envs.joint.JointSpec."""
        super().__init__()
        assert isinstance(explorer.cfg, JointExplorationConfig)
        if model.cfg.observation_filter != "none":
            raise UserError("model.observation_filter is for algorithms that learn each agent by itself; use none")
        if model.cfg.memory.kind != "none":
            raise UserError(
                f"several actors with critics have no memory: model/memory={model.cfg.memory.kind} is for qmix, vdn and"
                " iql and for agents that are columns of their own"
            )
        if spec.agent.image:
            raise UserError(f"{spec.name} shows images, and this policy takes vectors")
        space = spec.agent.action
        if isinstance(space, Box) and not space.bounded:
            raise UserError(
                f"{spec.name} has unbounded actions, {space}: "
                "this algorithm squashes its actions into bounds, which the env must define"
            )
        self.spec, self.explorer, self.explore = spec, explorer, explorer.cfg
        self.agents, self.share, self.agent_id = len(spec.agents.names), share, share and agent_id
        # The agents that each network is for.
        self.served = [range(self.agents)] if share else [range(agent, agent + 1) for agent in range(self.agents)]
        self.continuous = isinstance(space, Box)
        self.size = flat_size(space)  # numbers by which an action is told to critics; a choice is one-hot
        self.seen_size = flat_size(spec.agent.observation)
        # Which numbers of the widest agent's actions an agent has itself [N, A].
        own = [flat_size(spaces.action) for _, spaces in spec.own]
        self.register_buffer("own", torch.arange(self.size) < torch.tensor(own).unsqueeze(1), persistent=False)
        inputs: EnvSpec = replace(
            spec.agent, obs={"observation": vectors(self.seen_size + self.agent_id * self.agents)}
        )
        self.actors = nn.ModuleList(
            ActorNet(model, inputs, cfg, lambda width: RawHead(model.linear(width, self.size, SMALL_GAIN)))
            for _ in self.served
        )

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        if names:
            raise KeyError(names[0])
        return {}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        return Batch(self.explorer.initial_state(columns, place, next(self.parameters()).device))

    # -- numbers of all agents -----------------------------------------------------------------------------------------

    def seen(self, obs: Batch) -> Tensor:
        """The agents' observations [B, N, D] of obs [B, ...]; zeros where an agent is not there."""
        alive, seen = obs["alive"].bool(), obs["observation"]
        flat = flatten(self.spec.agent.observation, seen.flatten(0, 1)).view(*alive.shape, -1)  # type: ignore[arg-type]
        return flat.masked_fill(~alive.unsqueeze(-1), 0.0)

    def named(self, rows: Tensor, agent: int) -> Tensor:
        """Rows [B, D] of one agent, with its number as one-hot inputs behind them if networks are told."""
        if not self.agent_id:
            return rows
        number = torch.eye(self.agents, device=rows.device)[agent]
        return torch.cat([rows, number.expand(rows.shape[0], -1)], -1)

    def outputs(self, actors: Iterable[nn.Module], seen: Tensor) -> Tensor:
        """What these actors, one for each of self.served, say [B, N, A] to observations [B, N, D], before any choice,
        mask or tanh."""
        made = [self.output(actor, seen, agents) for actor, agents in zip(actors, self.served, strict=True)]
        return made[0] if self.share else torch.cat(made, 1)

    def output(self, actor: Any, seen: Tensor, agents: range) -> Tensor:
        """What one actor says [B, K, A] to observations [B, N, D] for K of the agents."""
        rows = torch.cat([self.named(seen[:, agent], agent) for agent in agents])
        return actor.of(seen_by(rows)).unflatten(0, (len(agents), -1)).transpose(0, 1)

    def legal(self, obs: Batch) -> Tensor:
        """Which numbers of an action an agent may use [B, N, A]. Where a mask allows none, all of its own."""
        own: Tensor = self.own.expand(*obs["alive"].shape, self.size)  # type: ignore[operator, union-attr, assignment]
        if "action_mask" not in obs:
            return own
        allowed = obs["action_mask"].bool().view(own.shape)  # type: ignore[union-attr, arg-type]
        return torch.where(allowed.any(-1, keepdim=True), allowed, own)

    def actions(self, outputs: Tensor, legal: Tensor, noise: Tensor | None, temperature: float) -> Tensor:
        """The agents' actions as critics see them [B, N, A], with a gradient to the actors' outputs [B, N, A].

        noise [B, N, A]: the Gumbel noise by which choices are drawn; continuous actions need none."""
        if self.continuous:
            return torch.tanh(outputs).masked_fill(~legal, 0.0)
        assert noise is not None
        return straight_through(legal_logits(outputs, legal), noise, temperature)

    def told(self, action: Tensor) -> Tensor:
        """Actions of rows [B, N, ...] as critics see them [B, N, A]."""
        if self.continuous:
            return action.reshape(*action.shape[:2], self.size).masked_fill(~self.own, 0.0)  # type: ignore[operator, arg-type]
        return (action.unsqueeze(-1) == torch.arange(self.size, device=action.device)).float()

    # -- acting --------------------------------------------------------------------------------------------------------

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        return self._best(self.outputs(self.actors, self.seen(obs)), self.legal(obs)), state

    def _best(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Actions as rows hold them [B, N, ...]."""
        if self.continuous:
            return self._shaped(torch.tanh(outputs))
        return legal_logits(outputs, legal).argmax(-1)

    def _shaped(self, action: Tensor) -> Tensor:
        return action.reshape(*action.shape[:2], *self.spec.agent.action.shape)

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
        outputs, legal = self.outputs(self.actors, self.seen(obs)), self.legal(obs)
        who = self.explorer.stand_in(mode, clock)
        if who is not None:
            wanted = self._best(outputs, legal) if self.continuous else outputs
            action, _, changed = self.explorer.choose(who, wanted, obs, is_first, state, clock, rng)
            return Act(action, Batch({**state, **changed}), Batch())
        if mode == "greedy":
            return Act(self._best(outputs, legal), state, Batch())
        device = outputs.device
        if self.continuous:
            noise = torch.randn(outputs.shape, generator=rng, device=device) * self.explore.std
            noisy = torch.tanh(outputs) + noise * self.explore.scale(clock)
            return Act(self._shaped(noisy.clamp(-1.0, 1.0)), state, Batch())
        noise = gumbel(torch.rand(outputs.shape, generator=rng, device=device))
        drawn = self._best(outputs + noise, legal)
        uniform = torch.rand(outputs.shape, generator=rng, device=device).masked_fill(~legal, -1.0).argmax(-1)
        explores = torch.rand(drawn.shape, generator=rng, device=device) < self.explore.epsilon(clock)
        return Act(torch.where(explores, uniform, drawn), state, Batch())

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """The log-probabilities [T, B] of the choices of all agents that are there. Raises UserError for numbers, which
        are noisy and clipped, and for another exploration."""
        action: Tensor = batch["action"]  # type: ignore[assignment]
        asked, rows = self.explorer.mode(mode), Batch(obs=batch["obs"][: len(action)], action=action)
        if self.continuous or self.explorer.stand_in(asked, clock) is not None:
            return super().log_prob(batch, mode, clock)
        flat = rows.map(lambda x: x.flatten(0, 1))
        obs: Batch = flat["obs"]  # type: ignore[assignment]
        legal = self.legal(obs)
        logits = legal_logits(self.outputs(self.actors, self.seen(obs)), legal)
        if asked == "greedy":
            chances = torch.nn.functional.one_hot(logits.argmax(-1), self.size).float()
        else:
            epsilon = self.explore.epsilon(clock)
            chances = epsilon * legal / legal.sum(-1, keepdim=True) + (1.0 - epsilon) * logits.softmax(-1)
        each = chances.gather(-1, flat["action"].unsqueeze(-1)).squeeze(-1).log()  # type: ignore[union-attr, arg-type]
        return each.masked_fill(~obs["alive"].bool(), 0.0).sum(-1).view(action.shape[:2])  # type: ignore[union-attr, arg-type]

    def explored(self, clock: Clock) -> dict[str, float]:
        """Returns the schedule's epsilon or scale of the noise as a metric."""
        if self.continuous:
            return self.explorer.measured("noise_scale", lambda: self.explore.scale(clock))
        return self.explorer.measured("epsilon", lambda: self.explore.epsilon(clock))
