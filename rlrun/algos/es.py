"""ES: evolution strategies (Salimans et al. 2017, arXiv:1703.03864, algorithm 2).

The implementation follows OpenAI's evolution-strategies-starter.

Rows: none. An update reads the returns of pairs of mirrored perturbations: noise_std times a slice of a shared noise
table is added to the policy's parameters for one return and subtracted from them for the other.
Options: return_processing: the centred rank of every return (section 2.1), the sum of the signs of an episode's
rewards, or the centred rank of that sum; l2; action_noise; model.observation_filter, which is merged over all
samplers.
Differs from the paper: there is no virtual batch normalisation. Slices of the table are drawn anew for every update
instead of by each sampler for itself.
Metrics: learn/perturbed_return: mean over all perturbations; perturbed_return_max; report_return: mean of the last
report_length unperturbed episodes; update_ratio: norm of the step's gradient (with weight decay) divided by the norm
of the parameters, or 0 while these are all 0; rollouts: number of pairs; grad_norm; lr.
Checked: tests/algos/test_es.py (the centred rank, gradient by hand), tests/runners/test_evolution.py, tuned/es/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.evolution import FromPopulation, NoiseTable
from rlrun.core.ranges import NotNegative
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.evolution import ACTIONS, EvolutionConfig, report_return, weighed_noise
from rlrun.models.model import Model
from rlrun.policies import PerturbedPolicy


@dataclass(frozen=True, kw_only=True)
class Config(EvolutionConfig):
    episodes_per_batch: int
    env_steps_per_batch: Annotated[int, NotNegative]
    return_processing: Literal["centered_rank", "sign", "centered_sign_rank"]
    l2: Annotated[float, NotNegative]

    def __post_init__(self):
        if self.episodes_per_batch < 2 or self.episodes_per_batch % 2:
            raise ValueError("episodes_per_batch must be an even number, at least 2: episodes come in mirrored pairs")


def centered_ranks(x: Tensor) -> Tensor:
    """Returns every element's rank, evenly spaced over [-0.5, 0.5]. Equal elements share their mean rank."""
    flat = x.flatten()
    _, index, count = flat.unique(return_inverse=True, return_counts=True)
    first = count.cumsum(0) - count
    rank = (first + 0.5 * (count - 1)).to(x.dtype)[index]
    return (rank / max(1, len(flat) - 1) - 0.5).view_as(x)


class ES(Algorithm):
    cfg: Config
    policy: PerturbedPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        asked = FromPopulation(
            pairs=cfg.episodes_per_batch // 2,
            min_env_steps=cfg.env_steps_per_batch,
            noise_std=cfg.noise_std,
            noise_size=cfg.noise_size,
            eval_share=cfg.eval_share,
            action_noise=cfg.action_noise,
            reward_signs=cfg.return_processing != "centered_rank",
        )
        return Needs(rows=1, columns=1, actions=ACTIONS, population=asked)

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> PerturbedPolicy:
        return PerturbedPolicy(spec, model, cfg.actor)

    def __init__(self, policy: PerturbedPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.optimizer = ctx.optimizer(policy.net.parameters(), cfg.optimizer, cfg.lr, 0.0)
        self.noise: NoiseTable | None = None
        # returns of the unperturbed policy's last episodes
        self.register_buffer("latest", torch.full((cfg.report_length,), torch.nan))
        self.latest: Tensor

    def attach_noise(self, noise: NoiseTable) -> None:
        """Sets the table that the batch's offsets point into. The runner calls it."""
        self.noise = noise

    def update(self, batch: Batch, clock: Clock) -> Update:
        assert self.noise is not None
        cfg, fitness = self.cfg, batch.fitness  # [N, 2]
        shaped = fitness if cfg.return_processing == "sign" else centered_ranks(fitness)
        weight = shaped[:, 0] - shaped[:, 1]
        gradient = weighed_noise(self.noise, self.policy.size, weight, batch.offset) / (2 * len(weight))
        vector = self.policy.vector()  # [P], differentiable
        gradient = gradient.to(vector.device)
        size = vector.detach().norm()
        ratio = (gradient - cfg.l2 * vector.detach()).norm() / size
        ratio = torch.where(size > 0, ratio, torch.zeros_like(ratio))  # linear policies begin at exactly 0
        # Descending on this loss ascends along gradient - l2 * vector.
        steps = self.optimizer.step(0.5 * cfg.l2 * vector.square().sum() - gradient @ vector, clock)
        metrics = {
            "perturbed_return": batch.ret.mean(),
            "perturbed_return_max": batch.ret.max(),
            "update_ratio": ratio,
            "rollouts": float(len(weight)),
        }
        return Update({**metrics, **report_return(self.latest, batch.evaluation), **steps})
