"""d3rlpy's CQL: what its fit() does in a loop, without progress bar and log. alpha_learning_rate=0 leaves the weight of the
penalty alone, as its reproductions do. compile_graph is for GPUs: on a CPU it made no update faster."""

import d3rlpy
import numpy as np
import offline_common as common
import torch

WAYS = ("1 thread",)


def main():
    said = common.words(WAYS)
    torch.set_num_threads(1)
    d3rlpy.seed(0)
    seen, did, rewards = common.episodes()
    last = np.zeros(rewards.shape, dtype=np.float32)
    last[:, -1] = 1.0
    flat = seen.reshape(-1, common.OBSERVATIONS), did.reshape(-1, common.ACTIONS), rewards.reshape(-1, 1)
    data = d3rlpy.dataset.MDPDataset(*flat, terminals=np.zeros(last.size), timeouts=last.reshape(-1))
    nets = d3rlpy.models.VectorEncoderFactory(common.NETS[said.algo])
    cql = d3rlpy.algos.CQLConfig(
        actor_encoder_factory=nets,
        critic_encoder_factory=nets,
        alpha_learning_rate=0.0,
        batch_size=common.BATCH,
        n_action_samples=common.SAMPLED,
    ).create(device="cpu:0")
    cql.build_with_dataset(data)
    meter = common.Meter(said.seconds)
    while True:
        cql.update(data.sample_transition_batch(common.BATCH))
        if meter.over():
            break
    meter.show({"threads": 1}, ["d3rlpy"])


if __name__ == "__main__":
    main()
