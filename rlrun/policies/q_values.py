"""Policies that choose actions by their values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rlrun.core.batch import Batch, Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.policy import Act, Mode, Pass, Policy
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.models.heads import QHeadConfig
from rlrun.models.model import Model
from rlrun.models.noisy import draw_noise
from rlrun.models.normalizer import FiltersObservations
from rlrun.ops.td import taken
from rlrun.policies.distribution import without_meaning
from rlrun.policies.exploration import Explorer, ValueExplorationConfig, softened
from rlrun.policies.noise import NoisyEpisodes, ladder


class QPolicy(FiltersObservations, Policy):
    """Chooses actions by their values and never chooses illegal ones.

    It takes the best action, or a random one with probability epsilon; an action drawn by softmax (soft Q); or the best
    action of a network whose parameters are perturbed for an episode (parameter noise, Plappert et al. 2018,
    arXiv:1706.01905). Subclasses that predict distributions override q()."""

    remembers = False  # whether the policy may have memory

    def __init__(self, spec: EnvSpec, model: Model, head: QHeadConfig, explorer: Explorer, atoms: int = 1):
        super().__init__()
        if model.cfg.memory.kind != "none" and not self.remembers:
            raise UserError(
                "this algorithm learns from single rows; for a model with memory (lstm, gru, gtrxl) use algo=r2d2"
            )
        assert isinstance(explorer.cfg, ValueExplorationConfig)
        self.spec, self.explorer, self.explore, self.noisy = spec, explorer, explorer.cfg, head.noisy
        if model.cfg.memory.kind != "none" and self.explore.kind == "parameter_noise":
            raise UserError(
                "exploration.kind=parameter_noise perturbs networks without memory; with one, use epsilon_greedy or"
                " soft_q, or head.noisy=true"
            )
        self.filter = model.filter(spec)
        self.trunk = model.trunk(spec, flat=not head.encoder_layer)
        self.head = model.q_head(spec, self.trunk, head, atoms)
        self.embedding = model.action_embedding  # name of the observation part that describes the actions
        self.episodes = NoisyEpisodes(self, self.explore.noise_std) if self.explore.kind == "parameter_noise" else None

    def core_spec(self) -> RowSpec:
        return self.trunk.core_spec()

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows q_taken and q_max [B], the values of the action taken and of the best action, and log_prob [B]. It is
        NaN where it has no formula: exploring by noise in parameters, noisy layers, or an exploration that gives
        none."""
        known: RowSpec = {name: Field((), torch.float32) for name in ("q_taken", "q_max", "log_prob")}
        return {name: known[name] for name in names}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        state = {name: torch.zeros(columns, *field.shape, device=device) for name, field in self.core_spec().items()}  # type: ignore[union-attr]
        if place is not None and self.explore.epsilon_min is not None:
            state["place"] = place.to(device)
        if self.episodes is not None:
            state |= self.episodes.state(columns, device)
        return Batch(state | self.explorer.initial_state(columns, place, device))

    def outputs(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """Returns outputs [T, B, A, K] and the state after the last row.

        obs is [T, B, ...], state the one before row 0."""
        obs, meaning = without_meaning(self.seen(obs), self.embedding)
        features, after = self.trunk(obs, is_first, state)
        made = self.head(features)  # [T, B, A, K], or [T, B, E, K] if the observation describes the actions
        return made if meaning is None else meaning @ made, after

    def q(self, outputs: Tensor) -> Tensor:
        """Converts outputs [..., A, K] to action values [..., A]."""
        return outputs.mean(-1)

    def legal_q(self, outputs: Tensor, obs: Batch) -> Tensor:
        """Returns action values [..., A], in which those of illegal actions are far below all others.

        If an observation makes every action illegal (at an end), its values are unchanged."""
        q = self.q(outputs)
        if "action_mask" not in obs:
            return q
        legal = obs["action_mask"].bool()
        return q.masked_fill(~legal & legal.any(-1, keepdim=True), torch.finfo(q.dtype).min)

    def forward(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """Returns legal_q [T, B, A] and the state after the last row."""
        outputs, after = self.outputs(obs, is_first, state)
        return self.legal_q(outputs, obs), after

    def head_outputs(self, rows: Batch) -> Tensor:
        """Returns what the head predicts of each action [T, B, A, K], such as the logits of K atoms or K quantiles.

        rows have obs and is_first [T, B, ...]; the network has no memory."""
        return self.outputs(rows["obs"], rows["is_first"], Batch())[0]

    def values(self, rows: Batch) -> Tensor:
        """Returns legal_q [T, B, A] of rows with obs and is_first [T, B, ...], without memory."""
        return self(rows["obs"], rows["is_first"], Batch())[0]

    def explored(self, clock: Clock) -> dict[str, float]:
        """Returns the schedule's epsilon as a metric."""
        return self.explorer.measured("epsilon", lambda: self.explore.epsilon(clock))

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
        asked, mode = mode, self.explorer.mode(mode)
        draw_noise(self, rng if mode == "explore" else None)
        rows = obs.map(lambda x: x.unsqueeze(0))
        core = Batch({name: state[name] for name in self.core_spec()})
        outputs, after = self.outputs(rows, is_first.unsqueeze(0), core)
        q, carried = self.legal_q(outputs, rows)[0], dict(state.items()) | dict(after.items())
        who = self.explorer.stand_in(mode, clock)
        if who is not None:
            action, log_prob, changed = self.explorer.choose(who, q, obs, is_first, state, clock, rng)
            return Act(action, Batch(carried | changed), self._told(record, outputs[0], q, action, log_prob))
        chosen = q
        if self.episodes is not None and mode == "explore":
            chosen, changed = self._disturbed(obs, is_first, state, q, rng)
            carried |= changed
        soft = mode == "explore" and self.explore.kind == "soft_q"
        best = (
            softened(chosen, self.explore.temperature).softmax(-1).multinomial(1, generator=rng).squeeze(-1)
            if soft
            else chosen.argmax(-1)
        )
        epsilon = self._epsilon(asked, state, clock)
        draws = torch.rand(q.shape, generator=rng, device=q.device)
        if "action_mask" in obs:
            draws = draws.masked_fill(~obs["action_mask"].bool(), -1.0)  # type: ignore[union-attr, operator]
            # The argmax of random numbers draws legal actions uniformly.
        explores = torch.rand(q.shape[0], generator=rng, device=q.device) < epsilon
        action = torch.where(explores, draws.argmax(-1), best)
        log_prob = None
        if "log_prob" in record and self._known(mode):
            log_prob = taken(self._chances(q, obs, mode, epsilon), action).log()
        return Act(action, Batch(carried), self._told(record, outputs[0], q, action, log_prob))

    def _told(
        self, names: tuple[str, ...], outputs: Tensor, q: Tensor, action: Tensor, log_prob: Tensor | None
    ) -> Batch:
        unknown = torch.full_like(q[:, 0], math.nan) if log_prob is None else log_prob
        return Batch(
            {name: unknown if name == "log_prob" else self.recorded(name, outputs, q, action) for name in names}
        )

    def _epsilon(self, asked: Mode, state: Batch, clock: Clock) -> float | Tensor:
        """Returns the probability of a random action [B], or one for all columns."""
        if self.explorer.mode(asked) == "explore":
            return self.epsilon(state, clock)
        return self.explore.eval_epsilon if asked == "greedy" else 0.0  # training without exploration has none

    def _known(self, mode: Mode) -> bool:
        """Whether the probabilities of actions have a formula."""
        return mode == "greedy" or (self.episodes is None and not self.noisy)

    def _chances(self, q: Tensor, obs: Batch, mode: Mode, epsilon: float | Tensor) -> Tensor:
        """Returns the probabilities [..., A] of all actions, of legal_q [..., A] and epsilon [...]. Where an
        observation makes every action illegal (at an end), it is as if all were legal."""
        if mode == "explore" and self.explore.kind == "soft_q":
            best = softened(q, self.explore.temperature).softmax(-1)
        else:
            best = torch.nn.functional.one_hot(q.argmax(-1), q.shape[-1]).to(q.dtype)
        legal = torch.ones_like(q)
        if "action_mask" in obs:
            mask = obs["action_mask"].bool()
            legal = (mask | ~mask.any(-1, keepdim=True)).to(q.dtype)
        share = epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) and epsilon.ndim else epsilon
        return share * legal / legal.sum(-1, keepdim=True) + (1.0 - share) * best

    def log_prob(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        action: Tensor = batch["action"]  # type: ignore[assignment]
        kept = batch.replace(obs=batch["obs"][: len(action)], is_first=batch["is_first"][: len(action)])
        return self.log_probs(kept, mode, clock).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def log_probs(self, batch: Batch, mode: Mode, clock: Clock) -> Tensor:
        asked, mode, obs = mode, self.explorer.mode(mode), batch["obs"]
        if not self._known(mode):
            raise UserError(
                f"actions explored by {'noisy layers' if self.noisy else 'noise in parameters'} have no known"
                " probabilities; greedy=true judges greedy actions instead"
            )
        draw_noise(self, None)
        q, _ = self(obs, batch["is_first"], self.state_before(batch))
        who = self.explorer.stand_in(mode, clock)
        if who is not None:
            actions = (torch.full(q.shape[:2], choice, device=q.device) for choice in range(q.shape[-1]))
            return torch.stack([self.explorer.log_prob(who, q, obs, action, clock) for action in actions], -1)
        return self._chances(q, obs, mode, self._epsilon(asked, Batch(), clock)).log()

    def recorded(self, name: str, outputs: Tensor, q: Tensor, action: Tensor) -> Tensor:
        """Returns what record_spec() calls `name` [B, ...], from outputs [B, A, K], values q [B, A] and action [B]."""
        return q.max(-1).values if name == "q_max" else taken(q, action)

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        """Returns the best actions. Noisy layers use their means if draw_noise(policy, None) was called before."""
        q, after = self(obs.map(lambda x: x.unsqueeze(0)), is_first.unsqueeze(0), state)
        return q[0].argmax(-1), after

    def recordable(self, what: Pass) -> bool:
        """Returns true for learning and for epsilon-greedy acting.

        Parameter noise draws only for the columns that begin an episode, and soft Q draws from probabilities; neither
        can be recorded."""
        own = self.explore.kind in ("epsilon_greedy", "random") or not self.explorer.explores
        return what == "learning" or (own and self.explorer.recordable)

    def epsilon(self, state: Batch, clock: Clock) -> float | Tensor:
        """Returns every column's epsilon [B], or one epsilon for all."""
        return ladder(
            self.explore.epsilon(clock), self.explore.epsilon_min, state["place"] if "place" in state else None
        )

    def _disturbed(
        self, obs: Batch, is_first: Tensor, state: Batch, q: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the values [B, A] of perturbed networks, and the changed part of the columns' state.

        The noise is adapted so that a perturbed policy is as far from the greedy one as an epsilon-greedy policy is
        (Plappert et al. 2018, section 3, appendix C)."""
        assert self.episodes is not None
        explore, actions = self.explore, q.shape[-1]
        near = -math.log(1 - explore.noise_epsilon + explore.noise_epsilon / actions)
        noise, deviation = self.episodes.begin(state, is_first, near, lambda mean: mean, rng)
        disturbed = self.episodes.outputs(obs, is_first, noise * deviation.unsqueeze(1))
        log_p, log_q = q.log_softmax(-1), disturbed.log_softmax(-1)
        return disturbed, self.episodes.note(state, is_first, noise, deviation, (log_p.exp() * (log_p - log_q)).sum(-1))


class CategoricalPolicy(QPolicy):
    """Predicts distributions over num_atoms fixed values from v_min to v_max (Bellemare et al. 2017).

    The head's outputs are logits; an action's value is its distribution's mean."""

    def __init__(
        self,
        spec: EnvSpec,
        model: Model,
        head: QHeadConfig,
        explorer: Explorer,
        num_atoms: int,
        v_min: float,
        v_max: float,
    ):
        super().__init__(spec, model, head, explorer, num_atoms)
        # The config says what they are. Weights of a run with other values must not bring theirs along.
        self.register_buffer("atoms", torch.linspace(v_min, v_max, num_atoms), persistent=False)
        self.atoms: Tensor

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        state_dict.pop(f"{prefix}atoms", None)  # older checkpoints have them
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def q(self, outputs: Tensor) -> Tensor:
        return (outputs.softmax(-1) * self.atoms).sum(-1)

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """Knows also log_p_taken and p_max [B, K]: the log probabilities of the atoms for the action taken, and their
        probabilities for the best action."""
        own: RowSpec = {
            name: Field(self.atoms.shape, torch.float32) for name in names if name in ("log_p_taken", "p_max")
        }
        return own | super().record_spec(tuple(name for name in names if name not in own))

    def recorded(self, name: str, outputs: Tensor, q: Tensor, action: Tensor) -> Tensor:
        if name == "p_max":
            return taken(outputs, q.argmax(-1)).softmax(-1)
        if name == "log_p_taken":
            return taken(outputs, action).log_softmax(-1)
        return super().recorded(name, outputs, q, action)
