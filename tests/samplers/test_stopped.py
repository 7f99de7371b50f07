"""A run that is stopped, as by Ctrl-Z, goes on afterwards: the time that it was stopped for is nobody's hang."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GAME = """
import time
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Slow(CartPoleEnv):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)
"""
TRAIN = """
import sys
from rlrun.core import awake
awake.LOOK_SEC, awake.STOPPED_SEC = 0.1, 0.7
from rlrun.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("words", [
    ["algo=ppo", "resources.inference=batched", "algo.batch_size=32", "algo.minibatch_size=32"],
    ["algo=dqn", "runner=distributed_replay", "algo.learning_starts=32"],
], ids=["batched", "distributed_replay"])  # fmt: skip
def test_the_time_for_which_a_run_was_stopped_does_not_count(words, tmp_path):
    (tmp_path / "slow_game.py").write_text(GAME)
    run = tmp_path / "run"
    words = [
        "train", "env=slow_game:Slow", "env.step_timeout_sec=2", "runner.queue_timeout_sec=2", "resources.num_samplers=1",
        "resources.envs_per_sampler=1", "algo.fragment_length=8", "env_steps=150", "resources.device=cpu", "logger=[]", "log_every_sec=null", "log_every_steps=32",
        f"run_dir={run}", *words,
    ]  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", TRAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not ((run / "progress.jsonl").exists() and (run / "progress.jsonl").read_text().count("\n") > 1):
            assert child.poll() is None and time.monotonic() < end, child.communicate()[0] if child.poll() is not None else "late"
            time.sleep(0.02)
        assert child.poll() is None, "it was over before it could be stopped"
        os.killpg(child.pid, signal.SIGSTOP)
        time.sleep(3.0)  # longer than both limits
        os.killpg(child.pid, signal.SIGCONT)
        said = child.communicate(timeout=60)[0]
    finally:
        os.killpg(child.pid, signal.SIGKILL) if child.poll() is None else None
    assert child.returncode == 0 and "COMPLETED" in said, said
    assert "hangs" not in said and "may hang" not in said, said
