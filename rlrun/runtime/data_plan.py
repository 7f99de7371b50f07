"""The plan for data that a run learns from or records: it is checked before the run, and makes the parts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rlrun.config.run import Typed
from rlrun.core.algorithm import Needs
from rlrun.core.batch import Field, RowSpec
from rlrun.core.errors import UserError
from rlrun.core.policy import Policy
from rlrun.core.ranks import Ranks
from rlrun.core.seeding import Seeds
from rlrun.core.spec_json import spec_to_json
from rlrun.core.specs import EnvSpec
from rlrun.datasets.open import open_source
from rlrun.datasets.options import DataConfig
from rlrun.datasets.parquet import ParquetSource
from rlrun.datasets.reading import DataNeeds, check_fits
from rlrun.datasets.recorder import TrajectoryRecorder
from rlrun.datasets.rows import DataRows
from rlrun.datasets.trajectories import Source
from rlrun.envs.recorded import RecordedConfig, recorded_options, taken_options
from rlrun.replay.layout import ReplayConfig

LOG_PROB: RowSpec = {"log_prob": Field((), torch.float32)}
# The memory for data of algorithms that have no group of replay options.
MEMORY = ReplayConfig(
    name="uniform",
    capacity=1,
    compress=False,
    directory=None,
    device="cpu",
    checkpoint=False,
    checkpoint_max_gb=0.0,
)


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """What a run draws from data."""

    cfg: DataConfig
    wanted: DataNeeds
    replay: ReplayConfig  # whether rows are drawn uniformly or by priorities
    columns: int  # fragments of the whole train batch that are drawn from data
    learners: int

    def sources(self) -> list[tuple[Source, float]]:
        """Opens the data. Raises UserError if they cannot be read or do not fit the run."""
        spec = self.wanted.spec
        found = [
            (open_source(path, spec, self.cfg.actions_normalized), share) for path, share in self.cfg.shares.items()
        ]
        for source, _ in found:
            check_fits(source.facts, self.wanted, source.name)
        return found

    @cached_property
    def rows(self) -> int | None:
        """Rows of all data sets together, at most; None if that is not known before they are read."""
        found = [source.most_rows for source, _ in self.sources()]
        return None if None in found else sum(rows for rows in found if rows is not None)

    @property
    def notes(self) -> list[str]:
        """What a reader of the data sets should know, such as what was assumed of their files."""
        return [f"{source.name}: {note}" for source, _ in self.sources() for note in source.facts.notes]

    @property
    def bytes(self) -> int:
        """Memory that the rows of one learner take."""
        capacity = self.cfg.buffer if self.rows is None else min(self.rows, self.cfg.buffer)
        return self.wanted.layout(capacity).bytes

    def check(self, available: int) -> None:
        """Raises UserError before the start if data cannot be read, do not fit the run, or do not fit into memory.

        available: bytes of free main memory."""
        self.sources()
        if self.rows == 0:
            raise UserError(f"there is nothing to learn from: {', '.join(self.cfg.shares)} holds no rows")
        need = self.bytes * self.learners
        if need > available:
            fitting = int(self.cfg.buffer * available / need * 0.9)
            each = f" for each of {self.learners} learners" if self.learners > 1 else ""
            raise UserError(
                f"data.buffer={self.cfg.buffer:,} rows take {self.bytes / 1e9:.1f} GB of memory{each}, and"
                f" {available / 1e9:.1f} GB are free; data.buffer={fitting} would fit, and others are then read while"
                " these are drawn"
            )

    def make(self, seeds: Seeds, ranks: Ranks, device: torch.device, generation: int = 0) -> DataRows:
        """Makes one learner's memory of data."""
        return DataRows(self.sources(), self.wanted, self.cfg, self.replay, seeds, ranks.rank, device, generation)

    def __str__(self) -> str:
        exact = all(isinstance(source, ParquetSource) for source, _ in self.sources())
        many = "" if self.rows is None else f", {'' if exact else 'at most '}{self.rows:,} rows"
        paths = ", ".join(
            path if share == 1.0 and len(self.cfg.shares) == 1 else f"{path} ({share:g})"
            for path, share in self.cfg.shares.items()
        )
        return f"{paths}{many}; {self.cfg.buffer:,} rows in memory at most ({self.bytes / 1e6:,.1f} MB)"


def check_new(cfg: DataConfig) -> None:
    """Raises UserError if a new run may not read data in this way. Runs of earlier versions may, and they go on."""
    if cfg.share is not None and cfg.reward_scale == "returns":
        raise UserError(
            "data.reward_scale=returns would scale the rewards of the data and not those of experience (data.share);"
            " leave it out, or say a number by which the rewards of the environment are scaled too"
        )


def plan_data(config: Typed, spec: EnvSpec, needs: Needs, policy: Policy, learners: int) -> DataPlan | None:
    """Returns the plan of a run's data, or None for a run that learns from experience alone.

    learners: those that learn together, each from its part of every batch.

    Raises UserError if algorithm, runner and data do not belong together."""
    cfg, runner, name = config.run.data, config.runner.name, config.algo.name
    offline = runner == "offline"
    if needs.replay is not None and needs.replay.returns is not None and not offline:
        raise UserError(f"{name} learns from whole recorded episodes: use runner=offline and data.path=DIR")
    if needs.replay is not None and needs.replay.outcomes is not None and cfg.path is not None:
        raise UserError(f"{name} learns from games that it plays itself, and not from recorded data: data.path=null")
    if offline and cfg.path is None:
        raise UserError("runner=offline learns from recorded data: say which with data.path=DIR")
    if cfg.path is None:
        return None
    if not offline and runner != "replay":
        raise UserError(
            f"data.path is for runner=offline, or for runner=replay with data.share; this run has runner={runner}"
        )
    if not offline and cfg.share is None:
        raise UserError(
            "data.path with runner=replay needs data.share, the share of every batch that is drawn from data;"
            " runner=offline learns from data alone"
        )
    assert needs.replay is not None
    if needs.replay.first_priority:
        raise UserError(
            "algo.input_priorities=true needs samplers, which compute the priorities, and recorded data have none: set"
            " it to false"
        )
    if needs.several:
        raise UserError(f"{name} has several policies, and only one can learn from data: leave data.path out")
    columns = needs.columns if offline else shared_columns(cfg.share or 0.0, needs.columns, learners)
    memory = (
        MEMORY
        if config.run.replay is None
        else replace(config.run.replay, compress=False, directory=None, device="cpu", checkpoint=False)
    )
    return DataPlan(
        cfg=cfg,
        wanted=DataNeeds(
            spec, policy.record_spec(needs.record), policy.core_spec(), needs.core_every, needs.rows, needs.replay
        ),
        replay=memory,
        columns=columns,
        learners=learners,
    )


def shared_columns(share: float, columns: int, learners: int) -> int:
    """Returns how many of a batch's columns come from data.

    Raises UserError if data or experience would get none, or if learners cannot have equal parts of both."""
    found, fitting = round(columns * share), range(learners, columns, learners)
    if found in fitting:
        return found
    what = f"data.share={share:g} is {found} of the {columns} rows of a batch (algo.batch_size)"
    if not 0 < found < columns:
        raise UserError(f"{what}; choose one that leaves rows for both")
    if not fitting:
        raise UserError(
            f"{what}, and with {learners} learners each has a single row, which is from data or from experience; set"
            " resources.num_learners=1, or a larger algo.batch_size"
        )
    nearest = min(fitting, key=lambda count: abs(count - found))
    raise UserError(
        f"{what}, which {learners} learners cannot share equally; data.share={nearest / columns:g} would fit, with"
        f" {nearest} rows"
    )


def fill_spec(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a plain config in which env=data has the description of the environment that the data hold.

    Raises UserError if there are no data, or if their format holds no description."""
    env = values.get("env")
    if not isinstance(env, Mapping) or env.get("family") != "data" or env.get("spec") is not None:
        return values
    data = values.get("data") or {}
    path = data.get("path")
    if not path:
        raise UserError("env= is missing, and no data say what the environment is (data.path=)")
    paths = list(path) if isinstance(path, Mapping) else [path]
    if env.get("options") is not None:
        raise UserError("env.options is what a run stores of its data; to set options of the environment, add env=NAME")
    normalized = bool(data.get("actions_normalized", True))
    first = open_source(str(paths[0]), None, normalized).facts
    spec, options = first.spec, taken_options(first.env)
    try:
        others = (open_source(str(one), spec, normalized).facts for one in paths[1:])
        if options is not None and any(taken_options(one.env) != options for one in others):
            options = None
    except UserError:
        options = None  # the run opens all sets, and says what is wrong
    return {**values, "env": {**env, "name": spec.name, "spec": spec_to_json(spec), "options": options}}


def check_evaluation(config: Typed) -> None:
    """Raises UserError if a run without an environment is asked to evaluate in one."""
    cfg = config.run.eval
    if isinstance(config.env, RecordedConfig) and cfg.every is not None and not cfg.estimate.methods:
        raise UserError(
            "eval.every plays games, and this run has no environment: say which one with env=, or what is estimated"
            " from data with eval.estimate.methods="
        )


def recorded(needs: Needs, policy: Policy) -> Needs:
    """What an algorithm needs, and the probability of every action if the policy knows it."""
    if "log_prob" in needs.record:
        return needs
    try:
        policy.record_spec(("log_prob",))
    except (KeyError, UserError):
        return needs
    return replace(needs, record=(*needs.record, "log_prob"))


def recorder(config: Typed, spec: EnvSpec, record: RowSpec, command: str) -> TrajectoryRecorder:
    """Makes the recorder of one sampler of a run."""
    assert config.run.record is not None
    kept = {name: field for name, field in record.items() if name == "log_prob"}
    who = f"{config.algo.name} while it learnt, seed {config.run.seed}"
    return TrajectoryRecorder(Path(config.run.record), spec, kept, who, command, recorded_options(config.env))
