"""What a machine of a cluster says about itself, when `rlrun doctor --cluster` asks it."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from importlib import metadata
from typing import Any

import numpy as np

from rlrun.machine.machine import cores, free_memory, free_shared
from rlrun.version import sources


class NodeProbe:
    """A host that is asked and measured."""

    def __init__(self, brief: bytes): ...

    def facts(self) -> dict[str, Any]:
        return {
            "host": platform.node(),
            "cores": cores(),
            "of": os.cpu_count() or 1,
            "memory": free_memory(),
            "shared": free_shared(),
            "rlrun": sources(),
            "Python": platform.python_version(),
            "PyTorch": metadata.version("torch"),
            "ale-py": importlib.util.find_spec("ale_py") is not None,
            "lz4": importlib.util.find_spec("lz4") is not None,
        }

    def clock(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def takes(self, block: np.ndarray) -> int:
        return block.nbytes

    def gives(self, size: int) -> np.ndarray:
        return np.zeros(size, dtype=np.uint8)

    def stop(self) -> None: ...
