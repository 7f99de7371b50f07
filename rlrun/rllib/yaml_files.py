"""Reads RLlib's tuned YAML files and writes rlrun's; translate.py translates between them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

import yaml

from rlrun.config.paths import package
from rlrun.config.words import exact, looks_like_number
from rlrun.core.errors import UserError
from rlrun.envs.names import resolve

# Releases of RLlib. old: 0.5 to 0.8; middle: 1.0 to 2.39, and the old API stack; new: the new API stack, the default
# since 2.40
Era = Literal["old", "middle", "new"]
# mapped: the option has a counterpart; added: an option of rlrun's that is written although no option of RLlib's says
# it; dropped: leaving the option out changes nothing that is learnt; not mapped: leaving it out may change that.
How = Literal["mapped", "added", "dropped", "not mapped"]
# RLlib's groups whose keys are options of their own
NESTED = ("model", "exploration_config", "replay_buffer_config", "optimizer")
# Groups that are options of their own too, whose keys have no row in options/
GROUPS = (
    *NESTED,
    "env_config",
    "multiagent",
    "evaluation_config",
    "learner_config_dict",
    "q_model_config",
    "policy_model_config",
    "Q_model",
    "policy_model",
    "optimization",
    "optimization_config",
    "dreamer_model",
    "mcts_config",
    "ranked_rewards",
    "dynamics_model",
)

# Longer and deeper files are refused: an alias can stand for more than the memory of a machine holds
LONGEST, DEEPEST = 200_000, 100

GRID = "# Its grid:"  # begins the line of a file's head that has the sweep
# Ends the reason of an option whose grid is in the printed `rlrun sweep`
SWEPT = "the file's head has the sweep"


class Line(NamedTuple):
    """The fate of one of RLlib's options."""

    key: str  # empty if how is added
    value: Any
    how: How
    became: str  # rlrun's option with its value; empty if there is none
    why: str
    given: bool = True  # False: the value is RLlib's default, which the file does not change


@dataclass
class Imported:
    """The contents of one of rlrun's tuned files."""

    name: str
    algo: str
    env: str
    values: dict[str, Any] = field(default_factory=dict)  # dotted key -> value
    grid: dict[str, list[Any]] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    comment: str = ""
    # options that the file leaves to the user, who must say them, and values with which the file can be checked
    asked: dict[str, Any] = field(default_factory=dict)
    # Options that name files and folders, or that are about these. A file may not choose files for its reader, so the
    # command line says them.
    places: dict[str, Any] = field(default_factory=dict)
    inner: str | None = None  # the algorithm inside, unless it is the one that conf/algo/<algo>.yaml has

    def text(self, source: str, command: str = "") -> str:
        """Returns the text of the tuned file. source: the name of RLlib's file. command: what follows `rlrun train`
        to train with the file."""
        nested: dict[str, Any] = {}
        for key, value in self.values.items():
            *groups, last = key.split(".")
            node = nested
            for group in groups:
                node = node.setdefault(group, {})
            node[last] = value
        defaults = [{"override /env": self.env}, {"override /algo": self.algo}]
        if self.inner is not None:
            defaults.append({"override /algo@algo.inner": self.inner})
        for group in ("model", "replay", "runner"):
            chosen = nested.get(group, {}).pop("_choice", None)
            if chosen:
                defaults.append({f"override /{group}": chosen})
            if not nested.get(group, True):
                del nested[group]
        said = [f"# Imported from RLlib's {source} ({self.name})."]
        if self.asked:
            said.append(f"# It does not say {' and '.join(self.asked)}, which must be filled in.")
        if self.places:
            said.append(f"# The command line has to say {' '.join(self.place_words())}.")
        if self.grid:
            said.append(f"{GRID} rlrun sweep {' '.join([command or 'tuned=...', *self.sweep()])}")
        chosen_files = yaml.safe_dump({"defaults": defaults}, sort_keys=False, default_flow_style=False)
        body = yaml.dump(nested, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=140)
        comments = [" ".join(line.split()) for line in said]  # no text of the file may begin a line of its own
        return "\n".join(["# @package _global_", *comments, chosen_files, body])

    def place_words(self) -> list[str]:
        """Returns the words of a command line that say places, quoted for a shell."""
        return [shlex.quote(f"{key}={exact(value)}") for key, value in self.places.items()]

    def sweep(self) -> list[str]:
        """Returns the words of `rlrun sweep` for the file's grid, quoted for a shell."""
        return [shlex.quote(f"{key}={','.join(map(exact, values))}") for key, values in self.grid.items()]


class _Dumper(yaml.SafeDumper):
    """Quotes texts such as 5e-4 too, which OmegaConf reads as numbers and PyYAML does not."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "'" if looks_like_number(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def flow(value: Any) -> str:
    """Formats a value as YAML on one line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**6)
    text = text.removesuffix("\n").removesuffix("\n...")
    if "\n" in text:  # double quotes keep line breaks as escapes
        text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, default_style='"', width=10**6).strip()
    return text.replace(": ", ":")


def read(text: str, source: str) -> dict[str, dict[str, Any]]:
    """Returns the experiments by name. Raises UserError if the text is not one of RLlib's tuned files."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        characters, depth = (0, 0) if node is None else _extent(node, {})
        if characters > LONGEST:  # before the values of aliases are copied
            raise UserError(f"{source} has more than {LONGEST:,} characters where its aliases (*name) are written out")
        if depth > DEEPEST:
            raise RecursionError
        if node is not None and (twice := _twice(node, set())) is not None:
            raise UserError(f"{source} has {twice.value!r} twice in one group, the second time in line {_line(twice)}")
        found = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of a date that the calendar does not have
        raise UserError(f"{source} is not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UserError(f"{source} has lists or groups inside each other more than {DEEPEST} deep") from None
    except _ContainsItself:
        raise UserError(
            f"{source} has an anchor (&name) with its own alias (*name) inside, and so it has no end"
        ) from None
    if (
        not isinstance(found, dict)
        or not found
        or not all(isinstance(one, dict) and "run" in one for one in found.values())
    ):
        raise UserError(
            f"{source} is not one of RLlib's tuned files: they hold experiments, each with `run: <algorithm>`, `env:`"
            " and `config:`"
        )
    return found


def for_old_stack(text: str) -> bool:
    """Whether the text of a tuned file says that it is for RLlib's old API stack, as those of 2.x do."""
    return "@OldAPIStack" in text


def _twice(node: yaml.Node, seen: set[int]) -> yaml.ScalarNode | None:
    """Returns the second key of a name in one group, of which YAML's readers keep the last; None if there is none."""
    if isinstance(node, yaml.ScalarNode) or id(node) in seen:
        return None
    seen.add(id(node))
    keys: set[str] = set()
    for key in [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if key.value in keys:
                return key
            keys.add(key.value)
    inside = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
    return next((found for one in inside if (found := _twice(one, seen)) is not None), None)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1 if node.start_mark is not None else 0


class _ContainsItself(Exception):
    """A list or group is inside itself."""


def _extent(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Returns (characters, depth) of a value with the values of aliases wherever they stand; a list or group is a
    character more.

    known: the results by the identities of nodes, so that each node is visited once; None for those that this one is
    in. Raises _ContainsItself."""
    if isinstance(node, yaml.ScalarNode):
        return 1 + len(node.value), 0
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise _ContainsItself
        return found
    known[id(node)] = None
    inside = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
    characters, depth = 1, 0
    for one in inside:
        more, deeper = _extent(one, known)
        characters, depth = characters + more, max(depth, deeper)
    known[id(node)] = found = (characters, depth + 1)
    return found


def numbers(value: Any, converts: bool = True) -> Any:
    """Converts text such as 5e-4 and 1e6, which YAML 1.1 does not read as numbers; RLlib accepts such text.

    The text of env_config stays text, because RLlib hands it to the environment as it is. converts: false for what
    stands inside."""
    if isinstance(value, dict):
        return {str(key): numbers(one, converts and key != "env_config") for key, one in value.items()}
    if isinstance(value, set):
        return sorted(map(str, value))
    if isinstance(value, list):
        return [numbers(one, converts) for one in value]
    if isinstance(value, str) and converts:
        try:
            return float(value) if value.strip()[:1] in "+-.0123456789" and value.strip() else value
        except ValueError:
            return value
    return value


def options_of(value: Any) -> list[Any] | None:
    """Returns the values of {grid_search: [...]}; None for any other value."""
    return list(value["grid_search"]) if isinstance(value, dict) and set(value) == {"grid_search"} else None


def first_values(value: Any) -> tuple[Any, dict[str, list[Any]]]:
    """Returns a value with the first of every grid that is inside it, and the values of the grids by dotted paths."""
    grids: dict[str, list[Any]] = {}

    def first(one: Any, path: str) -> Any:
        several = options_of(one)
        if several:
            if len(several) > 1:
                grids[path] = several
            return first(several[0], path)
        if isinstance(one, dict):
            return {key: first(inside, f"{path}.{key}" if path else str(key)) for key, inside in one.items()}
        return one

    return first(value, ""), grids


def slug(env: Any) -> str:
    text = str(resolve(str(env).removeprefix("ale_py:")) or env)
    return "".join(c if c.isalnum() else "_" for c in text).strip("_").lower()


def rounded(value: float) -> int | float:
    """Returns whole numbers as int."""
    return int(value) if float(value).is_integer() else value


@cache
def data(name: str) -> Any:
    """Loads a YAML file of rlrun/rllib. The result is cached, so that callers must not change it."""
    return yaml.safe_load((package() / "rllib" / name).read_text())


def defaults(run: str, era: Era) -> dict[str, Any]:
    """Returns RLlib's defaults of an algorithm in the releases of an era."""
    table = data("defaults.yaml")
    made = dict(table["common"])
    own = dict(table[run])
    eras = {name: own.pop(name, {}) for name in ("old", "new")}
    for part in (own, eras.get(era, {})):
        for key, value in part.items():
            made[key] = {**made[key], **value} if isinstance(value, dict) and isinstance(made.get(key), dict) else value
    return made


def class_defaults(usual: str, kind: str) -> dict[str, Any] | None:
    """Returns RLlib's defaults of a class of exploration or replay that can stand in the place of another one; None if
    they are not known."""
    families = data("classes.yaml").values()
    return next((family[kind] for family in families if usual in family and kind in family), None)


def runs_with_defaults() -> list[str]:
    """Returns RLlib's names of the algorithms whose defaults are known."""
    return [name for name in data("defaults.yaml") if name != "common"]


def flattened(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the config with the options of GROUPS under dotted keys. A grid of one value becomes that value."""
    made: dict[str, Any] = {}
    for key, value in config.items():
        if key in GROUPS and isinstance(value, dict) and options_of(value) is None:
            made |= {f"{key}.{inner}": one for inner, one in value.items()}
        else:
            made[key] = value
    several = {key: options_of(value) for key, value in made.items()}
    return {key: several[key][0] if len(several[key] or []) == 1 else value for key, value in made.items()}  # type: ignore[index]


def without_grids(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Returns the options of a config under dotted keys, with the first value of every grid, and the values of all
    grids by their keys. The grid of a whole group has the group's key. An empty grid stays as it is."""
    grids: dict[str, list[Any]] = {}

    def first(key: str, value: Any) -> Any:
        several = options_of(value)
        if several and len(several) > 1:
            grids[key] = several
        return several[0] if several else value

    plain = {key: first(key, value) for key, value in config.items()}
    return {key: first(key, value) for key, value in flattened(plain).items()}, grids


def machinery() -> dict[str, str]:
    """Maps options that do not affect algorithms to the reason why they are left out."""
    groups = data("machinery.yaml")
    return {name: group["why"] for group in groups for name in group["names"]}


def around() -> dict[str, tuple[How, str, str]]:
    """Maps keys that stand beside `config` in an experiment to (what becomes of them, "", why)."""
    groups = data("experiment.yaml")
    return {
        name: ("not mapped" if group.get("lost") else "dropped", "", group["why"])
        for group in groups
        for name in group["names"]
    }
