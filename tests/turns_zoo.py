"""Turn-based games of several agents (AEC), with and without faults."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Turns:
    """PettingZoo's AEC interface, in 20 lines: two players move in turn, 4 moves each; a move of player i pays the other
    one -1 and the mover nothing, but the last move pays player_0 10."""

    possible_agents = ("player_0", "player_1")
    agent_selection = "player_0"
    metadata, render_mode = {}, None

    def __init__(self):
        self.agents = []

    unwrapped = property(lambda self: self)

    def observation_space(self, agent):
        return Dict(observation=Box(0, 100, (2,), np.float32), action_mask=Box(0, 1, (3,), np.int8))

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.moves, self.agent_selection = list(self.possible_agents), 0, "player_0"
        self._clear()

    def _clear(self, over=False):
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, over)
        self.truncations, self.infos = dict.fromkeys(self.agents, False), {a: {} for a in self.agents}

    def observe(self, agent):
        mask = np.array([0, 1, 1], dtype=np.int8) if agent == self.agent_selection else np.zeros(3, dtype=np.int8)
        return {
            "observation": np.array([self.moves, self.possible_agents.index(agent)], np.float32),
            "action_mask": mask,
        }

    def step(self, action):
        if self.terminations[self.agent_selection]:
            assert action is None
            self.agents.remove(self.agent_selection)
            self.agent_selection = self.agents[0] if self.agents else None
            return
        assert action in (1, 2), "a masked action was played"
        mover, other = self.agent_selection, self.possible_agents[self.agent_selection == "player_0"]
        self.moves += 1
        self._clear(over=self.moves == 8)
        self.rewards[other] -= 1.0
        if self.moves == 8:
            self.rewards["player_0"] += 10.0
        self.agent_selection = other if self.moves < 8 else mover

    def render(self): ...

    def close(self): ...


class TurnsOfChoices(Turns):
    """Turns in which a move is two choices, of 2 and 3 values. Before the move `stuck`, the mask of the one who moves
    leaves the second choice no value."""

    def __init__(self, stuck=None):
        super().__init__()
        self.stuck = stuck

    def observation_space(self, agent):
        return Dict(observation=Box(0, 100, (2,), np.float32), action_mask=Box(0, 1, (5,), np.int8))

    def action_space(self, agent):
        return MultiDiscrete([2, 3])

    def observe(self, agent):
        moves = [0, 1, 0, 0, 0] if self.moves == self.stuck else [0, 1, 0, 1, 1]
        mask = np.array(moves if agent == self.agent_selection else [0] * 5, np.int8)
        return super().observe(agent) | {"action_mask": mask}

    def step(self, action):
        super().step(None if action is None else int(action[0] and action[1]))


class Elimination(Turns):
    """Three players move in the order 0, 1, 2 and are paid 1 for a move. The first move ends player_2, who stays in
    `agents` until it is its turn, so that the second move can cost it 5. The game is over after four moves. With
    `first`, it is at once the turn of whoever has ended, as PettingZoo's _deads_step_first() has it."""

    possible_agents = ("player_0", "player_1", "player_2")

    def __init__(self, first=False):
        super().__init__()
        self.first, self.following = first, None

    def _clear(self, over=False):
        super()._clear(over)
        if self.moves and "player_2" in self.agents:
            self.terminations["player_2"] = True

    def step(self, action):
        mover = self.agent_selection
        place = self.agents.index(mover)
        if self.terminations[mover]:
            assert action is None, f"{mover} has ended"
            self.agents.remove(mover)
        else:
            assert action in (1, 2), "a masked action was played"
            self.moves += 1
            self._clear(over=self.moves == 4)
            self.rewards[mover] = 1.0
            if self.moves == 2 and "player_2" in self.agents:
                self.rewards["player_2"] = -5.0
            place += 1
        self.agent_selection = self.agents[place % len(self.agents)] if self.agents else None
        if self.first:
            ended = [agent for agent in self.agents if self.terminations[agent]]
            self.following = self.following or self.agent_selection
            self.agent_selection = ended[0] if ended else self.following
            self.following = self.following if ended else None


def elimination_in_parallel():
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel

    return turn_based_aec_to_parallel(Elimination())


class LateTurns(Turns):
    """Turns whose infos say what is legal, to the one who moves next alone. player_2 appears with the third move, and
    moves next."""

    possible_agents = ("player_0", "player_1", "player_2")

    def observation_space(self, agent):
        return super().observation_space(agent)["observation"]

    def observe(self, agent):
        return super().observe(agent)["observation"]

    def _clear(self, over=False):
        super()._clear(over)
        self.infos[self.agent_selection] = {"action_mask": np.array([0, 1, 1], np.int8), "clock": float(self.moves)}

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents.remove("player_2")
        self._clear()

    def step(self, action):
        if self.terminations[self.agent_selection]:
            return super().step(action)
        assert action in (1, 2), "a masked action was played"
        place = self.agents.index(self.agent_selection) + 1
        self.moves += 1
        if self.moves == 3:
            self.agents.append("player_2")
            place = 2
        self.agent_selection = self.agents[place % len(self.agents)]
        self._clear(over=self.moves == 8)


class OpenTurns(Turns):
    """Also who waits sees what would be legal."""

    def observe(self, agent):
        return super().observe(agent) | {"action_mask": np.array([0, 1, 1], np.int8)}
