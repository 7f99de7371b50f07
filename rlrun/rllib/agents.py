"""Translates RLlib's options of environments with several agents (`multiagent`), as a part of translate.py.

One policy for all agents is the algorithm itself; several policies are algo=multi around it. team.py says who has which
policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any

from rlrun.rllib.algorithms import JOINT, OFF_POLICY, Q_LEARNING
from rlrun.rllib.team import GROUP, OVERRIDES, Own, Team, merged, told
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import Line, flattened, flow

LOST = {  # options without a counterpart: (why, the values with which nothing is lost)
    "policy_map_capacity": ("all policies stay in memory", None),
    "policy_map_cache": ("all policies stay in memory", None),
    "policy_states_are_swappable": ("all policies stay in memory", None),
    "observation_fn": (
        "it is Python; a wrapper of the environment (env=my_package:MyEnv) can change what agents see",
        (None,),
    ),
}
# RLlib's options that it reads from the algorithm, never from one policy
OF_THE_ALGORITHM = (
    "train_batch_size train_batch_size_per_learner rollout_fragment_length sample_batch_size batch_mode num_sgd_iter"
    " num_epochs sgd_minibatch_size minibatch_size learning_starts num_steps_sampled_before_learning_starts"
    " target_network_update_freq training_intensity buffer_size replay_buffer_config prioritized_replay env env_config"
    " seed evaluation_interval evaluation_duration evaluation_num_workers evaluation_config optimizer"
).split()
# rlrun's options of an algorithm inside that all policies must have alike, because samplers and replays serve them all
ALIKE = (
    "fragment_length batch_size num_envs learning_starts replay_ratio n_step sequence_length sequence_stride burn_in"
    " input_priorities random_steps"
).split()
# Options that count steps as count_steps_by says
COUNTED = (
    "rollout_fragment_length sample_batch_size num_steps_sampled_before_learning_starts learning_starts"
    " replay_buffer_config.learning_starts target_network_update_freq exploration_config.epsilon_timesteps"
    " exploration_config.warmup_timesteps exploration_config.scale_timesteps exploration_config.random_timesteps"
    " schedule_max_timesteps"
).split()
BATCHES = ("train_batch_size", "train_batch_size_per_learner")
POINTS = ("lr_schedule", "entropy_coeff_schedule", "lr", "entropy_coeff", "epsilon", "actor_lr", "critic_lr")
RATES = {
    "sac": ("actor_lr", "critic_lr", "alpha_lr"),
    "ddpg": ("actor_lr", "critic_lr"),
    "td3": ("actor_lr", "critic_lr"),
}
# What a tuned file has for an option that the user must fill in. It must be one that conf/ gives no value, which would
# stand: algo.policies.NAME, not algo.policies.
EMPTY = "???"


# -- steps -------------------------------------------------------------------------------------------------------------


def steps_of_agents(one: Translation) -> None:
    """Converts what RLlib counts in steps of agents, with count_steps_by=agent_steps, to env steps."""
    key, _ = told(one.config, "count_steps_by")
    unit = one.given.get(key)
    if unit != "agent_steps":
        one.say(key, "dropped", why="env_steps: an env step is a step of the environment, in rlrun too")
        return
    number = one.acting
    if number == 1:
        one.say(key, "dropped", why="one agent acts in an env step")
        return
    if number is None:
        one.say(
            key, "not mapped", why=f"rlrun counts env steps, and how many agents {one.env.name} has is unknown here"
        )
        return
    why = f"agent steps, of which an env step has {number}"
    one.say(key, "dropped", why=f"rlrun counts env steps, and numbers of steps are divided by the {number} agents")
    off_policy = one.core in (*OFF_POLICY, *Q_LEARNING, "maddpg")
    for name in [*COUNTED, *(() if off_policy else BATCHES), *POINTS]:
        if name == "target_network_update_freq" and not off_policy:
            continue
        for source in (one.given, one.defaults):
            if name in source:
                made = _divided(source[name], number, name in POINTS)
                if source is one.given and name in one.grids:
                    one.grids[name] = [_divided(value, number, name in POINTS) for value in one.grids[name]]
                if made != source[name]:
                    one.converted.setdefault(name, (source[name], why))
                    source[name] = made


def _divided(value: Any, number: int, points: bool) -> Any:
    """A number of agent steps, or points [steps, value], in env steps."""
    if points:
        pairs = isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value)
        return [[round(step / number), height] for step, height in value] if pairs else value
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return math.ceil(value / number) if whole else value


# -- policies ----------------------------------------------------------------------------------------------------------


def agents(one: Translation, alone: Callable[[dict[str, Any]], Translation]) -> None:
    """Sets which agents have which policy, and what the policies have of their own.

    alone: translates other options of the same experiment, as if its environment had one agent."""
    for name, (why, nothing) in LOST.items():
        key, value = told(one.config, name)
        one.say(key, "dropped" if nothing is None or value in nothing else "not mapped", why=why)
    _replay_mode(one)
    if one.team is None:
        _without(one)
        return
    if one.core == "maddpg":
        return  # maddpg.py says what its policies have
    if one.outer == "multi":
        _policies(one, one.team)
        _overrides(one, one.team, alone)
        _trained(one, one.team)
        _minibatches(one, one.team)
    else:
        _shared(one, one.team)


def _without(one: Translation) -> None:
    """Lists the options of an experiment whose environment has one agent."""
    for name in ("policies", "policy_mapping_fn", "policies_to_train", OVERRIDES):
        key, value = told(one.config, name)
        lost = name in ("policies", OVERRIDES) and value not in (None, {}, [])
        why = f"{one.env.name} has one agent, and so one policy"
        one.say(key, "not mapped" if lost else "dropped", why=why)


def _shared(one: Translation, team: Team) -> None:
    """Lists what asks for one policy, which all agents have."""
    ((_, own),) = team.policies.items()
    key, _ = told(one.config, "policies")
    together = one.core in JOINT
    why = f"{one.core} learns all agents together" if together else "one policy acts for all agents"
    one.say(key, "mapped", _chosen(one), why)
    _spec(one, own, key)
    one.say(told(one.config, "policy_mapping_fn")[0], "dropped", why=why)
    one.say(told(one.config, "policies_to_train")[0], "dropped", why="the only policy learns")
    one.say(told(one.config, OVERRIDES)[0], "dropped", why="its options are those of the only policy")
    _unused(one, team, key)


def _chosen(one: Translation) -> str:
    return f"algo={one.algo}" + (f" algo@algo.inner={one.made.inner}" if one.made.inner else "")


def _unused(one: Translation, team: Team, key: str) -> None:
    for theirs in team.unused:
        one.made.lines.append(Line(f"{key}.{theirs}", None, "dropped", "", "no agent has this policy"))


def _spec(one: Translation, own: Own, key: str) -> None:
    """Lists what a policy is described by, beside its options."""
    for part in ("observation_space", "action_space"):
        if own.spec.get(part) is not None:
            why = "the environment says which spaces its agents have"
            one.made.lines.append(Line(f"{key}.{own.theirs}.{part}", own.spec[part], "dropped", "", why))
    kind = own.spec.get("policy_class")
    if kind is not None and own.acts is None:
        why = "it is the policy of the experiment's algorithm"
        one.made.lines.append(Line(f"{key}.{own.theirs}.policy_class", kind, "dropped", "", why))


def _policies(one: Translation, team: Team) -> None:
    """Sets which agents have which policy, and what policies without weights act by."""
    key, _ = told(one.config, "policies")
    fn, _ = told(one.config, "policy_mapping_fn")
    if team.known:
        table = {
            name: own.agents[0] if len(own.agents) == 1 else list(own.agents) for name, own in team.policies.items()
        }
        one.set("algo.policies", table, key, why=team.why)
        one.say(fn, "mapped", f"algo.policies={flow(table)}", team.why)
    else:
        they = f" (the agents are {', '.join(team.agents)})" if team.agents else ""
        says = " ".join(f"algo.policies.{name}=[AGENTS]" for name in team.policies)
        why = f"{team.why}: say it with {says}{they}"
        for name in team.policies:
            _ask(one, f"algo.policies.{name}", "*", why)
        first = f"algo.policies.{next(iter(team.policies))}"
        one.say(key, "mapped", f"{first}={flow(EMPTY)}", "the agents of each policy are yours to fill in")
        one.say(fn, "not mapped", why=why)
    _unused(one, team, key)
    for name, own in team.policies.items():
        _spec(one, own, key)
        at, kind = f"{key}.{own.theirs}.policy_class", own.spec.get("policy_class")
        if own.acts == "random":
            one.set(f"algo.fixed.{name}", "random", why=f"{kind} draws actions at random")
            one.made.lines.append(Line(at, kind, "mapped", f"algo.fixed.{name}=random", ""))
        elif own.acts is not None:
            why = (
                f"a class of RLlib's policies cannot be read from a file: say what {name} acts by with"
                f" algo.fixed.{name}=random, a run's directory, or my_package.module:Name, a subclass of"
                " rlrun.Exploration"
            )
            _ask(one, f"algo.fixed.{name}", "random", why)
            one.made.lines.append(Line(at, kind, "not mapped", "", why))


def _ask(one: Translation, option: str, stand_in: Any, why: str) -> None:
    """Leaves an option to be filled in by the user. stand_in: a value with which the file can be checked."""
    one.made.values[option] = EMPTY
    one.made.asked[option] = stand_in
    one.reasons[option] = why


def _overrides(one: Translation, team: Team, alone: Callable[[dict[str, Any]], Translation]) -> None:
    """Sets the options that policies have of their own."""
    plain = _for_all(one.config)
    base = alone(plain) if any(own.changes for own in team.policies.values()) else one
    for name, own in team.policies.items():
        reads = {key: value for key, value in own.config.items() if key not in OF_THE_ALGORITHM}
        sub = alone(merged(plain, reads)) if reads and own.acts is None else base
        said = {line.key: line for line in sub.made.lines if line.given}
        if sub.refused.keys() - base.refused.keys():  # what is refused of a policy's own stays what all have
            sub = alone(merged(plain, _without_options(reads, sub.refused.keys() - base.refused.keys())))
        for at, changes in own.changes.items():
            for key, value in flattened(changes).items():
                _override(one, Line(f"{at}.{key}", value, "dropped", "", ""), key, own, name, (base, sub, said))
        for target, value in sub.made.values.items() if sub is not base and sub.algo == base.algo else ():
            group, _, option = target.partition(".")
            if group == "algo" and option not in ALIKE and base.made.values.get(target, EMPTY) != value:
                one.set(f"algo.options.{name}.{option}", value, why=f"of the policy {name}")
    for name in (OVERRIDES,):
        key, value = told(one.config, name)
        one.say(
            key, "dropped", why="each of its options has a line of its own" if value else "{}: nothing is asked for"
        )


def _override(one: Translation, line: Line, key: str, own: Own, name: str, made: tuple) -> None:
    """Lists what becomes of an option that a policy has of its own."""
    base, sub, said = made
    found = said.get(key)
    plain = key.split(".")[0]
    how, became, why = "not mapped", "", f"rlrun knows no such option of {one.run}"
    target, _, text = found.became.partition("=") if found is not None else ("", "", "")
    if own.acts is not None:
        how, why = "dropped", f"{name} acts without weights"
    elif plain in OF_THE_ALGORITHM:
        how, why = "dropped", "RLlib reads it from the algorithm, never from one policy"
    elif sub.algo != base.algo:
        why = f"it asks for algo={sub.algo}, and the file's algorithm is {base.algo}"
    elif found is not None and found.how != "mapped":
        how, why = found.how, found.why
    elif found is not None and base.made.values.get(target, EMPTY) == sub.made.values.get(target):
        how, why = "dropped", f"{target}={text} holds for all policies"
    elif found is not None and not target.startswith("algo."):
        why = f"{target} is the same for all policies"
    elif found is not None and target.removeprefix("algo.") in ALIKE:
        why = f"{target} is the same for all policies, because samplers and replays serve them all alike"
    elif found is not None:
        how, became, why = "mapped", f"algo.options.{name}.{target.removeprefix('algo.')}={text}", found.why
    one.made.lines.append(line._replace(how=how, became=became, why=why))  # type: ignore[arg-type]


def _for_all(config: dict[str, Any]) -> dict[str, Any]:
    """The options that hold for all policies."""
    kept = {key: value for key, value in config.items() if key not in (GROUP, *NAMES)}
    unit = told(config, "count_steps_by")[1]
    return {**kept, "count_steps_by": unit} if unit is not None else kept


def _without_options(config: dict[str, Any], keys: Set[str]) -> dict[str, Any]:
    """Returns a config without some options, whose keys are dotted inside groups."""
    made = {key: value for key, value in config.items() if key not in keys}
    inside = {key: dict(value) for key, value in made.items() if isinstance(value, dict)}
    for group, _, option in (key.partition(".") for key in keys):
        inside.get(group, {}).pop(option, None)
    return made | inside


NAMES = ("policies", "policy_mapping_fn", "policies_to_train", OVERRIDES, "count_steps_by", "replay_mode", *LOST)


def _trained(one: Translation, team: Team) -> None:
    """Sets which policies keep their first weights."""
    key, asked = told(one.config, "policies_to_train")
    frozen = [name for name, own in team.policies.items() if own.frozen]
    rates = RATES.get(one.core, ("lr",))
    if one.made.values.get(f"{one.inner}.value_lr") is not None:
        rates = (*rates, "value_lr")
    why = "a policy keeps its first weights with a rate of 0; algo.fixed takes random, a run, or a class of your own"
    for name in frozen:
        for rate in rates:
            one.set(f"algo.options.{name}.{rate}", 0.0, why=why)
            _overruled(one, f"algo.options.{name}.{rate}")
    if frozen:
        one.say(key, "mapped", f"algo.options.{frozen[0]}.{rates[0]}=0.0", why)
    elif isinstance(asked, list):
        fixed = [name for name, own in team.policies.items() if own.acts is not None]
        why = f"the others have no weights: {', '.join(fixed)}" if fixed else "all policies learn"
        one.say(key, "dropped", why=why)
    elif asked is not None:
        why = "a function cannot be read from a file, and all policies learn; algo.fixed names those that do not"
        one.say(key, "not mapped", why=why)
    one.say(key, "dropped", why="null: all policies learn")


def _overruled(one: Translation, option: str) -> None:
    """Corrects the lines of a policy's own rate, which a rate of 0 has replaced."""
    one.made.lines[:] = [
        line._replace(how="dropped", became="", why="policies_to_train does not name this policy")
        if line.how == "mapped" and line.became.partition("=")[0] == option
        else line
        for line in one.made.lines
    ]


def _minibatches(one: Translation, team: Team) -> None:
    """Sets the size of minibatches of policies that have more or fewer agents than most."""
    rows, total = one.minibatch_rows, one.made.values.get(f"{one.inner}.batch_size")
    if rows is None or not isinstance(total, int):
        return
    for name, own in team.policies.items():
        count = team.count(own)
        if own.acts is None and count != team.share:
            most, unit = min(max(rows // count, one.minibatch_unit), total), one.minibatch_unit
            fits = next((size for size in range(most, 0, -1) if total % size == 0 and size % unit == 0), total)
            had = "has one" if count == 1 else f"has {count}"
            why = f"env steps: RLlib counts rows, of which the policy {name} {had} in an env step"
            one.set(f"algo.options.{name}.minibatch_size", fits, why=why)


def _replay_mode(one: Translation) -> None:
    """Lists whether the policies draw the same steps from their replays."""
    key, _ = told(one.config, "replay_mode")
    for name in (key, "replay_buffer_config.replay_mode", "multiagent_sync_replay"):
        value = one.given.get(name)
        if one.core in (*JOINT, "maddpg"):
            one.say(name, "dropped", why="a row holds all agents of an environment")
        elif one.core not in (*OFF_POLICY, *Q_LEARNING):
            one.say(name, "dropped", why=f"{one.core} has no replay")
        elif value in ("lockstep", True) and one.outer == "multi":
            why = (
                "every policy draws from a replay of its own; algo=qmix, vdn, iql and maddpg learn all agents together"
            )
            one.say(name, "not mapped", why=why)
        else:
            why = "every policy has a replay of its own" if one.outer == "multi" else "there is one policy"
            one.say(name, "dropped", why=why)
