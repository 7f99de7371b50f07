"""What a command imports, because every process of a run pays for it again."""

import os
import re
import subprocess
import sys

HEAVY = ("torch._dynamo", "sympy", "mlflow", "tensorboard", "matplotlib", "pandas", "optuna", "scipy", "onnx")
# Steps of all kinds of optimisers, and then a run with a sampler in a process of its own, which saves and evaluates.
RUN = """
import sys
import torch
from rlrun.cli import _dispatch
from rlrun.core.optimizer import Optimizer, OptimizerConfig
from rlrun.core.schedule import Clock, Schedule

def step(kind):
    cfg = OptimizerConfig(kind=kind, epsilon=1e-8, decay=0.9, momentum=0.0, centered=False, beta1=0.9, beta2=0.99,
                          weight_decay=0.0, max_grad_value=0.0, agc=0.0, warmup_updates=0)
    parameter = torch.nn.Parameter(torch.ones(2))
    made = Optimizer([parameter], cfg, Schedule.parse(0.1), 1.0)
    for _ in range(2):
        made.step(parameter.sum(), Clock())
    made.load_state_dict(made.state_dict())

if __name__ == "__main__":
    for kind in ("adam", "adamw", "radam", "rmsprop", "rmsprop_tf", "sgd"):
        step(kind)
    sys.exit(_dispatch(sys.argv[1:]))
"""


def imported(*command: str, timeout: float) -> set[str]:
    """The modules that the processes of a command imported, as Python itself reports them."""
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))


def test_training_imports_neither_torch_s_compiler_nor_what_draws_and_logs(tmp_path):
    (tmp_path / "run.py").write_text(RUN)
    words = ["train", "algo=ppo", "env=CartPole-v1", "logger=[]", "env_steps=40", "algo.fragment_length=10"]
    words += ["algo.batch_size=20", "algo.minibatch_size=10", "algo.num_epochs=1", "resources.num_samplers=1"]
    words += ["resources.inference=local", "resources.envs_per_sampler=2", "eval.every=20", "eval.episodes=1"]
    found = imported(str(tmp_path / "run.py"), *words, f"run_dir={tmp_path / 'run'}", timeout=300)
    assert {"torch", "rlrun.algos.ppo", "rlrun.samplers.local"} <= found, "Python reports the sampler's modules, too"
    assert sorted(name for name in found if name.startswith(HEAVY)) == []
    assert (tmp_path / "run" / "summary.json").is_file()


def test_help_and_lists_import_no_torch():
    for words in (["--help"], ["list", "algos"]):
        found = imported("-m", "rlrun", *words, timeout=60)
        assert "rlrun.cli" in found and not found & {"torch", "hydra", "gymnasium", *HEAVY}
