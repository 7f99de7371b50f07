"""Checks of environments whose agents move one at a time: PettingZoo's AEC interface."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rlrun.envs.agent_games import LEFT_IN, TAKE_OUT
from rlrun.envs.check_agents import LONGEST, AgentsChecks
from rlrun.envs.check_report import OURS, Stop, copied, same, shown
from rlrun.envs.check_values import Infos, check_end, check_reward, draw, mask_of

OURS += [__file__]


class TurnsChecks(AgentsChecks):
    """Environments with PettingZoo's AEC interface, whose agents move one at a time."""

    DICTS = ("rewards", "terminations", "truncations", "infos")

    def begin(self, env: Any, seed: int | None) -> dict[str, Any]:
        where = f"reset(seed={seed})"
        self.call(where, lambda: env.reset(seed=seed), reset=True)
        if not isinstance(getattr(env, "agents", None), list | tuple) or not env.agents:
            self.report.error("agents", "no agent is there after reset()", "set self.agents in reset()", where)
            raise Stop
        self._bury(env, where)
        return {agent: self.call(where, lambda agent=agent: env.observe(agent)) for agent in env.agents}  # type: ignore[misc]

    def _bury(self, env: Any, where: str) -> None:
        """Takes out agents that have ended, as the interface asks for: by a step with None."""
        for _ in range(2 * len(self.possible) + 2):
            chosen = env.agent_selection if env.agents else None
            if chosen is None or not (env.terminations.get(chosen) or env.truncations.get(chosen)):
                return
            self.call(f"step(None) of {chosen}, which has ended, {where}", lambda: env.step(None))
        self.report.error("agents", LEFT_IN, TAKE_OUT, where)
        raise Stop

    def act(self, env: Any, rng: np.random.Generator) -> tuple:
        return self._move(env, rng, "a step", False)

    def _move(self, env: Any, rng: np.random.Generator, where: str, looking: bool) -> tuple:
        report, agent = self.report, env.agent_selection
        there = list(env.agents)
        if agent not in there:
            what = f"agent_selection is {shown(agent)}, which is not in self.agents"
            report.error("agents", what, "choose the next one of self.agents", where)
            raise Stop
        obs = self.call(where, lambda: env.observe(agent))
        info = env.infos.get(agent, {}) if isinstance(getattr(env, "infos", None), dict) else {}
        if looking:
            self.look(env, agent, obs, info, False, where)
            kept = copied(obs)
        action = draw(env.action_space(agent), mask_of(obs, info), rng)
        self.call(f"{where}, with the action {shown(action)} of {agent}", lambda: env.step(action))
        if looking:
            if not same(obs, kept):
                what = "step() changes an observation that observe() returned before in place"
                report.warning("observation-shared", what, "return copies from observe()", where)
            self._dicts(env, where)
        rewards, ends, cuts = (
            {name: copied(getattr(env, part).get(name)) for name in there}
            for part in ("rewards", "terminations", "truncations")
        )
        self._bury(env, where)
        return {agent: copied(obs)}, rewards, ends, cuts

    def _dicts(self, env: Any, where: str) -> None:
        report = self.report
        for name in self.DICTS:
            part = getattr(env, name, None)
            if not isinstance(part, dict):
                report.error("agents", f"self.{name} is {shown(part)} and no dict by agent",
                             f"set self.{name} in reset() and step()", where)  # fmt: skip
                raise Stop
            lacking = [agent for agent in env.agents if agent not in part]
            if lacking:
                report.error("agents", f"{lacking[0]} is in self.agents, and self.{name} does not name it",
                             "keep an entry for every agent until it is taken out by step(None)", where)  # fmt: skip
                raise Stop
            self.named(part, f"self.{name}", where)
        for agent in env.agents:
            check_reward(report, env.rewards[agent], where, whose=f"the reward of {agent}")
            check_end(report, "terminations", env.terminations[agent], where)
            check_end(report, "truncations", env.truncations[agent], where)
            self.infos.setdefault(agent, Infos(report)).check(env.infos[agent], where)

    def play(self, env: Any) -> None:
        report, rng = self.report, self.rng(1)
        report.tell(("doing", "plays episodes with random actions"))
        began, episode, taken, lengths = time.monotonic(), 0, 0, []
        while self.pace.plays(began, taken):
            episode += 1
            where = f"reset(seed={episode})"
            self.begin(env, episode)
            self.named(env.agents, "self.agents", where)
            self._dicts(env, where)
            length = 0
            while env.agents and length < LONGEST and self.pace.plays(began, taken):
                length += 1
                taken += 1
                self._move(env, rng, f"move {length} after reset(seed={episode})", True)
            self.state(env, where)
            if not env.agents:
                lengths.append(length)
        self.count(len(lengths))
