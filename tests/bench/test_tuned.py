"""Which tuned files `benchmark tuned` runs, and how it judges their runs."""

import json

import pytest
from conftest import compose

from rlrun.bench.tuned import Bar, choose, judged
from rlrun.core.errors import UserError
from rlrun.experiments.outcomes import Outcome, TrainingJob


def test_the_seconds_of_a_gpu_make_no_file_fast_without_one():
    with_gpu, without = ([bar.tuned for bar in choose([], True, 1, has_gpu)] for has_gpu in (True, False))
    assert "ppo/pong_gpu" in with_gpu and "ppo/pong_gpu" not in without and "pg/cartpole" in without
    with pytest.raises(UserError, match="quick enough for --fast on a machine without a GPU"):
        choose(["ppo/pong_gpu"], True, 1, False)
    (named,) = choose(["ppo/pong_gpu"], False, 1, False)
    assert named.tuned == "ppo/pong_gpu", "it was asked for by name"


# Rows of env steps, all games that have ended, and the mean return of the last episode_window of them.
FULL = ((1000, 5, 90.0), (2000, 12, 40.0), (3000, 20, 60.0), (4000, 30, 50.0), (9000, 90, 99.0))
FEW = ((1000, 1, 90.0), (2000, 4, 50.0), (5000, 9, 99.0))


@pytest.mark.parametrize(
    "window, rows, reached",
    [
        pytest.param(10, FULL, 60.0, id="the best of full windows"),
        pytest.param(10, FEW, 50.0, id="all games where there are fewer"),
        pytest.param(100, FULL, 50.0, id="a window that is never full"),
        pytest.param(10, ((1000, 0, None),), None, id="no game"),
    ],
)
def test_a_run_is_judged_by_its_own_window_within_the_env_steps(tmp_path, window, rows, reached):
    names = ("env_steps", "sample/episodes", "sample/return_mean")
    lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
    (tmp_path / "progress.jsonl").write_text("".join(lines))
    config = compose("algo=pg", "env=CartPole-v1", f"episode_window={window}")
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    job = TrainingJob(name="job", words=(), run_dir=tmp_path, log=tmp_path / "log")
    outcome = Outcome(job=job, status="COMPLETED", summary={"status": "COMPLETED", "return_mean": 99.0})
    for aim, verdict in ((50.0, "pass"), (61.0, "short")):
        said = judged(Bar("pg/cartpole", aim, 4000.0, False, None), 1, outcome)
        assert said["return"] == reached and said["verdict"] == (verdict if reached else "short")
