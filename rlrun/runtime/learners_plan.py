"""Where the learners of a run are, if there are several and resources=ray spreads them over machines."""

from __future__ import annotations

from dataclasses import replace

from rlrun.config.run import Typed
from rlrun.core.errors import UserError
from rlrun.machine.machine import Machine
from rlrun.machine.nodes import shares
from rlrun.machine.resources import Resources

# Runners whose learners may be on several machines. Those with a replay save its rows into files that the first
# learner's machine would not have.
SPREAD = ("actor_learner", "on_policy")


def check_learners(config: Typed) -> None:
    """Raises UserError for several learners on machines of a cluster where the runner has one there."""
    asked, runner = config.run.resources, config.runner.name
    if asked.ray is not None and asked.num_learners not in ("auto", 1) and runner not in SPREAD:
        raise UserError(
            f"resources.num_learners={asked.num_learners}: with resources=ray and runner={runner} there is one learner;"
            f" several need runner={' or '.join(SPREAD)}"
        )


def learners_on_nodes(config: Typed, resources: Resources, machine: Machine) -> Resources:
    """Divides several learners, each with its samplers, among the machines of a cluster. Raises UserError where that is
    not possible."""
    learners, asked = resources.num_learners, config.run.resources
    assert asked.ray is not None
    if resources.device.type != "cpu":
        raise UserError(
            f"resources.device={asked.device}: several learners on the machines of resources=ray learn on CPUs; set"
            " resources.device=cpu, or take one learner"
        )
    if asked.ray.lost == "leave_out":
        raise UserError(
            "resources.ray.lost=leave_out: several learners make every update together, so none can be left out; use"
            " take_over or end"
        )
    if config.run.record is not None:
        raise UserError(
            f"record={config.run.record}: the rows of learners on other machines do not come to this one; take one"
            " learner, or rlrun record RUN_DIR, which records the trained policy"
        )
    made = shares(learners, machine.nodes)  # the first node's first learner is the run's own process
    if 0 in made:
        raise UserError(
            f"resources=ray: {learners} learners are fewer than the {len(made)} nodes; take fewer with"
            " resources.ray.nodes, or more learners"
        )
    each = asked.ray.samplers_per_node
    if each != "auto" and any(count * resources.samplers_per_learner != each for count in made):
        raise UserError(
            f"resources.ray.samplers_per_node={each}: the nodes have {' and '.join(map(str, made))} learners, with"
            f" {resources.samplers_per_learner} samplers each; say how many in all with resources.num_samplers"
        )
    return replace(resources, learner_nodes=made)
