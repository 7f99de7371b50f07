"""Ape-X DDPG: Ape-X around DDPG (Horgan et al. 2018, arXiv:1803.00933, section 4.2 and appendix D).

It is the part of the paper about continuous control; rlrun/algos/apex.py holds what both parts share.

Rows, recorded, metrics: those of algo.inner, which is ddpg, or td3 with algo@algo.inner=td3. The samplers receive the
critic together with the policy, because their priorities are TD errors, which need its values.
Differs from the paper: noise scales are spaced logarithmically over the samplers, as the epsilons of Ape-X DQN are
(RLlib's per_worker_exploration). Models have no memory, because first priorities would need that of the critics.
Checked: tests/algos/test_actor_critics.py (first priorities), tests/runners/test_distributed_replay.py,
tuned/apex_ddpg/.
"""

from __future__ import annotations

from rlrun.algos.apex import Apex, Config
from rlrun.algos.ddpg import DDPG
from rlrun.algos.td3 import TD3
from rlrun.core.algorithm import Algorithm

__all__ = ["ApexDDPG", "Config"]


class ApexDDPG(Apex):
    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        return (
            None
            if issubclass(inner, DDPG | TD3)
            else "Ape-X DDPG needs ddpg or td3; use algo=apex for dqn and its variants"
        )
