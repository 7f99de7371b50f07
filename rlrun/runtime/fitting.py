"""What of an environment an algorithm sees, and whether algorithm, environment, runner and replay fit together."""

from __future__ import annotations

from dataclasses import replace

from rlrun.config.run import Typed
from rlrun.core.algorithm import Inner, Needs
from rlrun.core.errors import UserError
from rlrun.core.specs import EnvSpec
from rlrun.envs import registry
from rlrun.runtime.replay_plan import check_belongs


def make_spec(config: Typed, needs: Needs) -> EnvSpec:
    """The environment with everything in its rows that the algorithm and its networks ask for."""
    prev_action, prev_reward = config.run.model.memory.previous
    spec = registry.make_spec(
        config.env,
        prev_action,
        prev_reward or needs.sees_reward,
        joint=needs.joint,
        state=config.run.model.central,
        game=needs.simulator,
    )
    teams = {} if spec.agents is None else config.algorithm.teams(config.algo, spec.agents.names)
    return replace(spec, agents=replace(spec.agents, teams=tuple(teams.items()))) if teams else spec  # type: ignore[type-var]


ACTIONS = {  # what kinds of actions are called
    "discrete": "one choice (Discrete)",
    "multi_discrete": "several choices (MultiDiscrete)",
    "multi_binary": "switches (MultiBinary)",
    "box": "numbers (Box)",
    "nested": "a Dict or a Tuple",
}
# Algorithms for a kind of actions, besides ppo, which is for all, and besides bc and marwil among those of data.
ALSO = {"discrete": " or dqn", "box": " or sac"}
ALSO_OF_DATA = {"discrete": ", discrete_cql", "box": ", cql"}


def check_fitting(config: Typed, spec: EnvSpec, needs: Needs) -> None:
    """Raises UserError if algorithm, environment, runner and replay do not fit together."""
    name, runner = config.algo.name, config.runner
    if spec.action.kind not in needs.actions and needs.joint:
        raise UserError(
            f"{name} chooses one of several actions for each agent; the agents of {spec.name} have {spec.action}"
        )
    if needs.several and runner.name in ("distributed_replay", "async_gradients"):
        others = "replay" if needs.replay is not None else "on_policy or actor_learner"
        raise UserError(f"runner={runner.name} learns one policy, and {name} has several; use runner={others}")
    if spec.action.kind not in needs.actions:
        others = f"ppo{ALSO.get(spec.action.kind, '')}"
        if runner.name == "offline":
            others = f"bc{ALSO_OF_DATA.get(spec.action.kind, '')} or marwil"
        kinds = " or ".join(ACTIONS[kind] for kind in needs.actions)
        raise UserError(
            f"{config.algorithm_name} is for actions that are {kinds}; {spec.name} has {spec.action}. Choose"
            f" another algorithm, such as {others}"
        )
    if needs.on_policy and not runner.synchronous:
        raise UserError(
            f"{name} learns from the newest policy's rows alone; runner={runner.name} would hand it older ones"
        )
    if not runner.lockstep and not needs.only_weights:
        raise UserError(
            f"runner={runner.name} shares weights alone, and an update of {name} changes more; it is for a3c, a2c,"
            " pg, dqn, c51, rainbow, qr_dqn, iqn, ddpg and slateq"
        )
    if (needs.population is not None) != (runner.name == "evolution"):
        fitting = "runner=evolution" if needs.population is not None else "another runner than evolution"
        raise UserError(f"{name} runs with {fitting}, not with runner={runner.name}")
    if (needs.tasks is not None) != (runner.name == "meta"):
        fitting = "runner=meta" if needs.tasks is not None else "another runner than meta"
        raise UserError(f"{name} runs with {fitting}, not with runner={runner.name}")
    if needs.tasks is not None and needs.tasks.sampled and not spec.tasks:
        raise UserError(
            f"{name} learns from many tasks, and {spec.name} has no sample_tasks() and set_task();"
            " algo.sample_tasks=false takes the environment as it is for every task"
        )
    at = "algo.inner" if isinstance(getattr(config.algo, "inner", None), Inner) else "algo"
    check_belongs(needs.replay, needs.columns, config.run.replay, name, runner.name, at)
