"""What MuJoCo has to say while an environment runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from gymnasium.envs.registration import EnvSpec

said: set[str] = set()  # in this process


def listen(spec: EnvSpec) -> None:
    """From now on the warnings of environments that use MuJoCo go to stderr, each once, instead of into a MUJOCO_LOG.TXT in the working directory."""
    wanted = "mujoco" in str(spec.entry_point) and importlib.util.find_spec("mujoco") is not None
    if wanted or "mujoco" in sys.modules:
        importlib.import_module("mujoco").set_mju_user_warning(hear)


def hear(text: str) -> None:
    what = text.partition(" Time =")[0]  # of the simulation, which is always another
    if what not in said and "is deprecated" not in text:  # that is for whoever wrote the model's file
        said.add(what)
        print(f"MuJoCo: {text}", file=sys.stderr, flush=True)
