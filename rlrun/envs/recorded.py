"""Stands in place of an environment in runs that learn from data alone."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from rlrun.core.conditions import REWARDS, OnlyFor
from rlrun.core.errors import UserError
from rlrun.core.passwords import masked_values
from rlrun.core.spec_json import spec_from_json
from rlrun.core.specs import EnvSpec

NO_ENV = (
    "this run learnt from data, without an environment, so that there is nothing to play: train a new run with env=NAME"
    " and data.path=DIR, which can begin with the weights of this one (init=RUN_DIR)"
)


@dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    name: str
    family: Literal["data"]
    spec: Any  # core.spec_json.spec_to_json() of the data
    options: dict[str, Any] | None  # of the environment that the data are from; None: unknown
    reward_clip: Annotated[Literal["none", "sign"] | float, OnlyFor(REWARDS)]


def recorded_options(cfg: Any) -> dict[str, Any]:
    """The options of an environment as data keep them: dictionaries, lists, texts, numbers and None, without
    passwords."""
    return masked_values(json.loads(json.dumps(asdict(cfg))))


def taken_options(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """The options that a run takes from data, for playing in the environment that the data name.

    They are None if some of them could be a path or name code, since data may be a stranger's. reward_clip is left out,
    because it only matters for learning."""
    kept = {name: value for name, value in (options or {}).items() if name not in ("family", "name", "reward_clip")}
    return kept if kept and _is_plain(kept) else None


def _is_plain(value: Any, depth: int = 5) -> bool:
    """Whether a value is a number, a word, or holds only such, in at most so many lists and dictionaries. A word has no
    character of a path or module. Names with a meaning in Hydra's files, or for modules, are not plain."""
    if isinstance(value, dict):
        names = all(_is_plain(one) and not one.startswith("_") and one not in ("hydra", "module") for one in value)
        return depth > 0 and names and all(_is_plain(one, depth - 1) for one in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(one, depth - 1) for one in value)
    return value is None or isinstance(value, bool | int | float) or re.fullmatch(r"[\w-]*", str(value)) is not None


def make_spec(cfg: RecordedConfig) -> EnvSpec:
    """The environment that the data are from. Raises UserError if the config does not hold it."""
    if cfg.spec is None:
        raise UserError("env=data is for runs that learn from data: say which with data.path=")
    try:
        spec = spec_from_json(cfg.spec)
    except ValueError as error:
        raise UserError(f"env.spec is no description of an environment: {error}") from None
    if spec.joint:
        raise UserError(
            f"the data are of {spec.name}, in which agents learn together; such data need the environment: add env="
        )
    return replace(spec, notes=())
