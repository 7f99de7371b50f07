"""Turn-based games in which much happens while agents that have ended are taken out."""

import numpy as np
from turns_zoo import Turns


class Survivor(Turns):
    """Three players see the number of moves and how many are left. The third move pays player_0 2 and ends the others;
    when they are taken out, player_0 is paid 1 more and ends.

    how: what player_0's end is, terminations or truncations; "lost": it is taken out without one; "stuck": a step with
    None does nothing, so that nobody is taken out."""

    possible_agents = ("player_0", "player_1", "player_2")

    def __init__(self, how="terminations"):
        super().__init__()
        self.how = how

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)

    def observe(self, agent):
        return super().observe(agent) | {"observation": np.array([self.moves, len(self.agents)], np.float32)}

    def step(self, action):
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            assert action is None, f"{mover} has ended"
            return self._take_out(mover) if self.how != "stuck" else None
        self.moves += 1
        self._clear()
        self.agent_selection = self.possible_agents[self.moves % 3]
        if self.moves == 3:
            self.rewards["player_0"] = self._cumulative_rewards["player_0"] = 2.0
            self.terminations |= {"player_1": True, "player_2": True}
            self.agent_selection = "player_1"

    def _take_out(self, agent):
        """`rewards` stay what they were, so that whoever adds them up again counts the third move's more than once."""
        self.agents.remove(agent)
        del self._cumulative_rewards[agent]
        if self.agents == ["player_0"]:
            self._cumulative_rewards["player_0"] += 1.0
            if self.how == "lost":
                self.agents.clear()
            else:
                getattr(self, self.how)["player_0"] = True
        self.agent_selection = self.agents[-1] if self.agents else None
