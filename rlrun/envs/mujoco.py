"""Prints MuJoCo's warnings while an environment runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from gymnasium.envs.registration import EnvSpec

from rlrun.envs import drawing

said: set[str] = set()  # warnings that this process has printed


def uses_mujoco(spec: EnvSpec) -> bool:
    return "mujoco" in str(spec.entry_point)


def listen(spec: EnvSpec) -> None:
    """Sends MuJoCo's warnings to stderr, each once, instead of to a MUJOCO_LOG.TXT in the working directory."""
    wanted = uses_mujoco(spec) and importlib.util.find_spec("mujoco") is not None
    if wanted or "mujoco" in sys.modules:
        drawing.prepare()
        importlib.import_module("mujoco").set_mju_user_warning(hear)


def hear(text: str) -> None:
    what = text.partition(" Time =")[0]  # the simulation time is different in every warning
    if what not in said and "is deprecated" not in text:  # deprecations concern the author of the model file
        said.add(what)
        print(f"MuJoCo: {text}", file=sys.stderr, flush=True)
