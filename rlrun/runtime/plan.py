"""plan(config, machine) decides everything about a run before any part of it is made, and returns a Plan.

A Plan is a value. `rlrun train --plan` prints it, and every learner gets it, so that all make the same parts."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rlrun.config.run import Typed
from rlrun.core.algorithm import Algorithm, Needs
from rlrun.core.batch import RowSpec, fragment_layout, layout_bytes
from rlrun.core.checkpoint import load_part
from rlrun.core.errors import UserError
from rlrun.core.policy import Policy
from rlrun.core.pulse import Limits
from rlrun.core.restarts import Restarts, ToldRestarts
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.dataflow.weights import weight_bytes
from rlrun.envs import registry
from rlrun.envs.recorded import RecordedConfig
from rlrun.machine.machine import Machine
from rlrun.machine.resources import Resources
from rlrun.models.config import ModelConfig
from rlrun.models.model import Model, lower_precision
from rlrun.policies.exploration import check_exploration
from rlrun.policies.several import SeveralPolicies
from rlrun.runners import on_policy
from rlrun.runtime.data_plan import DataPlan, check_evaluation, plan_data, recorded
from rlrun.runtime.fitting import check_fitting, make_spec
from rlrun.runtime.layout import layout, limits_of, shards_of
from rlrun.runtime.replay_plan import PolicyReplay, ReplayPlan, groups_of, layout_of
from rlrun.samplers.evaluators import EvaluationPlan

MAX_EPISODE = 10_000  # rows of the longest episode that complete_episodes makes room for


@dataclass(frozen=True)
class PolicyFactory:
    """Makes a policy with the run's initial weights. It can be pickled.

    acting: whether the policy only acts, so that convolutions have the precision of inference and no gradients."""

    algorithm: type[Algorithm]
    algo: Any
    spec: EnvSpec
    model: ModelConfig
    precision: str
    seed: int
    acting: bool

    def __call__(self) -> Policy:
        with torch.random.fork_rng(devices=[]):  # nn.init takes no generator
            torch.manual_seed(self.seed)
            policy = self.algorithm.make_policy(self.spec, Model(self.model, self.precision), self.algo)
        if self.acting:
            lower_precision(policy)
            policy.requires_grad_(False)
        return policy


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All decisions about a run."""

    config: Typed
    machine: Machine  # that the plan is for
    spec: EnvSpec
    needs: Needs  # with the columns of all agents
    resources: Resources
    fragment: RowSpec  # shapes [rows (+ 1), columns, ...] of a fragment
    fragment_rows: int
    fragments_per_producer: int  # fragments of a producer that may be filled or waiting at once
    # With complete episodes: after this many rows, an episode's end also ends its column of the fragment. If None,
    # episodes continue in the next fragment.
    whole_after: int | None
    columns_per_learner: int  # columns of a learner's part of a train batch
    first_counted: int  # the first environment whose episodes count in statistics
    parameters: int  # number of the policy's parameters
    weight_bytes: int  # of all that processes which act get of the policy: its parameters and buffers
    policies: dict[str, tuple[int, ...]]  # the numbers of the agents of each policy; empty if there is one for all
    replay: ReplayPlan | None
    data: DataPlan | None

    @property
    def seeds(self) -> Seeds:
        return Seeds(self.config.run.seed)

    @property
    def lockstep(self) -> bool:
        """Tells whether learners make every update together."""
        return self.config.runner.lockstep

    @property
    def learners_in_lockstep(self) -> int:
        return self.resources.num_learners if self.lockstep else 1

    @property
    def evaluates(self) -> bool:
        """Tells whether the run plays games to judge its policy."""
        return self.config.run.eval.every is not None and not isinstance(self.config.env, RecordedConfig)

    @property
    def estimates(self) -> bool:
        """Tells whether the run estimates the value of its policy from data."""
        return self.config.run.eval.every is not None and bool(self.config.run.eval.estimate.methods)

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """The machines of a cluster, and the samplers or players of each."""
        return tuple(
            (node.name, workers) for node, workers in zip(self.machine.nodes, self.resources.nodes, strict=True)
        )

    @property
    def fragment_columns(self) -> int:
        return self.resources.envs_per_group * self.spec.columns_per_env

    @property
    def fragment_bytes(self) -> int:
        return layout_bytes(self.fragment)

    def restarts(self) -> Restarts:
        """Returns a new budget for failures that this run survives. An exact run survives none."""
        cfg = self.config.run.resources
        return Restarts(0 if self.resources.exact else cfg.restarts, cfg.restart_window_sec)

    def told_restarts(self) -> ToldRestarts:
        """Returns the same budget for what a process or machine beside the run's first process replaces itself."""
        made = self.restarts()
        return ToldRestarts(made.limit, made.window_sec)

    def limits(self) -> Limits:
        """Returns how long environments may take."""
        return limits_of(self.config)

    def make_env(self) -> registry.Factory:
        """Returns the factory of training environments."""
        return registry.Factory(
            cfg=self.config.env,
            spec=self.spec,
            seeds=self.seeds,
            stream="env",
            learning=True,
            restarts=self.restarts().limit > 0,
        )

    def eval_env(self) -> registry.Factory:
        """Returns the factory of evaluation environments: full games with seeds that training never uses."""
        tasks = self.needs.tasks
        return registry.Factory(
            cfg=self.config.env,
            spec=self.spec,
            seeds=self.seeds,
            stream="eval",
            learning=False,
            new_tasks=tasks is not None and tasks.sampled,
        )

    def evaluation(self) -> EvaluationPlan:
        """Returns how this run evaluates."""
        cfg, make_policy = self.config.run.eval, self.policy_factory(acting=True)
        if self.resources.device.type != "cpu":  # its precision is the GPU's, and processes that evaluate use CPUs
            make_policy = replace(make_policy, precision="fp32")
        return EvaluationPlan(
            make_env=self.eval_env(),
            make_policy=make_policy,
            seeds=self.seeds,
            episodes=cfg.episodes,
            env_steps=cfg.env_steps,
            greedy=cfg.greedy,
            function=cfg.function,
            workers=cfg.workers,
        )

    def policy_factory(self, acting: bool) -> PolicyFactory:
        return policy_factory(self.config, self.spec, self.resources, acting)

    def settings(self) -> dict[str, Any]:
        """Returns the choices of `auto` as options of conf/resources, so that a resumed run uses the same."""
        made, ray = self.resources, self.config.run.resources.ray
        own = self.needs.every_process_learns or not self.lockstep or self.config.runner.name == "offline"
        own = own or (ray is not None and ray.samplers_per_node != "auto")  # which says the number in its own way
        return {
            "inference": made.inference,
            "num_learners": made.num_learners,
            "num_samplers": "auto" if own else made.num_samplers,
            "envs_per_sampler": made.envs_per_group,
        }


def policy_factory(config: Typed, spec: EnvSpec, resources: Resources, acting: bool) -> PolicyFactory:
    precision = resources.acting_precision if acting else resources.precision
    seed = Seeds(config.run.seed).integer("init")
    return PolicyFactory(config.algorithm, config.algo, spec, config.run.model, precision, seed, acting)


def plan(config: Typed, machine: Machine, given: Collection[str] = ()) -> Plan:
    """Decides everything about a run.

    given: paths of the options that the user set. Raises UserError if parts do not fit together, numbers do not divide
    or memory is too small."""
    needs: Needs = config.algorithm.needs(config.algo)
    if needs.rewards_play and config.runner.name == "offline":
        raise UserError(
            f"{config.algo.name} rewards what is played, and {config.algo.inner.cfg.name} learns from data alone with"
            " runner=offline"
        )
    if isinstance(config.env, RecordedConfig) and config.runner.name != "offline":
        raise UserError(
            f"{config.algo.name} with runner={config.runner.name} plays an environment, with or without data: say which"
            " with env=NAME"
        )
    spec = make_spec(config, needs)
    registry.check_vectorised(config.env, spec)
    check_fitting(config, spec, needs)
    whole = needs.tasks is not None or (isinstance(config.runner, on_policy.Config) and config.runner.complete_episodes)
    resources = layout(config, spec, needs, machine, given)
    check_evaluation(config)
    rows = needs.rows if needs.replay is None else needs.replay.fragment_length
    if whole:
        rows += room_for_episodes(spec, needs, resources)
    policy = policy_factory(config, spec, resources, acting=True)()
    learnt = needs  # without what is only recorded
    if config.run.record is not None:
        if needs.cut_share < 1 and resources.num_learners > 1:
            raise UserError(
                "record= needs algo.cut_share=1: where a straggler cut ends a fragment early, it tears episodes"
            )
        needs = recorded(needs, policy)
    check_exploration(policy, spec, needs.record)
    fragments = fragments_per_producer(config, needs, resources)
    if needs.replay is None:  # a batch holds the rows of all agents of its environments
        needs = replace(needs, columns=needs.columns * spec.columns_per_env)
        learnt = replace(learnt, columns=needs.columns)
    return Plan(
        config=config,
        machine=replace(machine, env_step_sec=Machine.env_step_sec, gpu_free=Machine.gpu_free),
        spec=spec,
        needs=needs,
        resources=resources,
        fragment=fragment_layout(
            spec.obs_rows,
            spec.action_row,
            policy.record_spec(needs.record),
            policy.core_spec(),
            rows,
            resources.envs_per_group * spec.columns_per_env,
            needs.core_every,
            spec.reward_row,
        ),
        fragment_rows=rows,
        fragments_per_producer=fragments,
        whole_after=needs.rows if whole else None,
        columns_per_learner=needs.columns // (resources.num_learners if config.runner.lockstep else 1),
        first_counted=min(resources.num_envs - 1, math.ceil(needs.counted_from * resources.num_envs)),
        parameters=sum(parameter.numel() for parameter in policy.parameters()),
        weight_bytes=weight_bytes(policy),
        policies=policy.members if isinstance(policy, SeveralPolicies) else {},
        replay=plan_replay(config, spec, learnt, resources, policy, machine),
        data=plan_data(config, spec, learnt, policy, resources.num_learners),
    )


def room_for_episodes(spec: EnvSpec, needs: Needs, resources: Resources) -> int:
    """Returns the rows that a fragment needs beyond its length so that its last episode can end.

    Raises UserError if the longest episode is unknown or too long."""
    limit, every = spec.max_episode_steps, needs.core_every or 1
    if needs.cut_share < 1 and resources.num_learners > 1:
        raise UserError(
            "runner.complete_episodes=true needs algo.cut_share=1: a straggler cut stops episodes before their ends"
        )
    if limit is None or limit > MAX_EPISODE:
        known = "has no limit" if limit is None else f"may last {limit} steps"
        asks = "runner=meta" if needs.tasks is not None else "runner.complete_episodes=true"
        raise UserError(
            f"{asks} makes room for the longest episode, and one of {spec.name} {known}; set {spec.limit_option}, for"
            f" {MAX_EPISODE} steps or less"
        )
    return -(-(limit + 1) // every) * every


def fragments_per_producer(config: Typed, needs: Needs, resources: Resources) -> int:
    """Returns how many fragments of a producer may be filled or waiting at once.

    needs: what the algorithm asked for, in which an environment is one column."""
    runner = config.runner
    columns = needs.columns // (resources.num_learners if runner.lockstep else 1)  # of one learner's train batch
    if needs.population is not None:
        return 0  # players report returns and fill no fragments
    held = columns // resources.envs_per_group  # fragments that a train batch holds before it frees them
    if needs.replay is not None:
        return 2  # one is filled while the other is stored
    if needs.tasks is not None:
        return 1  # a sampler plays a round and waits for the next one's policies
    if runner.synchronous:
        return held // resources.producers_per_learner
    if resources.nodes:  # a train batch is held where it arrives
        return runner.requests_in_flight
    return max(runner.requests_in_flight, -(-(held + 1) // resources.producers_per_learner))


def plan_replay(
    config: Typed, spec: EnvSpec, needs: Needs, resources: Resources, policy: Policy, machine: Machine
) -> ReplayPlan | None:
    """Returns the plan of the replay, or None for an algorithm without a replay."""
    cfg = config.run.replay
    if needs.replay is None or cfg is None or config.runner.name == "offline":
        return None
    layout = layout_of(cfg, needs, spec, policy, resources)
    groups: dict[str, PolicyReplay] = {}
    if isinstance(policy, SeveralPolicies):
        layout, groups = groups_of(layout, policy)
    first = (config.algorithm, config.algo) if needs.replay.first_priority else None
    made = ReplayPlan(
        cfg=cfg,
        layout=layout,
        learners=resources.num_learners,
        columns=needs.columns,
        shards=shards_of(config.runner),
        queue_timeout_sec=config.runner.queue_timeout_sec,
        first_priority=first,
        groups=groups,
        agents=spec.columns_per_env,
    )
    return made.placed(resources.device, machine.gpu_free)


def check_saved(plan: Plan, folder: Path) -> None:
    """Raises UserError if a checkpoint's replay does not fit this plan."""
    if plan.replay is not None:
        plan.replay.check_saved(folder)
    if plan.replay is not None and plan.config.runner.name == "async_gradients":
        saved = load_part(folder, "replay").get("replay")  # None: it was saved without, and the replay begins anew
        several = saved is not None and "limiter" in saved  # a single learner saves it as a part of its own
        if saved is not None and several != (plan.resources.num_learners > 1):
            raise UserError(
                "with runner=async_gradients, a run of one learner cannot go on with several, nor one of several with"
                " one: resume with the same resources.num_learners"
            )
