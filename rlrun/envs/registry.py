"""Makes environments from their configs, through picklable factories that run in the process that steps them."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.core.env import VectorEnv
from rlrun.core.errors import UserError
from rlrun.core.games import STATE as GAME_STATE
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.envs import agents, atari, gym, recorded
from rlrun.envs.agent_games import AgentsConfig
from rlrun.envs.agents import AgentsEnv
from rlrun.envs.atari import AtariConfig
from rlrun.envs.central import Central, with_state
from rlrun.envs.crafter import CrafterConfig
from rlrun.envs.dmc import DmcConfig
from rlrun.envs.gym import GymConfig
from rlrun.envs.gym_env import GymEnv
from rlrun.envs.joint import STATE, JointEnv, JointSpec, joint_spec
from rlrun.envs.own_state import state_size
from rlrun.envs.previous import Previous, with_previous
from rlrun.envs.recorded import NO_ENV, RecordedConfig
from rlrun.envs.simulated import WithGame, with_game
from rlrun.envs.stacked import Stacked, with_stack, without_stack

EnvConfig = AtariConfig | GymConfig | AgentsConfig | DmcConfig | CrafterConfig | RecordedConfig
FAMILIES: dict[str, type] = {
    "atari": AtariConfig,
    "gym": GymConfig,
    "agents": AgentsConfig,
    "dmc": DmcConfig,
    "crafter": CrafterConfig,
    "data": RecordedConfig,
}


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Makes `count` environments for one worker. `stream` keeps the seeds of "env" (training) and "eval" apart."""

    cfg: EnvConfig
    spec: EnvSpec
    seeds: Seeds
    stream: str
    learning: bool  # False: a lost life is not a termination
    threads: int = 1  # threads that step the games, if the cores are idle at that time
    restarts: bool = False  # whether an environment that raises is made anew
    new_tasks: bool = False  # every episode has a new task, if the environment has tasks
    render: bool = False  # whether frame() of the AgentsEnv or GymEnv inside draws the first environment

    def __call__(self, worker: int, count: int) -> VectorEnv:
        env: VectorEnv
        if isinstance(self.cfg, RecordedConfig):
            raise UserError(NO_ENV)
        if isinstance(self.cfg, AtariConfig):
            env = atari.AtariEnv(
                self.cfg, self.spec, self.seeds, self.stream, worker, count, self.learning, self.threads
            )
        elif isinstance(self.cfg, AgentsConfig):
            of_agents = self.spec.agent if isinstance(self.spec, JointSpec) else without_stack(self.spec)
            env = AgentsEnv(
                self.cfg, of_agents, self.seeds, self.stream, worker, count, render=self.render, restarts=self.restarts
            )
            if isinstance(self.spec, JointSpec):
                env = JointEnv(env, self.spec)
            elif STATE in self.spec.obs:
                env = Central(env, self.spec, state_size(self.cfg) is not None)
            env = Stacked(env, self.spec) if self.spec.stack > 1 else env
        else:
            one = without_stack(self.spec)
            new = self.new_tasks and self.spec.tasks
            env = GymEnv(
                self.cfg, one, self.seeds, self.stream, worker, count, self.render, new, restarts=self.restarts
            )
            env = Stacked(env, self.spec) if self.spec.stack > 1 else env
        env = WithGame(env, self.spec) if GAME_STATE in self.spec.obs else env
        return Previous(env, self.spec) if {"prev_action", "prev_reward"} & self.spec.obs.keys() else env


def make_spec(
    cfg: EnvConfig,
    prev_action: bool = False,
    prev_reward: bool = False,
    joint: bool = False,
    state: bool = False,
    game: bool = False,
) -> EnvSpec:
    """Describes an environment, whose rows hold the last action and reward as asked for.

    joint: whether all agents are in one column. state: whether each agent's rows hold the state of all. game: whether
    they hold the state of the environment's simulator, for algorithms that search. Raises UserError if the environment
    cannot be made, has spaces that rlrun does not support, or has one agent alone where several are asked for.
    """
    spec: EnvSpec
    if state and not isinstance(cfg, AgentsConfig | RecordedConfig):
        raise UserError(f"model.value_sees=state is for environments with several agents; {cfg.name} has one")
    if joint:
        if not isinstance(cfg, AgentsConfig):
            raise UserError(
                f"{cfg.name} has one agent, and qmix, vdn, iql and maddpg learn several agents together; choose an"
                " algorithm for one agent, such as dqn or ddpg"
            )
        if cfg.stack > 1:
            raise UserError("env.stack is for algorithms that learn each agent by itself; use a model with memory")
        if prev_reward:
            raise UserError("model.memory.prev_reward is for algorithms that learn each agent by itself")
        return with_previous(joint_spec(agents.make_spec(cfg), cfg), prev_action, prev_reward)
    if isinstance(cfg, AtariConfig):
        spec = atari.make_spec(cfg)
    elif isinstance(cfg, RecordedConfig):
        spec = recorded.make_spec(cfg)
    else:
        made: EnvSpec
        if isinstance(cfg, AgentsConfig):
            made = with_state(agents.make_spec(cfg), cfg) if state else agents.make_spec(cfg)
        else:
            made = gym.make_spec(cfg)
        spec = with_stack(made, cfg.stack)
    if game:
        spec = with_game(spec, cfg)
    return with_previous(spec, prev_action, prev_reward)


def check_vectorised(cfg: EnvConfig, spec: EnvSpec) -> None:
    """Raises UserError if the vectorised implementation that will step an environment cannot be made or does not fit.

    It is tried only where it is used: a search, for example, may be given a class whose implementation does not fit."""
    if gym.by_vector(cfg, spec):
        gym.make_vector(cfg, 1).close()
