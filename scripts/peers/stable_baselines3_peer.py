"""Stable-Baselines3 on Pong.

A2C is compared with IMPALA, with one epoch over fragments of 50 rows from 10 environments. PPO and DQN have rlrun's
settings.
"""

import ale_py
import common
import gymnasium
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

gymnasium.register_envs(ale_py)  # at import time, so that environments' processes do it too

# The number of environments, or 0 where the algorithm fixes it.
KINDS = {"one process": 0, "processes": 0, "one environment": 1, "four in one process": 4, "four processes": 4}
WAYS = {f"{kind}, {threads} thread{'s' * (threads > 1)}": (kind, threads) for kind in KINDS for threads in (1, 2)}


class Timed(BaseCallback):
    def __init__(self, meter):
        super().__init__()
        self.meter = meter
        self.end = False

    def _on_rollout_start(self):
        """Looks at the meter between iterations, since rollouts and learning take turns.

        A rollout of DQN is its train_freq steps.
        """
        if self.model._n_updates > 0 and self.meter.over(self.num_timesteps):
            self.end = True

    def _on_step(self):
        return not self.end


def main():
    free = [way for way, (kind, _) in WAYS.items() if KINDS[kind]]
    fixed = [way for way in WAYS if way not in free]
    said = common.words({"impala": fixed, "ppo": fixed, "dqn": free})
    kind, threads = WAYS[said.variant]
    torch.set_num_threads(threads)
    count = {"impala": 10, "ppo": 8, "dqn": KINDS[kind]}[said.algo]
    made = make_atari_env(
        "PongNoFrameskip-v4", n_envs=count, seed=0, vec_env_cls=SubprocVecEnv if "processes" in kind else DummyVecEnv
    )
    env = VecFrameStack(made, n_stack=4)
    if said.algo == "impala":
        settings = {"n_envs": 10, "n_steps": 50}
        model = A2C("CnnPolicy", env, device="cpu", n_steps=50)
    elif said.algo == "ppo":
        settings = {"n_envs": 8, "n_steps": 128, "batch_size": 256, "n_epochs": 4}
        model = PPO("CnnPolicy", env, device="cpu", n_steps=128, batch_size=256, n_epochs=4)
    else:
        every = 4 // count  # in steps that all environments take together
        settings = {"n_envs": count, "train_freq": every, "gradient_steps": 1, "batch_size": 32, "buffer_size": 30000}
        model = DQN(
            "CnnPolicy",
            env,
            device="cpu",
            train_freq=every,
            gradient_steps=1,
            batch_size=32,
            buffer_size=30000,
            learning_starts=1000,
        )
    meter = common.Meter(said.seconds)
    model.learn(10**9, callback=Timed(meter))
    env.close()
    common.result(meter.rate, {**settings, "variant": said.variant}, ["stable-baselines3"])


if __name__ == "__main__":
    main()
