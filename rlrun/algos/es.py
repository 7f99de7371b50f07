"""ES: evolution strategies (Salimans et al. 2017, arXiv:1703.03864, algorithm 2), after OpenAI's evolution-strategies-starter.

Rows: none. An update reads the returns of mirrored perturbations: the policy's parameters moved by noise_std times a piece of a shared noise table, and moved
the other way.
Options: return_processing: centred ranks of all returns (section 2.1), sums over an episode of its rewards' signs, or centred ranks of those; l2;
action_noise; model.observation_filter, merged over all samplers.
Differs from the paper: no virtual batch normalisation; pieces of the table are drawn anew for every update, not by each sampler for itself.
Metrics: learn/perturbed_return: mean over all perturbations; perturbed_return_max; report_return: mean of the last report_length unperturbed episodes;
update_ratio: size of the step's gradient with weight decay over that of the parameters; rollouts: pairs; grad_norm; lr.
Checked: tests/algos/test_es.py (ranks and gradient by hand), tests/runners/test_evolution.py, tuned/es/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from rlrun.core.algorithm import Update
from rlrun.core.batch import Batch
from rlrun.core.evolution import FromPopulation
from rlrun.core.ranges import NotNegative
from rlrun.core.schedule import Clock
from rlrun.policies import Evolution, EvolutionConfig


@dataclass(frozen=True, kw_only=True)
class Config(EvolutionConfig):
    episodes_per_batch: int
    env_steps_per_batch: Annotated[int, NotNegative]
    return_processing: Literal["centered_rank", "sign", "centered_sign_rank"]
    l2: Annotated[float, NotNegative]

    def __post_init__(self):
        if self.episodes_per_batch < 2 or self.episodes_per_batch % 2:
            raise ValueError("episodes_per_batch must be an even number from 2: every perturbation is played both ways")


def centered_ranks(x: Tensor) -> Tensor:
    """Ranks of all elements, evenly spaced over [-0.5, 0.5]; equal ones share the mean of theirs."""
    flat = x.flatten()
    _, index, count = flat.unique(return_inverse=True, return_counts=True)
    first = count.cumsum(0) - count
    rank = (first + 0.5 * (count - 1)).to(x.dtype)[index]
    return (rank / max(1, len(flat) - 1) - 0.5).view_as(x)


class ES(Evolution):
    cfg: Config

    @classmethod
    def asked(cls, cfg: Config) -> FromPopulation:
        return FromPopulation(pairs=cfg.episodes_per_batch // 2, min_env_steps=cfg.env_steps_per_batch, noise_std=cfg.noise_std, noise_size=cfg.noise_size,
                              eval_share=cfg.eval_share, action_noise=cfg.action_noise, reward_signs=cfg.return_processing != "centered_rank")  # fmt: skip

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, fitness = self.cfg, batch.fitness  # [N, 2]
        shaped = fitness if cfg.return_processing == "sign" else centered_ranks(fitness)
        weight = shaped[:, 0] - shaped[:, 1]
        gradient = self.weighed(weight, batch.offset) / (2 * len(weight))
        vector = self.policy.vector().detach()
        ratio = (gradient.to(vector.device) - cfg.l2 * vector).norm() / vector.norm()
        steps = self.ascend(gradient, cfg.l2, clock)
        metrics = {"perturbed_return": batch.ret.mean(), "perturbed_return_max": batch.ret.max(), "update_ratio": ratio, "rollouts": float(len(weight))}
        return Update({**metrics, **self.reported(batch.evaluation), **steps})
