"""Reads who has which policy from RLlib's experiments with several agents (`multiagent`); agents.py translates it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rlrun.core.errors import UserError, closest
from rlrun.rllib.environments import Environment
from rlrun.rllib.yaml_files import flow, options_of

GROUP = "multiagent"
DEFAULT = "default_policy"  # RLlib's name of the policy where a file names none
OVERRIDES = "algorithm_config_overrides_per_module"
SPEC = ("policy_class", "observation_space", "action_space", "config")  # what a policy is described by
NUMBERED = "ray.rllib.examples.multi_agent_and_self_play.policy_mapping_fn.PolicyMappingFn"  # p0 for agent 0, ...


class Own(NamedTuple):
    """One of RLlib's policies."""

    theirs: str  # its name there
    agents: tuple[str, ...]  # those that have it, or patterns of their names; empty if that is unknown
    acts: str | None  # what it acts by, if it has no weights: random, or the name of a class that rlrun cannot read
    spec: dict[str, Any]  # what the file says of it, by the names of SPEC
    changes: dict[str, dict[str, Any]]  # options of its own, by the place where the file has them
    frozen: bool  # whether it keeps its first weights

    @property
    def config(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for changes in self.changes.values():
            made = merged(made, changes)
        return made


class Team(NamedTuple):
    """The policies of an experiment and its agents."""

    agents: tuple[str, ...] | None  # of the environment; None: unknown
    policies: dict[str, Own]  # by rlrun's names
    unused: tuple[str, ...]  # RLlib's names of the policies that no agent has
    known: bool  # whether it is known which agents have which policy
    why: str  # how it is known, or why not

    @property
    def share(self) -> int:
        """The number of agents that most policies have; 1 if it is unknown."""
        counts = [self.count(own) for own in self.policies.values()]
        return max(set(counts), key=lambda count: (counts.count(count), count))

    def count(self, own: Own) -> int:
        """The number of agents that have a policy; 1 if it is unknown."""
        if self.agents is None:
            return 1
        if len(self.policies) == 1:
            return len(self.agents)
        mine = [agent for agent in self.agents if any(fnmatchcase(agent, pattern) for pattern in own.agents)]
        return max(1, len(mine))


def told(config: dict[str, Any], option: str) -> tuple[str, Any]:
    """Returns the name under which a file has an option of several agents, and its value; the value is None if the file
    has none."""
    group = config.get(GROUP)
    inside = isinstance(group, dict) and option in group
    value = group[option] if isinstance(group, dict) and inside else config.get(option)
    several = options_of(value)
    return f"{GROUP}.{option}" if inside else option, several[0] if several else value


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of both. Groups are merged, as RLlib does, but for an exploration of another type."""
    made = dict(one)
    for key, value in other.items():
        old = made.get(key)
        groups = isinstance(old, dict) and isinstance(value, dict)
        if groups and not (key == "exploration_config" and value.get("type", old.get("type")) != old.get("type")):  # type: ignore[union-attr]
            made[key] = {**old, **value}  # type: ignore[dict-item]
        else:
            made[key] = value
    return made


def team_of(config: dict[str, Any], env: Environment, run: str) -> Team | None:
    """Returns the policies of an experiment; None if its environment has one agent.

    Raises UserError for what RLlib would not accept, and if nothing would be learnt."""
    if env.agents == ():
        return None
    at, value = told(config, "policies")
    specs = _specs(value, at)
    ours = {theirs: re.sub(r"[^\w-]", "_", theirs) for theirs in specs}
    if len(set(ours.values())) < len(ours):
        raise UserError(f"{at} has two policies that rlrun would call alike: {', '.join(specs)}")
    who, why = _mapping(config, env, list(specs))
    used = [theirs for theirs in specs if who is None or who.get(theirs)]
    there, trained = told(config, "policies_to_train")
    listed = None
    if isinstance(trained, list):
        listed = [identifier(one) for one in trained]
        _known(listed, specs, there)
    changes_at, changes = told(config, OVERRIDES)
    changes = {identifier(key): one for key, one in changes.items()} if isinstance(changes, dict) else {}
    _known(changes, specs, changes_at)
    policies = {}
    for theirs in used:
        spec, own = specs[theirs], {}
        if isinstance(spec.get("config"), dict) and spec["config"]:
            own[f"{at}.{theirs}"] = spec["config"]
        if isinstance(changes.get(theirs), dict):
            own[f"{changes_at}.{theirs}"] = changes[theirs]
        acts = _acts(spec.get("policy_class"), run)
        frozen = listed is not None and theirs not in listed and acts is None
        policies[ours[theirs]] = Own(theirs, tuple(who[theirs]) if who else (), acts, spec, own, frozen)
    if not any(own.acts is None and not own.frozen for own in policies.values()):
        raise UserError(f"nothing would be learnt: {there} names no policy that an agent has and that has weights")
    unused = tuple(theirs for theirs in specs if theirs not in used)
    return Team(env.agents, policies, unused, who is not None, why)


def identifier(name: Any) -> str:
    """A policy's or an agent's name; YAML may have read it as a number."""
    return str(int(name)) if isinstance(name, float) and name.is_integer() else str(name)


def _known(names: Iterable[str], specs: dict[str, Any], at: str) -> None:
    for name in names:
        if name not in specs:
            raise UserError(f"{at} names the policy {name!r}; there are {', '.join(specs)}.{closest(name, specs)}")


def _specs(value: Any, at: str) -> dict[str, dict[str, Any]]:
    """What the file says of every policy."""
    if value in (None, {}, []):
        return {DEFAULT: {}}
    if isinstance(value, list):
        return {identifier(name): {} for name in value}
    if not isinstance(value, dict):
        raise UserError(f"{at} must be a list of names or a group of policies, not {flow(value)}")
    made = {}
    for name, spec in value.items():
        if isinstance(spec, list) and len(spec) == len(SPEC) and isinstance(spec[3], dict | None):
            made[str(name)] = dict(zip(SPEC, spec, strict=True))
        elif spec is None:
            made[str(name)] = {}
        elif isinstance(spec, dict) and set(spec) <= set(SPEC) and isinstance(spec.get("config"), dict | None):
            made[str(name)] = dict(spec)
        else:
            raise UserError(
                f"{at}.{name} must be null, [class, observation space, action space, config], or a group with some of"
                f" {', '.join(SPEC)}"
            )
    return made


def _acts(kind: Any, run: str) -> str | None:
    """What a policy of a class acts by; None for the policy of the experiment's algorithm."""
    name = re.split(r"[.:]", str(kind))[-1] if kind is not None else ""
    own = rf"({run}|{run.replace('APEX_', '')}|vtrace|a3c|dqn|simpleq|pg)(tf\d?|torch|eager|static|dynamic)*\w*policy"
    if not name or re.fullmatch(own, name.replace("_", ""), re.IGNORECASE):
        return None
    return "random" if name.lower().startswith("random") else name


# -- which agents have which policy ------------------------------------------------------------------------------------


def _mapping(config: dict[str, Any], env: Environment, policies: list[str]) -> tuple[dict[str, list[str]] | None, str]:
    """Returns the agents, or patterns of their names, of every policy, and how they are known; None and the reason if
    they are not."""
    at, fn = told(config, "policy_mapping_fn")
    kind = fn.get("type") if isinstance(fn, dict) else fn
    if len(policies) == 1:
        return {policies[0]: ["*"]}, "one policy acts for all agents"
    if isinstance(fn, dict) and fn and kind is None:
        return _table(fn, env, policies, at)
    what = "a function cannot be read from a file" if fn else "the file does not say which agents have which policy"
    if env.agents is None:
        return None, f"{what}, and the agents of {env.name} are not known before it is made"
    if set(policies) == set(env.agents):
        return {name: [name] for name in policies}, f"{what}; every agent has the policy of its name"
    numbered = _in_order(policies, len(env.agents), str(kind) == NUMBERED)
    if numbered is not None:
        why = "the policies are numbered like the agents"
        why = why if str(kind) == NUMBERED else f"{what}; {why}"
        return {name: [agent] for name, agent in zip(numbered, env.agents, strict=True)}, why
    return None, what


def _in_order(names: list[str], count: int, more: bool = False) -> list[str] | None:
    """Sorts `count` names that differ only in numbers that follow each other, as policy_0 and policy_1; None if they do
    not. more: whether further names may follow."""
    found = {name: re.fullmatch(r"(.*?)(\d+)", name) for name in names}
    parts = {name: (match[1], int(match[2])) for name, match in found.items() if match is not None}
    made = sorted(parts, key=lambda name: parts[name][1])
    made = made[:count] if more else made
    if len(made) != count or len(parts) < len(names) or len({parts[name][0] for name in made}) > 1:
        return None
    first = parts[made[0]][1]
    return made if first in (0, 1) and [parts[name][1] for name in made] == list(range(first, first + count)) else None


def _table(
    table: dict[str, Any], env: Environment, policies: list[str], at: str
) -> tuple[dict[str, list[str]] | None, str]:
    """Reads a table of agents and their policies."""
    rows = {identifier(agent): identifier(policy) for agent, policy in table.items()}
    _known(rows.values(), dict.fromkeys(policies), at)
    ours, why = {agent: agent for agent in rows}, ""
    if env.agents is None:
        why = f"the agents of {env.name} are not known before it is made, so that nothing checks their names"
    elif not all(any(fnmatchcase(agent, pattern) for agent in env.agents) for pattern in rows):
        if all(agent.isdigit() and int(agent) < len(env.agents) for agent in rows):
            ours = {agent: env.agents[int(agent)] for agent in rows}
        else:
            numbered = _in_order(list(rows), len(env.agents))
            if numbered is None:
                wrong = next(p for p in rows if not any(fnmatchcase(agent, p) for agent in env.agents))
                raise UserError(
                    f"{at} names the agent {wrong!r}; {env.name} has {', '.join(env.agents)}."
                    f"{closest(wrong, env.agents)}"
                )
            ours = dict(zip(numbered, env.agents, strict=True))
        why = f"the agents are called {', '.join(env.agents)} here"
    if env.agents is None:
        return {name: [agent for agent, policy in rows.items() if policy == name] for name in policies}, why
    made: dict[str, list[str]] = {name: [] for name in policies}
    for agent in env.agents:  # the first row that fits counts
        row = next((one for one in rows if fnmatchcase(agent, ours[one])), None)
        if row is None:
            raise UserError(f"{at} says no policy for the agent {agent}")
        made[rows[row]].append(agent)
    return made, why
