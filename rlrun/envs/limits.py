"""How long an environment may take before it counts as hanging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlrun.core.ranges import Positive


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Options of every environment that is stepped. None: learnt from its own pace (core/pulse.py)."""

    step_timeout_sec: Annotated[float, Positive] | None
    reset_timeout_sec: Annotated[float, Positive] | None
