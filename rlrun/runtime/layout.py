"""layout() decides on the processes, devices, threads and environments of a run."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rlrun.config.run import Typed
from rlrun.config.unused import only_for
from rlrun.core.algorithm import Needs
from rlrun.core.conditions import SAMPLERS
from rlrun.core.errors import UserError
from rlrun.core.pulse import Limits
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.core.watchdog import watched
from rlrun.envs import registry
from rlrun.envs.recorded import RecordedConfig
from rlrun.machine.asked import Asked
from rlrun.machine.machine import Machine
from rlrun.machine.nodes import RayConfig, sampler_shares
from rlrun.machine.resources import Resources
from rlrun.models.config import has_own_parts
from rlrun.models.model import is_convolutional
from rlrun.runners import distributed_replay
from rlrun.runtime.learners_plan import check_learners, learners_on_nodes

# Runners whose samplers may be on several machines.
SPREAD = ("actor_learner", "on_policy", "replay", "distributed_replay", "evolution")
RECORDED_SEC = 60.0  # for another learner's process to write the rest of a recording when the run ends


def limits_of(config: Typed) -> Limits:
    """Returns how long environments, and processes that start or end, may take. Learners in processes of their own may
    have many rows to write when a recording ends."""
    env, start_sec = config.env, config.run.resources.start_timeout_sec
    end_sec = Limits().end_sec if config.run.record is None else RECORDED_SEC
    if isinstance(env, RecordedConfig):
        return Limits(start_sec=start_sec, end_sec=end_sec)
    return Limits(env.step_timeout_sec, env.reset_timeout_sec, start_sec, end_sec)


def shards_of(runner: Any) -> int | None:
    """Returns the number of processes that hold a part of the replay, or None if the learner holds it."""
    return runner.num_shards if isinstance(runner, distributed_replay.Config) else None


def layout(config: Typed, spec: EnvSpec, needs: Needs, machine: Machine, given: Collection[str]) -> Resources:
    """Decides on processes, devices, threads and environments, as the runner does it. Raises UserError where the
    runner, the machines and what the algorithm needs do not go together."""
    asked = config.run.resources
    again = asked.restarts > 0 and not asked.exact
    seeds = Seeds(config.run.seed)
    make_env = registry.Factory(cfg=config.env, spec=spec, seeds=seeds, stream="env", learning=True, restarts=again)
    runner = importlib.import_module(f"rlrun.runners.{config.runner.name}")
    if asked.ray is not None and config.runner.name not in SPREAD:
        others = ", ".join(SPREAD)
        raise UserError(f"resources=ray: runner={config.runner.name} works on one machine; {others} do on several")
    check_learners(config)
    with watched(limits_of(config)):  # it may try the environment
        resources: Resources = runner.layout(
            Asked(
                cfg=asked,
                needs=needs,
                image=spec.image,
                convolutions=is_convolutional(spec, config.run.model),
                make_env=make_env,
                own_networks=has_own_parts(config.run.model),
                num_shards=shards_of(config.runner) or 1,
                for_samplers=next((path for path, kind in only_for(config) if kind == SAMPLERS and path in given), ""),
            ),
            machine,
        )
    if asked.ray is not None:
        resources = among_nodes(config, asked.ray, resources, machine)
    if needs.cut_share < 1 and resources.inference != "serial":
        raise UserError(
            "a straggler cut needs samplers that learn: resources.inference=serial, or algo.cut_share=1 with"
            f" {resources.inference}"
        )
    if spec.game is not None and spec.game.copies and resources.inference == "batched":
        raise UserError(
            f"the search steps copies of {spec.name}, which are in the samplers' processes: resources.inference=serial"
            " or local"
        )
    return resources


def among_nodes(config: Typed, ray: RayConfig, resources: Resources, machine: Machine) -> Resources:
    """Divides learners or samplers among the machines of a cluster (resources=ray)."""
    if config.runner.name in ("on_policy", "meta") and ray.lost == "leave_out":
        raise UserError(
            f"resources.ray.lost=leave_out: runner={config.runner.name} waits for the rows of all samplers, so it"
            " cannot go on without some; use take_over or end"
        )
    if resources.num_learners > 1:
        return learners_on_nodes(config, resources, machine)
    return on_nodes(resources, machine, ray.samplers_per_node)


def on_nodes(resources: Resources, machine: Machine, each: int | str) -> Resources:
    """Divides the samplers among the machines of a cluster. Raises UserError where a machine would have none.

    each: what samplers_per_node says."""
    nodes = machine.nodes
    made = sampler_shares(resources.num_samplers, nodes) if each == "auto" else (int(each),) * len(nodes)
    if 0 in made:
        raise UserError(
            f"resources=ray: {resources.num_samplers} samplers are fewer than the {len(made)} nodes; take fewer with"
            " resources.ray.nodes, or more samplers"
        )
    return replace(resources, nodes=made)
