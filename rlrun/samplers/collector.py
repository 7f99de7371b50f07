"""Collector: steps columns with one policy in one process. Serial and local samplers consist of these."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rlrun.core.batch import Batch, nested
from rlrun.core.callbacks import EnvCallback
from rlrun.core.env import VectorEnv
from rlrun.core.policy import Policy
from rlrun.core.pulse import POLICY, STEP, own
from rlrun.core.schedule import Clock
from rlrun.core.tasks import TaskGiver
from rlrun.dataflow.cut import LearnersCut
from rlrun.dataflow.slots import Header
from rlrun.samplers.columns import Columns


class Collector:
    """Fills fragments row by row."""

    def __init__(
        self,
        env: VectorEnv,
        rng: torch.Generator,
        record: tuple[str, ...],
        core_every: int,
        worker: int,
        first_env: int,
        generation: int,
        return_discount: float | None = None,
        whole_after: int | None = None,
        place: torch.Tensor | None = None,
        callbacks: Sequence[EnvCallback] = (),
        tasks: TaskGiver | None = None,
    ):
        self.columns = Columns(env, first_env, generation, return_discount, whole_after, callbacks)
        self.rng, self.record, self.core_every, self.worker, self.place = rng, record, core_every, worker, place
        self.tasks = tasks
        self.state: Batch | None = None  # the policy's state, created at the first row

    def collect(
        self,
        out: Batch,
        policy: Policy,
        version: int,
        clock: Clock,
        made: int,
        slot: int = 0,
        cut: LearnersCut | None = None,
    ) -> Header:
        """Steps every column through the T rows of a fragment, or until the cut is due.

        made: the number of updates that made the policy's weights, which may be older than the clock.

        Rows after the cut are dead, and the episodes continue in the next fragment.
        """
        columns, rows = self.columns, out.reward.shape[0]
        env_sec = policy_sec = 0.0
        if self.state is None:
            self.state = policy.initial_state(columns.env.count, self.place)
        device = next(policy.parameters()).device
        there = None if device.type == "cpu" else device
        view, pulse = out.numpy(), own()
        first_row = columns.row
        if self.tasks is not None:
            self.tasks.give(clock.updates)
        columns.begin(view)
        with torch.inference_mode():
            for t in range(rows):
                if columns.over.all() or (cut is not None and cut.due(t, rows)):
                    # Row t - 1 bootstraps from the value that is recorded here.
                    act_row(policy, out, t, self.state, self.core_every, clock, self.rng, self.record, there)
                    columns.skip(view, t)
                    for rest in range(t + 1, rows):
                        store_core(out, rest, self.state, self.core_every)
                        columns.skip(view, rest, blank=True)
                    break
                started = time.perf_counter()
                if pulse is not None:
                    pulse.beat(POLICY)
                self.state = act_row(policy, out, t, self.state, self.core_every, clock, self.rng, self.record, there)
                acted = time.perf_counter()
                if pulse is not None:
                    pulse.beat(STEP)
                columns.step(view, t)
                if pulse is not None:
                    pulse.stepped()
                policy_sec += acted - started
                env_sec += time.perf_counter() - acted
            store_core(out, rows, self.state, self.core_every)
        if pulse is not None:
            pulse.beat(POLICY)  # whatever follows is no step
        return Header(
            self.worker,
            slot,
            first_row,
            version,
            made,
            columns.live,
            tuple(columns.episodes),
            (env_sec, policy_sec),
            columns.return_moments(),
            columns.agent_steps,
            tuple(columns.failures),
        )

    def save(self) -> dict:
        state = None if self.state is None else self.state.clone()
        return {"columns": self.columns.save(), "state": state, "rng": self.rng.get_state()}

    def load(self, saved: dict) -> None:
        self.columns.load(saved["columns"])
        self.state = None if saved["state"] is None else nested(saved["state"])
        self.rng.set_state(saved["rng"])


def store_core(out: Batch, t: int, state: Batch, core_every: int) -> None:
    """Stores the recurrent state if row t keeps one. Other parts of the policy's state are not stored."""
    if "core" in out and t % core_every == 0:
        copy_named(out.core[t // core_every], state)


def copy_named(into: Batch, source: Batch) -> None:
    """Copies the fields that `into` has, also in nested Batches, from a `source` that may have more."""
    for name, value in into.items():
        if isinstance(value, Batch):
            copy_named(value, source[name])
        else:
            value.copy_(source[name])


def act_row(
    policy: Policy,
    out: Batch,
    t: int,
    state: Batch,
    core_every: int,
    clock: Clock,
    rng: torch.Generator,
    record: tuple[str, ...],
    device: torch.device | None = None,
) -> Batch:
    """Acts on the observation of row t, writes action and records into row t, and returns the state after it."""
    store_core(out, t, state, core_every)
    obs, is_first = out.obs[t], out.is_first[t]
    if device is not None:
        obs, is_first = obs.to(device), is_first.to(device)
    act = policy.act(obs, is_first, state, clock, "explore", rng, record)
    out.action[t].copy_(act.action)
    for name, value in act.record.items():
        out[name][t].copy_(value)
    return act.state
