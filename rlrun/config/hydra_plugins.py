"""Hydra plugins: `env=<name>` for every registered environment without a file for each, and tuned/ as a group."""

from __future__ import annotations

from pathlib import Path

import yaml
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from rlrun.config.paths import root

SCHEME = "rlrun-envs"


class EnvSource(ConfigSource):
    """Loads env/<name> as the file of its family with the canonical name filled in."""

    def __init__(self, provider: str, path: str):
        super().__init__(provider=provider, path=path)

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        from rlrun.envs.names import family_of

        name = self._name(config_path)
        if name is None:
            raise ConfigLoadError(f"Config not found: {config_path}")
        family, canonical = family_of(name)
        values = yaml.safe_load((root() / "conf" / "env" / f"{family}.yaml").read_text())
        values["name"] = canonical
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
        from rlrun.core.errors import UserError
        from rlrun.envs.names import family_of

        name = self._name(config_path)
        if name is None:
            return False
        try:
            family_of(name)
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
    return config_path == "tuned" or config_path.startswith("tuned/")


class RlrunSearchPath(SearchPathPlugin):
    """Adds the environments and the parent folder of tuned/ to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("rlrun-envs", f"{SCHEME}://all")
        search_path.append("rlrun-tuned", f"rlrun-tuned://{Path(root()).as_posix()}")


def install() -> None:
    for plugin in (EnvSource, TunedSource, RlrunSearchPath):
        Plugins.instance().register(plugin)
