"""Collector: one group of columns, stepped with one policy. Every sampler is made of these."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from rlrun.core.batch import Batch
from rlrun.core.env import Rows, VectorEnv
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Episode, Header


def to_torch(rows: Rows) -> Batch:
    return Batch({name: torch.from_numpy(value) for name, value in rows.items()})


class Collector:
    """Fills fragments row by row. `first_column` is the global number of its first column."""

    def __init__(self, env: VectorEnv, rng: torch.Generator, record: tuple[str, ...], core_every: int, worker: int, first_column: int, generation: int = 0):
        self.env, self.rng, self.record, self.core_every = env, rng, record, core_every
        self.worker, self.first_column = worker, first_column
        self.row = 0  # absolute
        self.obs: Rows = {name: np.array(value) for name, value in env.reset(generation).items()}
        self.is_first = np.ones(env.count, dtype=bool)
        self.fresh: Rows | None = None  # after a break: the observations of restarted columns, waiting behind a dead row
        self.state: Batch | None = None  # the policy's, made at the first row
        self.returns = np.zeros(env.count)
        self.lengths = np.zeros(env.count, dtype=np.int64)

    def restart(self, generation: int) -> None:
        """Breaks every column: its next row is dead and the one after begins an episode with seeds of this generation. Unfinished episodes are
        not counted. Bit-exact resume stands on this (no environment's state has to be saved)."""
        self.fresh = {name: np.array(value) for name, value in self.env.reset(generation).items()}
        self.returns[:], self.lengths[:] = 0.0, 0

    def collect(self, out: Batch, policy: Policy, version: int, clock: Clock, slot: int = 0, alive: Callable[[], None] = lambda: None) -> Header:
        """Steps every column through the fragment's T rows. `alive` is called once a row (heartbeat)."""
        env_sec = policy_sec = 0.0
        rows = out.reward.shape[0]
        view = out.numpy()
        if self.state is None:
            self.state = policy.initial_state(self.env.count)
        episodes: list[Episode] = []
        live = 0
        first_row = self.row
        with torch.inference_mode():
            for t in range(rows):
                for name, value in self.obs.items():
                    view["obs"][name][t] = value
                view["is_first"][t] = self.is_first
                if len(self.state) and t % self.core_every == 0:
                    out.core[t // self.core_every].copy_(self.state)
                started = time.perf_counter()
                act = policy.act(out.obs[t], out.is_first[t], self.state, clock, "explore", self.rng, self.record)
                self.state = act.state
                out.action[t].copy_(act.action)
                for name, value in act.record.items():
                    out[name][t].copy_(value)
                acted = time.perf_counter()
                policy_sec += acted - started
                if self.fresh is not None:
                    self._dead_row(view, t)
                    continue
                step = self.env.step(view["action"][t])
                env_sec += time.perf_counter() - acted
                view["reward"][t], view["valid"][t] = step.reward, step.valid
                view["terminated"][t], view["truncated"][t] = step.terminated, step.truncated
                self.obs, self.is_first = step.obs, step.is_first
                self.returns += step.reward
                self.lengths += step.valid
                live += int(step.valid.sum())
                if step.is_first.any():
                    for column in np.flatnonzero(step.is_first):
                        episodes.append(Episode(self.first_column + int(column), float(self.returns[column]), int(self.lengths[column])))
                    self.returns[step.is_first], self.lengths[step.is_first] = 0.0, 0
                alive()
            for name, value in self.obs.items():
                view["obs"][name][rows] = value
            view["is_first"][rows] = self.is_first
            if len(self.state) and rows % self.core_every == 0:
                out.core[rows // self.core_every].copy_(self.state)
        self.row += rows
        return Header(self.worker, slot, first_row, version, clock.updates, live, tuple(episodes), (env_sec, policy_sec))

    def _dead_row(self, view: dict, t: int) -> None:
        assert self.fresh is not None
        view["reward"][t] = 0.0
        for name in ("valid", "terminated", "truncated"):
            view[name][t] = False
        self.obs, self.fresh = self.fresh, None
        self.is_first = np.ones(self.env.count, dtype=bool)

    def save(self) -> dict:
        """Everything that a restarted Collector needs to continue bit for bit, given a restart() on both sides."""
        return {
            "obs": {name: torch.from_numpy(np.array(value)) for name, value in self.obs.items()},
            "is_first": torch.from_numpy(self.is_first.copy()),
            "state": {name: self.state[name].clone() for name in self.state} if self.state is not None else None,
            "rng": self.rng.get_state(),
            "row": self.row,
        }

    def load(self, saved: dict) -> None:
        self.obs = {name: value.numpy().copy() for name, value in saved["obs"].items()}
        self.is_first = saved["is_first"].numpy().copy()
        self.state = None if saved["state"] is None else Batch(saved["state"])
        self.rng.set_state(saved["rng"])
        self.row = saved["row"]
