"""How a run gets its machines, and what their hosts are told, where resources=ray spreads its samplers."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any

import torch

from rlrun.cluster.engine import Engine, awaited
from rlrun.cluster.learners import LearnersWanted, company_on_nodes
from rlrun.cluster.packing import check_compression
from rlrun.cluster.ray_engine import RayEngine, check_installed
from rlrun.config.run import Typed, type_config
from rlrun.core.errors import UserError
from rlrun.dataflow.ranks import ProcessRanks
from rlrun.dataflow.workers import carries
from rlrun.machine.machine import Machine, measured
from rlrun.machine.nodes import Node, RayConfig, simulated
from rlrun.runtime.plan import Plan, plan
from rlrun.version import sources

SAMPLERS, PLAYERS = "rlrun.runtime.host:SamplerHost", "rlrun.runtime.host:PlayerHost"
LEARNERS = "rlrun.runtime.learner_host:LearnerHost"
_JOINED: dict[str, Engine] = {}  # the cluster of this process, by address, from the plan on


def machine_for(config: Typed) -> Machine:
    """Returns this machine as it is now, with the nodes of its cluster where the run has one.

    Raises UserError if there is no such cluster."""
    cfg = config.run.resources.ray
    machine = measured()
    if cfg is None:
        return machine
    check_installed()
    check_compression(cfg.compress)
    if carries():
        raise UserError(
            f"env={config.env.name} is registered by this program, of which other machines know nothing: name its class"
            ' with resources=ray, as in env="my_envs:MyEnv"'
        )
    if cfg.address is None:
        return replace(machine, nodes=simulated(cfg, machine.cores))
    for left in list(_JOINED):  # by a run of this process that was refused before it began
        _JOINED.pop(left).close()
    engine = _JOINED[cfg.address] = RayEngine(cfg, ())
    return replace(machine, nodes=_joined(engine, cfg))


def _joined(engine: Engine, cfg: RayConfig) -> tuple[Node, ...]:
    """Waits for as many machines with cores as the run wants. Raises UserError where there are fewer."""
    wanted = 1 if cfg.nodes == "auto" else cfg.nodes
    nodes = awaited(engine, wanted, cfg.join_sec)
    after = f"after {cfg.join_sec:g} s the cluster at {cfg.address} has"
    if not nodes:
        raise UserError(f"resources=ray: {after} no machine with cores; start Ray on one (ray start --num-cpus N)")
    if len(nodes) < wanted:
        raise UserError(f"resources.ray.nodes={wanted}: {after} {len(nodes)} with cores")
    return tuple(nodes if cfg.nodes == "auto" else nodes[:wanted])


def engine_of(cfg: RayConfig, planned: Sequence[Node]) -> Engine:
    """Returns the engine of a run whose nodes were planned: the cluster that was joined, or one that starts here."""
    return _JOINED.pop(cfg.address or "", None) or RayEngine(cfg, planned)


def learners_elsewhere(plan: Plan, stopping_sec: Callable[[], float | None]) -> AbstractContextManager[ProcessRanks]:
    """Yields the ranks of the first learner of a run, this process, while the others learn on the run's machines.
    stopping_sec: as Stops has it."""
    made, cfg = plan.resources, plan.config.run.resources.ray
    assert cfg is not None
    samplers = 0 if made.inference == "serial" else made.samplers_per_learner
    told = brief(plan)
    told["given"] |= {"num_learners": made.num_learners}
    # What these name lies on this machine, and the first learner sends what it begins with.
    told["config"] |= {"init": None}
    limits, timeout_sec = plan.limits(), plan.config.runner.queue_timeout_sec
    learners = [(node.name, count) for node, count in zip(plan.machine.nodes, made.learner_nodes, strict=True)]
    wanted = LearnersWanted(LEARNERS, told, learners, 1 + samplers, limits.start_sec, timeout_sec, limits.end_sec)
    return company_on_nodes(engine_of(cfg, plan.machine.nodes), cfg, wanted, stopping_sec=stopping_sec)


def brief(plan: Plan) -> dict[str, Any]:
    """Returns what every host of a run is told: numbers and text, which JSON can write."""
    facts = {one.name: getattr(plan.machine, one.name) for one in fields(plan.machine)}
    del facts["env_step_sec"], facts["gpu_free"]  # nothing is measured again
    return {
        "config": {**plan.config.plain, "logger": {}},  # hosts log nothing, and its addresses may hold passwords
        "given": {"inference": plan.resources.inference, "envs_per_sampler": plan.resources.envs_per_group},
        "machine": facts | {"cpu_flags": sorted(plan.machine.cpu_flags)},
        "same": same(plan),
    }


def same(plan: Plan) -> dict[str, str]:
    """Returns what must be equal on all machines of a run, each with its name in messages."""
    rows = hashlib.sha256(repr((plan.fragment, plan.spec)).encode())
    return {
        "Python": platform.python_version(),
        "PyTorch": str(torch.__version__),
        "rlrun": sources(),
        "rows of the environment": rows.hexdigest()[:12],
    }


def plan_again(brief: dict[str, Any]) -> Plan:
    """Makes the same plan on another machine."""
    facts = brief["machine"]
    machine = Machine(
        **facts
        | {
            "cpu_flags": frozenset(facts["cpu_flags"]),
            "gpus": tuple(facts["gpus"]),
            "gpu_free": lambda index: 0,  # the learner's machine alone has a replay
            "nodes": tuple(Node(*node) for node in facts["nodes"]),
        }
    )
    values = brief["config"]
    values["resources"] |= brief["given"]
    return plan(type_config(values), machine)
