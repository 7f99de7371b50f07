"""Named random streams. They are not made from seed + rank, since seed 1 with worker 1 must differ from seed 2 with
worker 0."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Seeds:
    """Derives all randomness of a run from one number. A stream is identified by a name ("env", "policy", "learner",
    "eval") and integers."""

    seed: int

    def stream(self, name: str, *ids: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()), *ids))

    def integer(self, name: str, *ids: int, below: int = 2**31 - 2**16) -> int:
        """One seed for a library that requires an int. The bound leaves room for ALE's own `seed + index`."""
        return int(self.stream(name, *ids).generate_state(1, np.uint64)[0] % below)

    def generator(self, name: str, *ids: int, device: str = "cpu") -> torch.Generator:
        generator = torch.Generator(device=device)
        generator.manual_seed(self.integer(name, *ids, below=2**63 - 1))
        return generator

    def numpy(self, name: str, *ids: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(self.stream(name, *ids)))
