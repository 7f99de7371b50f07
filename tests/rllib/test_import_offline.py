"""RLlib's BC, MARWIL, CQL and CRR become runs that learn from data, or from what they play where the input is a sampler."""

import json
from pathlib import Path

import pytest
import yaml
from datasets_of_tests import data_of

from rlrun.cli import _dispatch, compose
from rlrun.config.run import type_config
from rlrun.config.types import plain
from rlrun.core.errors import UserError
from rlrun.machine.machine import Machine
from rlrun.rllib.translate import translate
from rlrun.runtime.plan import plan

RELEASES = yaml.safe_load((Path(__file__).parent / "rllib_tuned.yaml").read_text())
TUNED = {
    f"{release}/{name}": experiment
    for release, files in RELEASES.items()
    for name, experiment in files.items()
    if experiment["run"] in ("BC", "MARWIL", "CQL", "CRR")
}
ENVS = {"BC": "CartPole-v1", "MARWIL": "CartPole-v1", "CQL": "Pendulum-v1", "CRR": "Pendulum-v1"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data sets, by the names of their environments."""
    folder = tmp_path_factory.mktemp("data")
    return {env: data_of(env, folder / env) for env in ("CartPole-v1", "Pendulum-v1")}


def made(run, env=None, **config):
    (one,) = translate("x", {"run": run, "env": env or ENVS[run], "config": config}, "x")
    return one, {line.key: line for line in one.lines}


# Files that are others with other numbers, or those of another release, and are not planned once more. All are translated
# and typed in test_rllib_import.py.
AGAIN = {
    *(f"1.13/cql/{name}.yaml" for name in ("halfcheetah-bc", "hopper-bc", "pendulum-cql")),
    *(f"2.49/cql/{name}.yaml" for name in ("halfcheetah-bc", "halfcheetah-cql", "hopper-bc", "pendulum-cql")),
    "2.49/bc/cartpole-bc.yaml",
}


@pytest.mark.parametrize("name", [name for name in TUNED if name not in AGAIN])
def test_every_tuned_file_is_imported_and_can_be_planned(name, data, tmp_path, capsys):
    experiment = TUNED[name]
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump({"one": experiment}))
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    algo = experiment["run"].lower()
    (env,) = experiment["env"]["grid_search"] if isinstance(experiment["env"], dict) else [experiment["env"]]
    recorded = "d4rl_env" in env
    # the file's own place, or one that the user has to fill in
    assert ("data.path=..." if recorded else "data.path=") in said.split("rlrun train")[1]
    words = ["--config-dir", str(tmp_path / "out"), f"tuned={algo}/one", "logger=[]"]
    seen = []

    def job(cfg, _):
        config = type_config(plain(cfg))
        seen.append(config)
        if not recorded:  # MuJoCo may be missing
            layout = plan(config, Machine(cores=4, env_step_sec=lambda make_env, count: 1e-4))
            assert layout.data is not None and layout.data.rows == 255  # of 20 to 29 steps, and one at each end
        return 0

    assert compose([*words, f"data.path={data.get(env, data['CartPole-v1'])}"], job) == 0
    (config,) = seen
    assert config.runner.name == "offline" and config.algo.name == algo and config.run.eval.every > 0
    if recorded:
        assert config.env.name == ("Hopper-v5" if "hopper" in env else "HalfCheetah-v5")
        assert config.algo.actor.hidden == config.algo.critic.hidden == (256, 256, 256)
        assert config.algo.n_step == experiment["config"]["n_step"] and config.algo.batch_size == 256
        assert config.algo.bc_iters == experiment["config"]["bc_iters"]


@pytest.mark.parametrize("name", ["2.7/bc/cartpole-bc.yaml", "2.7/marwil/cartpole-marwil.yaml", "2.7/cql/pendulum-cql.yaml",
                                  "2.7/crr/cartpole-v1-crr_expectation.yaml", "2.7/crr/pendulum-v1-crr.yaml"])  # fmt: skip
def test_an_imported_file_learns_from_data(name, data, tmp_path):
    experiment = TUNED[name]
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump({"one": experiment}))
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "out"), "--quiet"]) == 0
    words = ["--config-dir", str(tmp_path / "out"), f"tuned={experiment['run'].lower()}/one", f"data.path={data[experiment['env']]}"]
    small = ["env_steps=1000", "algo.batch_size=50", "eval.every=500", "eval.episodes=1", "eval.workers=1", "logger=[]", "resources=debug"]
    nets = ["algo.actor.hidden=[8]", "algo.critic.hidden=[8]"]
    small += {"CQL": [*nets, "algo.bc_iters=10"], "CRR": nets}.get(experiment["run"], ["model.hidden=[8]"])
    assert _dispatch(["train", *words, f"run_dir={tmp_path / 'run'}", *small]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] == 1000 and any("eval/return_mean" in row for row in rows)


@pytest.mark.parametrize("run", ["MARWIL", "CQL"])
def test_a_sampler_is_what_is_played(run, tmp_path):
    file = tmp_path / "x.yaml"
    config = {"input": "sampler", "train_batch_size": 40, "rollout_fragment_length": 20 if run == "MARWIL" else 1}
    file.write_text(yaml.safe_dump({"x": {"run": run, "env": ENVS[run], "stop": {"timesteps_total": 400}, "config": config}}))
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path), "--quiet"]) == 0
    words = ["--config-dir", str(tmp_path), f"tuned={run.lower()}/x", f"run_dir={tmp_path / 'run'}", "logger=[]", "resources=debug"]
    words += ["algo.learning_starts=350", "algo.actor.hidden=[8]", "algo.critic.hidden=[8]"] if run == "CQL" else ["model.hidden=[8]"]
    assert _dispatch(["train", *words]) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["runner"]["name"] == ("on_policy" if run == "MARWIL" else "replay") and config["data"]["path"] is None
    if run == "MARWIL":
        assert config["algo"]["learns_from"] == "experience" and config["algo"]["fragment_length"] == 20
    else:  # RLlib counts env steps, one for every update of 40 rows
        assert config["algo"]["replay_ratio"] == 40 and config["algo"]["random_steps"] == 0


@pytest.mark.parametrize("run, config, wanted", [
    ("BC", {"lr": 1e-3, "grad_clip": 5.0, "gamma": 0.9}, {"algo.lr": 0.001, "algo.max_grad_norm": 5}),
    ("BC", {"lr_schedule": [[0, 1e-3], [1e5, 1e-4]]}, {"algo.lr": [[0, 0.001], [100000.0, 0.0001]]}),
    ("BC", {"model": {"use_lstm": True, "max_seq_len": 30}}, {"algo.sequence_length": 30, "algo.batch_size": 2010, "model._choice": "lstm"}),
    ("MARWIL", {"beta": 0.5, "vf_coeff": 2.0, "moving_average_sqd_adv_norm_start": 50.0, "moving_average_sqd_adv_norm_update_rate": 0.01},
     {"algo.beta": 0.5, "algo.value_coef": 2, "algo.squared_advantage_start": 50, "algo.squared_advantage_rate": 0.01, "algo.discount": 0.99}),
    ("MARWIL", {"replay_buffer_size": 5000, "input": "/a"}, {"data.buffer": 5000}),
    ("MARWIL", {"evaluation_interval": 3, "evaluation_duration": 5}, {"eval.every": 6000, "eval.episodes": 5, "eval.greedy": False}),
    ("CQL", {"lagrangian": True, "lagrangian_thresh": 7.0, "deterministic_backup": False, "temperature": 2.0, "num_actions": 4},
     {"algo.lagrangian": True, "algo.lagrangian_threshold": 7, "algo.deterministic_backup": False, "algo.temperature": 2, "algo.num_actions": 4}),
    ("CQL", {"target_network_update_freq": 1024, "tau": 1.0, "n_step": 3}, {"algo.target_update_interval": 4, "algo.target_tau": 1, "algo.n_step": 3}),
    ("CQL", {"enable_rl_module_and_learner": True, "train_batch_size_per_learner": 512},
     {"algo.actor_lr": 1e-4, "algo.critic_lr": 1e-3, "algo.alpha_lr": 1e-3, "algo.batch_size": 512}),
    ("CQL", {"num_env_runners": 2}, {"algo.actor_lr": 3e-4, "algo.critic_lr": 3e-4}),
    ("CQL", {"input": {"/a": 0.3, "sampler": 0.7}}, {"runner._choice": "replay", "data.share": 0.3, "algo.learning_starts": 1500}),
    ("CQL", {"replay_buffer_config": {"type": "MultiAgentPrioritizedReplayBuffer"}}, {"replay._choice": "prioritized", "replay.alpha": 0.6}),
    ("CRR", {}, {"algo.weight": "binary", "algo.temperature": None, "algo.advantage": "mean", "algo.num_actions": 4, "algo.batch_size": 128,
                 "algo.target_update_interval": 100, "algo.target_tau": 0.005, "algo.huber_delta": None}),
    ("CRR", {"weight_type": "exp", "temperature": 0.5, "max_weight": 9, "td_error_loss_fn": "huber", "target_network_update_freq": 256},
     {"algo.weight": "exp", "algo.temperature": 0.5, "algo.weight_clip": 9, "algo.huber_delta": 1, "algo.target_update_interval": 2}),
])  # fmt: skip
def test_options_become_what_they_mean(run, config, wanted):
    one, _ = made(run, **config)
    assert {option: one.values.get(option) for option in wanted} == wanted


@pytest.mark.parametrize("run, key, value, how, why", [
    ("BC", "input", "sampler", "not mapped", "clone itself"),
    ("BC", "beta", 0.75, "not mapped", "algo=marwil"),
    ("BC", "bc_logstd_coeff", 0.5, "dropped", "choices"),
    ("BC", "rollout_fragment_length", 100, "dropped", "one by one"),
    ("BC", "num_workers", 4, "dropped", "data.readers"),
    ("MARWIL", "explore", False, "dropped", "nothing is sampled"),
    ("MARWIL", "input", {"/a": 0.5, "sampler": 0.5}, "not mapped", "data alone"),
    ("MARWIL", "lambda_", 0.9, "not mapped", "lambda 1"),
    ("CQL", "input", "d4rl.hopper-medium-v0", "not mapped", "minari"),
    ("CQL", "learning_starts", 100, "dropped", "gather experience"),
    ("CQL", "lr", 0.01, "dropped", "actor_lr"),
    ("CQL", "lagrangian_thresh", 9.0, "dropped", "algo.lagrangian"),
    ("CRR", "max_weight", 9.0, "dropped", "no such number"),
    ("CRR", "input", "sampler", "not mapped", "data alone"),
    ("CRR", "advantage_type", "expectation", "not mapped", "discrete actions"),
    ("CRR", "lr", 0.01, "dropped", "actor_lr"),
    ("CRR", "grad_clip", 40, "dropped", "does not bound"),
    ("CRR", "n_step", 3, "not mapped", "no n_step"),
    ("CRR", "weight_type", "expo", "not mapped", "bin"),
])  # fmt: skip
def test_what_has_no_counterpart_is_said_with_its_reason(run, key, value, how, why):
    _, lines = made(run, **{key: value})
    assert lines[key].how == how and why in lines[key].why


def test_stops_count_the_rows_that_are_learnt():
    experiment = {"run": "BC", "env": "CartPole-v1", "stop": {"timesteps_total": 5e5, "episode_reward_mean": 150}}
    (one,) = translate("x", experiment, "x")
    lines = {line.key: line for line in one.lines}
    assert one.values["env_steps"] == 500_000 and "rows that are learnt" in lines["stop.timesteps_total"].why
    assert "stop.return_mean" not in one.values and "no games" in lines["stop.episode_reward_mean"].why
    (one,) = translate("x", TUNED["1.13/cql/pendulum-cql.yaml"], "x")
    assert any("all of these 100 updates clone" in line.why for line in one.lines)
    assert one.values["eval.every"] == 50_000


def test_cql_on_choices_is_told_of_discrete_cql():
    with pytest.raises(UserError, match="algo=discrete_cql"):
        translate("x", {"run": "CQL", "env": "CartPole-v1"}, "x")


@pytest.mark.parametrize("run", ["BC", "MARWIL", "CQL"])
def test_several_policies_and_curiosity_are_refused_with_a_reason(run):
    two = {"policies": {"a": None, "b": None}}
    with pytest.raises(UserError, match="learns one policy"):
        env = "MultiAgentPendulum-v0" if run == "CQL" else "MultiAgentCartPole-v0"
        translate("x", {"run": run, "env": env, "config": {"multiagent": two, "env_config": {"num_agents": 2}}}, "x")
    one, lines = made(run, exploration_config={"type": "Curiosity"})
    assert one.algo == run.lower() and "learns from data" in lines["exploration_config.type"].why
