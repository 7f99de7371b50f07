"""rlrun.load(RUN_DIR): a trained policy with its preprocessing, ready to act."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from rlrun.config import load_yaml
from rlrun.core.batch import Batch
from rlrun.core.errors import UserError
from rlrun.core.policy import Mode, Policy
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import EnvSpec
from rlrun.envs import registry
from rlrun.envs.atari import AtariConfig, ScreenStack
from rlrun.envs.single import SingleEnv
from rlrun.models.model import Model
from rlrun.wiring import Typed, checkpoints_of, type_config


class Trained:
    """A policy of a run, on the CPU in float32.

    `act` takes one observation or a batch of them and remembers recurrent state (and, given raw Atari screens, frames) between calls; `reset`
    forgets it. `make_env` makes the environment that it knows, preprocessing included."""

    def __init__(self, run_dir: Path, config: Typed, spec: EnvSpec, policy: Policy, clock: Clock):
        self.run_dir, self.config, self.spec, self.policy, self.clock = run_dir, config, spec, policy, clock
        self.rng = torch.Generator().manual_seed(config.run.seed)
        self.screens = ScreenStack(config.env) if isinstance(config.env, AtariConfig) else None
        self.reset()

    def make_env(self, seed: int = 0) -> gymnasium.Env:
        """The run's environment as training preprocessed it, for full games: reset() and step(action) as in Gymnasium, with what act() takes and gives.
        Its seeds are never those of training."""
        return SingleEnv(registry.Factory(cfg=self.config.env, spec=self.spec, seeds=Seeds(seed), stream="user", learning=False))

    def reset(self, is_first: np.ndarray | None = None) -> None:
        """Begins new episodes everywhere, or where is_first [B]."""
        if is_first is None or self._state is None:
            self._state: Batch | None = None
            self._first: torch.Tensor | None = None
            if self.screens is not None:
                self.screens.reset()
        else:
            self._first = torch.from_numpy(np.asarray(is_first, dtype=bool).copy())

    def act(self, obs: Any, mode: Mode = "greedy") -> Any:
        """Observation as the environment gives it ([...] or [B, ...]) -> action as the environment takes it. Of an Atari game also the raw screen of
        every decision, [H, W, 3] uint8, or its last two frames [2, H, W, 3], which training merges; the stack of frames is kept here."""
        space = self.spec.obs["observation"]
        given = np.asarray(obs)
        if np.dtype(space.dtype).kind == "u" and given.dtype.kind == "f":
            raise ValueError(f"an observation of {self.spec.name} is {space.dtype}, 0 to {space.high[0]:g}, not {given.dtype}")
        array = given.astype(space.dtype, copy=False)
        if self.screens is not None and array.ndim in (3, 4) and array.shape[-1] == 3 and array.shape[-3:] != space.shape:
            if array.ndim == 4 and len(array) != 2:
                raise ValueError(f"raw screens are [H, W, 3] or [2, H, W, 3], not {array.shape}")
            array = self.screens.push(array)
        single = array.shape == space.shape
        if single:
            array = array[None]
        if array.shape[1:] != space.shape:
            raise ValueError(f"an observation of {self.spec.name} has the shape {space.shape}, not {np.shape(obs)}")
        action = self.spec.action.to_env(self.policy_action(array, mode))
        return action[0] if single else action

    def policy_action(self, array: np.ndarray, mode: Mode = "greedy") -> np.ndarray:
        """[B, ...] observations -> actions as rows hold them (rlrun's own environments take these)."""
        if self._state is None or not len(self._state):
            self._state = self.policy.initial_state(len(array))
        elif len(next(iter(self._state.values()))) != len(array):
            raise ValueError(f"the policy remembers {len(next(iter(self._state.values())))} episodes and is given {len(array)}: reset() comes first")
        first = torch.zeros(len(array), dtype=torch.bool) if self._first is None else self._first
        with torch.inference_mode():
            act = self.policy.act(Batch(observation=torch.from_numpy(array.copy())), first, self._state, self.clock, mode, self.rng)
        self._state, self._first = act.state, None
        return act.action.numpy()


def load(run_dir: str | Path, checkpoint: str = "last") -> Trained:
    """The policy of a run directory: its last checkpoint, its best one ("best") or the one at so many env steps.

    Raises UserError when the directory holds no run, or the checkpoint is missing or damaged."""
    path = Path(run_dir)
    config = type_config(load_yaml(path / "config.yaml"))
    tensors, run = checkpoints_of(path).load(checkpoint, parts=("policy",))
    spec = registry.make_spec(config.env)
    policy = config.algorithm.make_policy(spec, Model(config.run.model), config.algo)
    try:
        policy.load_state_dict(tensors["policy"])
    except RuntimeError as error:
        raise UserError(f"the checkpoint in {path} does not fit its config.yaml: {error}") from None
    policy.requires_grad_(False)
    return Trained(path, config, spec, policy, Clock(run["env_steps"], run["updates"]))
