"""Stands in place of an environment in runs that learn from data alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rlrun.core.conditions import REWARDS, OnlyFor
from rlrun.core.errors import UserError
from rlrun.core.spec_json import spec_from_json
from rlrun.core.specs import EnvSpec

NO_ENV = (
    "this run learnt from data, without an environment, so that there is nothing to play: train with env=NAME beside"
    " data.path=, such as with init=RUN_DIR to begin with its weights"
)


@dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    name: str
    family: Literal["data"]
    spec: Any  # core.spec_json.spec_to_json() of the data
    reward_clip: Annotated[Literal["none", "sign"] | float, OnlyFor(REWARDS)]


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
