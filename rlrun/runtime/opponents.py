"""Games of a trained policy against an opponent."""

from __future__ import annotations

from typing import NamedTuple

from rlrun.core.errors import UserError
from rlrun.core.plugins import is_path
from rlrun.core.policy import Policy
from rlrun.policies.exploration import Exploration, Uniform, load_exploration
from rlrun.policies.several import SeveralPolicies
from rlrun.runtime.trained import Trained, load


class Match(NamedTuple):
    """Games in which one agent is the run's."""

    policy: Policy
    agent: int | None  # the number of that agent; None: the run plays all
    episodes: int


def matches(trained: Trained, opponent: str | None, episodes: int, trust: bool) -> list[Match]:
    """The games of a run against an opponent, as every agent in turn. opponent: None (the run plays all agents),
    random, a run directory, or package.module:Name. Raises UserError if the opponent cannot play this game."""
    if opponent is None:
        return [Match(trained.policy, None, episodes)]
    spec = trained.spec
    if spec.agents is None or spec.joint or len(spec.agents.names) < 2:
        raise UserError(
            f"opponent is for runs whose algorithm plays one of several agents; {trained.config.algo.name} on"
            f" {spec.name} does not"
        )
    names = spec.agents.names
    if episodes < len(names):
        raise UserError(f"with an opponent there is at least one episode for each agent: episodes={len(names)}")
    other: Policy | Exploration
    if opponent == "random":
        other = Uniform(spec)
    elif is_path(opponent):
        other = load_exploration(opponent, spec, {}, "opponent")
    else:
        theirs = load(opponent, trust=trust)
        if theirs.spec.observation != spec.observation or theirs.spec.action != spec.action or theirs.spec.joint:
            raise UserError(f"opponent={opponent} was trained on {theirs.spec.name}, and cannot play {spec.name}")
        other = theirs.policy
    made = []
    for agent in range(len(names)):
        rest = tuple(number for number in range(len(names)) if number != agent)
        policies: dict[str, Policy] = {"run": player(trained.policy, agent)}
        scripted: dict[str, Exploration] = {}
        if isinstance(other, Policy):
            if isinstance(other, SeveralPolicies) and len(rest) > 1:
                raise UserError(f"opponent={opponent} has several policies, and can only play a game of two agents")
            policies["opponent"] = player(other, rest[0])
        else:
            scripted["opponent"] = other
        games = episodes // len(names) + (agent < episodes % len(names))
        made.append(
            Match(
                SeveralPolicies(len(names), {"run": (agent,), "opponent": rest}, policies, scripted, {}), agent, games
            )
        )
    return made


def player(policy: Policy, agent: int) -> Policy:
    """The policy that plays this agent: one of several, or the one for all."""
    if not isinstance(policy, SeveralPolicies):
        return policy
    name = next(name for name, members in policy.members.items() if agent in members)
    if name not in policy.policies:
        raise UserError(f"the policy {name} of the run has no weights")
    return policy.policy(name)
