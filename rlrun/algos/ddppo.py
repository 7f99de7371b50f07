"""DD-PPO: decentralized distributed PPO (Wijmans et al. 2020, arXiv:1911.00357).

Rows: as PPO, but every process samples and learns: resources.num_learners of them (auto: every core), each with its part of the columns; gradients are
summed over all of them at every minibatch, so that together they make PPO's update of the whole batch. No process is in charge of the weights.
Recorded: as PPO.
The straggler cut (section 3): once cut_share of the processes have filled their fragments, the others stop where they are, if that is past a quarter of
the fragment; their missing rows are dead and their episodes go on in the next one. It makes runs depend on timing; cut_share 1 waits for all.
Differs from the paper: means are over all live rows, so a process that was cut short weighs less (the paper weighs processes alike); each process has
several environments (fragment_length x columns / num_learners rows).
Worth it where learning or the environment is dear; on CartPole one process, algo=ppo, is faster.
Metrics: as PPO.
Checked: tests/dataflow/test_ranks.py (two processes make the update of one), tests/samplers/test_samplers.py (the cut), tuned/ddppo/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from rlrun.algos import ppo
from rlrun.core.algorithm import Needs
from rlrun.core.ranges import PositiveShare


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    cut_share: Annotated[float, PositiveShare]


class DDPPO(ppo.PPO):
    cfg: Config

    @classmethod
    def needs(cls, cfg: Config) -> Needs:  # type: ignore[override]
        return replace(super().needs(cfg), every_process_learns=True, cut_share=cfg.cut_share)
