"""Trains one of Stable-Baselines3's algorithms with its defaults: ALGO ENV ENV_STEPS SEED.

It ends with a line of JSON: the mean return of the last 100 finished episodes after every hundredth of the env steps,
as Stable-Baselines3's own Monitor and ep_info_buffer keep it.
"""

import importlib.metadata
import json
import sys

import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

POINTS = 100


class Curve(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.every, self.points = total / POINTS, []

    def _on_step(self):
        episodes = self.model.ep_info_buffer
        if self.num_timesteps >= self.every * (len(self.points) + 1):
            mean = sum(episode["r"] for episode in episodes) / len(episodes) if episodes else None
            self.points.append([self.num_timesteps, mean])
        return True


def main():
    algo, env, steps, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    kinds = {"ppo": PPO, "a2c": A2C, "dqn": DQN, "sac": SAC, "td3": TD3, "ddpg": DDPG}
    model = kinds[algo]("MlpPolicy", make_vec_env(env, n_envs=1, seed=seed), seed=seed, device="cpu")
    curve = Curve(steps)
    model.learn(steps, callback=curve)
    versions = {name: importlib.metadata.version(name) for name in ("stable_baselines3", "torch", "gymnasium")}
    print(json.dumps({"curve": curve.points, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
