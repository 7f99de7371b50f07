"""VDN: value-decomposition networks (Sunehag et al. 2017, arXiv:1706.05296).

QMIX (qmix.py) whose mixer is a sum: the value of the team is the sum of the values of its agents' actions (eq. 3).

Rows, recorded fields, differences and metrics: as in qmix.py.
Refused, because they are for one agent: exploration other than epsilon_greedy, head.noisy, model.observation_filter.
Checked: tests/algos/test_qmix.py (losses by hand; a team of one is DQN to the bit), tuned/vdn/.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from rlrun.algos.qmix import QMIX, MixedConfig
from rlrun.models.mixers import SumMixer


@dataclass(frozen=True, kw_only=True)
class Config(MixedConfig):
    pass


class VDN(QMIX):
    cfg: Config

    def make_mixer(self) -> nn.Module:
        return SumMixer()
