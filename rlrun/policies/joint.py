"""A policy for all agents of an environment, which share one network of action values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, EnvSpec
from rlrun.models.encoders import flat_size, flatten
from rlrun.models.heads import QHeadConfig
from rlrun.models.model import Model
from rlrun.policies.exploration import Explorer, ValueExplorationConfig
from rlrun.policies.noise import ladder


class JointQPolicy(Policy):
    """Every agent takes its best action, or with probability epsilon a random legal one, by itself.

    An agent's network sees its own observation and, if asked for, which agent it is and its last action (one-hot, as in
    PyMARL). Observations are flattened, so images are not meant."""

    def __init__(self, spec: Any, model: Model, head: QHeadConfig, explorer: Explorer, agent_id: bool):
        """spec: an envs.joint.JointSpec."""
        super().__init__()
        if not isinstance(explorer.cfg, ValueExplorationConfig) or explorer.cfg.kind != "epsilon_greedy":
            raise UserError(f"exploration.kind={explorer.cfg.kind} is for one agent; several explore by epsilon_greedy")
        if model.cfg.observation_filter != "none":
            raise UserError("model.observation_filter is for algorithms that learn each agent by itself; use none")
        if spec.agent.image:
            raise UserError(f"{spec.name} shows images, and this policy takes vectors")
        if head.noisy:
            raise UserError("head.noisy is for one agent; several explore by epsilon_greedy")
        self.spec, self.explorer, self.explore, self.agent_id = spec, explorer, explorer.cfg, agent_id
        self.agents, self.actions = len(spec.agents.names), spec.agent.action.n
        self.last_action = "prev_action" in spec.obs
        inputs = flat_size(spec.agent.observation) + agent_id * self.agents + self.last_action * self.actions
        seen = Box(shape=(inputs,), dtype="float32", low=(-np.inf,), high=(np.inf,))
        own: EnvSpec = replace(spec.agent, obs={"observation": seen})
        self.trunk = model.trunk(own, flat=not head.encoder_layer)
        self.head = model.q_head(own, self.trunk, head)
        self.register_buffer("numbers", torch.eye(self.agents), persistent=False)

    def core_spec(self) -> RowSpec:
        return {
            name: Field((self.agents, *field.shape), field.dtype)  # type: ignore[union-attr]
            for name, field in self.trunk.core_spec().items()
        }

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows q_taken_each and q_max_each [B, N], the values of the agents' actions and of their best ones, 0 where
        an agent is not there; q_taken and q_max [B], their sums over agents; and there [B, N]."""
        known: RowSpec = {name: Field((), torch.float32) for name in ("q_taken", "q_max")}
        known |= {f"{name}_each": Field((self.agents,), torch.float32) for name in ("q_taken", "q_max")}
        known["there"] = Field((self.agents,), torch.bool)
        return {name: known[name] for name in names}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        state = {name: torch.zeros(columns, *field.shape, device=device) for name, field in self.core_spec().items()}  # type: ignore[union-attr]
        if place is not None and self.explore.epsilon_min is not None:
            state["place"] = place.to(device)
        return Batch(state)

    def inputs(self, obs: Batch) -> Tensor:
        """What the agents' networks see [T, B * N, D] of obs [T, B, ...]."""
        rows, columns = obs["alive"].shape[:2]
        count, seen = rows * columns * self.agents, obs["observation"]
        flat = flatten(self.spec.agent.observation, seen.reshape(count, *seen.shape[3:]))  # type: ignore[union-attr]
        parts = [flat.view(rows * columns, self.agents, -1)]
        if self.last_action:
            last = obs["prev_action"].flatten(0, 1)  # type: ignore[union-attr]
            known = ~obs["is_first"].bool().reshape(-1, 1, 1)  # type: ignore[union-attr]
            parts.append(torch.nn.functional.one_hot(last, self.actions).float() * known)
        if self.agent_id:
            parts.append(self.numbers.expand(rows * columns, -1, -1))  # type: ignore[operator, arg-type]
        return torch.cat(parts, -1).view(rows, columns * self.agents, -1)

    def forward(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """Returns the agents' action values [T, B, N, A], in which those of illegal actions are far below all others,
        and the state after the last row. obs is [T, B, ...], state the one before row 0 [B, N, ...]."""
        rows, columns = is_first.shape
        seen = Batch(observation=self.inputs(obs.replace(is_first=is_first)))
        core = Batch({name: state[name].flatten(0, 1) for name in self.trunk.core_spec()})  # type: ignore[union-attr]
        features, after = self.trunk(seen, self._begins(obs, is_first).flatten(1), core)
        q = self.head(features).squeeze(-1).view(rows, columns, self.agents, self.actions)
        if "action_mask" in obs:
            legal = obs["action_mask"].bool().view(q.shape)  # type: ignore[union-attr]
            q = q.masked_fill(~legal & legal.any(-1, keepdim=True), torch.finfo(q.dtype).min)
        alive = obs["alive"][-1].bool()  # [B, N]
        after = after.map(lambda x: x.unflatten(0, (columns, self.agents)))
        return q, after.map(lambda x: x.masked_fill(~alive.view(*alive.shape, *[1] * (x.ndim - 2)), 0))

    def _begins(self, obs: Batch, is_first: Tensor) -> Tensor:
        """Tells whose memory begins anew at which rows [T, B, N]: that of all agents in an episode's first row, and
        that of an agent which is there and was not in the row before. Before row 0, forward() has emptied it."""
        alive = obs["alive"].bool()
        joins = torch.cat([torch.zeros_like(alive[:1]), alive[1:] & ~alive[:-1]])  # type: ignore[operator]
        return is_first.unsqueeze(-1) | joins

    @staticmethod
    def _chosen(action: Tensor, obs: Batch) -> Tensor:
        """The agents' actions [B, N], which are number 0 for those that are not there, as if it were their only legal
        one. One that joins later is told this as its last action."""
        return action.masked_fill(~obs["alive"].bool(), 0)  # type: ignore[operator]

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
        values, after = self(obs.map(lambda x: x.unsqueeze(0)), is_first.unsqueeze(0), state)
        q = values[0]  # [B, N, A]
        draws = torch.rand(q.shape, generator=rng, device=q.device)
        if "action_mask" in obs:
            draws = draws.masked_fill(~obs["action_mask"].bool().view(q.shape), -1.0)  # type: ignore[union-attr]
        epsilon = self._epsilon(mode, state, clock)
        explores = torch.rand(q.shape[:2], generator=rng, device=q.device) < epsilon
        action = self._chosen(torch.where(explores, draws.argmax(-1), q.argmax(-1)), obs)
        alive = obs["alive"].bool()
        each = {
            "q_taken": q.gather(-1, action.unsqueeze(-1)).squeeze(-1).masked_fill(~alive, 0.0),  # type: ignore[arg-type]
            "q_max": q.max(-1).values.masked_fill(~alive, 0.0),  # type: ignore[arg-type]
        }
        told: dict[str, Any] = {name: value.sum(-1) for name, value in each.items()}
        told |= {f"{name}_each": value for name, value in each.items()} | {"there": alive}
        return Act(
            action, Batch(dict(state.items()) | dict(after.items())), Batch({name: told[name] for name in record})
        )

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        q, after = self(obs.map(lambda x: x.unsqueeze(0)), is_first.unsqueeze(0), state)
        return self._chosen(q[0].argmax(-1), obs), after

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        """The log-probabilities [T, B] of the choices of all agents that are there."""
        asked, mode, action = mode, self.explorer.mode(mode), batch["action"]
        obs: Batch = batch["obs"][: len(action)]  # type: ignore[assignment]
        q, _ = self(obs, batch["is_first"][: len(action)], self.state_before(batch))  # [T, B, N, A]
        legal = torch.ones_like(q)
        if "action_mask" in obs:
            mask = obs["action_mask"].bool().view(q.shape)  # type: ignore[union-attr]
            legal = (mask | ~mask.any(-1, keepdim=True)).to(q.dtype)
        best = torch.nn.functional.one_hot(q.argmax(-1), self.actions)
        epsilon = self._epsilon(asked, Batch(), clock)
        chances = epsilon * legal / legal.sum(-1, keepdim=True) + (1.0 - epsilon) * best
        each = chances.gather(-1, action.unsqueeze(-1)).squeeze(-1).log()  # type: ignore[union-attr, arg-type]
        return each.masked_fill(~obs["alive"].bool(), 0.0).sum(-1)  # type: ignore[union-attr, arg-type]

    def _epsilon(self, asked: Mode, state: Batch, clock: Clock) -> float | Tensor:
        """Returns the probability with which an agent acts at random [B, 1], or one for all columns."""
        if self.explorer.mode(asked) != "explore":
            return self.explore.eval_epsilon if asked == "greedy" else 0.0
        if clock.env_steps < self.explorer.random_steps:
            return 1.0
        place = state["place"] if "place" in state else None
        epsilon = ladder(self.explore.epsilon(clock), self.explore.epsilon_min, place)  # type: ignore[arg-type]
        return epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) else epsilon

    def explored(self, clock: Clock) -> dict[str, float]:
        """Returns the schedule's epsilon as a metric."""
        return self.explorer.measured("epsilon", lambda: self.explore.epsilon(clock))
