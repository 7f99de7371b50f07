"""Imports and starts experiments with several agents (agents.yaml), and looks at who learns what in them."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

import rlrun
from rlrun.cli import _dispatch, main
from rlrun.commands.import_rllib import translated
from rlrun.core.errors import UserError
from rlrun.rllib.translate import translate

HERE = Path(__file__).parent
STEPS = 200
ROWS = ["fragment_length=20", "batch_size=40"]
EPOCHS = [*ROWS, "minibatch_size=20", "num_epochs=2"]
REPLAY = ["learning_starts=50", "batch_size=16"]
QUICK = {  # few rows and narrow networks
    "maddpg": [*REPLAY, "fragment_length=5", "replay_ratio=4", "actor.hidden=[8]", "critic.hidden=[8]"],
    "ppo": EPOCHS, "pg": ROWS, "appo": ROWS, "dqn": REPLAY, "sac": [*REPLAY, "actor.hidden=[8]", "critic.hidden=[8]"], "qmix": [*REPLAY, "batch_size=2"],
}  # fmt: skip
CARTS = {f"p{i}": f"agent_{i}" for i in range(4)}
# name: (the algorithm, that inside, what is written, what is not mapped, what the user fills in)
EXPERIMENTS = {
    "shared-cartpole": ("ppo", None, {
        "env.kwargs": {"num_agents": 4}, "algo.batch_size": 400, "algo.minibatch_size": 20, "stop.return_mean": 1200, "env_steps": 10000}, [], {}),
    "default-policy-pendulum": ("sac", None, {"env.kwargs": {"num_agents": 2}, "algo.discount": 0.9, "algo.actor_lr": 0.01}, [], {}),
    "four-cartpole": ("multi", "appo", {
        "env.kwargs": {"num_agents": 4}, "algo.policies": CARTS, "algo.inner.value_coef": 0.005, "stop.return_mean": 600, "env_steps": 200000}, [], {}),
    "two-kinds-of-cartpole": ("multi", "ppo", {
        "algo.policies": {"careful": ["agent_0", "agent_1", "agent_2"], "bold": "agent_3"}, "model.hidden": [16], "algo.inner.discount": 0.99,
        "algo.inner.minibatch_size": 10,
        "algo.options": {
            "careful": {"discount": 0.999, "lr": 1e-5, "entropy_coef": 0.02},
            "bold": {"discount": 0.9, "lr": [[0, 1e-3], [1000, 1e-4]], "value_loss_clip": 3.0, "minibatch_size": 40}}},
        ["multiagent.observation_fn", "multiagent.policies.bold.model.fcnet_hiddens"], {}),
    "agent-steps": ("multi", "ppo", {
        "algo.policies": {"agent_0": "agent_0", "agent_1": "agent_1"}, "algo.inner.batch_size": 400, "algo.inner.fragment_length": 100,
        "algo.inner.lr": [[0, 1e-3], [2000, 0.0]], "env_steps": 4000}, ["stop.policy_reward_mean/agent_0"], {}),
    "frozen-spread": ("multi", "dqn", {
        "algo.policies": {f"policy_{i + 1}": f"agent_{i}" for i in range(3)}, "algo.inner.head.hidden": [16],
        "algo.options": {"policy_2": {"lr": 0.0}, "policy_3": {"head": {"hidden": [8]}, "exploration": {"epsilon": {"start": 1.0, "end": 0.2, "steps": 10000.0}}}}},
        ["multiagent.policies.policy_3.n_step", "multiagent.replay_mode"], {}),
    "rock-paper-scissors": ("multi", "ppo", {
        "algo.policies": {"always_same": "player_0", "learned": "player_1"}, "algo.inner.discount": 0.9},
        ["multiagent.policies.always_same.policy_class"], {"algo.fixed.always_same": "random"}),
    "random-rock-paper-scissors": ("multi", "pg", {"algo.fixed": {"random": "random"}}, ["multiagent.policy_mapping_fn"],
        {"algo.policies.random": "player_1", "algo.policies.learned": "player_0"}),
    "new-spellings": ("multi", "ppo", {
        "algo.policies": {"p0": "agent_0", "p1": "agent_1"}, "algo.options": {"p0": {"lr": 0.002}, "p1": {"discount": 0.9, "lr": 0.0}}}, [], {}),
    "two-step-qmix": ("qmix", None, {"algo.fragment_length": 10, "stop.return_mean": 8, "env_steps": 70000}, [], {}),
    "two-step-maddpg": ("maddpg", None, {
        "algo.share": False, "algo.local_agents": ["agent_1"], "algo.learning_starts": 200, "algo.replay_ratio": 10.24, "algo.discount": 0.99,
        "algo.actor.hidden": [64, 64], "env_steps": 20000}, ["multiagent.policies.p1.gamma"], {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What one command has written from all experiments."""
    made = tmp_path_factory.mktemp("agents")
    assert _dispatch(["import-rllib", str(HERE / "agents.yaml"), "--dir", str(made), "--quiet"]) == 0
    return made


@pytest.fixture(scope="module")
def made():
    found, refused = translated([str(HERE / "agents.yaml")], None)
    assert not refused and [one.name for one, _ in found] == list(EXPERIMENTS)
    return {one.name: one for one, _ in found}


def at(values, path):
    for key in path.split("."):
        values = values[key]
    return values


def same(one, other):
    first, second = ({key: p.clone() for key, p in policy.named_parameters()} for policy in (one, other))
    return all((first[key] == second[key]).all() for key in first)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_becomes_what_it_asks_for_and_starts(name, folder, made, tmp_path, capsys):
    if name == "frozen-spread":
        pytest.importorskip("mpe2", reason="without it nobody knows how many agents simple_spread has")
    algo, core, wanted, lost, filled = EXPERIMENTS[name]
    one = made[name]
    assert (one.algo, one.inner or ("ppo" if algo == "multi" else None)) == (algo, core)
    assert sorted(line.key for line in one.lines if line.how == "not mapped") == lost
    assert all(line.why for line in one.lines if line.how in ("not mapped", "dropped"))
    assert set(one.asked) == set(filled)
    place = "algo.inner" if algo == "multi" else "algo"
    words = ["--config-dir", str(folder), f"tuned={algo}/{name}", "logger=[]"]
    answers = [f"{option}={value}" for option, value in filled.items()]
    # as it is written
    assert _dispatch(["train", *words, *answers, "--cfg", "job"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert {path: at(config, path) for path in wanted} == wanted
    assert _dispatch(["train", "--plan", *words, *answers, "resources=debug"]) == 0
    said = capsys.readouterr().out
    if algo == "multi":
        names = config["algo"]["policies"]
        told = re.search(rf", with {len(names)} policies: (.*)", said)
        assert told and re.findall(r"([\w-]+) \([^()]*\)", told[1]) == list(names)
    else:
        assert " policies: " not in said
    for option in filled:  # what is to be filled in is asked for
        others = [word for word in answers if not word.startswith(f"{option}=")]
        with pytest.raises(UserError, match=f"{option} must be filled in"):
            _dispatch(["train", *words, *others, "resources=debug"])
    # a short run
    quick = [f"{place}.{word}" for word in QUICK[core or algo]]
    options = config["algo"].get("options", {}).items()
    quick += [f"algo.options.{policy}.minibatch_size=20" for policy, own in options if "minibatch_size" in own]
    quick += ["model.hidden=[8]"] if (core or algo) not in ("sac", "maddpg") else []
    quick += ["replay.capacity=1000"] if (core or algo) in ("dqn", "sac", "qmix", "maddpg") else []
    run, first = tmp_path / "run", tmp_path / "first"
    start = ["train", *words, *answers, "resources=debug", *quick]
    assert _dispatch([*start, f"env_steps={STEPS}", f"run_dir={run}"]) == 0
    last = json.loads((run / "progress.jsonl").read_text().splitlines()[-1])
    assert last["env_steps"] >= STEPS
    if algo != "multi":
        return
    policies, fixed = config["algo"]["policies"], config["algo"].get("fixed", {})
    learnt = {key.split("/")[1] for key in last if key.startswith("learn/") and key.count("/") > 1}
    assert learnt == set(policies) - set(fixed)
    policy = rlrun.load(run).policy
    for number, who in enumerate(policies):
        assert (who in policy.recorded) == (who not in fixed), number
    # policies that are not trained keep their first weights
    assert _dispatch([*start, "env_steps=100", f"run_dir={first}"]) == 0
    before = rlrun.load(first).policy
    for who in learnt:
        own = config["algo"].get("options", {}).get(who, {})
        assert same(before.policy(who), policy.policy(who)) == (own.get("lr") == 0.0), who


MULTI = "x: {run: %s, env: %s, config: {env_config: {num_agents: 2}, multiagent: %s}}"


@pytest.mark.parametrize(
    ("run", "env", "multiagent", "said"),
    [
        ("PPO", "multi_agent_cartpole", "{policies: {a: 3}}", "multiagent.policies.a must be null"),
        ("PPO", "multi_agent_cartpole", "{policies: 3}", "multiagent.policies must be a list of names"),
        ("PPO", "multi_agent_cartpole", "{policies: [a, b], policies_to_train: [c]}", "names the policy 'c'; there are a, b"),
        ("PPO", "multi_agent_cartpole", "{policies: [a, b], policies_to_train: []}", "nothing would be learnt"),
        ("PPO", "multi_agent_cartpole", "{policies: [a, b], policy_mapping_fn: {agent_0: a, agent_1: d}}", "names the policy 'd'"),
        ("PPO", "multi_agent_cartpole", "{policies: [a, b], policy_mapping_fn: {agent_0: a}}", "says no policy for the agent agent_1"),
        ("PPO", "multi_agent_cartpole", "{policies: [a, b], policy_mapping_fn: {car: a, agent_1: b}}", "names the agent 'car'"),
        ("PPO", "multi_agent_cartpole", "{policies: [a.b, a-b, a_b]}", "two policies that rlrun would call alike"),
        ("PPO", "multi_agent_mountaincar", "{policies: [a, b]}", "--env names another one"),
        ("PPO", "simple_spread", "{policies: {random: [RandomPolicy, null, null, {}]}}", "nothing would be learnt"),
        ("A3C", "multi_agent_cartpole", "{policies: [a, b]}", "a2c learns several, and the file has 2 policies"),
        ("APEX", "multi_agent_cartpole", "{policies: [a, b]}", "algo=apex learns one policy"),
        ("QMIX", "two_step_game", "{policies: [a, b]}", "qmix learns all agents together"),
        ("MADDPG", "multi_agent_cartpole", "{policies: [a, b, c]}", "MADDPG has a policy for each agent"),
        ("MADDPG", "CartPole-v1", "{}", "MADDPG learns several agents together, and CartPole-v1 has one"),
        ("ES", "multi_agent_cartpole", "{policies: [a, b]}", "es learns one policy"),
    ],
)  # fmt: skip
def test_what_rllib_or_rlrun_would_not_take_is_refused_with_a_sentence(
    run, env, multiagent, said, tmp_path, monkeypatch
):
    file = tmp_path / "x.yaml"
    file.write_text(MULTI % (run, env, multiagent))
    _, refused = translated([str(file)], None)
    assert said in refused["x"] and refused["x"].startswith("x.yaml, x: ") and "\n" not in refused["x"]
    monkeypatch.setattr("sys.argv", ["rlrun", "import-rllib", str(file), "--dir", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        sys.exit(main())
    assert ended.value.code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("env", "multiagent", "line", "how", "why"),
    [
        ("CartPole-v1", "{policies: [a, b]}", "policies", "not mapped", "CartPole-v1 has one agent"),
        ("CartPole-v1", "{policies: null}", "policies", "dropped", "CartPole-v1 has one agent"),
        ("my_package:Env", "{policies: {p}}", "policies", "not mapped", "has one agent"),
        ("multi_agent_cartpole", "{policies: [a, b]}", "policies", "mapped", "yours to fill in"),
        ("multi_agent_cartpole", "{count_steps_by: games}", "count_steps_by", "not mapped", "one of env_steps, agent_steps"),
        ("multi_agent_cartpole", "{policies: [a, b], policies_to_train: my.fn}", "policies_to_train", "not mapped", "a function cannot be read"),
        ("multi_agent_cartpole", "{policies: {agent_0: null, agent_1: [null, Box, null, {}]}}", "policies.agent_1.observation_space", "dropped", "spaces"),
        ("multi_agent_cartpole", "{policies: [a, b, c], policy_mapping_fn: {agent_0: a, agent_1: b}}", "policies.c", "dropped", "no agent has"),
        ("multi_agent_cartpole", "{policies: [a, b], mystery: 1}", "mystery", "not mapped", "no such option"),
        ("connect_four", "{policies: [player_0, player_1]}", "policies", "mapped", "every agent has the policy of its name"),
    ],
)  # fmt: skip
def test_what_becomes_of_an_option_is_said(env, multiagent, line, how, why, tmp_path):
    file = tmp_path / "x.yaml"
    kwargs = "{num_agents: 2}" if env.startswith("multi") else "{}"
    file.write_text(f"x: {{run: PPO, env: '{env}', config: {{env_config: {kwargs}, multiagent: {multiagent}}}}}")
    ((one, _),), refused = translated([str(file)], None)
    found = {part.key.removeprefix("multiagent."): part for part in one.lines if part.given}
    assert not refused and found[line].how == how and why in found[line].why, found[line]


def test_a_refused_value_of_a_policy_leaves_what_all_have():
    policies = {"a": {"config": {"lambda": 95, "gamma": 0.5, "model": {"fcnet_hiddens": 3}}}, "b": None}
    config = {"lambda": 0.9, "policies": policies, "policy_mapping_fn": {"player_0": "a", "player_1": "b"}}
    (one,) = translate("a", {"run": "PPO", "env": "RockPaperScissors", "config": config}, "a")
    own = {key: value for key, value in one.values.items() if key.startswith("algo.options.a.")}
    assert own == {"algo.options.a.discount": 0.5} and one.values["algo.inner.lambda_"] == 0.9
    lost = {line.key for line in one.lines if line.how == "not mapped"}
    assert lost == {"policies.a.lambda", "policies.a.model.fcnet_hiddens"}
