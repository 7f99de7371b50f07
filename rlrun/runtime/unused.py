"""Refuses options that the user set and that a run does not use (core/conditions.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from rlrun.config.paths import options, replay_of
from rlrun.config.unused import conditional, value_at
from rlrun.core import conditions
from rlrun.core.algorithm import Inner
from rlrun.core.conditions import OnlyFor, shown
from rlrun.core.errors import UserError
from rlrun.core.plugins import is_path
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiDiscrete, Nested, leaves
from rlrun.datasets.foreign import has_units
from rlrun.datasets.rllib_json import RLlibJson
from rlrun.datasets.rllib_parquet import RLlibParquet
from rlrun.datasets.trajectories import Source
from rlrun.envs.recorded import RecordedConfig
from rlrun.models.encoders import MLP, Behind, ConvolutionalNet, ImageEncoder, NatureCNN, Parts
from rlrun.models.heads import QHead, QHeadConfig
from rlrun.models.model import is_convolutional
from rlrun.models.observations import entries_of
from rlrun.policies.bandits import BanditPolicy
from rlrun.runtime.plan import Plan
from rlrun.runtime.training_estimates import source_of


def refuse_unused(plan: Plan, given: Mapping[str, Any]) -> None:
    """Raises UserError if one of the options that the user set is not used in this run.

    given: values by path, such as {"algo.exploration.theta": 0.2}."""
    config = plan.config
    if config.run.replay is not None and plan.needs.replay is None and not _chooses_replay(plan):
        raise UserError(
            f"replay={config.run.replay.name} does nothing in this run: algo={config.algo.name} learns from no replay"
        )
    for path, group, condition in conditional(config):
        if path not in given:
            continue
        begin = f"{path}={shown(given[path])} does nothing in this run: it is"
        if isinstance(condition, OnlyFor):
            if not KINDS[condition.kind](plan):
                raise UserError(f"{begin} for {condition.kind}")
        elif not condition.holds(value := value_at(config, condition.path(group))):
            raise UserError(f"{begin} used only {condition.told(group)}, and {condition.path(group)} is {shown(value)}")


# -- kinds of runs -----------------------------------------------------------------------------------------------------


def _chooses_replay(plan: Plan) -> bool:
    """Whether the algorithm's own file chooses the replay, which then is no choice of the user's.

    A file of the user's own (--config-dir) may choose one too, but it is not in conf/ to be read."""
    names = (plan.config.algo.name, _core(plan).name)
    return any(name not in options("algo") or replay_of(name) is not None for name in names)


def _policy(plan: Plan) -> nn.Module:
    return plan.policy_factory(acting=False)()


def _has_layers(policy: nn.Module) -> bool:
    """Tells whether a policy has hidden layers of the model, in its encoders or before its action values."""
    return any(
        (isinstance(part, MLP | Parts | Behind) and len(part.net) > 0)
        or (isinstance(part, QHead) and any(len(layers) > 0 for layers in part.hidden()))  # type: ignore[arg-type]
        for part in policy.modules()
    )


def _activated(plan: Plan) -> bool:
    policy, model = _policy(plan), plan.config.run.model
    convolves = any(isinstance(part, ImageEncoder) for part in policy.modules())
    whole = isinstance(plan.spec.observation, Box)
    return _has_layers(policy) or (convolves and whole and model.conv_activation == "auto")


def _normalized(plan: Plan) -> bool:
    policy = _policy(plan)
    return _has_layers(policy) or any(isinstance(part, NatureCNN | ConvolutionalNet) for part in policy.modules())


def _drawn(plan: Plan) -> bool:
    """Only evolution has policies without initial weights, and only bandits have none of the model's layers."""
    actor = getattr(plan.config.algo, "actor", None)
    if plan.needs.population is None:
        return not isinstance(_policy(plan), BanditPolicy)
    return bool(actor and actor.hidden) or plan.spec.image or _has_layers(_policy(plan))


def _single_images(plan: Plan) -> bool:
    model = plan.config.run.model
    whole = isinstance(plan.spec.observation, Box) and not model.hidden
    return whole and is_convolutional(plan.spec, model) and model.memory.kind == "none"


def _convolves(plan: Plan) -> bool:
    return is_convolutional(plan.spec, plan.config.run.model)


def _conv_layers(plan: Plan) -> bool:
    """Layers behind the convolutions of a single image belong to the head of action values, which may have its own."""
    head = getattr(_core(plan), "head", None)
    replaced = isinstance(head, QHeadConfig) and head.hidden != "auto" and not head.encoder_layer
    return _convolves(plan) and not (replaced and _single_images(plan))


def _searched(plan: Plan) -> bool:
    core = _core(plan)
    return core.search.simulations > 0 or bool(core.eval_simulations)


def _core(plan: Plan) -> Any:
    """The options of the algorithm, or of the one inside it."""
    algo = plan.config.algo
    return algo.inner.cfg if isinstance(getattr(algo, "inner", None), Inner) else algo


def _rewards(plan: Plan) -> bool:
    return getattr(_core(plan), "reward_clip", None) == plan.config.env.reward_clip


def _learnt_values(plan: Plan) -> bool:
    return all(getattr(_core(plan), name, True) not in (False, "linear") for name in ("use_critic", "baseline"))


def _rewarding_layers(plan: Plan) -> bool:
    """Whether the networks of an algorithm that adds rewards of its own have activations."""
    algo = plan.config.algo
    hidden = [getattr(algo, one.name) for one in fields(algo) if one.name.endswith("_hidden")]
    return any(hidden) or (isinstance(plan.spec.observation, Box) and plan.spec.image)


def _rows_travel(plan: Plan) -> bool:
    """Whether rows come from other machines: with several learners they stay, and evolution sends returns only."""
    return not plan.resources.learner_nodes and plan.needs.population is None


def _counted(plan: Plan) -> bool:
    """Whether training plays games whose returns are the policy's. Those of perturbed policies are not."""
    population = plan.needs.population
    return plan.config.runner.name != "offline" and (population is None or population.eval_share > 0)


def _in_units(plan: Plan) -> bool:
    """Whether data.actions_normalized changes how the data of a run are read."""
    sources = [] if plan.data is None else [source for source, _ in plan.data.sources()]
    if plan.estimates:
        sources.append(source_of(plan.config, plan.spec))
    return in_units(plan.spec, sources)


def in_units(spec: EnvSpec, sources: Sequence[Source]) -> bool:
    """Whether data.actions_normalized changes how these data are read, which are those of this environment."""
    return has_units(spec.action) and any(isinstance(one, RLlibJson | RLlibParquet) for one in sources)


KINDS: dict[str, Callable[[Plan], bool]] = {
    conditions.CONTINUOUS: lambda plan: any(isinstance(part, Box) for _, part in leaves(plan.spec.action)),
    conditions.CHOICES: lambda plan: any(
        isinstance(part, Discrete | MultiDiscrete) for _, part in leaves(plan.spec.action)
    ),
    conditions.IMAGES: lambda plan: plan.spec.image,
    conditions.VECTORS: lambda plan: bool(entries_of(plan.spec).vectors),
    conditions.NUMBERS: lambda plan: any(isinstance(part.space, Box) for part in entries_of(plan.spec).vectors),
    conditions.FILTERED: lambda plan: any(isinstance(part, Box) for _, part in leaves(plan.spec.observation)),
    conditions.IMAGE_ENCODERS: lambda plan: _convolves(plan) and not plan.config.algorithm.has_world_model,
    conditions.SINGLE_IMAGES: _single_images,
    conditions.CONVOLUTIONS: _convolves,
    conditions.CONV_LAYERS: _conv_layers,
    conditions.OWN_ENCODERS: lambda plan: is_path(plan.config.run.model.encoder),
    conditions.ACTION_PARTS: lambda plan: isinstance(plan.spec.action, Nested),
    conditions.ACTION_EMBEDDINGS: lambda plan: (
        isinstance(plan.spec.action, Discrete) and isinstance(plan.spec.observation, Nested)
    ),
    conditions.ACTIVATED: _activated,
    conditions.NORMALIZED: _normalized,
    conditions.DRAWN: _drawn,
    conditions.SAMPLERS: lambda plan: plan.resources.inference != "serial",
    conditions.SEVERAL_ENVS: lambda plan: plan.resources.num_envs > 1,
    conditions.LEARNERS: lambda plan: plan.resources.num_learners > 1,
    conditions.TRAVELLING: _rows_travel,
    conditions.AHEAD: lambda plan: _rows_travel(plan) and not plan.config.runner.synchronous,
    conditions.REWARDS: _rewards,
    conditions.LEARNT_VALUES: _learnt_values,
    conditions.SLOW_VALUES: lambda plan: _core(plan).slow_reg > 0 or _core(plan).slow_target,
    conditions.REWARDING_LAYERS: _rewarding_layers,
    conditions.SLATES: lambda plan: isinstance(plan.spec.action, MultiDiscrete),
    conditions.EACH_AGENT: lambda plan: not plan.spec.joint,
    conditions.SEVERAL_AGENTS: lambda plan: plan.spec.agents is not None,
    conditions.EXPERIENCE: lambda plan: plan.config.runner.name != "offline",
    conditions.REPLAYS: lambda plan: plan.needs.replay is not None and plan.config.runner.name != "offline",
    conditions.MODELLED: lambda plan: bool({"dm", "dr", "wdr"} & set(plan.config.run.eval.estimate.methods)),
    conditions.REWARDED: lambda plan: plan.config.algo.name != "bc",
    conditions.UNITS: _in_units,
    conditions.PLAYED: lambda plan: not isinstance(plan.config.env, RecordedConfig),
    conditions.COUNTED: _counted,
    conditions.DRAWING: lambda plan: plan.needs.population is None,
    conditions.ROWS: lambda plan: plan.needs.population is None,
    conditions.SEARCHED: _searched,
    conditions.TEMPERED: lambda plan: _core(plan).exploration.kind != "random",
    conditions.SAVED_WHEN_BETTER: lambda plan: plan.config.run.eval.every is None or plan.config.algorithm.has_rating,
    conditions.JUDGED: lambda plan: _counted(plan) or plan.config.run.eval.every is not None,
    conditions.PACED: lambda plan: getattr(plan.config.runner, "pace", "ratio") == "ratio",
    conditions.WORLD_MODELS: lambda plan: plan.config.algorithm.has_world_model,
    conditions.FIRST_PRIORITIES: lambda plan: plan.config.algorithm.knows_first_priority,
}
