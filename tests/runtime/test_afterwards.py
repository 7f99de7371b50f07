"""A run ends with what can be done next; its directory is the last line."""

import shlex

import pytest
from conftest import compose

from rlrun.cli import _dispatch
from rlrun.config.run import type_config
from rlrun.core.installing import typed_as
from rlrun.runtime.afterwards import last_words


def words(folder, ending, *options):
    return last_words(type_config(compose("algo=ppo", "env=CartPole-v1", "env_steps=5000", *options)), folder, ending)


def test_the_next_steps_fit_the_ending(tmp_path):
    (tmp_path / "checkpoints" / "000000005000").mkdir(parents=True)
    rlrun = typed_as()
    said = {ending: words(tmp_path, ending).splitlines() for ending in ("COMPLETED", "REACHED", "STOPPED", "INTERRUPTED")}
    for ending, lines in said.items():
        assert lines[-1] == str(tmp_path), ending
    assert [line.split(rlrun)[1].split()[0] for line in said["COMPLETED"][:-1]] == ["watch", "report", "resume"]
    assert said["COMPLETED"][-2].endswith("env_steps=10000") and said["REACHED"][-2].endswith("stop.return_mean=null")
    (tmp_path / "checkpoints" / "000000012000").mkdir()
    assert words(tmp_path, "COMPLETED").splitlines()[-2].endswith("env_steps=24000"), "further than it has come"
    assert [line.split(rlrun)[1].split()[0] for line in said["STOPPED"][:-1]] == ["watch", "report"]
    assert [line.split(rlrun)[1].split()[0] for line in said["INTERRUPTED"][:-1]] == ["resume"]


def test_a_learning_rate_that_has_come_to_nothing_begins_anew_in_another_run(tmp_path, capsys):
    """A resumed run would have the same one, so that it would learn nothing."""
    (tmp_path / "checkpoints" / "000000005000").mkdir(parents=True)
    assert " resume " in words(tmp_path, "COMPLETED", "algo.lr=3e-4 to 0 over 5001").splitlines()[-2]
    path, tiny = tmp_path / "run", ["resources=debug", "logger=[]", "algo.fragment_length=10", "algo.batch_size=40"]
    assert _dispatch(["train", "algo=pg", "env=CartPole-v1", *tiny, "env_steps=200", "algo.lr=3e-4 to 0 over 200", f"run_dir={path}"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-2].split(typed_as())[1])
    assert command == ["train", "--from-run", str(path), f"init={path}"]
    assert _dispatch(["resume", str(path), "env_steps=300"]) == 0
    assert "the schedule of algo.lr has ended with 0" in " ".join(capsys.readouterr().out.split())
    assert _dispatch([*command, f"run_dir={tmp_path / 'again'}"]) == 0
    assert "has ended with 0" not in capsys.readouterr().out


def test_without_a_checkpoint_nothing_is_next(tmp_path):
    assert words(tmp_path, "FAILED").splitlines() == [str(tmp_path)]


@pytest.mark.parametrize("inference", ["serial", "local"])
def test_an_env_of_ones_own_that_ends_the_run_is_to_be_checked(tmp_path, capsys, monkeypatch, inference):
    """Its step() is of Gym before 0.26, and a line of Gymnasium's own is what fails."""
    (tmp_path / "my_old.py").write_text(OLD)
    monkeypatch.syspath_prepend(tmp_path)
    small = [f"resources.inference={inference}", "resources.restarts=0", "logger=[]", f"run_dir={tmp_path / 'run'}"]
    assert _dispatch(["train", "algo=pg", "env=my_old:Old", '+env.kwargs={render_mode: null}', *small, *(["resources.num_samplers=1"] * (inference == "local"))]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "mend its env first" in line)
    command = line.split(f"{typed_as()} ")[1]
    assert command == """check-env my_old:Old 'env.kwargs={"render_mode": null}'"""
    assert _dispatch([*shlex.split(command), "seconds=1"]) == 2
    assert "ERROR" in capsys.readouterr().out


OLD = """
from gymnasium.envs.classic_control import CartPoleEnv
class Old(CartPoleEnv):
    def step(self, action):
        return super().step(action)[:4]
"""


@pytest.mark.parametrize(("goal", "ending"), [("stop.return_mean=1", "REACHED"), ("stop.wall_sec=0.001", "STOPPED")])
def test_a_goal_is_reached_and_other_stops_are_not(tmp_path, capsys, goal, ending):
    small = ["resources=debug", "logger=[]", "env_steps=20000", "episode_window=2", f"run_dir={tmp_path / 'run'}"]
    assert _dispatch(["train", "algo=pg", "env=CartPole-v1", *small, goal]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == str(tmp_path / "run") and any(line.startswith(f"{ending}: ") for line in said)
    if ending == "REACHED":  # what is said next works: without its goal, the run goes on
        command = said[-2].split(typed_as())[1]
        assert _dispatch([*shlex.split(command), "env_steps=1500"]) == 0
        assert any(line.startswith("COMPLETED: ") for line in capsys.readouterr().out.splitlines())
