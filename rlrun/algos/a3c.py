"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

Rows: fragments [T, B] of a process's own environments, which that process uses once. There are resources.num_learners
processes (auto: one per core). Each copies the newest weights, samples fragment_length rows, computes A2C's gradient
and applies it to the shared weights without locks (Hogwild). The processes also share the optimiser's statistics
(section 4: shared RMSProp).
Recorded: the same as in A2C.
Differs from the paper: a process may have several environments (batch_size / fragment_length). Gradients are clipped
before they are applied. With one process, and in exact runs, this is A2C.
When to use it: A3C pays off where an environment step is expensive. Where it is cheap (CartPole), one process with a
vector of environments, algo=a2c, is several times faster.
Metrics: those of A2C, averaged over processes; sample/policy_lag: the number of gradients that other processes applied
while one was computed.
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
