"""IQL: independent Q-learning of agents that share a network (Tan 1993; Tampuu et al. 2017, arXiv:1511.08779).

QMIX (qmix.py) without a mixer: every agent learns the value of its own actions from its own reward, as if it were
alone. PyMARL's IQL gives each agent the reward of the team; reward_of=team does the same.

Rows, differences and metrics: as in qmix.py; the loss is the mean over agents that are there.
Refused, because they are for one agent: exploration other than epsilon_greedy, head.noisy, model.observation_filter.
Recorded: q_taken_each, q_max_each and there, of every agent, with input_priorities.
Checked: tests/algos/test_qmix.py (losses by hand; a team of one is DQN to the bit), tuned/iql/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from rlrun.algos.qmix import QMIX, MixedConfig
from rlrun.core.batch import Batch
from rlrun.ops.td import huber


@dataclass(frozen=True, kw_only=True)
class Config(MixedConfig):
    reward_of: Literal["agent", "team"]


class IQL(QMIX):
    records: ClassVar[tuple[str, ...]] = ("q_taken_each", "q_max_each", "there")
    cfg: Config

    @classmethod
    def first_priority(cls, cfg: MixedConfig, rows: Batch) -> Tensor:
        """Returns priorities [N] of rows [T + 1, N]: mean |error| of the agents that are there."""
        assert isinstance(cfg, Config)
        part = rows.map(lambda x: x[cfg.burn_in :])
        there = part.there[:-1] & part.valid[:-1].unsqueeze(-1)
        now = part.map(lambda x: x[:-1])
        error = cls.returns(cfg, now, part.q_max_each[1:], part.there[:-1]) - now.q_taken_each
        return error.abs().masked_fill(~there, 0.0).sum((0, 2)) / there.sum((0, 2)).clamp(min=1)

    def make_mixer(self) -> nn.Module:
        return nn.Identity()

    def mixed(self, mixer: nn.Module, q: Tensor, state: Tensor) -> Tensor:
        """Returns the agents' own values [T, B, N] as they are, because nothing mixes them."""
        return q

    def target_of(self, rows: Batch, value: Tensor, alive: Tensor) -> Tensor:
        """Returns targets [T, B, N]: each agent's reward plus the discounted value of its own best next action."""
        return self.returns(self.cfg, rows, value, alive)

    @staticmethod
    def returns(cfg: Config, rows: Batch, value: Tensor, alive: Tensor) -> Tensor:
        """Targets [T, B, N] of each agent; value [T, B, N] is what it may reach behind each row."""
        agents = value.shape[-1]
        paid = rows.reward
        if cfg.reward_of == "team":
            paid = paid.sum(-1, keepdim=True).expand_as(paid)
        reward = cfg.learnt(paid).flatten(1)
        terminated = rows.terminated.repeat_interleave(agents, 1)
        valid = (alive & rows.valid.unsqueeze(-1)).flatten(1)
        return cfg.returns(reward, terminated, valid, value.flatten(1)).view_as(value)

    def errors(
        self, td_error: Tensor, target: Tensor, rows: Batch, alive: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Returns the loss, priorities and metrics of the agents' TD errors [T, B, N]."""
        there = alive & rows.valid.unsqueeze(-1)
        td_error = td_error.masked_fill(~there, 0.0)
        mean = self.mean_over(there.flatten(1))
        weight = rows.weight.unsqueeze(-1).expand_as(td_error).flatten(1)
        loss = mean(weight * huber(td_error, self.cfg.huber_delta).flatten(1))
        size = td_error.detach().abs()
        priority = size.sum((0, 2)) / there.sum((0, 2)).clamp(min=1)
        shares = {
            "loss": loss,
            "td_error": mean(size.flatten(1)),
            "q": mean((target - td_error.detach()).flatten(1)),
            "target": mean(target.flatten(1)),
        }
        return loss, priority, shares
