"""Importing this module imports what workers use: PyTorch and these parts of rlrun. The fork server does so."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch  # noqa: F401

PARTS = ("core", "ops", "machine", "models", "policies", "families", "dataflow", "samplers", "envs", "replay")
APART = {"mujoco_tasks"}  # imports MuJoCo, which reads how it shall draw (envs/drawing.py) when it is imported

for part in PARTS:
    for file in sorted((Path(__file__).parents[1] / part).glob("[!_]*.py")):
        if file.stem not in APART:
            with suppress(Exception):  # a worker that needs it says what is wrong with it
                import_module(f"rlrun.{part}.{file.stem}")
