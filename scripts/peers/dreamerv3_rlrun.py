"""Times updates of rlrun's DreamerV3 from one batch that its replay drew, at the precision that a run would choose.

    dreamerv3_rlrun.py cartpole 1 [options of rlrun train]
"""

import common
import torch

from rlrun.cli import compose
from rlrun.config.run import type_config
from rlrun.config.types import plain
from rlrun.core.schedule import Clock
from rlrun.machine.machine import measured
from rlrun.machine.memory import keep_freed
from rlrun.runtime.build import build
from rlrun.runtime.plan import plan

ENVIRONMENTS = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}


def main() -> None:
    said = common.game_and_threads()
    keep_freed()
    found: list = []
    words = ["algo=dreamerv3", f"env={ENVIRONMENTS[said.game]}", "resources.inference=serial", "logger=[]"]
    words += ["replay.capacity=20000", "algo.fragment_length=16", *said.words]
    compose(words, lambda cfg, choices: found.append(plain(cfg)) or 0)
    parts = build(plan(type_config(found[0]), measured()))
    torch.set_num_threads(said.threads)
    algorithm, sampler, replay = parts.algorithm(), parts.sampler(0), parts.replay(0)
    sampler.publish(algorithm.policy, Clock())
    for _ in range(16):
        (fragment,) = sampler.take(1)
        replay.add(fragment)
        sampler.free([fragment])
    batch = replay.sample(parts.needs.columns, Clock())

    def update() -> None:
        with parts.products:
            algorithm.update(batch, Clock(5000, 500))

    settings = {
        "threads": said.threads,
        "parameters": sum(p.numel() for p in algorithm.optimizer.parameters),
        "precision": parts.resources.precision,
    }
    common.serve(update, settings, ("torch",))
    sampler.close()


if __name__ == "__main__":
    main()
