"""DD-PPO: decentralized distributed PPO (Wijmans et al. 2020, arXiv:1911.00357).

Rows: as in PPO, but every process both samples and learns. There are resources.num_learners processes (auto: one per
core), each with its share of the columns. Gradients are summed over all processes at every minibatch, so that together
they make PPO's update of the whole batch. No process is in charge of the weights.
Recorded: the same as in PPO.
Straggler cut (section 3): once cut_share of the processes have filled their fragments, the others stop where they are,
provided that they are past a quarter of the fragment. Their missing rows are marked invalid, and their episodes
continue in the next fragment. The cut makes runs depend on timing; with cut_share 1 every process waits for all
others.
Differs from the paper: means are taken over all live rows, so a process that was cut short counts for less (the paper
weighs processes equally). Each process has several environments (fragment_length x columns / num_learners rows).
When to use it: DD-PPO pays off where learning or the environment is expensive. On CartPole one process, algo=ppo, is
faster.
Metrics: the same as in PPO.
Checked: tests/dataflow/test_ranks.py (two processes make the update of one), tests/samplers/test_samplers.py (the
cut), tuned/ddppo/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from rlrun.algos import ppo
from rlrun.core.algorithm import Needs
from rlrun.core.conditions import LEARNERS, OnlyFor
from rlrun.core.ranges import PositiveShare


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    cut_share: Annotated[float, PositiveShare, OnlyFor(LEARNERS)]


class DDPPO(ppo.PPO):
    cfg: Config

    @classmethod
    def needs(cls, cfg: Config) -> Needs:  # type: ignore[override]
        return replace(super().needs(cfg), every_process_learns=True, cut_share=cfg.cut_share)
