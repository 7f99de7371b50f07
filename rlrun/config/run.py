"""The whole config of a run, as train.yaml has it, with every part in the type that its name chooses."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlrun.config.algorithms import algorithm_class
from rlrun.config.automatic import settled
from rlrun.config.paths import options
from rlrun.config.types import ConfigError, MissingOption, numbers_read, typed
from rlrun.config.words import at_home
from rlrun.core.algorithm import Algorithm, Inner
from rlrun.core.duties import CheckpointConfig, StopConfig
from rlrun.core.errors import UserError, closest
from rlrun.core.evaluation_duty import EvalConfig
from rlrun.core.numbers import whole_number
from rlrun.core.ranges import Count, NotNegative, Positive, Seed, Text
from rlrun.datasets.options import DataConfig
from rlrun.envs import registry
from rlrun.loggers.imagined import ImagineConfig
from rlrun.machine.resources import ResourcesConfig
from rlrun.models.config import ModelConfig
from rlrun.replay.layout import ReplayConfig


@dataclass(frozen=True, kw_only=True)
class SinkConfig:
    enabled: bool


@dataclass(frozen=True, kw_only=True)
class TensorBoardConfig:
    enabled: bool
    histograms: bool


@dataclass(frozen=True, kw_only=True)
class MlflowConfig:
    enabled: bool
    uri: str | None
    experiment: str
    parent: str | None
    wait_sec: Annotated[float, NotNegative]


# Options that hold a path, or paths as keys (data.path) or as values (algo.fixed).
PATHS = ("run_dir", "runs_root", "record", "init", "data.path", "replay.directory", "algo.fixed")
SINKS: dict[str, type] = {"console": SinkConfig, "tensorboard": TensorBoardConfig, "mlflow": MlflowConfig}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of train.yaml. algo, env and runner stay plain here: type_config() types them by their names."""

    seed: Annotated[int, Seed]
    env_steps: Annotated[int, Count]
    run_dir: Annotated[str, Text] | None
    runs_root: Annotated[str, Text]
    log_every_sec: Annotated[float, Positive] | None
    log_every_steps: Literal["auto"] | Annotated[int, Count] | None
    episode_window: Annotated[int, Count]
    data: DataConfig
    record: Annotated[str, Text] | None
    init: Annotated[str, Text] | None
    callbacks: tuple[str, ...]
    algo: Any
    env: Any
    runner: Any
    replay: ReplayConfig | None
    model: ModelConfig
    resources: ResourcesConfig
    logger: dict[str, Any]
    stop: StopConfig
    eval: EvalConfig
    imagine: ImagineConfig
    checkpoint: CheckpointConfig
    expected: dict[str, Any] | None
    measured: dict[str, Any] | None

    def __post_init__(self):
        if self.log_every_sec is None and self.log_every_steps is None:
            raise ValueError("log_every_sec and log_every_steps are both null, and rows would never be written")


@dataclass(frozen=True)
class Typed:
    """A whole config with every part in its own type."""

    run: RunConfig
    algo: Any
    env: registry.EnvConfig
    runner: Any
    algorithm: type[Algorithm]
    plain: Mapping[str, Any] = field(default_factory=dict, repr=False)  # what was typed, for another machine

    @property
    def algorithm_name(self) -> str:
        """The algorithm for people: ppo, or multi around ppo."""
        inner = getattr(self.algo, "inner", None)
        return str(self.algo.name) + (f" around {inner.cfg.name}" if isinstance(inner, Inner) else "")


def type_algorithm(values: dict[str, Any], path: str = "algo") -> Inner:
    """Returns the algorithm that a config names with its typed options, including those of an inner algorithm.

    Raises UserError if the algorithm cannot hold the inner one.
    """
    algorithm = algorithm_class(values)
    if "inner" in values:
        if not isinstance(values["inner"], dict):
            raise UserError(
                f"The algorithm inside is chosen with algo@{path}.inner={values['inner']}, not with {path}.inner="
            )
        refused = algorithm.can_hold(algorithm_class(values["inner"]))
        if refused is not None:
            raise UserError(f"{values['inner']['name']} cannot be inside {values['name']}: {refused}")
        if isinstance(values.get("options"), dict):
            made = _type_options(values["options"], values["inner"], f"{path}.options")
            for one in made.values():
                if (refused := algorithm.can_hold(one.algorithm)) is not None:
                    raise UserError(f"{one.cfg.name} cannot be inside {values['name']}: {refused}")
            values = {**values, "options": made}
        values = {**values, "inner": type_algorithm(values["inner"], f"{path}.inner")}
    # `module` only says where the class is, so that Config does not have it
    values = {key: value for key, value in values.items() if key != "module"}
    kind = importlib.import_module(algorithm.__module__).Config
    try:
        return Inner(algorithm, typed(kind, values, path))
    except ConfigError as error:
        if kind.__module__.startswith("rlrun."):
            raise
        own = f"{kind.__module__}:{kind.__name__}"
        if isinstance(error, MissingOption):
            said = f"{error}, which {own} needs: write it in the YAML file of algo={values.get('name')}, or as a word"
        else:
            end = "" if str(error).endswith((".", "?")) else "."
            said = f"{error}{end} Options of algo={values.get('name')} are the fields of {own}"
        raise type(error)(said) from None


def _type_options(options: dict[str, Any], inner: dict[str, Any], path: str) -> dict[str, Inner]:
    """The algorithm of every policy that has options of its own: whole ones, or changes to the algorithm inside."""
    made = {}
    for name, own in options.items():
        if not isinstance(own, dict):
            raise ConfigError(f"{path}.{name} must hold options of {inner['name']}, as in {{lr: 1.0e-4}}, not {own!r}")
        made[name] = type_algorithm(own if "name" in own else merged(inner, own), f"{path}.{name}")
    return made


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """values with changes, which may be nested; a name that values lacks is kept, for typing to refuse it."""
    made = dict(values)
    for name, change in changes.items():
        old = made.get(name)
        made[name] = merged(old, change) if isinstance(old, Mapping) and isinstance(change, Mapping) else change
    return made


def check_networks(values: dict[str, Any]) -> None:
    """Raises UserError if the networks of a world model were chosen for an algorithm that has none."""
    model, algo = values.get("model"), values.get("algo")
    if not isinstance(model, Mapping) or not isinstance(algo, Mapping) or "deter" not in model:
        return
    inner = algo.get("inner", algo)
    if isinstance(inner, Mapping) and not algorithm_class(dict(inner)).has_world_model:
        raise ConfigError(
            f"model.deter is an option of a world model, and {inner.get('name')} has none: leave"
            " model=world_model and model=gaussian_world_model to dreamerv3 and dreamer"
        )


def type_config(values: dict[str, Any]) -> Typed:
    """Types a plain config, in which options may still be `auto`. Raises UserError that names what does not fit."""
    check_networks(values)
    try:
        values, _ = settled(values)
    except UserError:  # the environment cannot be made, which plan() reports; only types matter until then
        values, _ = settled(values, "vectors")
    # logger=[] composes to no `logger` at all, hence the default
    run = typed(RunConfig, {"logger": {}, "init": None, "callbacks": [], "replay": None, "record": None, **values})
    algorithm = type_algorithm(run.algo)
    family = run.env.get("family")
    if family not in registry.FAMILIES:
        raise ConfigError(f"env.family must be one of {', '.join(registry.FAMILIES)}, not {family!r}")
    for name, node in run.logger.items():
        if name not in SINKS:
            raise ConfigError(f"There is no logger {name!r}.{closest(name, SINKS)}")
        typed(SINKS[name], node, f"logger.{name}")
    if run.runner.get("name") not in options("runner"):
        raise ConfigError(f"There is no runner {run.runner.get('name')!r}; there are {', '.join(options('runner'))}")
    runner = importlib.import_module(f"rlrun.runners.{run.runner['name']}")
    return Typed(
        run=run,
        algorithm=algorithm.algorithm,
        algo=algorithm.cfg,
        env=typed(registry.FAMILIES[family], run.env, "env"),
        runner=typed(runner.Config, run.runner, "runner"),
        plain=values,
    )


def with_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a plain config with numbers in place of texts such as 200k where an option is a whole number, and with
    the home folder in place of the ~ of a path.

    What is saved, and what computes with a plain config, need not know of such texts then. A config that does not fit
    keeps its texts; type_config() says why."""
    values = with_home(values)
    if not _holds_numbers(values):
        return values
    with numbers_read() as found:
        try:
            type_config(values)
        except UserError:
            return values
    made: dict[str, Any] = copy.deepcopy(values)
    for path, value in found.items():
        if path.startswith("data.path."):  # what follows is a path, which may have points
            made["data"]["path"][path.removeprefix("data.path.")] = value
            continue
        *groups, last = re.findall(r"[^.\[\]]+", path)
        node: Any = made
        for group in groups:
            node = node[int(group) if isinstance(node, list) else group]
        node[int(last) if isinstance(node, list) else last] = value
    return made


def with_home(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a plain config whose paths have the user's home folder in place of a ~ in front."""
    made: dict[str, Any] = copy.deepcopy(values)
    for path in PATHS:
        *groups, last = path.split(".")
        node: Any = made
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        value = node.get(last) if isinstance(node, dict) else None
        if isinstance(value, str):
            node[last] = at_home(value)
        elif isinstance(value, dict) and last == "path":  # the shares of several
            node[last] = {at_home(place) if isinstance(place, str) else place: one for place, one in value.items()}
        elif isinstance(value, dict):  # the players of several agents
            node[last] = {name: at_home(one) if isinstance(one, str) else one for name, one in value.items()}
    return made


def _holds_numbers(values: Any) -> bool:
    """Whether any text in a config reads as a whole number. It is one only if its option is."""
    if isinstance(values, Mapping):
        return any(_holds_numbers(value) for value in values.values())
    if isinstance(values, list | tuple):
        return any(_holds_numbers(value) for value in values)
    return isinstance(values, str) and whole_number(values) is not None
