"""The names that `env=` takes. Shell completion reads this file, so it must not import torch."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium

from rlrun.core.errors import UserError, closest, told
from rlrun.core.installing import install_line
from rlrun.core.plugins import hiding, import_named

OWN = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[\w./-]+")  # my_package.envs:MyEnv-v0


# rlrun's own games with several agents (envs/games.py).
AGENT_GAMES = (
    "TwoStepGame-v0",
    "MatrixGame-v0",
    "RockPaperScissors-v0",
    "MultiAgentCartPole-v0",
    "MultiAgentPendulum-v0",
    "TicTacToe-v0",
    "ConnectFour-v0",
)
ZOO = re.compile(r"[a-z][a-z0-9_]*_v\d+")  # simple_spread_v3
# Packages that register Gymnasium ids of environments with several agents, by how the ids begin.
TUPLES = {"Foraging-": "lbforaging", "rware-": "rware"}
EXTRA = install_line("multi-agent")
ATARI = install_line("atari")
# How the ids of MiniGrid's environments begin, which are registered when the package is imported.
GRIDS = ("MiniGrid-", "BabyAI-")
# Prefixes that say whose a name is (pettingzoo/pong_v3), and the families of their environments.
PREFIXES = {
    "atari": "atari",
    "gym": "gym",
    "rlrun": "agents",
    "pettingzoo": "agents",
    "mpe2": "agents",
    "lbforaging": "agents",
    "rware": "agents",
    "dmc": "dmc",
    "crafter": "crafter",
    "minigrid": "gym",
}
FAMILIES = ("atari", "gym", "agents", "dmc", "crafter")
CRAFTER = "crafter"
# The tasks of dm-control 1.0 by their domains. env=walker_walk is the task walk of the domain walker.
DMC = {
    f"{domain}_{task}": (domain, task)
    for domain, tasks in {
        "acrobot": "swingup swingup_sparse",
        "ball_in_cup": "catch",
        "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
        "cheetah": "run",
        "dog": "stand walk trot run fetch",
        "finger": "spin turn_easy turn_hard",
        "fish": "upright swim",
        "hopper": "stand hop",
        "humanoid": "stand walk run run_pure_state",
        "humanoid_CMU": "stand walk run",
        "lqr": "lqr_2_1 lqr_6_2",
        "manipulator": "bring_ball bring_peg insert_ball insert_peg",
        "pendulum": "swingup",
        "point_mass": "easy hard",
        "quadruped": "walk run escape fetch",
        "reacher": "easy hard",
        "stacker": "stack_2 stack_4",
        "swimmer": "swimmer6 swimmer15",
        "walker": "stand walk run",
    }.items()
    for task in tasks.split()
}
# What some environments need besides rlrun, by prefix or by where Gymnasium's own come from: the modules, how their
# package is called, and rlrun's extra with it.
NEEDS = {
    "dmc": ("dm_control", "dm-control", "dmc"),
    "crafter": ("crafter", "Crafter", "crafter"),
    "minigrid": ("minigrid", "MiniGrid", "minigrid"),
    "gymnasium.envs.mujoco": ("mujoco imageio", "Gymnasium's MuJoCo", "mujoco"),
    "rlrun.envs.mujoco_tasks": ("mujoco imageio", "Gymnasium's MuJoCo", "mujoco"),
    "gymnasium.envs.box2d": ("Box2D", "Box2D", "box2d"),
}
# What PettingZoo 1.27 and mpe2 1.1 have, for messages where they are not installed.
ABSENT = {
    "pettingzoo": (
        "cooperative_pong_v6 knights_archers_zombies_v11 pistonball_v6 chess_v6 connect_four_v3 go_v5 hanabi_v5"
        " leduc_holdem_v4 rps_v2 texas_holdem_no_limit_v6 texas_holdem_v4 tictactoe_v3 multiwalker_v9 pursuit_v5"
        " basketball_pong_v3 boxing_v2 combat_plane_v2 combat_tank_v2 double_dunk_v3 entombed_competitive_v3"
        " entombed_cooperative_v3 flag_capture_v2 foozpong_v3 ice_hockey_v2 joust_v3 mario_bros_v3 maze_craze_v3"
        " othello_v3 pong_v3 quadrapong_v4 space_invaders_v2 space_war_v2 surround_v2 tennis_v3 video_checkers_v4"
        " volleyball_pong_v3 warlords_v3 wizard_of_wor_v3"
    ).split(),
    "mpe2": (
        "collect_treasure_v1 simple_adversary_v3 simple_crypto_v3 simple_formation_v1 simple_line_v1 simple_push_v3"
        " simple_reference_v3 simple_speaker_listener_v4 simple_spread_v3 simple_tag_v3 simple_v3 simple_world_comm_v3"
    ).split(),
}
# Environments that PettingZoo 1.27 has no more, and the release that has them.
GONE = {"waterworld_v4": "pip install pettingzoo==1.25.0 'pymunk<7'"}
ZOOS = {"pettingzoo": "PettingZoo", "mpe2": "mpe2"}


def installed(package: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in package.split())


@cache
def zoo_modules() -> dict[str, str]:
    """Maps the names of PettingZoo's and mpe2's environments to their modules, which are not imported. Empty without
    these packages."""
    found: dict[str, str] = {}
    for package, folders in (("pettingzoo", ("butterfly", "classic", "sisl", "atari")), ("mpe2", ("",))):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for folder in folders:
                for path in sorted(Path(place, folder).glob("*_v*")):
                    name = path.stem if path.suffix == ".py" else path.name
                    if ZOO.fullmatch(name) and (path.suffix == ".py" or (path / "__init__.py").is_file()):
                        found[name] = ".".join(part for part in (package, folder, name) if part)
    return found


def zoo_names() -> dict[str, str]:
    """Maps the names of PettingZoo's and mpe2's environments to the package, also where it is not installed."""
    there = {name: module.split(".")[0] for name, module in zoo_modules().items()}
    absent = {name: package for package in ABSENT if not installed(package) for name in ABSENT[package]}
    return dict.fromkeys(GONE, "pettingzoo") | absent | there


def petting_zoo(name: str) -> str:
    """The module of one of PettingZoo's or mpe2's environments. Raises UserError if there is none.

    pettingzoo/ is a prefix of mpe2's names too, which were PettingZoo's once."""
    short = name.removeprefix("pettingzoo/").removeprefix("mpe2/")
    module = zoo_modules().get(short)
    if module is not None and not (name.startswith("mpe2/") and not module.startswith("mpe2.")):
        return module
    if short in GONE:
        raise UserError(f"env={name} is an environment of older releases of PettingZoo: {GONE[short]}")
    stem = short.rpartition("_v")[0]
    knows = [package for package, known in ABSENT.items() if any(stem == one.rpartition("_v")[0] for one in known)]
    for package in [*knows, *(package for package in ABSENT if name.startswith(f"{package}/"))]:
        if module is None and not installed(package):
            raise UserError(f"env={name} is an environment of {ZOOS[package]}, which is not installed: {EXTRA}")
    if not zoo_modules():
        raise UserError(f"env={name} is an environment of PettingZoo, which is not installed: {EXTRA}")
    older = [known for known in zoo_modules() if known.rpartition("_v")[0] == stem and known != short]
    there = closest(short, zoo_modules())
    if older:
        package = "mpe2" if zoo_modules()[older[0]].startswith("mpe2.") else "PettingZoo"
        there = f" {package} has {older[0]} now."
    raise UserError(f"There is no env {name!r}.{there} (rlrun list envs shows all)")


@cache
def games() -> dict[str, str]:
    """Maps each game's short name to its ROM id: {"MsPacman": "ms_pacman", ...}. Empty without ale-py."""
    try:
        from ale_py import roms
    except ImportError:
        return {}
    return {"".join(part.capitalize() for part in rom.split("_")): rom for rom in roms.get_all_rom_ids()}


def resolve(name: str) -> str | None:
    """Returns the game's short name for `Pong`, `ALE/Pong-v5`, `PongNoFrameskip-v4` and so on; None if it is no game.

    What belongs to a version is ignored, but for sticky actions, which sticky_actions() tells.
    """
    short = name.removeprefix("ALE/")
    for ending in ("NoFrameskip-v4", "NoFrameskip-v0", "Deterministic-v4", "Deterministic-v0", "-v5", "-v4", "-v0"):
        short = short.removesuffix(ending)
    return short if short in games() else None


def sticky_actions(name: str) -> float:
    """Returns the probability with which the emulator of an Atari id repeats the last action: 0.25 in versions 0 and 5,
    and otherwise 0."""
    return 0.25 if re.search(r"-v[05]$", name) else 0.0


def names() -> list[str]:
    """Names that `rlrun list envs` and completion offer: short names of Atari games, then Gymnasium ids."""
    others = [name for name, prefix in own_names().items() if installed(NEEDS[prefix][0])]
    return [*sorted(games()), *sorted(_registered()), *AGENT_GAMES, *sorted(zoo_modules()), *others]


def own_names() -> dict[str, str]:
    """Maps the names of dm-control's tasks and of Crafter to their prefixes, also where they are not installed."""
    return {**dict.fromkeys(DMC, "dmc"), CRAFTER: "crafter"}


def _registered() -> list[str]:
    """Gymnasium's ids without those of Atari games and of packages whose environments have several agents."""
    import rlrun.envs.own  # noqa: F401  registers rlrun's own ids

    return [
        name
        for name, spec in gymnasium.registry.items()
        if not any(part in str(spec.entry_point) for part in ("ale_py", "_raise_"))
        and not name.startswith(("GymV", "phys2d/", "tabular/", *TUPLES))
    ]


def known_to(name: str) -> dict[str, str]:
    """Maps the prefixes of all who know a name without a prefix to the name that the family has for it."""
    found: dict[str, str] = {}
    short = resolve(name)
    if short:
        found["atari"] = short
    if name in _registered():
        found["gym"] = name
    if name in AGENT_GAMES:
        found["rlrun"] = name
    if name.startswith(GRIDS) and "gym" not in found:
        found["minigrid"] = f"minigrid:{name}"
    if name in own_names():
        found[own_names()[name]] = name
    zoo = zoo_names().get(name)
    if zoo is not None:
        found[zoo] = name
    package = next((package for begin, package in TUPLES.items() if name.startswith(begin)), None)
    if package is not None:
        found[package] = f"{package}:{name}"
    return found


def family_of(name: str, family: str | None = None, needed: bool = True) -> tuple[str, str]:
    """Returns (family, canonical name) for `env=<name>`.

    A prefix of PREFIXES says whose a name is, and my_package:Name is judged by what it names. family: that of
    `env.family=`, which overrules both. needed: whether the environment's package must be installed. Raises UserError
    with the closest names if there is none, with both prefixes if two families know it, and with what to install if a
    needed package is missing."""
    if family is not None and family not in FAMILIES:
        raise UserError(f"env.family must be one of {', '.join(FAMILIES)}, not {family!r}")
    refuse_file(name)
    prefix, slash, rest = name.partition("/")
    if slash and prefix in PREFIXES and name not in _registered():
        return _prefixed(prefix, rest, name, family, needed)
    if family is not None:
        return family, _as(family, name)
    if OWN.fullmatch(name):
        return ("agents" if _has_agents(name) else "gym"), name
    known = known_to(name)
    families = {PREFIXES[one] for one in known}
    if len(families) > 1:
        both = " or ".join(f"env={one}" for one in _both(known, name))
        raise UserError(f"env={name} is known to {len(families)} families: say {both}")
    if known:
        ((prefix, canonical), *_) = known.items()
        if needed:
            check_present(prefix, name)
        return PREFIXES[prefix], canonical
    if ZOO.fullmatch(name):
        petting_zoo(name)
    if name in gymnasium.registry:
        if needed:
            check_present("gym", name)
        return "gym", name
    if not games() and "-" not in name:
        raise UserError(f"env={name} is not a Gymnasium id; if it is an Atari game: {ATARI}")
    if re.fullmatch(r"\w+", name) and Path(f"{name}.py").is_file():
        raise UserError(f"env={name}: name a class of {name}.py too, as in env={name}:MyEnv")
    dotted = re.fullmatch(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)", name)  # a class as Python prints it
    near = f" Did you mean {dotted[1]}:{dotted[2]}?" if dotted else closest(name, [*names(), *own_names()])
    raise UserError(f"There is no env {name!r}.{near} (rlrun list envs shows all; your own: env=my_package:MyEnv-v0)")


def refuse_file(name: str) -> None:
    """Raises UserError with the right name where env= names a Python file, as in my_env.py, my_env.py:MyEnv or
    my_env.MyEnv."""
    found = re.fullmatch(r"(?:.*/)?(\w+)(\.py:|\.)(\w+)", name)
    if found is None:
        return
    module, between, part = found.groups()
    if (between, part) == (".", "py"):
        raise UserError(
            f"env={name}: name the class too, as in env={module}:MyEnv; the file has to be in the current folder or on"
            " PYTHONPATH"
        )
    if between == ".py:" or (Path(f"{module}.py").is_file() and name not in gymnasium.registry):
        raise UserError(
            f"env={name}: {part} of a file {module}.py is named env={module}:{part}, and the file has to be in the"
            " current folder or on PYTHONPATH"
        )


def _both(known: dict[str, str], name: str) -> list[str]:
    return [f"{prefix}/{name}" for prefix in known]


def check_present(prefix: str, name: str) -> None:
    """Raises UserError with the install line if the package of a name is missing."""
    if prefix in ZOOS:
        petting_zoo(name)
    elif prefix in TUPLES.values() and not installed(prefix):
        raise UserError(f"env={name} is an environment of {prefix}, which is not installed: {EXTRA}")
    entry = str(gymnasium.registry[name].entry_point) if prefix == "gym" and name in gymnasium.registry else prefix
    for place, (module, package, extra) in NEEDS.items():
        if entry.startswith(place) and not installed(module):
            raise UserError(f"env={name} is an environment of {package}, which is not installed: {install_line(extra)}")


def _prefixed(prefix: str, rest: str, name: str, family: str | None, needed: bool) -> tuple[str, str]:
    """family_of() of a name with a prefix."""
    if family not in (None, PREFIXES[prefix]):
        raise UserError(f"env={name} is of the family {PREFIXES[prefix]}, and env.family={family} says another")
    if prefix in ZOOS:
        if needed or rest not in zoo_names():
            petting_zoo(name)
        return "agents", name
    if prefix == "atari" and not games():
        raise UserError(f"env={name} is an Atari game, and these are not installed: {ATARI}")
    if prefix == "gym" and rest in gymnasium.registry:  # Atari games too, as Gymnasium makes them
        if needed:
            check_present("gym", rest)
        return "gym", rest
    known = known_to(rest)
    if prefix not in known:
        elsewhere = f" {_both(known, rest)[0]} is one." if known else closest(rest, [*names(), *own_names()])
        raise UserError(f"There is no env {name!r}.{elsewhere} (rlrun list envs shows all)")
    if needed:
        check_present(prefix, rest)
    return PREFIXES[prefix], known[prefix]


def _as(family: str, name: str) -> str:
    """The name that a family has for an environment that env.family= puts into it. Raises UserError if the family
    cannot make it."""
    if family == "atari":
        short = resolve(name)
        if short is None:
            raise UserError(f"env={name} is no Atari game, and env.family=atari asks for one.{closest(name, games())}")
        return short
    known = known_to(name)
    if family == "agents":
        of_agents = [known[prefix] for prefix in known if PREFIXES[prefix] == "agents"]
        if of_agents:
            check_present(next(prefix for prefix in known if PREFIXES[prefix] == "agents"), name)
            return of_agents[0]
    if family in known and family != "gym":
        check_present(family, name)
        return known[family]
    if family in ("gym", "agents") and (OWN.fullmatch(name) or name in gymnasium.registry):
        return name
    it_is = f", which is of the family {next(PREFIXES[one] for one in known)}." if known else "."
    raise UserError(
        f"env.family={family} cannot make env={name}{it_is}{'' if known else closest(name, [*names(), *own_names()])}"
    )


def _has_agents(name: str) -> bool:
    """Whether my_package:Name is an environment with several agents: a PettingZoo one (parallel or AEC), or a Gymnasium
    one whose observations and actions are tuples. What is neither a registered id nor a class of Gymnasium's is one."""
    module, _, part = name.rpartition(":")
    if module in TUPLES.values():
        return True
    is_id = re.search(r"-v\d+$", part) is not None
    try:
        imported = import_named(module, f"env={name}")
    except ImportError:
        return False
    except Exception as error:
        if is_id:  # an id's family says what is wrong with its module
            return False
        if isinstance(error, UserError):
            raise
        raise UserError(f"env={name}: importing {module} fails: {told(error)}") from None
    if part in gymnasium.registry:
        entry: Any = gymnasium.registry[part].entry_point
        if isinstance(entry, str) and entry.split(".")[0].split(":")[0] == module.split(".")[0]:
            entry = gymnasium.envs.registration.load_env_creator(entry)
        return isinstance(entry, type) and issubclass(entry, gymnasium.Env) and _tuples(entry)
    found = getattr(imported, part, None)
    if isinstance(found, type) and issubclass(found, gymnasium.Env):
        return _tuples(found)
    return found is not None


def absent(module: str, name: str) -> str:
    """A sentence about a name that an imported module has not, with the closest environments that it has."""
    classes = [
        known
        for known, value in vars(sys.modules[module]).items()
        if isinstance(value, type) and issubclass(value, gymnasium.Env) and value is not gymnasium.Env
    ]
    top = module.split(".")[0]
    ids = [
        known for known, spec in gymnasium.registry.items() if str(spec.entry_point).split(".")[0].split(":")[0] == top
    ]
    near = hiding(module) or closest(name, [*classes, *ids])
    there = f" It has {', '.join(classes[:5])}." if classes and not near else ""
    return f"the module {module} has no {name}, and no Gymnasium id is called so.{near}{there}"


def _tuples(cls: Any) -> bool:
    """Whether the spaces of a Gymnasium class are tuples over agents. False if it cannot be made without arguments."""
    try:
        made = cls()
    except Exception:  # the user's own constructor may raise anything; env.family=agents overrules
        return False
    try:
        return over_agents(made)
    finally:
        made.close()


def over_agents(env: gymnasium.Env) -> bool:
    """Whether observations and actions are tuples over agents. Tuples of unlike lengths are parts of what one agent
    sees and does."""
    spaces = [getattr(env, name, None) for name in ("observation_space", "action_space")]
    tuples = [space for space in spaces if isinstance(space, gymnasium.spaces.Tuple)]
    return len(tuples) == len(spaces) and len({len(space) for space in tuples}) == 1


def numbered(name: str, stream: str, worker: int, count: int) -> tuple[str, range]:
    """Returns how messages call a worker's environments, and their numbers among all environments of the run."""
    of = {"env": "", "eval": " (evaluation)"}.get(stream, f" ({stream})")
    return f"{name}{of}", range(worker * count, (worker + 1) * count)
