"""Exported policies act like the run's own: in whole games, for any batch size, and with memory, filters, noise and
every kind of action."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Dict, Discrete, MultiDiscrete
from wired import Wired
from zoo import CountingAgents

import rlrun
from rlrun.cli import _dispatch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.policy import Policy
from rlrun.core.schedule import Clock
from rlrun.models.noisy import NoisyLinear
from rlrun.runtime.export import describe, observed, parity, rows_of, write
from rlrun.runtime.export_files import staged
from rlrun.runtime.exported_policy import Exported, example, parts_of, program
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
    "filtered_screens": ["algo=ppo", "env=Pong", "env.size=42", "model.observation_filter=mean_std"],
    "search_of_one": ["algo=alphazero", "env=CartPoleSparse-v0"],
    "search_of_two": ["algo=alphazero", "env=TicTacToe-v0"],
}  # fmt: skip


def made(typed, *words) -> Trained:
    """Makes a policy with random weights, in the form that rlrun.load() returns."""
    torch.manual_seed(0)
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
    if "screens" in case:
        pytest.importorskip("ale_py")
    trained = made(typed, *CASES[case])
    exported = program(trained).module()
    assert parity(trained, exported, 12) <= 1e-5


class Numbered(gymnasium.Env):
    """Shows choices whose first numbers are not 0."""

    observation_space = Dict(place=Discrete(9, start=3), both=MultiDiscrete([9, 9], start=[-4, 2]))
    action_space = Discrete(5)

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


gymnasium.register("tests/Numbered-v0", Numbered)


@pytest.mark.parametrize("stack", [1, 2])
def test_choices_are_numbered_as_the_environment_shows_them(stack, typed):
    trained = made(typed, "algo=dqn", "env=tests/Numbered-v0", f"env.stack={stack}")
    exported = program(trained).module()
    game = observed(trained, 12)
    assert parity(trained, exported, game=game) <= 1e-5
    assert len({int(action["action"]) for _, action in game}) > 1
    env, shown = Numbered(), []
    shown.append(env.reset(seed=1)[0])
    shown += [env.step(0)[0] for _ in range(11)]
    trained.reset()
    for number, seen in enumerate(shown):
        before = shown[number - 1] if number else {"place": 3, "both": np.array([-4, 2])}
        given = [before, seen] if stack == 2 else [seen]
        obs = {f"observation.{name}": torch.as_tensor(np.stack([one[name] for one in given]))[None] for name in seen}
        obs = obs if stack == 2 else {name: value[:, 0] for name, value in obs.items()}
        action, _ = exported(obs, torch.tensor([number == 0]), {})
        assert action["action"].item() == trained.act(seen), "the file is given what the environment shows"
    meaning = describe(parts_of(trained)[0][0], ("pt2",))["obs"]["observation.place"]["meaning"]
    assert "from [3, 3] on, which also stands for" in meaning if stack == 2 else meaning.endswith("from 3 on")


class NumberedAgents(CountingAgents):
    """Each of three agents sees a choice; without `alike`, c has one more than the others."""

    def __init__(self, alike=True):
        super().__init__()
        self.alike = alike

    def observation_space(self, agent):
        return Discrete(8 if self.alike or agent != "c" else 9, start=3)

    def _obs(self, agents):
        return {agent: np.int64(3 + self.now) for agent in agents}


@pytest.mark.parametrize("algo, alike", [("iql", True), ("self_play", True), ("self_play", False)])
def test_choices_of_agents_are_numbered_as_is_told(algo, alike, typed):
    """Unlike spaces are padded to one that counts from 0, which is then said."""
    trained = made(typed, f"algo={algo}", f"env={__name__}:NumberedAgents", f"++env.kwargs={{alike: {str(alike).lower()}}}")
    (part,), _ = parts_of(trained)
    exported = Exported(part.trained)
    game = observed(trained, 12)
    assert parity(part.trained, exported, game=game) <= 1e-5
    told = describe(part, ())["obs"]["observation"]["meaning"]
    assert "counts those of a from 3, b from 3, c from 3" in told if not alike else "as the environment numbers them" in told
    rows = torch.cat([obs["observation"].reshape(3, 1) for obs, _ in game], 1)  # [agents, steps]
    assert rows[1].tolist() == [step + (3 if alike else 0) for step in range(len(game))]


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


def test_files_of_a_run(tmp_path, capsys, monkeypatch):
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
    monkeypatch.setattr("rlrun.runtime.export_files.missing_of", lambda name: ["onnx"] if name == "onnx" else [])
    assert _dispatch(["export", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "acts as the run's own policy" in said
    assert ".onnx is left out: onnx needs onnx: " in said and "setup onnx" in said
    folder = tmp_path / "run" / "export"
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "policy.json", "policy.pt2", "policy.safetensors"]
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


def test_a_second_export_describes_what_the_first_one_left(tmp_path, typed):
    """Files of the same policy stay described; those of another one are named as what they are."""
    pytest.importorskip("safetensors")
    first, other = (made(typed, *CASES[case]) for case in ("values", "noisy"))
    folder = tmp_path / "out"

    def told() -> tuple[dict, str]:
        return json.loads((folder / "policy.json").read_text()), (folder / "README.md").read_text()

    write(first, folder, ("safetensors",))
    write(first, folder, ("pt2",))
    facts, text = told()
    assert facts["formats"] == ["pt2", "safetensors"] and "use" in facts and "of_other_policies" not in facts
    assert "`policy.pt2`" in text and "`policy.safetensors`" in text
    (folder / "policy.pt2").unlink()
    write(first, folder, ("safetensors",))
    assert told()[0]["formats"] == ["safetensors"] and "policy.pt2" not in told()[1]
    write(other, folder, ("pt2",))
    facts, text = told()
    assert facts["formats"] == ["pt2"] and facts["of_other_policies"] == ["policy.safetensors"]
    assert "This page does not describe policy.safetensors" in text and "load_file" not in text


def test_only_files_that_passed_are_left_and_described(tmp_path, typed, monkeypatch):
    """A format that fails leaves no file, and what another export wrote since is never taken for this policy's."""
    pytest.importorskip("safetensors")
    first, other = (made(typed, "algo=dqn", "env=CartPole-v1", f"seed={seed}") for seed in (0, 1))
    for parameter in other.policy.parameters():
        parameter.add_(1.0)  # the same network with other weights
    folder = tmp_path / "out"

    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def broken(part, path, game):
        path.write_text("half a file")
        raise RunFailed("it acts differently")

    def told() -> dict:
        return json.loads((folder / "policy.json").read_text())

    with monkeypatch.context() as patch, pytest.raises(RunFailed, match="acts differently"):
        patch.setattr("rlrun.runtime.export.write_pt2", broken)
        write(first, folder, ("pt2",))
    assert names() == []
    with monkeypatch.context() as patch, pytest.raises(RunFailed, match="acts differently"):
        patch.setattr("rlrun.runtime.export.write_pt2", broken)
        write(first, folder, ("safetensors", "pt2"))
    assert names() == ["README.md", "policy.json", "policy.safetensors"] and told()["formats"] == ["safetensors"]
    assert "policy.pt2" not in (folder / "README.md").read_text() and "use" not in told()

    described = (folder / "policy.json").read_text()
    write(other, folder, ("safetensors",))
    (folder / "policy.json").write_text(described)  # as if that export had been killed before it described its files
    write(first, folder, ("pt2",))
    assert told()["formats"] == ["pt2"] and told()["of_other_policies"] == ["policy.safetensors"]


CART = ["env=MultiAgentCartPole-v0", "++env.kwargs={num_agents: 4}", "model.hidden=[8]"]
OF_AGENTS = {
    "several": ["algo=multi", "algo.policies={good: [agent_0, agent_2], bad: agent_1, idle: agent_3}", "++algo.fixed={idle: random}",
                "model/memory=lstm", "model.memory.size=6", "model.memory.prev_reward=true", "algo.inner.sequence_length=5",
                "algo.inner.fragment_length=10", "algo.inner.batch_size=40", "algo.inner.minibatch_size=20"],
    "values": ["algo=multi", "algo@algo.inner=dqn", "algo.inner.exploration.eval_epsilon=1.0"],
    "self_play": ["algo=self_play", "algo@algo.inner=pqn", "algo.inner.exploration.eval_epsilon=1.0"],
    "central": ["algo=self_play", "model.share_value=false", "model.value_sees=state"],
    "qmix": ["algo=qmix", "algo.exploration.eval_epsilon=1.0"],
    "iql": ["algo=iql"],
    "maddpg": ["algo=maddpg"],
}  # fmt: skip


@pytest.mark.parametrize("case", OF_AGENTS)
def test_policies_of_several_agents_act_as_in_the_game_of_all(case, typed):
    """Each in a game that the run's own policies play together, and nothing is drawn at random; neither the state of
    all nor the reward is asked for where only the learner needs it."""
    trained = made(typed, *CART, *OF_AGENTS[case])
    for name, push in (("good", 3.0), ("bad", -3.0)) if case == "several" else ():  # so that rows must not be mixed up
        trained.policy.policy(name).action_head.linear.bias.copy_(torch.tensor([push, -push]))
    parts, left_out = parts_of(trained)
    modules = [program(part.trained).module() for part in parts]
    Exported(trained)  # takes chance away
    game = observed(trained, 12)
    for part, module in zip(parts, modules, strict=True):
        assert parity(part.trained, module, game=rows_of(part, game)) <= 1e-5
        inputs = set(example(part.trained)[0])
        assert "state" not in inputs and ("prev_reward" in inputs) == (case == "several")
    if case == "several":
        assert {part.name: part.agents for part in parts} == {"good": ["agent_0", "agent_2"], "bad": ["agent_1"]}
        assert left_out == {"idle": "it acts at random and has no weights"}
        with pytest.raises(RunFailed, match="does not act as the run's own does"):
            parity(parts[0].trained, modules[1], game=rows_of(parts[0], game))


@pytest.mark.parametrize("case", ["several", "self_play", "qmix", "maddpg"])
def test_what_policy_json_says_works(case, typed, tmp_path, monkeypatch):
    """Its lines of Python are run on the first observations of a game, and give the run's own actions."""
    trained = made(typed, *CART, *OF_AGENTS[case])
    folder = tmp_path / "out"
    files = {path.name for path, _ in write(trained, folder, ("pt2",))}
    facts = json.loads((folder / "policy.json").read_text())
    assert files == {file.name for file in folder.iterdir()}
    told = facts.get("policies", {"": facts})
    assert {file for one in told.values() for file in one.get("files", ["policy.pt2"])} == files - {"policy.json", "README.md"}
    assert ("not_exported" in facts) == (case == "several")
    seen = {f"agent_{i}": torch.randn(4, generator=torch.Generator().manual_seed(i)) for i in range(4)}
    own = trained.act({agent: obs.numpy() for agent, obs in seen.items()})
    monkeypatch.chdir(folder)
    acted = {}
    for one in told.values():
        joint = "axis over the agents" in one["rows"]
        rows = torch.stack([seen[agent] for agent in one["agents"]])
        names = {"torch": torch, "observation": rows.unsqueeze(0) if joint else rows}
        for name in one["obs"].keys() - {"observation"}:
            shape = [1 if joint else len(rows), *one["obs"][name]["shape"][1:]]
            given = torch.ones if name == "alive" else torch.zeros
            names[name] = given(shape, dtype=getattr(torch, one["obs"][name]["dtype"]))
            assert one["obs"][name]["meaning"]
        exec("\n".join(one["use"]), names)
        acted |= names["actions"]
    assert acted and acted == {agent: own[agent] for agent in acted}
    assert acted.keys() == (own.keys() - {"agent_3"} if case == "several" else own.keys())


def test_files_of_a_run_with_several_policies(tmp_path, capsys):
    """One learns, one has another run's weights, one is of the user's own. Self-play leaves its snapshots out."""
    load_file = pytest.importorskip("safetensors.torch").load_file
    sizes = ("fragment_length=10", "batch_size=40", "minibatch_size=20")
    words = ["train", *CART, "logger=[]", "resources=debug", "env_steps=40", *(f"algo.inner.{size}" for size in sizes)]
    first, second = tmp_path / "first", tmp_path / "second"
    assert _dispatch([*words, "algo=self_play", "algo.snapshot_every=20", f"run_dir={first}"]) == 0
    assert _dispatch(["export", str(first)]) == 0
    weights = load_file(first / "export" / "policy.safetensors")
    main = rlrun.load(first).policy.main.state_dict()
    assert weights.keys() == main.keys() and all(torch.equal(weights[name], main[name]) for name in main)
    policies = "algo.policies={new: 'agent_[01]', old: agent_2, own: agent_3}"
    assert (
        _dispatch(
            [
                *words,
                "algo=multi",
                policies.replace(", own: agent_3", "").replace("agent_2", "'*'"),
                f"run_dir={tmp_path / 'kept'}",
            ]
        )
        == 0
    )
    fixed = f"algo.fixed={{old: {tmp_path / 'kept'}, own: 'rlrun.policies.exploration:Uniform'}}"
    assert _dispatch([*words, "algo=multi", policies, fixed, f"run_dir={second}"]) == 0
    capsys.readouterr()
    assert _dispatch(["export", str(second), "--formats", "safetensors"]) == 0
    assert "The policy own is not exported: rlrun.policies.exploration:Uniform is a class" in capsys.readouterr().out
    facts = json.loads((second / "export" / "policy.json").read_text())
    assert facts["policies"].keys() == {"new", "old"} and str(tmp_path / "kept") in facts["policies"]["old"]["fixed"]
    for name in ("new", "old"):
        weights = load_file(second / "export" / f"policy.{name}.safetensors")
        own = rlrun.load(second).policy.policy(name).state_dict()
        assert weights.keys() == own.keys() and all(torch.equal(weights[key], own[key]) for key in own)


def test_onnx_acts_the_same(tmp_path, typed):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    for case in ("values", "lstm", "filtered_torques"):
        trained = made(typed, *CASES[case])
        (file, said), *_ = write(trained, tmp_path / case, ("onnx",))
        assert file.exists() and "acts as the run's own policy" in said


@pytest.mark.parametrize("case", ["values", "lstm", "filtered_torques", "gru_told", "qmix"])
def test_the_onnx_file_s_names_and_recipe_are_those_that_are_told(case, tmp_path, typed, monkeypatch):
    """The lines of README.md are run for the first two steps of a game, and give the run's own actions."""
    onnxruntime = pytest.importorskip("onnxruntime")
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    trained = made(typed, *(CASES[case] if case in CASES else [*CART, *OF_AGENTS[case]]))
    folder = tmp_path / "out"
    write(trained, folder, ("onnx",))
    told = json.loads((folder / "policy.json").read_text())["onnx"]
    session = onnxruntime.InferenceSession(folder / "policy.onnx")
    assert [one.name for one in session.get_outputs()] == told["outputs"] and told["outputs"][0] == "action"
    assert {one.name for one in session.get_inputs()} <= set(told["inputs"])
    text = (folder / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert code.splitlines()[1:] == told["use"], "README.md and policy.json tell the same"
    monkeypatch.chdir(folder)
    game = observed(trained, 1)
    (obs, action), taken = game[0], []
    names = {name.replace(".", "_"): value.numpy() for name, value in obs.items()}
    names["env"] = type("Env", (), {"step": staticmethod(taken.append)})
    exec(code, names)
    own = action["action"].numpy()
    got = list(names["actions"].values()) if "actions" in names else taken[0]
    assert got == pytest.approx(own[0] if case != "qmix" else own.reshape(-1), abs=1e-5)
    assert names["state"].keys() == {f"state_{name}" for name in trained.policy.core_spec()}


def test_a_folder_whose_name_is_no_utf_8_is_refused(tmp_path):
    """PyTorch would abort the process."""
    with pytest.raises(UserError, match="whose name is not valid UTF-8: rename that folder"), staged(tmp_path / "l\udce4ufe"):
        pass
    assert not list(tmp_path.iterdir())
