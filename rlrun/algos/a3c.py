"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

Rows: fragments [T, B] of a process's own environments, used once, by that process: resources.num_learners of them (auto: every core) each copy the
newest weights, sample fragment_length rows, compute A2C's gradient and apply it to the shared weights without locks (Hogwild). The statistics of the
optimiser are shared as well (section 4: shared RMSProp).
Recorded: as A2C.
Differs from the paper: a process may have several environments (batch_size / fragment_length); gradients are clipped before they are applied; with one
process, and in exact runs, it is A2C.
Worth it where a step of the environment is dear; where it is cheap (CartPole) one process with a vector of environments, algo=a2c, is several times faster.
Metrics: as A2C, averaged over processes; sample/policy_lag: gradients that others applied while one was computed.
Checked: tests/runners/test_async_gradients.py, tuned/a3c/.
"""

from __future__ import annotations

from dataclasses import replace

from rlrun.algos.a2c import A2C, Config
from rlrun.core.algorithm import Needs

__all__ = ["A3C", "Config"]


class A3C(A2C):
    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return replace(super().needs(cfg), every_process_learns=True)
