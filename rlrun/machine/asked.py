"""What a runner's choices are made from, and what they look like. The choices: choices.py and compute.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rlrun.core.algorithm import Needs
from rlrun.core.env import EnvFactory
from rlrun.machine.resources import Pace, ResourcesConfig


class Choice(NamedTuple):
    """A decision and the sentence that explains it. The sentence is empty if the user decided."""

    value: Any
    why: str = ""
    pace: Pace | None = None  # the measurement behind it, if the run should look again


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The requests of the user and the needs of the algorithm."""

    cfg: ResourcesConfig
    needs: Needs
    image: bool  # whether observations contain an image
    convolutions: bool  # whether rlrun's convolutions read it
    make_env: EnvFactory
    for_samplers: str = ""  # an option that the user set and that is for samplers in processes of their own
    own_networks: bool = False  # whether a part of the networks is the user's own
    num_shards: int = 1  # processes that hold a replay's rows, each of which needs a producer of fragments

    @property
    def update_rows(self) -> int:
        """Number of rows that one update learns from."""
        return self.needs.columns * (self.needs.rows if self.needs.replay is None else self.needs.replay.rows_learnt)


class Spread(NamedTuple):
    """The columns that samplers share."""

    total: int  # over all learners
    per_learner: int
    shared: bool  # whether a learner's samplers divide them; otherwise each sampler has this many
    name: str  # what messages call them


def counted(count: int, what: str) -> str:
    """Returns for example "1 core" or "2 cores"."""
    return f"{count} {what}{'s' if count > 1 else ''}"
