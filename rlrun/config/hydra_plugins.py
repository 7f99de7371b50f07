"""Hydra plugins: `env=<name>` for every registered environment without a file for each, and tuned/ as a group."""

from __future__ import annotations

import contextlib
import copy
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import OmegaConf

from rlrun.config.foreign import check_defaults, check_package, check_values
from rlrun.config.paths import root
from rlrun.config.types import check_numbers, check_size, unreadable
from rlrun.core.errors import UserError

SCHEME = "rlrun-envs"


class EnvSource(ConfigSource):
    """Loads env/<name> as the file of its family with the canonical name filled in."""

    family: str | None = None  # that of env.family=, which overrules what the name says

    def __init__(self, provider: str, path: str):
        super().__init__(provider=provider, path=path)

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        from rlrun.envs.names import family_of, sticky_actions

        name = self._name(config_path)
        if name is None:
            raise ConfigLoadError(f"Config not found: {config_path}")
        family, canonical = family_of(name, self.family, needed=False)
        values = yaml.safe_load((root() / "conf" / "env" / f"{family}.yaml").read_text())
        values["name"] = canonical
        if family == "atari" and sticky_actions(name):
            values["sticky_actions"] = sticky_actions(name)
        return ConfigResult(
            provider=self.provider, path=f"{SCHEME}://", config=OmegaConf.create(values), header={"package": None}
        )

    def _name(self, config_path: str) -> str | None:
        path = config_path.removesuffix(".yaml")
        if not path.startswith("env/") or (root() / "conf" / f"{path}.yaml").is_file():
            return None
        return path.removeprefix("env/")

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path == "env"

    def is_config(self, config_path: str) -> bool:
        from rlrun.envs.names import family_of

        name = self._name(config_path)
        if name is None:
            return False
        try:
            family_of(name, self.family, needed=False)
        except UserError:
            return False
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path != "env" or results_filter == ObjectType.GROUP:
            return []
        from rlrun.envs.names import names

        return names()


class TunedSource(FileConfigSource):
    """The parent folder of tuned/, of which only tuned/ is visible.

    The folder may be a whole checkout, and Hydra's help walks through every folder that it sees.
    """

    @staticmethod
    def scheme() -> str:
        return "rlrun-tuned"

    def is_group(self, config_path: str) -> bool:
        return config_path == "" or (_in_tuned(config_path) and super().is_group(config_path))

    def is_config(self, config_path: str) -> bool:
        return _in_tuned(config_path) and super().is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path == "":
            return [] if results_filter == ObjectType.CONFIG else ["tuned"]
        return super().list(config_path, results_filter) if _in_tuned(config_path) else []


def _in_tuned(config_path: str) -> bool:
    return config_path == "tuned" or (config_path.startswith("tuned/") and ".." not in config_path)


class UserSource(FileConfigSource):
    """The user's own folder of options (--config-dir). Its files are checked, because they may come from anybody."""

    trusted = False  # whether the files may name modules of no installed distribution

    @staticmethod
    def scheme() -> str:
        return "rlrun-user"

    def load_config(self, config_path: str) -> ConfigResult:
        place = f"{self.path}/{config_path.removesuffix('.yaml')}.yaml"
        try:
            text = Path(place).read_text()
            check_size(text, place)
            check_numbers(text, place)
            result = super().load_config(config_path)
        except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
            raise UserError(f"{place} cannot be read: {unreadable(error)}") from None
        check_package(result.header.get("package"), place)
        values = OmegaConf.to_container(result.config, resolve=False)
        if isinstance(values, dict):
            check_defaults(values.pop("defaults", []), place, self.trusted)
        check_values(values, place, self.trusted)
        return result

    def is_group(self, config_path: str) -> bool:
        return _users(config_path) and super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return _users(config_path) and super().is_config(config_path)


def _users(config_path: str) -> bool:
    """Tells whether a path is one that the user's folder may provide: neither Hydra's own nor outside the folder."""
    parts = config_path.split("/")
    return "hydra" not in parts and not any(part.startswith("hydra@") for part in parts) and ".." not in parts


class RlrunSearchPath(SearchPathPlugin):
    """Adds the environments, the parent folder of tuned/ and the user's own folder to Hydra's search path."""

    folder: Path | None = None  # the user's own

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("rlrun-envs", f"{SCHEME}://all")
        search_path.append("rlrun-tuned", f"rlrun-tuned://{Path(root()).as_posix()}")
        if self.folder is not None:
            search_path.append("rlrun-user", f"rlrun-user://{self.folder.as_posix()}")


def install(folder: Path | None = None, trusted: bool = False, family: str | None = None) -> None:
    """Registers the plugins.

    family: that of env.family=, if it is given. folder: the user's own folder of options. trusted: whether its files
    may name modules that no installed package contains."""
    RlrunSearchPath.folder, UserSource.trusted, EnvSource.family = folder, trusted, family
    for plugin in (EnvSource, TunedSource, UserSource, RlrunSearchPath):
        Plugins.instance().register(plugin)


_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def composing(folder: Path | None = None, trusted: bool = False, family: str | None = None) -> Iterator[None]:
    """Lets a config be composed inside the block, with the plugins. The arguments are those of install().

    Hydra and the plugins have one state for the whole process. Therefore one thread composes at a time, and what Hydra
    holds for a program that uses it itself is the same afterwards."""
    with _ONE_AT_A_TIME, _interrupted_later():
        install(folder, trusted, family)
        theirs: list[tuple[Any, Any]] = [(kind, kind.instance()) for kind in (GlobalHydra, VersionBase)]
        for kind, one in theirs:
            kind.set_instance(copy.copy(one))  # Hydra changes these objects
        GlobalHydra.instance().clear()
        try:
            yield
        finally:
            for kind, one in theirs:
                kind.set_instance(one)


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Lets a Ctrl-C wait for the end of the block, because OmegaConf would take it for an error of its own."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    pressed: list[Any] = []
    signal.signal(signal.SIGINT, lambda *facts: pressed.append(facts))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)
