"""Weights on their way to other machines: a second WeightStore beside shared memory (dataflow/weights.py).

The learner's side stores the newest weights as one array, which the engine brings to each host once. A host's side
loads what has arrived into a policy. Nothing waits: a host that is slow skips versions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from rlrun.core.schedule import Clock
from rlrun.dataflow.weights import read_weights, weight_bytes, write_weights


class Letter(NamedTuple):
    """What a host is told with every call."""

    version: int  # of the weights
    weights: Any  # bytes [N] (places()), or what the engine's put() returned for them
    made: tuple[int, int]  # env steps and updates at which the weights were made
    clock: tuple[int, int]  # env steps and updates now


class SentWeights:
    """A WeightStore whose writer and readers are on different machines."""

    def __init__(self) -> None:
        self.version = 0
        self.weights: Any = None  # bytes [N]
        self.made = self.clock = (0, 0)

    def publish(self, module: nn.Module | None, clock: Clock) -> int:
        """Makes these weights the newest; None repeats the old ones with a new clock. Returns the version."""
        self.clock = (clock.env_steps, clock.updates)
        if module is not None:
            data = torch.zeros(weight_bytes(module), dtype=torch.uint8)
            write_weights(module, data)
            self.weights = data.numpy()
            self.version, self.made = self.version + 1, self.clock
        return self.version

    def receive(self, letter: Letter) -> None:
        """Takes what the other side has published."""
        weights = self.weights if letter.weights is None else letter.weights
        self.version, self.weights, self.made, self.clock = letter._replace(weights=weights)

    def read(self, module: nn.Module, seen: int) -> tuple[int, Clock, int] | None:
        """Copies weights newer than version `seen` into the module and returns (version, clock, number of updates that
        made the weights), or None if there are none."""
        if self.version == seen:
            return None
        assert weight_bytes(module) == len(self.weights), "both sides make the same policy"
        read_weights(module, torch.from_numpy(np.array(self.weights)))  # what has arrived may only be read
        return self.version, Clock(*self.clock), self.made[1]
