"""Checks of environments with several agents: PettingZoo's parallel and turn-based (AEC) interfaces, and rlrun's own
games. Those over tuples are looked at by check_gym.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rlrun.envs import agent_games
from rlrun.envs.check_gym import COMPARED, ComparedEpisode
from rlrun.envs.check_pace import CheckPace
from rlrun.envs.check_report import OURS, Findings, Stop, copied, raised, same, shown
from rlrun.envs.check_values import (
    Infos,
    check_end,
    check_mask,
    check_reward,
    check_space,
    check_supported,
    draw,
    mask_of,
)
from rlrun.envs.misfits import misfit
from rlrun.envs.named import global_generators

OURS += [__file__, agent_games.__file__]
PARALLEL = "return observations, rewards, terminations, truncations, infos: five dicts by agent"
LONGEST = 2000  # steps after which an episode of the checks is left


class AgentsChecks:
    """What both interfaces have in common. Subclasses implement play(), begin() and act()."""

    def __init__(self, report: Findings, make: Callable[[], Any], name: str, pace: CheckPace):
        self.report, self.make, self.name, self.pace = report, make, name, pace
        self.made: list[Any] = []
        self.infos: dict[str, Infos] = {}
        self.possible: list[str] = []
        self.masked: set[str] = set()  # agents of whom a mask was told
        self.held: dict[int, tuple[dict, dict]] = {}  # what each environment showed and told last

    def run(self) -> None:
        """Makes all checks. Raises Stop where what was found makes the rest impossible."""
        try:
            env = self.new("makes the environment")
            self.spaces(env)
            self.play(env)
            same_seed = self.seeding(env)
            if same_seed:
                self.shared()
            self.pace.measure(self.report, self.loop(env))
        finally:
            for one in self.made:
                try:
                    one.close()
                except Exception as error:  # the user's own
                    self.report.warning("close", f"close() fails: {raised(error)}", "let close() work at any time")

    def new(self, why: str) -> Any:
        with self.report.starting(why):
            try:
                made = self.make()
            except Exception as error:  # the user's own constructor may raise anything
                what = str(error) if type(error).__name__ == "UserError" else f"it cannot be made: {raised(error)}"
                self.report.error(
                    "make", what, "make it in Python alone first; env.kwargs={name: value} gives arguments"
                )
                raise Stop from None
        self.made.append(made)
        return made

    def spaces(self, env: Any) -> None:
        report = self.report
        possible = getattr(env, "possible_agents", None)
        if not isinstance(possible, list | tuple) or not possible or len(set(map(str, possible))) != len(possible):
            what = f"possible_agents is {shown(possible)}"
            report.error("possible-agents", what, "set self.possible_agents to a list of all agents' names in __init__")
            raise Stop
        if not all(isinstance(agent, str) for agent in possible):
            what = (
                f"possible_agents holds {shown(next(a for a in possible if not isinstance(a, str)))}, which is no text"
            )
            report.error("possible-agents", what, "name agents by texts, such as player_0")
            raise Stop
        self.possible, fit = list(possible), True
        for agent in self.possible:
            made = {}
            for what in ("observation_space", "action_space"):
                said = f"{what}({agent!r})"
                try:
                    made[what] = getattr(env, what)(agent)
                except Exception as error:
                    mend = f"define {what}(self, agent), which returns the space of each of possible_agents"
                    report.error(what.replace("_", "-"), f"{said} raises {raised(error)}", mend)
                    raise Stop from None
                fit &= check_space(report, made[what], said, what == "action_space", said)
                if fit and getattr(env, what)(agent) is not made[what]:
                    tell = report.warning if getattr(env, what)(agent) == made[what] else report.error
                    mend = (
                        "make every space once, in __init__, or put @functools.lru_cache(maxsize=None) above the method"
                    )
                    tell(f"{what}-changes", f"{said} makes another space each time", mend)
            if fit:
                check_supported(report, made["observation_space"], made["action_space"], f"{self.name} ({agent})")
        if not fit:
            raise Stop

    def rng(self, seed: int) -> np.random.Generator:
        return np.random.default_rng([seed, 4711])

    def call(self, where: str, call: Callable[[], Any], reset: bool = False) -> Any:
        with self.report.resetting() if reset else self.report.stepping():
            try:
                return call()
            except TypeError as error:
                if reset and ("seed" in str(error) or "options" in str(error)):
                    mend = "def reset(self, seed=None, options=None): ..."
                    self.report.error("reset-seed", f"reset() raises {raised(error)}", mend, where)
                else:
                    self.report.error("raises", f"it raises {raised(error)}", "mend the line that is named", where)
                raise Stop from error
            except Exception as error:
                self.report.error("raises", f"it raises {raised(error)}", "mend the line that is named", where)
                raise Stop from error

    def look(self, env: Any, agent: str, obs: Any, info: Any, over: bool, where: str) -> None:
        """Looks at what an agent was shown."""
        found = misfit(env.observation_space(agent), obs, f"the observation of {agent}")
        if found is not None:
            tell = self.report.error if found.serious else self.report.warning
            tell("observation" if found.serious else "observation-type", found.what, found.mend, where)
        self.infos.setdefault(agent, Infos(self.report)).check(info, where)
        mask = mask_of(obs, info)
        if mask is not None:
            self.masked.add(agent)
            check_mask(self.report, mask, env.action_space(agent), over, where)
        elif agent in self.masked and not over:
            what = f"it tells no action_mask of {agent}, as it did before, and all its actions would count as legal"
            self.report.error("action-mask", what, "tell one in every reset and step", where)

    def named(self, agents: Iterable[Any], what: str, where: str) -> None:
        """Reports agents that possible_agents does not name."""
        strange = [agent for agent in agents if agent not in self.possible]
        if strange:
            mend = "name every agent that may ever appear in possible_agents"
            self.report.error("unknown-agent", f"{what} names {shown(strange[0])}, which is not one of possible_agents",
                              mend, where)  # fmt: skip
            raise Stop

    def state(self, env: Any, where: str) -> None:
        """Looks at state(), if the environment says that it has one."""
        space = getattr(env, "state_space", None)
        if space is None or not check_space(self.report, space, "state_space", False, "self.state_space"):
            return
        try:
            found = misfit(space, env.state(), "state()")
        except Exception as error:
            self.report.error("state", f"it has a state_space, and state() raises {raised(error)}",
                              "return the state, or set no state_space", where)  # fmt: skip
            return
        if found is not None:
            tell = self.report.error if found.serious else self.report.warning
            tell("state", found.what, found.mend, where)

    def broken(self) -> None:
        """Raises Stop where what follows would only repeat what was found."""
        if {"observation", "reward", "terminations-type", "truncations-type", "agents"} & self.report.seen.keys():
            if self.report.errors:
                raise Stop

    def count(self, episodes: int, mend: str = "") -> None:
        """Ends the random play, in which so many episodes ended. mend: what can be done where none did."""
        self.broken()
        self.report.fact("episodes", episodes)
        if not episodes:
            said = "no episode ended while it was tried with random actions"
            self.report.note("endless", said, f"{mend}env.max_episode_steps=N gives a time limit")

    # -- seeds and states ----------------------------------------------------------------------------------------------

    def begin(self, env: Any, seed: int | None) -> dict[str, Any]:
        """Begins an episode and returns the observations of those who are there."""
        raise NotImplementedError

    def act(self, env: Any, rng: np.random.Generator) -> tuple:
        """Takes one step with random legal actions, after begin(): (observations, rewards, ends, 0), by agent."""
        raise NotImplementedError

    def play(self, env: Any) -> None:
        raise NotImplementedError

    def episode(self, env: Any, seed: int) -> ComparedEpisode:
        rng = self.rng(2)
        made = ComparedEpisode(copied(self.begin(env, seed)), [])
        while env.agents and len(made.steps) < COMPARED:
            made.steps.append(copied(self.act(env, rng)))
        return made

    def seeding(self, used: Any) -> bool:
        report = self.report
        report.tell(("doing", "plays the same episode several times"))
        one, two = self.new("makes a second one"), self.new("makes a third one")
        with global_generators(1):
            first = self.episode(one, 5)
        with global_generators(2):
            differs = first.equals(self.episode(two, 5))
        if differs is not None:
            with global_generators(1):
                globally = first.equals(self.episode(self.new("makes a fourth one"), 5)) is None
            why = ", because it draws from the global generators of Python or NumPy" if globally else ""
            mend = (
                "make a generator in reset(), np.random.default_rng(seed), if seed is not None, and draw from it alone"
            )
            report.error("seeding", f"the same seed does not give the same episode: {differs} differs{why}", mend,
                         "reset(seed=5), with the same actions")  # fmt: skip
            return False
        with global_generators(3):
            left = first.equals(self.episode(used, 5))
        if left is not None:
            mend = (
                "set every attribute that step() changes in reset(), unless this is meant, as in a curriculum that"
                " counts its episodes"
            )
            report.warning(
                "reset-leaves",
                f"reset() does not put everything back: {left} differs from that of a new instance",
                mend,
                "reset(seed=5) after other episodes, beside the first reset(seed=5) of a new one",
            )
        if all(first.equals(self.episode(one, seed)) is None for seed in (6, 7, 8)):
            report.note("seeds-alike", "different seeds give the same episode where the actions are the same",
                        "if it draws random numbers, seed them from reset's seed")  # fmt: skip
        self.begin(one, None)
        return True

    def shared(self) -> None:
        """Whether instances in one process disturb each other."""
        self.report.tell(("doing", "steps two instances in turn"))
        alone = self.episode(self.new("makes one that is stepped alone"), 9)
        one, two = self.new("makes one of two"), self.new("makes the other of two")
        rng, other = self.rng(2), self.rng(3)
        held = ComparedEpisode(copied(self.begin(one, 9)), [])
        self.begin(two, 10)
        while one.agents and len(held.steps) < COMPARED:
            if not two.agents:
                self.begin(two, 11)
            self.act(two, other)
            held.steps.append(copied(self.act(one, rng)))
        differs = alone.equals(held)
        if differs is not None:
            what = f"instances in one process share state: {differs} differs when a second one is stepped in between"
            mend = "keep state in self and not in the class, the module or a default argument such as x=[]"
            self.report.error("shared-state", what, mend, "two instances, stepped in turn")

    def loop(self, env: Any) -> Callable[[], tuple[float, float, bool]]:
        """Returns a function that takes one step, as CheckPace.measure() asks for."""
        rng = self.rng(4)
        self.begin(env, 11)

        def one() -> tuple[float, float, bool]:
            reset_sec, new = 0.0, not env.agents
            began = time.perf_counter()
            if new:
                self.begin(env, None)
                reset_sec = time.perf_counter() - began
            began = time.perf_counter()
            self.act(env, rng)
            return time.perf_counter() - began, reset_sec, new

        return one


class ParallelChecks(AgentsChecks):
    """Environments whose agents act at the same time."""

    def begin(self, env: Any, seed: int | None) -> dict[str, Any]:
        where = f"reset(seed={seed})"
        made = self.call(where, lambda: env.reset(seed=seed), reset=True)
        if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, dict) for part in made)):
            kind = type(made).__name__ if not isinstance(made, tuple) else f"tuple of {len(made)}"
            self.report.error("reset-returns", f"reset() returns a {kind}, and must return two dicts",
                              "return observations, infos: two dicts by agent", where)  # fmt: skip
            raise Stop
        self.held[id(env)] = made
        return made[0]

    def actions(self, env: Any, rng: np.random.Generator) -> dict[str, Any]:
        obs, infos = self.held[id(env)]
        return {a: draw(env.action_space(a), mask_of(obs.get(a), infos.get(a)), rng) for a in list(env.agents)}

    def outcome(self, env: Any, actions: dict[str, Any], where: str) -> tuple:
        made = self.call(where, lambda: env.step(actions))
        if not (isinstance(made, tuple) and len(made) == 5 and all(isinstance(part, dict) for part in made)):
            kind = f"{len(made)} values" if isinstance(made, tuple) else f"a {type(made).__name__}"
            if isinstance(made, tuple) and len(made) == 5:
                kind = f"a {next(type(part).__name__ for part in made if not isinstance(part, dict))} among five values"
            self.report.error("step-returns", f"step() returns {kind}", PARALLEL, where)
            raise Stop
        self.held[id(env)] = (made[0], made[4])
        return made

    def act(self, env: Any, rng: np.random.Generator) -> tuple:
        obs, rewards, terminations, truncations, _ = self.outcome(env, self.actions(env, rng), "a step")
        return obs, rewards, terminations, truncations

    def play(self, env: Any) -> None:
        report, rng = self.report, self.rng(1)
        report.tell(("doing", "plays episodes with random actions"))
        began, episode, taken, lengths, seen = time.monotonic(), 0, 0, [], set()
        while self.pace.plays(began, taken):
            episode += 1
            where = f"reset(seed={episode})"
            obs = self.begin(env, episode)
            infos = self.held[id(env)][1]
            agents = list(env.agents)
            self.named([*agents, *obs], "reset()", where)
            if not agents:
                report.error("agents", "no agent is there after reset()", "set self.agents in reset()", where)
                raise Stop
            if set(obs) != set(agents):
                report.error("agents", f"reset() shows observations to {shown(sorted(obs))}, and the agents are"
                             f" {shown(agents)}", "return one observation for each of self.agents", where)  # fmt: skip
                raise Stop
            for agent in agents:
                self.look(env, agent, obs[agent], infos.get(agent, {}), False, where)
            self.state(env, where)
            length = 0
            while env.agents and length < LONGEST and self.pace.plays(began, taken):
                length += 1
                taken += 1
                before = list(env.agents)
                seen |= set(before)
                where = f"step {length} after reset(seed={episode})"
                held = {agent: (obs[agent], copied(obs[agent])) for agent in before if agent in obs}
                obs = self._step(env, before, rng, where)
                if any(not same(*pair) for pair in held.values()):
                    what = "step() changes an observation that it returned before in place"
                    report.warning("observation-shared", what, "return copies of the arrays", where)
                self.state(env, where)
            if not env.agents:
                lengths.append(length)
        self.count(len(lengths), "end it for every agent, and empty self.agents; ")
        never = [agent for agent in self.possible if agent not in seen]
        if never:
            what = f"{len(never)} of {len(self.possible)} possible_agents never appeared: {shown(never)}"
            report.note("absent-agents", what)

    def _step(self, env: Any, before: list[str], rng: np.random.Generator, where: str) -> dict[str, Any]:
        """Takes a step and looks at all that it returns; returns the observations."""
        report = self.report
        obs, rewards, terminations, truncations, infos = self.outcome(env, self.actions(env, rng), where)
        for name, part in (("observations", obs), ("rewards", rewards), ("infos", infos)):
            self.named(part, f"the dict of {name}", where)
        for name, part in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations)):
            lacking = [agent for agent in before if agent not in part]
            if lacking:
                what = f"{lacking[0]} acted, and the dict of {name} does not name it"
                report.error("agents", what, "return an entry for every agent that was there before the step", where)
                raise Stop
        for agent in before:
            check_reward(report, rewards[agent], where, whose=f"the reward of {agent}")
            check_end(report, "terminations", terminations[agent], where)
            check_end(report, "truncations", truncations[agent], where)
        for agent, reward in rewards.items():
            if agent not in before and agent not in env.agents and same(reward, reward) and reward:
                what = f"{agent}, which is not there any more, is paid {shown(reward)}, and nobody can learn from it"
                report.warning("late-reward", what, "pay an agent at its last step", where)
        over = {agent for agent in before if bool(terminations[agent]) or bool(truncations[agent])}
        self.named(env.agents, "self.agents", where)
        stays = sorted(over & set(env.agents))
        if stays:
            what = f"{stays[0]} has ended and is still in self.agents"
            report.error("agents", what, "take agents out of self.agents in the step that ends them", where)
        gone = sorted(set(before) - over - set(env.agents))
        if gone:
            what = f"{gone[0]} left self.agents without terminations or truncations"
            report.error("agents", what, "say in one of both why an agent is gone", where)
        for agent in [*env.agents, *sorted(over)]:
            if agent in obs:
                self.look(env, agent, obs[agent], infos.get(agent, {}), agent in over, where)
            elif agent in env.agents:
                what = f"{agent} is in self.agents and is shown nothing"
                report.error("agents", what, "return an observation for each of self.agents", where)
            elif bool(truncations[agent]) and not bool(terminations[agent]):
                what = f"{agent} was truncated and is not shown where it ended, which its value needs"
                report.warning("last-observation", what, "return the last observation of an agent that ends", where)
        if "agents" in report.seen:
            raise Stop
        return obs
