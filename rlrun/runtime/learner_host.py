"""LearnerHost: one of a run's learners on another machine, with samplers of its own.

It makes its own plan from the run's config, begins with what the first learner begins with, and learns in lockstep with
the others until the first one says that the run is over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlrun.core.errors import EnvError, RunFailed, UserError, explained
from rlrun.core.learners import FollowingLearner
from rlrun.dataflow.meeting import Disconnected, StoreCut, arrive, join, through
from rlrun.dataflow.ranks import ProcessRanks
from rlrun.dataflow.workers import start_sec
from rlrun.runtime.build import LearnerParts, build, watching
from rlrun.runtime.host import RunHost
from rlrun.runtime.plan import Plan


class LearnerHost(RunHost):
    """It is also told `rank`, `world`, `address` (of the first learner) and `timeout_sec`."""

    def workers(self, plan: Plan) -> int:
        return 0 if plan.resources.inference == "serial" else plan.resources.samplers_per_learner

    def make(self, parts: LearnerParts) -> None:
        """The parts are made where they are needed, by learn()."""
        self.plan = parts.plan

    def learn(self, port: int) -> np.ndarray:
        """Learns until the run is over. port: of the first learner's store."""
        return self._answer(self._learn, port)

    def _learn(self, port: int) -> dict[str, Any]:
        told, plan, ranks = self.told, self.plan, None
        rank, world, address = told["rank"], told["world"], told["address"]
        try:
            with through(address):
                store = join(address, port, world, start_sec())
                arrive(store)
                ranks = ProcessRanks(rank, world, store, told["timeout_sec"], apart=True)
            share = plan.needs.cut_share
            cut = StoreCut(store, world, share) if share < 1 else None
            job = FollowingLearner(ranks, None, restarts=self.restarts)
            with watching(plan):
                build(plan, ranks, cut).learn(job)
        except Disconnected:
            pass  # another learner is gone, which the first one has noticed too; it says who
        except (RunFailed, EnvError, UserError):
            raise
        except Exception as error:  # a mistake of the user's code, or of ours
            raise RunFailed(explained(error)) from error
        finally:
            if ranks is not None:
                ranks.close()
        return {}

    def close(self) -> None:
        """Nothing is left: what learn() has started ends with it."""
