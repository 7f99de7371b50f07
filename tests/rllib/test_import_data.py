"""RLlib's options of the offline data API become data.path, record and their neighbours, or get a reason."""

import json
import math

import numpy as np
import pytest
import yaml

from rlrun.cli import _dispatch
from rlrun.config.types import typed
from rlrun.datasets.options import DataConfig
from rlrun.rllib.translate import translate

NO_MORE = {"share": None, "buffer": 1000, "readers": 1, "min_return": None, "max_return": None, "reward_scale": 1.0, "reward_shift": 0.0, "actions_normalized": True}
POSITIONS = {"DQN": "CartPole-v1", "SAC": "Pendulum-v1", "PPO": "CartPole-v1", "APEX": "CartPole-v1", "BC": "CartPole-v1", "MARWIL": "Pendulum-v1"}


def made(run, **config):
    (one,) = translate("x", {"run": run, "env": POSITIONS[run], "config": config}, "x")
    assert not {"data.path", "data.actions_normalized", "record"} & one.values.keys(), "a file may not choose folders for its reader"
    found = {key: value for key, value in {**one.values, **one.places}.items() if key.split(".")[0] in ("data", "record") or key == "runner._choice"}
    return found, {line.key: line for line in one.lines if line.given}


@pytest.mark.parametrize("run, config, wanted", [
    ("DQN", {"input": "/out/cartpole"}, {"data.path": "/out/cartpole", "runner._choice": "offline"}),
    ("DQN", {"input_": "out/*.json"}, {"data.path": "out/*.json", "runner._choice": "offline"}),
    ("SAC", {"input": ["enormous.zip"], "actions_in_input_normalized": True}, {"data.path": "enormous.zip", "runner._choice": "offline", "data.actions_normalized": True}),
    ("SAC", {"input": {"/a": 0.7, "/b": 0.3}, "actions_in_input_normalized": False}, {"data.path": {"/a": 0.7, "/b": 0.3}, "runner._choice": "offline", "data.actions_normalized": False}),
    ("DQN", {"input": "/a", "actions_in_input_normalized": False}, {"data.path": "/a", "runner._choice": "offline"}),
    ("BC", {"input": "/a", "actions_in_input_normalized": False}, {"data.path": "/a"}),
    ("MARWIL", {"input": "/a", "actions_in_input_normalized": False}, {"data.path": "/a", "data.actions_normalized": False}),
    ("SAC", {"input": {"/a": 0.4, "sampler": 0.6}}, {"data.path": "/a", "data.share": 0.4}),
    ("SAC", {"input": {"/a": 0.25, "/b": 0.25, "sampler": 0.5}}, {"data.path": {"/a": 0.5, "/b": 0.5}, "data.share": 0.5}),
    ("SAC", {"input": {"/a": 1.0, "/b": 0.0}}, {"data.path": "/a", "runner._choice": "offline"}),
    ("SAC", {"input": "dataset", "input_config": {"format": "json", "paths": "/a/b.json"}}, {"data.path": "/a/b.json", "runner._choice": "offline"}),
    ("DQN", {"input": "sampler"}, {}),
    ("DQN", {"input_config": {"paths": "/a"}}, {}),
    ("PPO", {"output": "/rec"}, {"record": "/rec"}),
    ("PPO", {"output": "dataset", "output_config": {"format": "json", "path": "/rec"}}, {"record": "/rec"}),
    ("PPO", {"output": "logdir"}, {}),
    ("PPO", {"output": None}, {}),
])  # fmt: skip
def test_what_an_experiment_learns_from_and_records(run, config, wanted):
    found, lines = made(run, **config)
    assert found == wanted
    assert config.keys() <= lines.keys() and all(line.how != "not mapped" for key, line in lines.items() if key in config)


@pytest.mark.parametrize("weights", [[1] * 3, [1] * 700, [0.1, 0.2, 0.7], [1, 1e-7, 1]])
def test_shares_of_many_paths_are_one_in_all(weights):
    """The options of a run take them."""
    found, _ = made("SAC", input={f"/{number}": weight for number, weight in enumerate(weights)})
    shares = typed(DataConfig, NO_MORE | {"path": found["data.path"]}, "data").shares
    assert list(shares.values()) == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-10)
    assert all(len(str(share)) < 16 for share in shares.values())


@pytest.mark.parametrize("run, value, why", [
    ("PPO", "/out", "newest policy"), ("APEX", "/out", "apex"), ("SAC", "d4rl.hopper-medium-v0", "minari"), ("SAC", "s3://bucket/a.json", "this machine"),
    ("SAC", "my_package.Reader", "ported"), ("SAC", {"/a": -1.0}, "no files"), ("SAC", {"sampler": 1.0}, "no files"), ("SAC", [], "no files"), ("SAC", "dataset", "no files"),
])  # fmt: skip
def test_inputs_without_a_counterpart_get_a_reason(run, value, why):
    found, lines = made(run, input=value, actions_in_input_normalized=False)
    assert found == {} and lines["input"].how == "not mapped" and why in lines["input"].why
    assert lines["actions_in_input_normalized"].how == "dropped"


def test_the_rest_of_the_api_is_dropped_or_said_to_be_lost():
    names = {
        "postprocess_inputs": True, "shuffle_buffer_size": 10,
        "output_max_file_size": 5000000, "output_compress_columns": ["obs"], "output_write_episodes": True, "input_read_episodes": True, "input_read_sample_batches": True,
        "materialize_data": True, "map_batches_kwargs": {"concurrency": 2}, "iter_batches_kwargs": {"prefetch_batches": 1}, "dataset_num_iters_per_learner": 1,
        "ignore_final_observation": False, "input_read_schema": {}, "evaluation_config": {"input": "sampler"},
    }  # fmt: skip
    _, lines = made("DQN", input="/out", **names)
    lines["evaluation_config"] = lines["evaluation_config.input"]
    assert {key: lines[key].how for key in names} == dict.fromkeys(names, "dropped")
    assert all(lines[key].why for key in names)
    _, lines = made("DQN", input="/out", ignore_final_observation=True, input_read_schema={"obs": "o"}, evaluation_config={"input": "/b"}, prelearner_class="my.Class")
    assert all(lines[key].how == "not mapped" for key in ("ignore_final_observation", "input_read_schema", "evaluation_config.input", "prelearner_class"))


def judged(run, **config):
    """What becomes of an experiment's estimates: the methods, their data, eval.every, and the lines."""
    (one,) = translate("x", {"run": run, "env": {**POSITIONS, "DDPG": "Pendulum-v1", "MARWIL": "CartPole-v1", "BC": "CartPole-v1"}[run], "config": config}, "x")
    found = {**one.values, **one.places}
    wanted = [found.get(key) for key in ("eval.estimate.methods", "eval.estimate.path", "eval.every")]
    return wanted, {line.key: line for line in one.lines if line.given}


TYPES = {"a": {"type": "ray.rllib.offline.estimators.ImportanceSampling"}, "wis": {"type": "wis"}, "b": {"type": "DirectMethod", "q_model_config": {"n_iters": 4}}, "dr": {}}  # fmt: skip


@pytest.mark.parametrize("run, config, wanted", [
    ("DQN", {"input": "/out", "input_evaluation": ["is", "wis"]}, [["pdis", "step_wis"], None, 50000]),
    ("MARWIL", {"input": ["/out"], "input_evaluation": ["wis", "simulation"], "evaluation_interval": 2, "train_batch_size": 500}, [["step_wis"], None, 1000]),
    ("SAC", {"input": "/out", "off_policy_estimation_methods": TYPES}, [["pdis", "step_wis", "dm", "dr"], None, 50000]),
    ("BC", {"input": {"/a": 0.5, "/b": 0.5}, "input_evaluation": ["is"], "evaluation_config": {"input": "/held/out"}}, [["pdis"], "/held/out", 50000]),
    ("PPO", {"input_evaluation": ["is"], "evaluation_config": {"input": ["/held"]}}, [["pdis"], "/held", 50000]),
    ("DDPG", {"input": "/out", "off_policy_estimation_methods": {"x": {"type": "dm"}}}, [["dm"], None, 50000]),
])  # fmt: skip
def test_estimates_of_the_value_go_on_where_data_are_known(run, config, wanted):
    """RLlib's `is` has cumulative weights for every reward, as pdis; its `wis` divides by their mean at every step."""
    found, lines = judged(run, **config)
    assert found == wanted
    assert all(lines[key].how == "mapped" for key in ("input_evaluation", "off_policy_estimation_methods") if key in config)
    if "/held" in str(config):
        assert lines["evaluation_config.input"].how == "mapped"


@pytest.mark.parametrize("run, config, how, why", [
    ("MARWIL", {"input": "d4rl.hopper", "input_evaluation": ["is", "wis"]}, "not mapped", "add eval.estimate.methods=[pdis, step_wis]"),
    ("BC", {"input_evaluation": ["is"]}, "not mapped", "names no data"),
    ("MARWIL", {"input": "sampler", "input_evaluation": ["is", "wis"]}, "dropped", "needs no estimate"),
    ("PPO", {"input_evaluation": ["is", "wis"]}, "dropped", "needs no estimate"),
    ("DQN", {"input": {"/a": 0.5, "/b": 0.5}, "input_evaluation": ["is"]}, "not mapped", "there are 2: eval.estimate.path=DIR"),
    ("DDPG", {"input": "/out", "input_evaluation": ["is"]}, "not mapped", "[dm] needs none"),
    ("DQN", {"input": "/out", "input_evaluation": ["my.Own"]}, "not mapped", "no estimator my.Own"),
    ("DQN", {"input": "/out", "input_evaluation": ["simulation"]}, "dropped", "evaluations play"),
    ("DQN", {"input": "/out", "input_evaluation": []}, "dropped", "evaluations play"),
])  # fmt: skip
def test_estimates_that_are_not_made_get_a_sentence(run, config, how, why):
    found, lines = judged(run, **config)
    assert found[:2] == [None, None]
    assert lines["input_evaluation"].how == how and why in lines["input_evaluation"].why


@pytest.mark.parametrize("run", ["DQN", "SAC"])
def test_an_imported_file_trains_from_rllibs_own_files(tmp_path, run, capsys):
    count, rng = 200, np.random.default_rng(0)
    width, actions = (4, rng.integers(2, size=count)) if run == "DQN" else (3, rng.uniform(-1, 1, (count, 1)))
    obs = rng.normal(size=(count + 1, width))
    done = np.arange(count) % 20 == 19
    batch = {"type": "SampleBatch", "obs": obs[:-1], "new_obs": obs[1:], "actions": actions, "rewards": np.ones(count), "dones": done, "eps_id": np.arange(count) // 20, "action_prob": np.full(count, 0.5)}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "output.json").write_text(json.dumps({key: value.tolist() if key != "type" else value for key, value in batch.items()}) + "\n")
    config = {"input": str(tmp_path / "data"), "actions_in_input_normalized": True, "train_batch_size": 16, "input_evaluation": ["is", "wis"]}
    file = tmp_path / "offline.yaml"
    file.write_text(yaml.safe_dump({"offline": {"run": run, "env": POSITIONS[run], "config": config}}))
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"rlrun train --config-dir {tmp_path / 'out'} tuned={run.lower()}/offline data.path={tmp_path / 'data'}" in said
    text = (tmp_path / "out" / "tuned" / run.lower() / "offline.yaml").read_text()
    assert "# The command line has to say data.path=" in text and "\n  path:" not in text
    words = [f"data.path={tmp_path / 'data'}", "--config-dir", str(tmp_path / "out"), f"tuned={run.lower()}/offline", f"run_dir={tmp_path / 'run'}", "env_steps=320", "logger=[]", "resources=debug", "eval.every=160", "eval.episodes=1"]
    assert _dispatch(["train", *words]) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["runner"]["name"] == "offline" and config["data"]["path"] == str(tmp_path / "data")
    rows = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] >= 320
    judged = [row for row in rows if "estimate/pdis" in row]
    assert len(judged) >= 2 and all(math.isfinite(row["estimate/step_wis"]) for row in judged)
