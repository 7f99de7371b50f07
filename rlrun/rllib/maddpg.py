"""Translates RLlib's options of MADDPG to rlrun's, as a part of translate.py.

RLlib has one policy for each agent; rlrun's algorithm has an actor and a critic for each.
"""

from __future__ import annotations

from typing import Any

from rlrun.core.errors import UserError
from rlrun.rllib.continuous import deterministic_nets
from rlrun.rllib.q_learning import from_replay
from rlrun.rllib.team import OVERRIDES, Team, told
from rlrun.rllib.translation import Translation
from rlrun.rllib.yaml_files import Line, flattened

LOCAL = "use_local_critic"
SCRIPTS = ("adv_policy", "good_policy")


def maddpg(one: Translation) -> None:
    """Sets what MADDPG has. Raises UserError if there is one agent, or if agents would share policies."""
    if one.core != "maddpg":
        return
    if one.team is None:
        raise UserError(f"MADDPG learns several agents together, and {one.env.name} has one")
    from_replay(one)
    deterministic_nets(one)
    at = one.inner
    for name in ("actor_lr", "critic_lr"):
        one.set(f"{at}.{name}", one.get(name), name)
    for name in ("lr", "lr_schedule"):
        one.say(name, "dropped", why="RLlib's MADDPG takes actor_lr and critic_lr")
    _preprocessor(one)
    one.set(f"{at}.huber_delta", None, why="RLlib's loss is the squared error")
    one.set(f"{at}.reward_of", "agent", why="each of RLlib's policies learns from the rewards of its own agent")
    one.say("agent_id", "dropped", why="agents are numbered in the order of the environment")
    _policies(one, one.team)


def _preprocessor(one: Translation) -> None:
    """Sets the layers before those of actors and critics."""
    widths = [int(width) for width in one.get("model.fcnet_hiddens")] if one.get("use_state_preprocessor") else []
    why = "" if widths else "false: actors and critics have their own layers alone"
    one.set("model.hidden", widths, "use_state_preprocessor", why=why)
    for key in [*one.given, *one.defaults]:
        if key.startswith("model.custom_model") and one.given.get(key) not in (None, {}):
            one.say(key, "not mapped", why="it is Python; actors and critics have hidden layers")
        elif key.startswith("model."):
            one.say(key, "dropped", why="actors and critics have layers of their own, and no memory, in RLlib too")


def _policies(one: Translation, team: Team) -> None:
    """Sets whose critics see all agents, and lists what policies have of their own, which all agents share here."""
    key, given = told(one.config, "policies")
    if given and team.agents is not None and len(team.policies) != len(team.agents):
        counts = f"{len(team.policies)} policies for {len(team.agents)} agents"
        raise UserError(f"MADDPG has a policy for each agent, and the file has {counts} of {one.env.name}")
    why = "every agent has an actor and a critic of its own"
    one.set("algo.share", False, key, why=why)
    one.say(told(one.config, "policy_mapping_fn")[0], "dropped", why=why)
    trained, asked = told(one.config, "policies_to_train")
    frozen = any(own.frozen for own in team.policies.values()) or isinstance(asked, str)
    one.say(trained, "not mapped" if frozen else "dropped", why="all agents learn" if frozen else "all policies learn")
    changes, said = told(one.config, OVERRIDES)
    one.say(changes, "dropped", why="each of its options has a line of its own" if said else "{}: nothing is asked for")
    everywhere = bool(one.get(LOCAL, default=False))
    local = {name: bool(own.config.get(LOCAL, everywhere)) for name, own in team.policies.items()}
    _critics(one, team, local)
    for own in team.policies.values():
        for place, part in own.changes.items():
            for name, value in flattened(part).items() if len(team.policies) > 1 else ():
                one.made.lines.append(_own(one, f"{place}.{name}", name, value))
        if own.acts is not None or own.spec.get("policy_class") is not None:
            why = "all agents have MADDPG's policy"
            how: Any = "dropped" if own.acts is None else "not mapped"
            one.made.lines.append(Line(f"{key}.{own.theirs}.policy_class", own.spec["policy_class"], how, "", why))


def _critics(one: Translation, team: Team, local: dict[str, bool]) -> None:
    """Sets what the critics see. local: whether those of a policy see their own agent alone."""
    some = [agent for name, own in team.policies.items() if local[name] for agent in own.agents]
    if all(local.values()):
        one.set("algo.critic_sees", "own", LOCAL)
    else:
        one.set("algo.critic_sees", "all", LOCAL)
        if some:
            one.set("algo.local_agents", some, why="those whose policies have use_local_critic")
    for name in SCRIPTS:
        wanted = one.get(name, default="maddpg")
        why = "use_local_critic says what a critic sees; algo.local_agents names agents that learn by DDPG"
        one.say(name, "not mapped" if wanted != "maddpg" else "dropped", why=why)


def _own(one: Translation, place: str, name: str, value: Any) -> Line:
    """What becomes of an option that one policy has of its own."""
    if name == "agent_id":
        return Line(place, value, "dropped", "", "agents are numbered in the order of the environment")
    if name == LOCAL and "algo.local_agents" in one.made.values and value:
        local = ", ".join(one.made.values["algo.local_agents"])
        return Line(place, value, "dropped", "", f"algo.local_agents has it: {local}")
    if name == LOCAL:
        sees = one.made.values["algo.critic_sees"]
        lost = bool(value) != (sees == "own")
        why = f"algo.critic_sees={sees}" + (
            ", because the file does not say which agents this policy has; algo.local_agents names them" if lost else ""
        )
        return Line(place, value, "not mapped" if lost else "dropped", "", why)
    if one.get(name) == value:
        return Line(place, value, "dropped", "", "it is the same for all policies")
    return Line(place, value, "not mapped", "", "the actors and critics of all agents have the same options")
