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
        "one choice": Discrete(3),
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
    are dictionaries. "late": in infos, except those of reset(); "first": in those of reset() alone. "short": in infos, with
    too few numbers."""

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
        mask = {"action_mask": np.array([0, 1][self.where == "short" :], np.int8)}
        return {a: info | (mask if a == "a" or self.where != "info of a" else {}) for a, info in infos.items()}

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        return obs, infos if self.where == "late" else self._told(infos)

    def step(self, actions):
        masked = {a: action for a, action in actions.items() if a == "a" or self.where != "info of a"}
        assert set(masked.values()) <= {1}, "a masked action was played"
        *rest, infos = super().step(actions)
        infos = {agent: infos.get(agent, {}) for agent in self.agents}
        return *rest, infos if self.where == "first" else self._told(infos)


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
