"""Prints MuJoCo's warnings while an environment runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from gymnasium.envs.registration import EnvSpec

from rlrun.envs import opengl

said: set[str] = set()  # warnings that this process has printed


def listen(spec: EnvSpec) -> None:
    """Sends MuJoCo's warnings to stderr, each once, instead of to a MUJOCO_LOG.TXT in the working directory."""
    wanted = "mujoco" in str(spec.entry_point) and importlib.util.find_spec("mujoco") is not None
    if wanted or "mujoco" in sys.modules:
        opengl.prepare()
        importlib.import_module("mujoco").set_mju_user_warning(hear)


def hear(text: str) -> None:
    what = text.partition(" Time =")[0]  # the simulation time is different in every warning
    if what not in said and "is deprecated" not in text:  # deprecations concern the author of the model file
        said.add(what)
        print(f"MuJoCo: {text}", file=sys.stderr, flush=True)
