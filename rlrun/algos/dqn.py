"""DQN: deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236), with the options of its field.

Rows: fragments of n_step rows from replay, folded into single transitions.
Recorded: with input_priorities q_taken and q_max, for the first priorities.
Options: double (van Hasselt et al. 2016, arXiv:1509.06461, eq. 4), head.dueling (Wang et al. 2016), head.noisy (Fortunato et al. 2018), n_step, fixed or
drawn from a range (Sutton 1988), replay=prioritized (Schaul et al. 2016); exploration.kind: epsilon_greedy, soft_q or parameter_noise.
Differs from the paper: Adam; the target net is copied after so many updates, or follows by Polyak steps (target_tau).
Metrics: learn/loss: mean of weighted losses; td_error: mean |target - Q|; q: mean value of the actions taken; target; epsilon: the schedule's;
grad_norm before clipping; lr.
Checked: tests/algos/test_dqn.py (targets by hand), tests/ops/test_td.py, tests/replay/, tuned/dqn/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rlrun.core.batch import Batch
from rlrun.core.q_learning import QConfig
from rlrun.core.ranges import Positive
from rlrun.models.noisy import draw_noise
from rlrun.ops.returns import fold_n_step
from rlrun.ops.td import huber, taken
from rlrun.ops.transforms import clip_reward
from rlrun.policies import QLearning


@dataclass(frozen=True, kw_only=True)
class Config(QConfig):
    double: bool
    huber_delta: Annotated[float, Positive] | None


class DQN(QLearning):
    cfg: Config

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """batch [n, B] with obs [2, B] -> loss [], sizes of TD errors [B], metrics."""
        cfg, ends = self.cfg, batch.ends()
        reward, discount = fold_n_step(clip_reward(batch.reward, cfg.reward_clip), batch.terminated, batch.valid, cfg.discount)
        for policy in (self.policy, self.target):
            draw_noise(policy, self.ctx.rng)
        with torch.no_grad():
            next_q = self.target.values(ends[1:])[0]  # [B, A]
            if cfg.double:
                best = self.policy.values(ends[1:])[0].argmax(-1)
                next_value = taken(next_q, best)
                draw_noise(self.policy, self.ctx.rng)  # noise of its own for every use (Fortunato et al. 2018, section 3.1)
            else:
                next_value = next_q.max(-1).values
            target = reward + discount * next_value
        q = taken(self.policy.values(ends[:1])[0], batch.action[0])  # [B]
        td_error = target - q
        loss = self.mean(batch.weight * huber(td_error, cfg.huber_delta))
        priority = td_error.detach().abs()
        return loss, priority, {"loss": loss, "td_error": self.mean(priority), "q": self.mean(q), "target": self.mean(target)}
