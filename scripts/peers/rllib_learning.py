"""Trains one of RLlib's algorithms with its defaults (new API stack): ALGO ENV ENV_STEPS SEED.

It ends with a line of JSON: the mean return that RLlib reports, at every hundredth of the env steps or, where an
iteration of RLlib is longer, after every iteration. Ray 2.60 empties its window of 100 episodes at every report
(MeanStats.reduce), so that this is the mean of the few episodes that ended since the last one. CPU seconds are those of Ray's processes too, which are
not children that a parent has waited for.
"""

import json
import sys

import psutil
import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, NUM_ENV_STEPS_SAMPLED_LIFETIME

POINTS = 100
CONFIGS = {"ppo": PPOConfig, "dqn": DQNConfig, "sac": SACConfig, "impala": IMPALAConfig, "appo": APPOConfig}


def cpu_sec():
    """The CPU seconds of this process and of all below it that still run."""
    used = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used


def main():
    algo, env, steps, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    config = CONFIGS[algo]().environment(env).debugging(seed=seed)
    config = config.reporting(
        min_time_s_per_iteration=0,
        min_sample_timesteps_per_iteration=steps // POINTS,
        metrics_num_episodes_for_smoothing=100,
    )
    made = config.build_algo()
    points = [[0, None]]
    while points[-1][0] < steps:
        told = made.train()[ENV_RUNNER_RESULTS]
        mean = told.get(EPISODE_RETURN_MEAN)
        done = int(told.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, points[-1][0]))
        points.append([done, None if mean is None or mean != mean else float(mean)])
    used = cpu_sec()
    made.stop()
    versions = {"ray": ray.__version__, "torch": torch.__version__.split("+")[0]}
    print("\n" + json.dumps({"curve": points[1:], "versions": versions, "cpu_sec": used}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
