"""The environments that RLlib's experiments name: rlrun's names of them, their agents and their spaces."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any, NamedTuple

import yaml

from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete
from rlrun.envs.agent_games import AgentsConfig
from rlrun.envs.agents import AgentsSpec, make_spec
from rlrun.envs.names import AGENT_GAMES, OWN, family_of, known_to, resolve, zoo_names

NEWER = {
    "Pendulum-v0": "Pendulum-v1",
    **{
        f"{name}-v{old}": f"{name}-v5"
        for name in (
            "HalfCheetah",
            "Hopper",
            "Walker2d",
            "Humanoid",
            "Ant",
            "Swimmer",
            "InvertedPendulum",
            "InvertedDoublePendulum",
            "Reacher",
        )
        for old in (1, 2, 3, 4)
    },
}
TWO_STEP = "TwoStepGame-v0"
ROCK_PAPER_SCISSORS = "RockPaperScissors-v0"
SEVERAL = ("MultiAgentCartPole-v0", "MultiAgentPendulum-v0")
# RLlib's own environments, by their classes or the names under which its examples register them, in small letters and
# without underscores
EXAMPLES = {
    "statelesscartpole": "StatelessCartPole-v0",
    "repeataftermeenv": "rlrun/RepeatAfterMe-v0",
    "parametricactionscartpole": "ParametricActionsCartPole-v0",
    "cartpolesparserewards": "CartPoleSparse-v0",
    "twostepgame": TWO_STEP,
    "groupedtwostep": TWO_STEP,
    "groupedtwostepgame": TWO_STEP,
    "twostepgamewithgroupedagents": TWO_STEP,
    "rockpaperscissors": ROCK_PAPER_SCISSORS,
    "pendulummassenv": "PendulumMass-v0",
    "cartpolemassenv": "CartPoleMass-v0",
    "halfcheetahranddirecenv": "HalfCheetahRandDirec-v0",
    "antrandgoalenv": "AntRandGoal-v0",
    "cartpolewrapper": "CartPole-v1",
    "pendulumwrapper": "Pendulum-v1",
    "halfcheetahwrapper": "HalfCheetah-v5",
    "hopperwrapper": "Hopper-v5",
    "multiagentcartpole": SEVERAL[0],
    "multiagentpendulum": SEVERAL[1],
    "interestevolutionrecsimenv": "rlrun/InterestEvolution-v0",
    "interestexplorationrecsimenv": "rlrun/InterestExploration-v0",
    "longtermsatisfactionrecsimenv": "rlrun/LongTermSatisfaction-v0",
    "simplecontextualbandit": "rlrun/SimpleBandit-v0",
    "lineardiscreteenv": "rlrun/LinearBandit-v0",
    "wheelbanditenv": "rlrun/WheelBandit-v0",
    "parametricitemrecoenv": "rlrun/ParametricItems-v0",
}

# The environments of D4RL's data sets, which RLlib's examples name by functions such as d4rl_env.hopper_medium
D4RL = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5", "ant": "Ant-v5"}


class Environment(NamedTuple):
    """An environment of RLlib's experiments as rlrun has it."""

    name: str
    family: str  # one of those of envs/names.py
    why: str = ""  # what is different from the one that the file names
    spec: AgentsSpec | None = None  # of several agents; None: one agent, or the environment was not made
    inside: dict[str, Any] | None = None  # its keyword arguments; None: those that the file gives

    @property
    def agents(self) -> tuple[str, ...] | None:
        """The names of the agents in their order; empty if there is one agent, None if they are unknown."""
        if self.family != "agents":
            return ()
        return None if self.spec is None or self.spec.agents is None else self.spec.agents.names


def environment(env: str, kwargs: dict[str, Any], several: bool) -> Environment:
    """Finds rlrun's environment for one of RLlib's names. several: whether the experiment speaks of several agents.

    Raises UserError if there is none."""
    name = env.removeprefix("ale_py:")
    game = resolve(name)
    if game is not None:
        return Environment(game, "atari")
    short = name.rsplit(".", 1)[-1]
    recorded = re.search(r"\bd4rl_env\.(halfcheetah|hopper|walker2d|ant)_\w+$", name)
    if recorded:
        made = D4RL[recorded[1]]
        why = f"D4RL's data are of an older {made[:-3]}, whose returns differ a little"
        return Environment(made, family_of(made, needed=False)[0], why)
    task = re.search(r"\bdm_control_suite\.([a-z]\w*)$", name)
    # Of RLlib's examples of DreamerV3 (DMC/cartpole/swingup), and shimmy's ids (dm_control/cartpole-swingup-v0).
    pair = re.fullmatch(r"DMC/([A-Za-z]\w*)/(\w+)", name) or re.fullmatch(r"dm_control/([A-Za-z]\w*)-(\w+)-v0", name)
    if task or pair:
        short = task[1] if task else f"{pair[1]}_{pair[2]}"  # type: ignore[index]
        return Environment(short, family_of(short, needed=False)[0])
    known = EXAMPLES.get(short.replace("_", "").lower())
    if known in SEVERAL:
        own = {"num_agents": 1, **kwargs}
        why = "" if "num_agents" in kwargs else "one agent, which is RLlib's default"
        return Environment(known, "agents", why, _spec(known, yaml.safe_dump(own)), own)
    if known is not None:
        family = family_of(known, needed=False)[0]
        return Environment(known, family, "", _spec(known, "{}") if family == "agents" else None)
    zoo = name.startswith("pettingzoo.")
    imported = OWN.fullmatch(name) is not None  # my_package.module:Name, which is the user's own
    if "." in name and "-v" not in name and not zoo and not imported:
        raise UserError(
            f"{env} is an environment of RLlib's own examples, which rlrun does not have, or one of yours, which"
            f" --env {name.rpartition('.')[0]}:{short} names"
        )
    newest = _newest_of_zoo(short, several or zoo)
    made = newest or NEWER.get(name, name)
    try:
        family = family_of(made, needed=False)[0]
    except UserError as error:
        if zoo or imported or re.fullmatch(r"(\w+/)?[a-z][a-z0-9_]*_v\d+", name):
            raise UserError(f"{error} (--env names another one)") from None
        raise UserError(f"Gymnasium has no {env!r} here; --env names another one, or my_package:Name") from None
    why = "a newer version, whose returns differ a little from the old one's" if made != name and not newest else ""
    why = f"PettingZoo's {made}, whose returns may differ from those of {env}" if newest and newest != short else why
    return Environment(made, family, why, _spec(made, yaml.safe_dump(kwargs)) if family == "agents" else None)


def emulator_frames(env: str) -> int | None:
    """Returns the frames for which the emulator of an Atari id takes an action; None if it draws their number."""
    name = env.rpartition("/")[2]
    if "NoFrameskip" in name or not re.search(r"-v\d+$", name):
        return 1
    if "Deterministic" in name:
        return 3 if name.startswith("SpaceInvaders") else 4
    return 4 if name.endswith("-v5") else None


def _newest_of_zoo(name: str, bare: bool) -> str | None:
    """Returns the environment of PettingZoo's or mpe2's that a name means, perhaps of another version; None if it is
    none. bare: whether the name may have no version."""
    stem = re.sub(r"_v\d+$", "", name)
    if stem == name and not bare:
        return None
    return next((known for known in zoo_names() if re.sub(r"_v\d+$", "", known) == stem), None)


@cache
def _spec(env: str, kwargs: str) -> AgentsSpec | None:
    """Describes an environment with several agents; None if that is unknown. kwargs: as YAML.

    Only environments of rlrun's and of packages that it knows are made, because making one runs its code. Raises
    UserError for keyword arguments that one of rlrun's own does not take."""
    short = env.rpartition("/")[2]
    if not known_to(short):
        return None
    given = yaml.safe_load(kwargs)
    cfg = AgentsConfig(
        family="agents",
        name=env,
        kwargs=given,
        agent_id=False,
        step_timeout_sec=None,
        reset_timeout_sec=None,
        stack=1,
        max_episode_steps=None,
        time_limit="truncation",
        reward_clip="none",
        return_of=("*",),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make_spec(cfg)
    except UserError:
        if short in AGENT_GAMES:
            raise
        return None  # a package is missing, which the run will say


def continuous_actions(env: Environment) -> bool | None:
    """Tells whether actions of one of Gymnasium's or rlrun's environments are continuous; None if that is unknown."""
    import gymnasium

    if env.family == "dmc":
        return True
    if env.spec is not None:
        action = env.spec.action
        return isinstance(action, Box) if isinstance(action, Box | Discrete) else None
    if _entry_point(env.name).startswith(("gymnasium.envs.mujoco", "rlrun.envs.mujoco")):
        return True  # also where MuJoCo is not installed
    found = _spaces(env.name)
    return None if found is None else isinstance(found[1], gymnasium.spaces.Box)


def image_shape(env: Environment) -> tuple[int, ...] | None:
    """Returns the shape [H, W, C] of the images that one of Gymnasium's or rlrun's environments shows.

    It is empty if there are none, and None if that is unknown."""
    if env.spec is not None:
        seen = env.spec.obs["observation"]
        return (*seen.shape[1:], seen.shape[0]) if isinstance(seen, Box) and seen.image else ()
    found = _spaces(env.name)
    shape = () if found is None else found[0].shape or ()
    return None if found is None else tuple(shape) if len(shape) == 3 else ()


def _entry_point(env: str) -> str:
    """Returns the module and class of a registered environment, or an empty string."""
    import gymnasium

    import rlrun.envs.own  # noqa: F401  registers rlrun's own ids

    found = getattr(gymnasium.registry.get(env), "entry_point", "")
    return found if isinstance(found, str) else f"{getattr(found, '__module__', '')}:"


@cache
def _spaces(env: str) -> tuple[Any, Any] | None:
    """Returns the spaces of observations and actions of one of Gymnasium's or rlrun's environments; None if unknown.

    No other environment is made, because that would run its code."""
    import gymnasium

    if not _entry_point(env).startswith(("gymnasium.envs.", "rlrun.envs.")):
        return None
    try:
        with warnings.catch_warnings():  # of ids that have newer versions
            warnings.simplefilter("ignore")
            made = gymnasium.make(env, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError):
        return None
    spaces = made.observation_space, made.action_space
    made.close()
    return spaces
