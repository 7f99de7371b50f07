"""ARS: augmented random search (Mania et al. 2018, arXiv:1803.07055, algorithm 2).

Rows: none. An update reads the returns of pairs of mirrored perturbations and uses the rollouts_used best pairs (V1-t,
or V2-t with model.observation_filter=mean_std). A pair's weight is the difference of its two returns divided by the
standard deviation of all returns used.
Options: actor.hidden: empty for the paper's linear policies; reward_offset: subtracted from every reward, so that
merely surviving earns nothing (the paper's shift); action_noise (RLlib's).
Differs from the paper: several samplers evaluate perturbations at once. The perturbations come from one noise table,
as in the authors' code.
Metrics: learn/perturbed_return: mean over all perturbations; perturbed_return_max; report_return: mean of the last
report_length unperturbed episodes; return_std: standard deviation of the returns used; rollouts: number of pairs;
grad_norm; lr.
Checked: tests/algos/test_es.py (the step by hand), tests/runners/test_evolution.py, tuned/ars/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.evolution import FromPopulation, NoiseTable
from rlrun.core.ranges import Count
from rlrun.core.schedule import Clock
from rlrun.core.specs import EnvSpec
from rlrun.families.evolution import ACTIONS, EvolutionConfig, report_return, weighed_noise
from rlrun.models.model import Model
from rlrun.policies import PerturbedPolicy


@dataclass(frozen=True, kw_only=True)
class Config(EvolutionConfig):
    num_rollouts: Annotated[int, Count]
    rollouts_used: Annotated[int, Count]
    reward_offset: float

    def __post_init__(self):
        if self.rollouts_used > self.num_rollouts:
            raise ValueError(f"rollouts_used {self.rollouts_used} must be at most num_rollouts {self.num_rollouts}")


class ARS(Algorithm):
    cfg: Config
    policy: PerturbedPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        asked = FromPopulation(
            pairs=cfg.num_rollouts,
            min_env_steps=0,
            noise_std=cfg.noise_std,
            noise_size=cfg.noise_size,
            eval_share=cfg.eval_share,
            action_noise=cfg.action_noise,
            reward_offset=cfg.reward_offset,
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
        fitness = batch.fitness  # [N, 2]
        best = fitness.max(1).values.topk(min(self.cfg.rollouts_used, len(fitness))).indices  # line 6
        used = fitness[best]
        deviation = used.std(correction=0)
        # The clamp avoids 0 / 0: if all returns are equal, weights are 0.
        weight = (used[:, 0] - used[:, 1]) / (len(used) * deviation.clamp(min=1e-8))
        vector = self.policy.vector()  # [P], differentiable
        direction = weighed_noise(self.noise, self.policy.size, weight, batch.offset[best]).to(vector.device)
        steps = self.optimizer.step(-(direction @ vector), clock)  # line 7
        metrics = {
            "perturbed_return": batch.ret.mean(),
            "perturbed_return_max": batch.ret.max(),
            "return_std": deviation,
            "rollouts": float(len(fitness)),
        }
        return Update({**metrics, **report_return(self.latest, batch.evaluation), **steps})
