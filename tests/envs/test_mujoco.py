"""MuJoCo's own warnings."""

import gymnasium
import pytest

from rlrun.envs import mujoco


@pytest.fixture
def nothing_said(monkeypatch):
    monkeypatch.setattr(mujoco, "said", set())


def test_a_warning_is_heard_once_and_deprecations_of_model_files_not_at_all(nothing_said, capsys):
    texts = (
        "Nan, Inf or huge value in QACC at DOF 0. Time = {}.",
        "compiler attribute 'settotalmass' is deprecated",
        "Nan, Inf or huge value in QPOS. Time = {}.",
    )
    for time in (0.05, 0.1, 0.15):  # the warning of every broken episode contains its time
        for text in texts:
            mujoco.hear(text.format(time))
    said = capsys.readouterr().err.splitlines()
    assert said == [f"MuJoCo: Nan, Inf or huge value in {what}. Time = 0.05." for what in ("QACC at DOF 0", "QPOS")]


def test_an_environment_leaves_no_log_in_the_working_directory(nothing_said, tmp_path, monkeypatch, capfd):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    mujoco.listen(gymnasium.spec("HalfCheetah-v5"))
    gymnasium.make("HalfCheetah-v5").close()
    assert list(tmp_path.iterdir()) == [] and "settotalmass" not in capfd.readouterr().err


def test_environments_without_mujoco_do_not_load_it(monkeypatch):
    monkeypatch.setattr(mujoco.importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    monkeypatch.delitem(mujoco.sys.modules, "mujoco", raising=False)
    mujoco.listen(gymnasium.spec("CartPole-v1"))
