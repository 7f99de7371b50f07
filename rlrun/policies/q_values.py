"""Policies that act on action values."""

from __future__ import annotations

import math

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
from rlrun.policies.distribution import without_meaning
from rlrun.policies.exploration import ExplorationConfig
from rlrun.policies.noise import NoisyEpisodes, ladder


class QPolicy(FiltersObservations, Policy):
    """Acts on action values: the best action, or a random one with probability epsilon; one drawn by softmax (soft Q); or the best of values whose network
    is disturbed for an episode (parameter noise, Plappert et al. 2018, arXiv:1706.01905). Illegal actions are never chosen.

    Algorithms of distributions override q()."""

    remembers = False  # whether it can have memory

    def __init__(self, spec: EnvSpec, model: Model, head: QHeadConfig, explore: ExplorationConfig, atoms: int = 1):
        super().__init__()
        if model.cfg.memory.kind != "none" and not self.remembers:
            raise UserError("this algorithm learns from single rows: a model with memory (lstm, gru, gtrxl) is for algo=r2d2")
        self.spec, self.explore, self.noisy = spec, explore, head.noisy
        self.filter = model.filter(spec)
        self.trunk = model.trunk(spec, flat=not head.encoder_layer)
        self.head = model.q_head(spec, self.trunk, head, atoms)
        self.embedding = model.cfg.action_embedding  # part of the observation that says what actions mean
        self.episodes = NoisyEpisodes(self, explore.noise_std) if explore.kind == "parameter_noise" else None

    def core_spec(self) -> RowSpec:
        return self.trunk.core_spec()

    def record_spec(self, names: tuple[str, ...]) -> RowSpec:
        """q_taken and q_max [B]: values of the action taken and of the best one."""
        known: RowSpec = {"q_taken": Field((), torch.float32), "q_max": Field((), torch.float32)}
        return {name: known[name] for name in names}

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        device = next(self.parameters()).device
        state = {name: torch.zeros(columns, *field.shape, device=device) for name, field in self.core_spec().items()}  # type: ignore[union-attr]
        if place is not None and self.explore.epsilon_min is not None:
            state["place"] = place.to(device)
        if place is not None and self.episodes is not None:
            state |= self.episodes.state(columns, device)
        return Batch(state)

    def outputs(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """obs [T, B, ...] from the state before row 0 -> [T, B, A, K] and the state after the last row."""
        obs, meaning = without_meaning(self.seen(obs), self.embedding)
        features, after = self.trunk(obs, is_first, state)
        made = self.head(features)  # [T, B, A, K], or E numbers in place of A
        return made if meaning is None else meaning @ made, after

    def q(self, outputs: Tensor) -> Tensor:
        """[..., A, K] -> action values [..., A]."""
        return outputs.mean(-1)

    def legal_q(self, outputs: Tensor, obs: Batch) -> Tensor:
        """Action values [..., A], those of illegal actions far below all others. An observation that leaves none legal (an end) keeps its values."""
        q = self.q(outputs)
        if "action_mask" not in obs:
            return q
        legal = obs["action_mask"].bool()
        return q.masked_fill(~legal & legal.any(-1, keepdim=True), torch.finfo(q.dtype).min)

    def forward(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor, Batch]:
        """legal_q [T, B, A] and the state after the last row."""
        outputs, after = self.outputs(obs, is_first, state)
        return self.legal_q(outputs, obs), after

    def numbers(self, rows: Batch) -> Tensor:
        """rows of obs and is_first [T, B, ...] -> outputs [T, B, A, K], without memory."""
        return self.outputs(rows["obs"], rows["is_first"], Batch())[0]

    def values(self, rows: Batch) -> Tensor:
        """rows of obs and is_first [T, B, ...] -> legal_q [T, B, A], without memory."""
        return self(rows["obs"], rows["is_first"], Batch())[0]

    def explored(self, clock: Clock) -> dict[str, float]:
        """The schedule's epsilon, as a metric."""
        return {"epsilon": self.explore.epsilon(clock)}

    def act(self, obs: Batch, is_first: Tensor, state: Batch, clock: Clock, mode: Mode, rng: torch.Generator, record: tuple[str, ...] = ()) -> Act:
        draw_noise(self, rng if mode == "explore" else None)
        rows = obs.map(lambda x: x.unsqueeze(0))
        core = Batch({name: state[name] for name in self.core_spec()})
        q, after = self(rows, is_first.unsqueeze(0), core)
        q, carried = q[0], dict(state.items()) | dict(after.items())
        chosen = q
        if "noise" in state and mode == "explore":
            chosen, changed = self._disturbed(obs, is_first, state, q, rng)
            carried |= changed
        soft = mode == "explore" and self.explore.kind == "soft_q"
        best = (chosen / self.explore.temperature).softmax(-1).multinomial(1, generator=rng).squeeze(-1) if soft else chosen.argmax(-1)
        epsilon = self.epsilon(state, clock) if mode == "explore" else self.explore.eval_epsilon
        draws = torch.rand(q.shape, generator=rng, device=q.device)
        if "action_mask" in obs:
            draws = draws * obs["action_mask"].bool()  # the largest of random numbers is a fair draw among legal actions
        explores = torch.rand(q.shape[0], generator=rng, device=q.device) < epsilon
        action = torch.where(explores, draws.argmax(-1), best)
        known = {"q_taken": lambda: q.gather(1, action.unsqueeze(1)).squeeze(1), "q_max": lambda: q.max(-1).values}
        return Act(action, Batch(carried), Batch({name: known[name]() for name in record}))

    def greedy(self, obs: Batch, is_first: Tensor, state: Batch) -> tuple[Tensor | Batch, Batch]:
        """Of noisy layers the means, if draw_noise(policy, None) came before."""
        q, after = self(obs.map(lambda x: x.unsqueeze(0)), is_first.unsqueeze(0), state)
        return q[0].argmax(-1), after

    def recordable(self, what: Pass) -> bool:
        """Only epsilon-greedy acting is: parameter noise draws for those columns that begin an episode, and soft Q draws from probabilities."""
        return what == "learning" or self.explore.kind == "epsilon_greedy"

    def epsilon(self, state: Batch, clock: Clock) -> float | Tensor:
        """Of every column [B], or of all."""
        return ladder(self.explore.epsilon(clock), self.explore.epsilon_min, state["place"] if "place" in state else None)

    def _disturbed(self, obs: Batch, is_first: Tensor, state: Batch, q: Tensor, rng: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Values [B, A] of networks disturbed for an episode each, and what their columns carry on. They are kept as far from the greedy policy as an
        epsilon-greedy one is (section 3, appendix C)."""
        assert self.episodes is not None
        explore, actions = self.explore, q.shape[-1]
        near = -math.log(1 - explore.noise_epsilon + explore.noise_epsilon / actions)
        noise, deviation = self.episodes.begin(state, is_first, near, lambda mean: mean, rng)
        disturbed = self.episodes.outputs(obs, is_first, noise * deviation.unsqueeze(1))
        log_p, log_q = q.log_softmax(-1), disturbed.log_softmax(-1)
        return disturbed, self.episodes.note(state, is_first, noise, deviation, (log_p.exp() * (log_p - log_q)).sum(-1))


class CategoricalPolicy(QPolicy):
    """Of distributions over fixed values from v_min to v_max (Bellemare et al. 2017): the head's numbers are logits, an action's value is the mean."""

    def __init__(self, spec: EnvSpec, model: Model, head: QHeadConfig, explore: ExplorationConfig, num_atoms: int, v_min: float, v_max: float):
        super().__init__(spec, model, head, explore, num_atoms)
        self.register_buffer("atoms", torch.linspace(v_min, v_max, num_atoms))
        self.atoms: Tensor

    def q(self, outputs: Tensor) -> Tensor:
        return (outputs.softmax(-1) * self.atoms).sum(-1)
