"""Ape-X DDPG: Ape-X (rlrun/algos/apex.py) around DDPG, the continuous half of its paper (Horgan et al. 2018, arXiv:1803.00933, section 4.2 and appendix D).

Rows, recorded, metrics: those of algo.inner, which is ddpg, or td3 by algo@algo.inner=td3. The critic travels with the policy, because the samplers' priorities
are TD errors.
Differs from the paper: noise is spaced over the samplers in logarithm, as Ape-X DQN's epsilons are (RLlib per_worker_exploration).
Checked: tests/algos/test_actor_critics.py (first priorities), tests/runners/test_distributed_replay.py, tuned/apex_ddpg/.
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
        return None if issubclass(inner, DDPG | TD3) else "Ape-X DDPG is around ddpg or td3; algo=apex is around dqn and its kin"
