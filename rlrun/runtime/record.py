"""Records episodes that a trained policy, or a random one, plays in the environment of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch, Field, RowSpec, allocate, fragment_layout
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.policy import Act, Policy
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.dataflow.slots import Fragment
from rlrun.datasets.recorder import TrajectoryRecorder
from rlrun.datasets.trajectories import Trajectory
from rlrun.envs.recorded import recorded_options
from rlrun.envs.registry import Factory
from rlrun.policies.exploration import uniform
from rlrun.runtime.trained import Trained
from rlrun.samplers.collector import Collector
from rlrun.samplers.evaluator import check_end

Way = Literal["explore", "greedy", "random"]
ROWS = 16  # rows of a fragment


class Acting(nn.Module):
    """A policy that always acts in one way, whatever a sampler asks for."""

    def __init__(self, policy: Policy, spec: EnvSpec, way: Way):
        super().__init__()
        self.policy, self.spec, self.way = policy, spec, way

    def initial_state(self, columns: int, place: Tensor | None = None) -> Batch:
        return self.policy.initial_state(columns, place if self.way == "explore" else None)

    def act(
        self,
        obs: Batch,
        is_first: Tensor,
        state: Batch,
        clock: Clock,
        mode: str,
        rng: torch.Generator,
        record: tuple[str, ...] = (),
    ) -> Act:
        if self.way != "random":
            return self.policy.act(obs, is_first, state, clock, self.way, rng, record)
        mask = obs["action_mask"].bool() if "action_mask" in obs else None
        action, log_prob = uniform(self.spec.action, len(is_first), mask, rng, is_first.device)
        return Act(action, state, Batch(dict.fromkeys(record, log_prob)))


class Wish(NamedTuple):
    """How much is recorded: a number of whole episodes, or at least so many env steps."""

    episodes: int | None
    env_steps: int | None


class Quota:
    """Takes the same number of episodes from every environment. Taking those that end first would prefer short ones."""

    def __init__(self, wish: Wish, envs: int):
        self.wish = wish
        whole, more = divmod(wish.episodes or 0, envs)
        self.wanted = np.array([whole + (env < more) for env in range(envs)])  # by environment

    def keeps(self, env: int, episode: int, trajectory: Trajectory) -> bool:
        """Whether this trajectory is written. episode: the number of its episode in its environment, from 0. All agents
        that take part in a wanted episode are recorded, also where an agent appears in few episodes or in none."""
        return self.wish.episodes is None or (trajectory.whole and episode < self.wanted[env])

    def going_on(self, ended: np.ndarray) -> np.ndarray:
        """The environments [E] whose wanted episodes have not all ended. ended [E]: how many have."""
        return ended < self.wanted

    def filled(self, ended: np.ndarray, env_steps: int) -> bool:
        if self.wish.episodes is not None:
            return not self.going_on(ended).any()
        return env_steps >= (self.wish.env_steps or 0)


class Returns:
    """Adds up what recorded trajectories say of the returns of episodes, which are those of all agents that count."""

    def __init__(self, spec: EnvSpec):
        self.spec = spec
        self.sums: dict[tuple[int, int], float] = {}  # by environment and episode
        self.parts: set[tuple[int, int]] = set()  # episodes of which not all is there

    def add(self, env: int, episode: int, trajectory: Trajectory) -> None:
        key = (env, episode)
        self.sums[key] = self.sums.get(key, 0.0) + self._counted(trajectory)
        if not trajectory.whole:
            self.parts.add(key)

    def _counted(self, trajectory: Trajectory) -> float:
        if self.spec.joint and self.spec.agents is not None:
            return float(trajectory.reward[trajectory.valid][:, self.spec.agents.counts].sum())
        return trajectory.ret if self.spec.counts[trajectory.agent] else 0.0

    @property
    def mean(self) -> float | None:
        """The mean return of whole episodes; None where there is none."""
        whole = [value for key, value in self.sums.items() if key not in self.parts]
        return sum(whole) / len(whole) if whole else None


def record(trained: Trained, folder: Path, wish: Wish, way: Way, seed: int, envs: int, command: str) -> dict[str, Any]:
    """Plays and records. Returns what was written: trajectories, decisions and the mean return of whole episodes.

    envs: environments that are stepped together. Raises UserError if the folder cannot take these data."""
    policy, spec = trained.policy, trained.spec
    kept: tuple[str, ...] = ("log_prob",)
    try:
        if way != "random":
            policy.record_spec(kept)
    except (KeyError, UserError):
        kept = ()
    fields: RowSpec = {name: Field((), torch.float32) for name in kept}
    seeds = Seeds(seed)
    if wish.episodes is not None:
        envs = min(envs, wish.episodes)
    factory = Factory(cfg=trained.config.env, spec=spec, seeds=seeds, stream="record", learning=True)
    name = trained.config.algo.name
    who = "uniformly random" if way == "random" else f"{name}, {way}, after {trained.clock.env_steps:,} env steps"
    recorder = TrajectoryRecorder(folder, spec, fields, who, command, recorded_options(trained.config.env))
    agents = spec.columns_per_env
    quota = Quota(wish, envs)
    returns = Returns(spec)

    def keeps(env: int, episode: int, trajectory: Trajectory) -> bool:
        kept = quota.keeps(env, episode, trajectory)
        if kept:
            returns.add(env, episode, trajectory)
        return kept

    recorder.keeps = keeps
    collector = Collector(
        factory(0, envs), seeds.generator("policy"), kept, 1, 0, 0, 0, place=torch.zeros(envs * agents)
    )
    layout = fragment_layout(
        spec.obs_rows, spec.action_row, fields, {}, ROWS, envs * agents, 0, spec.reward_row
    )  # recurrent state is not recorded
    acting: Any = Acting(policy, spec, way)
    batch, steps = allocate(layout), 0
    try:
        while not quota.filled(recorder.ended(0, envs), steps):
            header = collector.collect(batch, acting, 0, trained.clock, trained.clock.updates)
            recorder.add([Fragment(header, batch)])
            steps += header.env_steps
            if wish.episodes is not None:
                going_on = quota.going_on(recorder.ended(0, envs))
                check_end(spec, collector.columns.lengths[going_on], "episodes= asks for whole ones")
    finally:
        collector.columns.env.close()
        recorder.close()
    if wish.episodes and not recorder.writer.episodes:
        raise RunFailed(
            f"episodes of {spec.name} end without saying that any agent was terminated or truncated, so that none of"
            " their trajectories is whole"
        )
    return {
        "episodes": recorder.writer.episodes,
        "env_steps": recorder.writer.steps,
        "return_mean": returns.mean,
        "log_prob": bool(kept),
    }
