"""The plan for a run's replay: it is checked before the run and makes the replay for the runner."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rlrun.core.algorithm import Algorithm, FromReplay, Needs, Recorder
from rlrun.core.checkpoint import ROWS, load_part
from rlrun.core.errors import UserError
from rlrun.core.games import STATE
from rlrun.core.policy import Policy
from rlrun.core.ranks import Ranks
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.machine.resources import Resources
from rlrun.policies.several import SeveralPolicies
from rlrun.replay.buffer import FirstPriority, Replay
from rlrun.replay.grouped import GroupedReplay
from rlrun.replay.layout import Layout, ReplayConfig, fitting, refuse_too_large
from rlrun.replay.service import ShardedReplay, shard_layouts

RUNNERS = ("replay", "distributed_replay")  # runners with a replay
MAY = ("async_gradients",)  # those that have one if the algorithm learns from it
SMALL_SHARE = 0.1  # share of the env steps below which a replay is small
LARGE_REPLAY = 500_000  # rows from which a replay is never called small
GPU_SHARE = 0.5  # share of a GPU's free memory that replay.device=auto may take


def check_belongs(
    asked: FromReplay | None, columns: int, cfg: ReplayConfig | None, name: str, runner: str, at: str = "algo"
) -> None:
    """Raises UserError where algorithm, runner and replay do not belong together, or their numbers do not fit.

    columns: number of fragments in a train batch. at: where the options of the learning algorithm are.
    """
    if asked is not None and not asked.priorities and cfg is not None and cfg.name == "prioritized":
        raise UserError(
            f"{name} writes no priorities, so that replay=prioritized would draw all rows equally often; use"
            " replay=uniform"
        )
    if runner == "offline":
        if asked is None:
            raise UserError(
                f"{name}, as it is set up, learns from experience and not from recorded data, which are all that"
                " runner=offline has; runner=on_policy or runner=actor_learner gather experience"
            )
        if asked.outcomes is not None:
            raise UserError(f"{name} learns from games that it plays itself, and not from recorded data")
        return  # data_plan.py says what else belongs to it
    if asked is None:
        if runner in RUNNERS:
            raise UserError(
                f"runner={runner} is for algorithms that learn from a replay; {name} learns from rows as they come"
            )
        return
    if runner not in (*RUNNERS, *MAY):
        if asked.returns is not None:
            raise UserError(f"{name} learns from recorded data, which runner={runner} has not: use runner=offline")
        data = "" if asked.outcomes is not None else ", or from recorded data with offline"
        raise UserError(
            f"{name} learns from a replay, which runner={runner} has not; it runs with {' or '.join(RUNNERS)}{data}"
        )
    if cfg is None:
        raise UserError(f"{name} learns from a replay: choose replay=uniform or replay=prioritized")
    if asked.first_priority and cfg.name == "uniform":
        raise UserError("input_priorities are for replay=prioritized; replay=uniform draws all rows equally often")
    if asked.rows_learnt * columns > cfg.capacity and asked.rows_learnt > 1:
        raise UserError(
            f"a batch of {columns} sequences of {asked.rows_learnt} rows is longer than the replay:"
            f" replay.capacity={cfg.capacity} rows"
        )
    if columns > cfg.capacity:
        raise UserError(f"{at}.batch_size={columns} is more than the {cfg.capacity} rows of replay.capacity")
    if asked.learning_starts > cfg.capacity:
        raise UserError(
            f"{at}.learning_starts={asked.learning_starts} is more than the {cfg.capacity} rows of replay.capacity:"
            " learning would never start"
        )


OTHER_REPLAY = (
    "the checkpoint's replay was made with another capacity, runner, num_shards, num_learners, num_samplers,"
    " envs_per_sampler or other policies; resume with those, or start a new run"
)


class PolicyReplay(NamedTuple):
    """The replay of one of several policies."""

    members: tuple[int, ...]  # the numbers of the agents whose rows it holds
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """The plan for the replays of a run. Every learner has its own, with its part of the rows, the environments and the
    train batch."""

    cfg: ReplayConfig
    layout: Layout  # layout of one learner's replay
    learners: int
    columns: int  # number of fragments in the whole train batch
    shards: int | None  # number of processes that hold a part each; None if the learner holds the replay
    queue_timeout_sec: float
    first_priority: tuple[type[Algorithm], Any] | None  # the algorithm that computes first priorities, and its config
    groups: Mapping[str, PolicyReplay] = field(
        default_factory=dict
    )  # by policy, where there are several; `layout` is of all
    agents: int = 1  # number of agents, whose columns groups divide

    def __str__(self) -> str:
        where = (
            f"{self.shards} shard{'s' * (self.shards != 1)}"
            if self.shards is not None
            else "the GPU"
            if self.cfg.device == "learner"
            else "main memory"
        )
        if self.cfg.directory is not None:
            where = f"files in {self.cfg.directory}" + (f", of {where}" if self.shards is not None else "")
        each = " for each learner" if self.learners > 1 else ""
        if self.groups:
            each = f" for {len(self.groups)} policies"
        most = "at most " if self.cfg.compress else ""
        size = f"{self.layout.capacity:,} rows ({most}{self.layout.bytes / 1e6:,.1f} MB){each}"
        return f"{self.cfg.name}, {size} in {where}"

    def placed(self, device: torch.device, gpu_free: Callable[[int], int]) -> ReplayPlan:
        """Returns this plan with replay.device=auto decided. device: that of the learner. gpu_free: says how many bytes
        of a GPU's memory are free."""
        if self.cfg.device != "auto":
            return self
        there = device.type == "cuda" and self.shards is None and not self.cfg.compress and self.cfg.directory is None
        there = there and self.layout.bytes <= GPU_SHARE * gpu_free(device.index or 0)
        return replace(self, cfg=replace(self.cfg, device="learner" if there else "cpu"))

    def check(self, available: int, device: torch.device) -> None:
        """Raises UserError before the start if the replay cannot fit. available: bytes of free main memory.
        device: that of the learner."""
        if self.shards is not None:
            if self.shards > self.layout.blocks:
                raise UserError(
                    f"runner.num_shards={self.shards} is more than the {self.layout.blocks} producers of fragments"
                    " (resources.num_samplers)"
                )
            if self.cfg.device == "learner":
                raise UserError(
                    "replay.device=learner is for runner=replay: shards are processes of their own, in main memory"
                )
        refuse_too_large(self.layout, self.cfg, available, device, self.learners)

    def fitting(self, available: int, device: torch.device) -> int | None:
        """Returns the capacity that replay.capacity=auto has on a machine with too little memory for its default, or
        None. The arguments are those of check()."""
        return fitting(self.layout, self.cfg, available, device, self.learners)

    def notes(self, env_steps: int) -> list[str]:
        """Returns notes on the size of the replay. env_steps: those of the run."""
        found = []
        if self.cfg.capacity < SMALL_SHARE * env_steps and self.cfg.capacity < LARGE_REPLAY:
            found.append(
                f"replay.capacity={self.cfg.capacity:,} holds {self.cfg.capacity / env_steps:.0%} of the run's env"
                " steps; old rows are soon forgotten, which often makes learning unstable"
            )
        room = self.cfg.checkpoint_max_gb
        if self.cfg.checkpoint == "auto" and self.learners * self.layout.bytes > room * 1e9:
            found.append(
                f"checkpoints leave out the replay's rows ({self.learners * self.layout.bytes / 1e9:.1f} GB, more than"
                f" replay.checkpoint_max_gb={room:g}), so that a resumed run collects new ones;"
                " replay.checkpoint=true saves them"
            )
        return found

    def check_saved(self, folder: Path) -> None:
        """Raises UserError where the replay in this checkpoint does not fit that of this run."""
        files = len(list(folder.glob(ROWS)))
        if not files:
            return
        saved = load_part(folder, "replay")["replay"]
        if self.groups:
            self._check_groups(saved.get("groups", {}), files)
            return
        states = saved.get("shards", [saved])
        layouts = [self.layout] if self.shards is None else shard_layouts(self.layout, self.shards)
        same = (
            files == (self.shards or self.learners)
            and (self.shards is None) == ("shards" not in saved)
            and len(states) == len(layouts)
        )
        if "groups" in saved or not same or not all(map(_fits, states, layouts)):
            raise UserError(OTHER_REPLAY)

    def _check_groups(self, saved: Mapping[str, Any], files: int) -> None:
        """check_saved() for several policies."""
        same = files == len(self.groups) and list(saved) == list(self.groups)
        if not same or not all(map(_fits, saved.values(), (group.layout for group in self.groups.values()))):
            raise UserError(OTHER_REPLAY)

    @property
    def priority_of(self) -> FirstPriority | None:
        """The function that computes the priorities of new rows, or None."""
        if self.first_priority is None:
            return None
        algorithm, cfg = self.first_priority
        return functools.partial(algorithm.first_priority, cfg)

    def replay(
        self,
        seeds: Seeds,
        generation: int,
        ranks: Ranks,
        device: torch.device,
        recorder: Recorder | None = None,
    ) -> Replay | GroupedReplay:
        """Makes this learner's replay. recorder: that of a GPU."""
        if self.groups:
            return self._grouped(seeds, generation, device)
        cfg, others = self.cfg, (ranks.rank,) if ranks.rank else ()
        if self.learners > 1:
            directory = None if cfg.directory is None else str(Path(cfg.directory) / f"learner-{ranks.rank}")
            cfg = replace(cfg, directory=directory, checkpoint_max_gb=cfg.checkpoint_max_gb / self.learners)
        rng = seeds.generator("replay", generation, *others)
        return Replay(cfg, self.layout, rng, device, self.priority_of, ranks.rank, recorder)

    def _grouped(self, seeds: Seeds, generation: int, device: torch.device) -> GroupedReplay:
        made = {}
        for number, (name, group) in enumerate(self.groups.items()):
            directory = None if self.cfg.directory is None else str(Path(self.cfg.directory) / name)
            cfg = replace(
                self.cfg, directory=directory, checkpoint_max_gb=self.cfg.checkpoint_max_gb / len(self.groups)
            )
            rng = seeds.generator("replay", generation, number)
            made[name] = Replay(cfg, group.layout, rng, device, number=number)
        return GroupedReplay(made, {name: group.members for name, group in self.groups.items()}, self.agents)

    def sharded(self, seeds: Seeds, generation: int, sampler: Any, shards: int) -> ShardedReplay:
        return ShardedReplay(
            self.cfg,
            self.layout,
            shards,
            sampler.slots,
            self.columns,
            seeds,
            generation,
            self.queue_timeout_sec,
            self.priority_of,
        )


def _fits(state: Mapping[str, Any], layout: Layout) -> bool:
    """Whether a replay of this layout can take the rows of a saved one."""
    columns = state.get("columns", layout.columns)  # missing in old checkpoints
    return (
        state["length"] == layout.rows_per_column and columns == layout.columns and len(state["head"]) == layout.blocks
    )


def groups_of(layout: Layout, policy: SeveralPolicies) -> tuple[Layout, dict[str, PolicyReplay]]:
    """The layout of the replays of all policies that learn together, and every one's own. layout: that of one replay
    with the rows of all agents. Each of them holds replay.capacity rows."""
    envs, core = layout.block // policy.agents, policy.core_spec()
    groups = {}
    for name in policy.recorded:
        members = policy.members[name]
        own: Any = core.get(name, {})
        groups[name] = PolicyReplay(members, replace(layout, block=envs * len(members), core=own))
    together = envs * sum(len(group.members) for group in groups.values())
    return replace(layout, block=together, capacity=layout.capacity * len(groups)), groups


def layout_of(cfg: ReplayConfig, needs: Needs, spec: EnvSpec, policy: Policy, made: Resources) -> Layout:
    """Returns the layout of one learner's replay."""
    assert needs.replay is not None
    rows, every = needs.replay.fragment_length, needs.replay.starts_every
    if rows % every:
        raise UserError(f"fragment_length {rows} must be a multiple of sequence_stride {every}")
    return Layout(
        obs={name: part for name, part in spec.obs_rows.items() if name != STATE},  # nobody learns from it
        action=spec.action_row,
        record=policy.record_spec(needs.record),
        core=policy.core_spec(),
        core_every=needs.core_every or 1,
        block=made.envs_per_group * spec.columns_per_env,
        blocks=made.producers_per_learner,
        fragment_rows=needs.replay.fragment_length,
        rows=needs.rows,
        rows_from=needs.replay.rows_from,
        ends=needs.replay.obs == "ends",
        starts_every=needs.replay.starts_every,
        sequences=needs.replay.sequences,
        new_first=needs.replay.new_first,
        stack=spec.stack,
        capacity=-(-cfg.capacity // made.num_learners),
        reward=spec.reward_row,
        outcomes=needs.replay.outcomes,
        drawn=needs.replay.drawn,
        core_first=needs.core_first,
        burn_in=max(0, needs.rows - needs.replay.rows_learnt) if needs.replay.sequences else 0,
    )
