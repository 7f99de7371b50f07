"""RLlib's new API stack on Pong: IMPALA, and PPO with rlrun's settings."""

import ale_py
import common
import gymnasium
import ray
import torch
from ray import tune
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

VARIANTS = {
    f"{runners} env runner{'s' * (runners > 1)}, {threads} thread{'s' * (threads > 1)}": (runners, threads)
    for runners in (2, 1)
    for threads in (1, 2)
}
NATURE = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]


def pong(cfg):
    gymnasium.register_envs(ale_py)
    return wrap_atari_for_new_api_stack(
        gymnasium.make("PongNoFrameskip-v4", frameskip=1, repeat_action_probability=0.0), dim=84, framestack=4
    )


def main():
    said = common.words({"impala": VARIANTS, "ppo": VARIANTS})
    runners, threads = VARIANTS[said.variant]
    torch.set_num_threads(threads)  # for the learner, which is in this process
    columns, rows, batch = {"impala": (10, 50, 500), "ppo": (8, 128, 1024)}[said.algo]
    envs = columns // runners
    settings = {
        "num_env_runners": runners,
        "num_envs_per_env_runner": envs,
        "rollout_fragment_length": rows,
        "train_batch_size_per_learner": batch,
    }
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tune.register_env("pong", pong)
    cfg = (IMPALAConfig if said.algo == "impala" else PPOConfig)().framework("torch").environment("pong")
    cfg = cfg.env_runners(num_env_runners=runners, num_envs_per_env_runner=envs, rollout_fragment_length=rows).learners(
        num_learners=0
    )
    net = DefaultModelConfig(
        conv_filters=NATURE, conv_activation="relu", head_fcnet_hiddens=[512], vf_share_layers=True
    )
    passes = {"num_epochs": 4, "minibatch_size": 256} if said.algo == "ppo" else {}
    cfg = cfg.rl_module(model_config=net).training(train_batch_size_per_learner=batch, **passes)
    algo = cfg.reporting(min_time_s_per_iteration=1, min_sample_timesteps_per_iteration=0).build_algo()
    meter = common.Meter(said.seconds)
    while True:
        told = algo.train()
        learnt = sum(
            module.get("num_module_steps_trained_lifetime", 0)
            for module in told.get("learners", {}).values()
            if isinstance(module, dict)
        )
        steps = told["env_runners"].get(NUM_ENV_STEPS_SAMPLED_LIFETIME, 0)
        if learnt and meter.over(steps):
            break
    algo.stop()
    ray.shutdown()
    common.result(meter.rate, {**settings, "variant": said.variant}, ["ray"])


if __name__ == "__main__":
    main()
