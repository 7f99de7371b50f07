"""Times updates of SheepRL's DreamerV3, which is that of 2023: its own train(), with networks as near to size1m as its
options allow. It runs in an environment of its own, with the package sheeprl.

    dreamerv3_sheeprl_peer.py cartpole 1 [options of sheeprl]
"""

import importlib.resources
import warnings

import common
import gymnasium as gym
import hydra
import numpy as np
import torch
from sheeprl.algos.dreamer_v3.agent import build_agent
from sheeprl.algos.dreamer_v3.dreamer_v3 import Moments, train
from sheeprl.utils.metric import MetricAggregator
from sheeprl.utils.utils import dotdict

BATCH, LENGTH = 16, 64
SIZE1M = [
    "algo.dense_units=64",
    "algo.mlp_layers=3",
    "algo.world_model.reward_model.mlp_layers=1",
    "algo.world_model.discount_model.mlp_layers=1",
    "algo.world_model.recurrent_model.recurrent_state_size=512",
    "algo.world_model.transition_model.hidden_size=64",
    "algo.world_model.representation_model.hidden_size=64",
    "algo.world_model.stochastic_size=32",
    "algo.world_model.discrete_size=4",
]


def main():
    warnings.filterwarnings("ignore")
    said = common.game_and_threads()
    size, actions, discrete = common.SPACES[said.game]
    with hydra.initialize_config_dir(str(importlib.resources.files("sheeprl") / "configs"), version_base="1.3"):
        words = ["exp=dreamer_v3", "env=gym", "algo=dreamer_v3_XS", "fabric.accelerator=cpu", "metric.log_level=0",
                 "algo.cnn_keys.encoder=[]", "algo.cnn_keys.decoder=[]", "algo.mlp_keys.encoder=[state]",
                 "algo.mlp_keys.decoder=[state]", *SIZE1M, *said.words]  # fmt: skip
        raw = hydra.compose("config", words)
    from omegaconf import OmegaConf

    cfg = dotdict(OmegaConf.to_container(raw, resolve=True, throw_on_missing=False))
    MetricAggregator.disabled = True
    torch.manual_seed(1)
    fabric = hydra.utils.instantiate(cfg.fabric, _convert_="all", callbacks=[])
    fabric.launch()
    torch.set_num_threads(said.threads)
    space = gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)})
    world_model, actor, critic, target, _ = build_agent(fabric, (actions,), not discrete, cfg, space)
    nets = {"world_model": (world_model, cfg.algo.world_model), "actor": (actor, cfg.algo.actor)}
    nets["critic"] = (critic, cfg.algo.critic)
    optimizers = fabric.setup_optimizers(
        *(hydra.utils.instantiate(of.optimizer, params=net.parameters(), _convert_="all") for net, of in nets.values())
    )
    percentile = cfg.algo.actor.moments.percentile
    moments = Moments(cfg.algo.actor.moments.decay, cfg.algo.actor.moments.max, percentile.low, percentile.high)
    rows = common.rows_of_dreamer(torch, size, actions, discrete, BATCH, LENGTH)
    rows = {name: x.transpose(0, 1).float() for name, x in rows.items()}
    batch = {
        "state": rows["obs"],
        "actions": rows["prevact"],
        "rewards": rows["reward"].unsqueeze(-1),
        "terminated": rows["is_terminal"].unsqueeze(-1),
        "truncated": torch.zeros(LENGTH, BATCH, 1),
        "is_first": rows["is_first"].unsqueeze(-1),
    }

    def update():
        for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
            slow.data.lerp_(fast.data, cfg.algo.critic.tau)
        data = {name: x.clone() for name, x in batch.items()}
        train(
            fabric, world_model, actor, critic, target, *optimizers, data, None, cfg, not discrete, (actions,), moments
        )

    parameters = sum(p.numel() for net, _ in nets.values() for p in net.parameters())
    settings = {"threads": said.threads, "parameters": parameters, "precision": cfg.fabric.precision}
    common.serve(update, settings, ("sheeprl", "torch"))


if __name__ == "__main__":
    main()
