"""Environments with several agents whose rows can be checked wherever they arrive."""

import numpy as np
from gymnasium import Env, register
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple


class CountingAgents:
    """PettingZoo's parallel interface. Agent i sees [i, episode, step] and is paid 100 * i + step.

    a leaves (terminates) after 3 steps, c appears after 2, and the episode of b and c is truncated after 6. With the
    fault "rare", c appears in every third episode alone."""

    possible_agents = ("a", "b", "c")

    def __init__(self, fault=None):
        self.fault, self.episode, self.agents = fault, -1, []

    unwrapped = property(lambda self: self)

    def observation_space(self, agent):
        return Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def _obs(self, agents):
        return {a: np.array(["abc".index(a), self.episode, self.now], dtype=np.float32) for a in agents}

    def reset(self, seed=None, options=None):
        self.episode, self.now, self.agents = self.episode + 1, 0, ["a", "b"]
        return self._obs(self.agents), {a: {} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), "every agent that is there acts, and no other"
        self.now += 1
        there = list(self.agents)
        reward = {a: 100.0 * "abc".index(a) + self.now for a in there}
        terminated = {a: a == "a" and self.now == 3 for a in there}
        truncated = dict.fromkeys(there, self.now == 6)
        obs = self._obs(there)
        if self.fault == "unknown" and self.now == 2:
            reward["z"] = 1.0
        if self.fault == "lost" and self.now == 2:
            del obs["b"]
            self.agents.remove("b")
            return obs, reward, {"a": False}, {"a": False}, {}
        if self.fault == "silent" and self.now == 2:  # its episode ends, and it says of nobody that it has
            self.agents = []
            return obs, reward, dict.fromkeys(there, False), dict.fromkeys(there, False), {}
        if self.fault == "pays":
            reward |= dict.fromkeys(set(self.possible_agents) - set(there), 1000.0)
        if self.fault == "raise" and self.now == 2:
            raise RuntimeError("this game was told to fail")
        self.agents = [a for a in there if not (terminated[a] or truncated[a])]
        if self.now == 2 and not (self.fault == "rare" and self.episode % 3):
            self.agents.append("c")
            obs |= self._obs(["c"])
        return obs, reward, terminated, truncated, {a: {"clock": float(self.now)} for a in there}

    def render(self): ...

    def close(self): ...


class NumberedAgents(CountingAgents):
    """Agents that are named by numbers."""

    possible_agents = (0, 1, 2)


class ImageAgents(CountingAgents):
    """Agents that see images."""

    def observation_space(self, agent):
        return Box(0, 255, (3, 8, 8), np.uint8)


class DrawnAgents(CountingAgents):
    """The picture's numbers are the step. It is drawn without being told to."""

    def render(self):
        return np.full((8, 8, 3), self.now, np.uint8)


class UnlikeAgents(CountingAgents):
    """a's action space is unlike that of b and c in its bounds, its length, or the number of its first choice."""

    SPACES = {  # noqa: RUF012
        "bounds": (Box(-1, 1, (1,), np.float32), Box(-5, 3, (1,), np.float32)),
        "length": (Box(0, 10, (3,), np.float32), Box(0, 1, (1,), np.float32)),
        "start": (Discrete(3), Discrete(2, start=5)),
    }

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def action_space(self, agent):
        return self.SPACES[self.kind][agent != "a"]

    def step(self, actions):
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items()), actions
        return super().step(actions)


class TypedAgents(CountingAgents):
    """Asserts that actions are in their spaces, which look at the dtype of arrays."""

    SPACES = {  # noqa: RUF012
        "one choice": Discrete(3, dtype=np.int8),
        "choices": MultiDiscrete([2, 3], dtype=np.int32),
        "a number": Box(-1, 1, (), np.float32),
    }

    def __init__(self, kind):
        super().__init__()
        self.kind, self.seen = kind, set()

    def action_space(self, agent):
        return self.SPACES[self.kind]

    def step(self, actions):
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items()), actions
        self.seen |= {str(action) for action in actions.values()}
        return super().step(actions)


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


class TupleEnv(Env):
    """A Gymnasium environment over two agents. It reports its limit of 5 steps as a termination; with `early` it
    terminates after 2. `each` names an end, terminated or truncated, that it reports for each agent, in a list or a
    dictionary (`form`)."""

    def __init__(self, early=False, each=None, form="list"):
        self.observation_space = Tuple((Box(-1, 9, (2,), np.float32), Box(-1, 9, (3,), np.float32)))
        self.action_space = Tuple((Discrete(2), Discrete(4)))
        self.early, self.max_steps, self.each, self.form = early, 5, each, form

    def _obs(self):
        return np.full(2, self.now, np.float32), np.full(3, self.now, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(tuple(action)), action
        self.now += 1
        over = {"terminated": self.now >= (2 if self.early else self.max_steps), "truncated": False}
        forms = {"list": lambda end: [end] * 2, "dictionary": lambda end: {"__all__": end}}
        ends = [forms[self.form](end) if name == self.each else end for name, end in over.items()]
        return self._obs(), [1.0, 2.0], *ends, {}


class TupleOfMasks(TupleEnv):
    """A TupleEnv in which the first agent may only take action 1, and the other one 1 or 3, as its infos say: all of
    them, those of reset() alone, all but those of later resets ("once"), those of step() alone, or in one mask for both
    (`told`)."""

    def __init__(self, told="every"):
        super().__init__()
        self.told, self.resets = told, 0

    def _info(self):
        masks = (np.array([0, 1], np.int8), [0, 1, 0, 1])
        return {"action_mask": masks if self.told != "one" else np.concatenate(masks), "clock": float(self.now)}

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        tells = self.told != "step" and (self.told != "once" or self.resets == 1)
        return super().reset(seed=seed)[0], self._info() if tells else {}

    def step(self, action):
        assert action[0] == 1 and action[1] in (1, 3), "a masked action was played"
        return *super().step(action)[:4], self._info() if self.told != "reset" else {}


class UnlikeTuples(Env):
    """A Gymnasium environment of one agent, which sees two numbers and chooses three times."""

    def __init__(self):
        self.observation_space = Tuple((Box(-1, 9, (2,), np.float32), Discrete(3, start=1)))
        self.action_space = Tuple((Discrete(2), Discrete(4), Discrete(3)))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return (np.zeros(2, np.float32), 1), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.now += 1
        return (np.zeros(2, np.float32), 1 + self.now % 3), 1.0, False, self.now == 5, {}


class Alone(Env):
    """A Gymnasium class of one agent, which is registered nowhere."""

    observation_space, action_space = Box(-1, 9, (2,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Choosy(TupleEnv):
    """Agents whose number is an argument that it must be given, so that nobody can look at its spaces before."""

    def __init__(self, many):
        super().__init__()
        assert many == 2


class Masked(CountingAgents):
    """Parallel agents with masks."""

    def observation_space(self, agent):
        return Dict(observation=super().observation_space(agent), action_mask=Box(0, 1, (2,), np.int8))


class Choices(CountingAgents):
    """Agents that may only take action 1, as `where` says: beside the entry "observation", which is a dictionary
    itself, in infos, or in the infos of a alone, where the others may do anything. "nested": in infos, and observations
    are dictionaries. "late": in infos, except those of reset()."""

    def __init__(self, where="entry"):
        super().__init__()
        self.where = where

    def observation_space(self, agent):
        inside = super().observation_space(agent)
        if self.where == "nested":
            return Dict(observation=inside)
        if self.where != "entry":
            return inside
        return Dict(observation=Dict(x=inside, y=Box(0, 1, (1,), np.float32)), action_mask=Box(0, 1, (2,), np.int8))

    def _obs(self, agents):
        made = super()._obs(agents)
        if self.where != "entry":
            return made if self.where != "nested" else {a: {"observation": x} for a, x in made.items()}
        mask = np.array([0, 1], np.int8)
        return {a: {"observation": {"x": x, "y": np.ones(1, np.float32)}, "action_mask": mask} for a, x in made.items()}

    def _told(self, infos):
        if self.where == "entry":
            return infos
        mask = {"action_mask": np.array([0, 1], np.int8)}
        return {a: info | (mask if a == "a" or self.where != "info of a" else {}) for a, info in infos.items()}

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        return obs, infos if self.where == "late" else self._told(infos)

    def step(self, actions):
        masked = {a: action for a, action in actions.items() if a == "a" or self.where != "info of a"}
        assert set(masked.values()) <= {1}, "a masked action was played"
        *rest, infos = super().step(actions)
        return *rest, self._told({agent: infos.get(agent, {}) for agent in self.agents})


class Absent(CountingAgents):
    """c never appears."""

    def step(self, actions):
        self.now += self.now == 1  # passes over the step in which c comes
        return super().step(actions)


class StateOfTuple(TupleEnv):
    """Has a state of its own, of 7 numbers."""

    def state(self):
        return np.arange(7.0)


register("StateOfTuple-v0", StateOfTuple)


class OpenTurns(Turns):
    """Also who waits sees what would be legal."""

    def observe(self, agent):
        return super().observe(agent) | {"action_mask": np.array([0, 1, 1], np.int8)}


class Stateful(CountingAgents):
    """Has a state of its own: episode and step. "misspelt": state() has a bug; "not there": a wrapper passes it on to
    what has none; "data": one passes it on to what keeps data under this name."""

    def __init__(self, kind="own"):
        super().__init__()
        self.kind, self.inside = kind, CountingAgents()
        if kind == "data":
            self.inside.state = {"a": 0}

    @property
    def unwrapped(self):
        return self.inside if self.kind in ("not there", "data") else self

    def state(self):
        if self.kind == "own":
            return np.array([self.episode, self.now])
        return self.epissode if self.kind == "misspelt" else self.inside.state()


class Careless(CountingAgents):
    """Breaks a promise of its interface, as `fault` says."""

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        if self.fault == "shows b nothing in reset":
            del obs["b"]
        return obs, infos

    def step(self, actions):
        obs, reward, *rest = super().step(actions)
        if self.fault == "shows b nothing" and self.now == 2:
            del obs["b"]
        if self.fault == "pays b nothing" and self.now == 2:
            del reward["b"]
        if self.fault == "keeps a" and self.now == 3:
            self.agents.append("a")
        if self.fault == "shows no end" and self.now in (3, 6):
            del obs["a" if self.now == 3 else "b"]
        return obs, reward, *rest
