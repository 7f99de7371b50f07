"""The spaces of an environment's agents, and one space for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

import gymnasium

from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, Space, described
from rlrun.envs.agent_games import ParallelGame, TupleGame
from rlrun.envs.agent_rows import AgentSpaces, has_entry
from rlrun.envs.gym_spaces import MASK, observation_spaces, to_space


def spaces_of(game: ParallelGame | TupleGame, name: str) -> dict[str, AgentSpaces]:
    """The spaces of all agents. Raises UserError for spaces that rlrun does not support, and for agents whose names are
    no texts."""
    made = {}
    for agent in game.agents:
        if not isinstance(agent, str):
            raise UserError(
                f"possible_agents of {name} holds {agent!r}, which is no text: name agents by texts, such as player_0"
            )
        obs, action = game.spaces(agent)
        what = f"{name} ({agent})"
        taken = to_space(action, "action", what)
        made[agent] = AgentSpaces(_observation(obs, taken, what), taken)
    return made


def _observation(space: gymnasium.Space, action: Space, name: str) -> dict[str, Space]:
    found = observation_spaces(space, action, name)
    # Classic games show {"observation", "action_mask"}: what is left is the observation itself.
    if MASK in found and has_entry(found["observation"]):
        found["observation"] = found["observation"].spaces[0][1]
    return found


def common(spaces: Mapping[str, Space], what: str, name: str) -> tuple[Space, str | None]:
    """One space for all agents of a group, and a sentence if some of theirs are padded. Raises UserError if they are of
    unlike kinds."""
    first = next(iter(spaces.values()))
    if all(space == first for space in spaces.values()):
        return first, None
    kinds = list(spaces.values())
    widest: Space | None = None
    if all(isinstance(space, Discrete) for space in kinds):
        widest = Discrete(n=max(space.n for space in kinds))  # type: ignore[union-attr]
    elif all(isinstance(space, Box) and len(space.shape) == 1 and space.dtype == first.dtype for space in kinds) and (  # type: ignore[union-attr]
        what == "observation" or len({space.bounded for space in kinds}) == 1  # type: ignore[union-attr]
    ):
        widest = max(kinds, key=lambda space: space.size)  # type: ignore[union-attr]
        if what == "observation":
            low, high = (f(getattr(space, end)[0] for space in kinds) for f, end in ((min, "low"), (max, "high")))
            widest = replace(widest, low=(low,), high=(high,))  # type: ignore[arg-type]
        elif isinstance(widest, Box) and not widest.bounded:
            # Each agent's numbers are clipped to its own bounds, and rounded by its own parts.
            widest = replace(widest, dtype="float32", low=(-inf,) * widest.size, high=(inf,) * widest.size)
        elif isinstance(widest, Box) and widest.whole:
            widest = replace(widest, dtype="float32")
    if widest is None:
        other = next(agent for agent, space in spaces.items() if space != first)
        raise UserError(
            f"the agents {next(iter(spaces))} and {other} of {name} have the {what} spaces {first} and"
            f" {spaces[other]}. The agents of one environment need equal spaces, even where each has a policy of its"
            " own; rlrun evens out only different numbers of choices and different lengths of vectors, by padding. If"
            " these agents are parts of what one agent sees and does, set env.family=gym"
        )
    sizes = ", ".join(dict.fromkeys(map(described, kinds)))
    if len({space.n if isinstance(space, Discrete) else space.size for space in kinds}) > 1:  # type: ignore[union-attr]
        became = f"smaller ones are padded to {widest}"
    elif what == "observation":
        became = f"rows have {described(widest)}"
    else:
        became = "each agent's actions are converted to its own space"
    return widest, f"agents have the {what} spaces {sizes}; {became}"


def with_id(space: Space, agents: int, name: str) -> Space:
    """A space of vectors with the agent's number, one-hot, behind the numbers of `space`. Raises UserError if its
    observations are no vectors of float32 numbers."""
    if not isinstance(space, Box) or len(space.shape) != 1 or space.dtype != "float32":
        raise UserError(
            f"env.agent_id=true is for observations that are vectors of float32 numbers; {name} has {space}. algo=multi"
            " gives every agent a policy of its own"
        )
    return replace(space, shape=(space.shape[0] + agents,), low=(min(0.0, *space.low),), high=(max(1.0, *space.high),))
