"""Exported policies act like the run's own: in whole games, for any batch size, and with memory, filters, noise and
every kind of action."""

import json
from pathlib import Path

import pytest
import torch
from wired import Wired

from rlrun.cli import _dispatch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.models.noisy import NoisyLinear
from rlrun.runtime.export import Exported, example, flat, nested, parity, program, write
from rlrun.runtime.trained import Trained

CASES = {
    "values": ["algo=dqn", "env=CartPole-v1"],
    "noisy": ["algo=rainbow", "env=CartPole-v1"],
    "quantiles": ["algo=iqn", "env=CartPole-v1"],
    "filtered_torques": ["algo=ppo", "env=Pendulum-v1", "model.observation_filter=mean_std"],
    "squashed": ["algo=ppo", "env=Pendulum-v1", "model.action_distribution=squashed_gaussian"],
    "beta": ["algo=ppo", "env=Pendulum-v1", "model.action_distribution=beta"],
    "lstm": ["algo=ppo", "env=StatelessCartPole-v0", "model=lstm", "model.memory.size=16", "algo.fragment_length=16"],
    "gru_told": ["algo=ppo", "env=StatelessCartPole-v0", "model=gru", "model.memory.size=16", "model.memory.prev_action=true",
                 "model.memory.prev_reward=true", "algo.fragment_length=16"],
    "two_trunks_with_memory": ["algo=ppo", "env=StatelessCartPole-v0", "model=lstm", "model.memory.size=16", "model.share_value=false",
                               "algo.fragment_length=16"],
    "gtrxl": ["algo=ppo", "env=StatelessCartPole-v0", "model=gtrxl", "model.memory.size=16", "model.memory.length=8", "algo.fragment_length=16"],
    "r2d2": ["algo=r2d2", "env=StatelessCartPole-v0", "model.memory.size=16"],
    "parametric": ["algo=dqn", "env=ParametricActionsCartPole-v0", "model.action_embedding=avail_actions", "algo.head.dueling=false", "algo.head.hidden=[]"],
    "screens": ["algo=dqn", "env=Pong", "env.size=42"],
}  # fmt: skip


def made(typed, *words) -> Trained:
    """Makes a policy with random weights, in the form that rlrun.load() returns."""
    wiring = Wired(typed(*words, "logger=[]", "resources=debug"))
    policy = wiring.algorithm().policy
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():  # because heads begin near zero, where all actions are alike
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        for module in policy.modules():
            if isinstance(module, NoisyLinear):
                module.draw(generator)
    return Trained(Path("run"), wiring.config, wiring.spec, policy.requires_grad_(False), Clock())


@pytest.mark.parametrize("case", CASES)
def test_the_exported_program_plays_the_same_game(case, typed):
    if case == "screens":
        pytest.importorskip("ale_py")
    trained = made(typed, *CASES[case])
    exported = program(trained).module()
    assert parity(trained, exported, 12) <= 1e-5


@pytest.mark.parametrize("case", ["values", "lstm", "filtered_torques"])
def test_any_number_of_rows(case, typed):
    """One row, three and seven rows at once give the same actions as each row by itself."""
    trained = made(typed, *CASES[case])
    exported = program(trained).module()
    generator = torch.Generator().manual_seed(1)
    for rows in (1, 3, 7):
        obs, first, state = example(trained, rows)
        obs = {name: torch.randn(value.shape, generator=generator) for name, value in obs.items()}
        first = torch.arange(rows) % 2 == 0
        state = {name: torch.randn(value.shape, generator=generator) for name, value in state.items()}
        action, after = exported(obs, first, state)
        own, own_after = Exported(trained)(obs, first, state)
        torch.testing.assert_close(action, own)
        torch.testing.assert_close(after, own_after)
        assert len(action["action"]) == rows and all(len(value) == rows for value in after.values())
        single, _ = exported(
            {name: value[:1] for name, value in obs.items()},
            first[:1],
            {name: value[:1] for name, value in state.items()},
        )
        torch.testing.assert_close(single["action"], action["action"][:1])


def test_state_is_forgotten_where_an_episode_begins(typed):
    trained = made(typed, *CASES["lstm"])
    exported = program(trained).module()
    obs, _, state = example(trained, 2)
    obs = {name: torch.ones_like(value) for name, value in obs.items()}
    full = {name: torch.ones_like(value) for name, value in state.items()}
    _, forgot = exported(obs, torch.tensor([True, False]), full)
    _, fresh = exported(obs, torch.tensor([True, True]), state)
    for name in state:
        torch.testing.assert_close(forgot[name][0], fresh[name][0])
        assert not torch.allclose(forgot[name][1], fresh[name][1])


def test_the_check_can_fail(typed):
    trained = made(typed, *CASES["values"])
    exported = Exported(trained)

    def other(obs, first, state):
        action, after = exported(obs, first, state)
        return {"action": 1 - action["action"]}, after

    with pytest.raises(RunFailed, match="does not act as the run's own does"):
        parity(trained, other)


def test_nothing_is_drawn_at_random(typed):
    """A policy that acts at random in evaluation is exported and compared without randomness."""
    trained = made(typed, *CASES["values"], "algo.exploration.eval_epsilon=1.0")
    assert parity(trained, Exported(trained), 30) <= 1e-5


def test_a_policy_of_ones_own_without_a_greedy_function_is_refused(tmp_path, typed, monkeypatch):
    trained = made(typed, *CASES["values"])
    monkeypatch.setattr(type(trained.policy), "greedy", Policy.greedy)
    with pytest.raises(UserError, match="has no greedy"):
        write(trained, tmp_path / "out", ("pt2",))
    assert not (tmp_path / "out").exists()


def test_files_of_a_run(tmp_path, capsys):
    words = [
        "algo=pg",
        "env=CartPole-v1",
        "logger=[]",
        "resources=debug",
        "env_steps=400",
        f"run_dir={tmp_path / 'run'}",
    ]
    assert _dispatch(["train", *words]) == 0
    capsys.readouterr()
    pytest.importorskip("safetensors")
    assert _dispatch(["export", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "acts as the run's own policy" in said
    folder = tmp_path / "run" / "export"
    assert sorted(file.name for file in folder.iterdir()) == ["policy.json", "policy.pt2", "policy.safetensors"]
    facts = json.loads((folder / "policy.json").read_text())
    assert (
        facts["obs"] == {"observation": {"shape": ["batch", 4], "dtype": "float32"}}
        and facts["state"] == {}
        and facts["env"] == "CartPole-v1"
    )
    module = torch.export.load(folder / "policy.pt2").module()
    action, _ = module({"observation": torch.zeros(5, 4)}, torch.ones(5, dtype=torch.bool), {})
    assert action["action"].shape == (5,)
    for words, text in ((["--formats", "pt3"], "There is no format 'pt3'. Did you mean pt2"), (["checkpoint=7"], "7"),
                        (["chekpoint=best"], "Did you mean checkpoint"), (["--dir", "/proc/nowhere"], "cannot be written")):  # fmt: skip
        with pytest.raises(UserError, match=text):
            _dispatch(["export", str(tmp_path / "run"), *words])


def test_onnx_acts_the_same(tmp_path, typed):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    for case in ("values", "lstm", "filtered_torques"):
        trained = made(typed, *CASES[case])
        (file, said), _ = write(trained, tmp_path / case, ("onnx",))
        assert file.exists() and "acts as the run's own policy" in said


def test_names_of_nested_parts():
    values = {
        "observation.camera.left": torch.zeros(1),
        "observation.speed": torch.ones(1),
        "action_mask": torch.ones(2),
    }
    assert flat(nested(values)) == values
