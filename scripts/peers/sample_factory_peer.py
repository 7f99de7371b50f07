"""Sample Factory's APPO on Pong.

Asynchronous APPO with one epoch is compared with IMPALA; it runs without V-trace, which fails in 2.1.1 with this
configuration. Synchronous APPO with 4 epochs is compared with PPO. Sample Factory counts frames, 4 per env step.
"""

import re
import shutil
import sys
import tempfile

import common
import gymnasium  # noqa: F401  must come before ale_py, which registers its games with it

import ale_py  # noqa: F401  isort: skip
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults
from sf_examples.atari.atari_utils import ATARI_ENVS, make_atari_env

VARIANTS = ("2 workers, 2 groups", "2 workers, 1 group", "1 worker, 2 groups")


def main():
    said = common.words({"impala": VARIANTS, "ppo": VARIANTS})
    workers, groups = (int(number) for number in re.findall(r"\d", said.variant))
    folder = tempfile.mkdtemp()
    columns = {"impala": 10, "ppo": 8}[said.algo]
    settings = {
        "num_workers": workers,
        "worker_num_splits": groups,
        "num_envs_per_worker": -(-columns // (workers * groups)) * groups,
    }
    if said.algo == "impala":
        settings |= {"async_rl": True, "rollout": 50, "batch_size": 500, "num_batches_per_epoch": 1, "num_epochs": 1}
    else:
        settings |= {"async_rl": False, "rollout": 128, "batch_size": 256, "num_batches_per_epoch": 4, "num_epochs": 4}
    fixed = {
        "algo": "APPO",
        "env": "atari_pong",
        "device": "cpu",
        "experiment": "peer",
        "train_dir": folder,
        "normalize_input": False,
        "recurrence": 1,
        "normalize_returns": False,
        "train_for_seconds": 10**6,
        "train_for_env_steps": 10**10,
        "set_workers_cpu_affinity": False,
        "use_rnn": False,
        "summaries_use_frameskip": True,
    }
    for spec in ATARI_ENVS:
        if spec.name == "atari_pong":
            register_env(spec.name, make_atari_env)
    argv = [f"--{name}={value}" for name, value in {**fixed, **settings}.items()]
    sys.argv = [sys.argv[0], *argv]
    parser, _ = parse_sf_args(argv=argv)
    atari_override_defaults("atari_pong", parser)
    _, runner = make_runner(parse_full_cfg(parser, argv))
    meter = common.Meter(said.seconds)

    class Watch(AlgoObserver):
        def on_training_step(self, runner, iteration):
            if meter.over(sum(runner.env_steps.values()) / 4):
                runner.cfg.train_for_seconds = -1  # below 0, because the time counts as 0 s until the first checkpoint

    try:
        runner.register_observer(Watch())
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            raise SystemExit("Sample Factory did not run")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    common.result(meter.rate, {**settings, "variant": said.variant}, ["sample-factory"])


if __name__ == "__main__":
    main()
