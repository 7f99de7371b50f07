"""Imports every config block of RLlib's documentation pages (seeds.yaml), starts or plans it, and looks at what became of it.

seeds_expected.yaml says what each block asks for in rlrun's units, worked out by hand."""

import json
from pathlib import Path

import pytest
import yaml
from datasets_of_tests import data_of

from rlrun.cli import _dispatch, compose
from rlrun.commands import import_rllib
from rlrun.commands.import_rllib import page, translated
from rlrun.commands.train import show_plan
from rlrun.config.run import type_config
from rlrun.config.types import plain
from rlrun.machine.machine import Machine
from rlrun.rllib.option_map import option_map
from rlrun.runtime.plan import plan

HERE = Path(__file__).parent
BLOCKS = yaml.safe_load((HERE / "seeds.yaml").read_text())
EXPECTED = yaml.safe_load((HERE / "seeds_expected.yaml").read_text())
STEPS = 200
SHOWN = {"Pong": "Discrete(6)", "CartPole-v1": "Discrete(2)", "Pendulum-v1": "Box"}  # what a plan says of the actions
# Like those of Atari, these blocks are composed and planned, and not trained: other blocks of their algorithms are, and
# a3c by tests of its own.
PLANNED = {
    "impala-0.6", "a3c-0.6", "ppo-0.6",
    "ppo-2.40", "ppo-tune-2.40", "dqn-2.40", "dqn-tune-2.40", "dqn-buffer-2.40", "sac-2.40", "sac-buffer-2.40",
    "appo-2.40", "appo-tune-2.40", "impala-2.40", "impala-tune-2.40",
}  # fmt: skip


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The folder with the files of all blocks, which one command has written, and what was translated."""
    folder = tmp_path_factory.mktemp("seeds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_rllib, "starts", lambda *_: None)  # every block is composed, typed and started or planned below
        assert _dispatch(["import-rllib", str(HERE / "seeds.yaml"), "--dir", str(folder), "--quiet"]) == 0
    made, refused = translated([str(HERE / "seeds.yaml")], None)
    assert not refused and {one.name for one, _ in made} == set(EXPECTED) == set(BLOCKS)
    return folder, {one.name: one for one, _ in made}


def tiny(block: dict, algo: str, core: str) -> list[str]:
    """The words that make a start of a block quick: few rows and narrow networks."""
    at = "algo" if algo == core else "algo.inner"
    words = [f"env_steps={STEPS}", "logger=[]"]
    if algo in ("apex", "apex_ddpg"):  # their samplers and the replay are processes of their own
        words += ["resources.inference=local", "resources.num_samplers=1", "runner.num_shards=1", f"{at}.num_envs=2"]
        words += [f"{at}.fragment_length=5", f"{at}.learning_starts=50", f"{at}.batch_size=16", "replay.capacity=1000"]
    else:
        words.append("resources=debug")
    if core in ("dqn", "rainbow", "ddpg", "td3", "sac", "qmix"):
        words += [f"{at}.learning_starts=50", f"{at}.batch_size=16", "replay.capacity=1000"]
        words += [f"{at}.batch_size=2"] if core == "qmix" else []
        words += [f"{at}.replay_ratio=4"] if "apex" not in algo else []  # their samplers run free, as RLlib's
    if core in ("bc", "cql"):
        words.append("algo.batch_size=20")
    if core in ("ddpg", "td3", "sac", "cql"):
        words += [f"{at}.actor.hidden=[8]", f"{at}.critic.hidden=[8]"]
    elif core in ("es", "ars"):
        words += ["algo.noise_size=100000", "algo.actor.hidden=[]"]
        few = {"es": ["episodes_per_batch=2", "env_steps_per_batch=100"], "ars": ["num_rollouts=2", "rollouts_used=2"]}
        words += [f"algo.{word}" for word in few[core]]
    else:
        words.append("model.hidden=[8]")
    if core == "marwil":
        words += ["algo.fragment_length=20"] if block["config"].get("input") == "sampler" else []
        words.append("algo.batch_size=20")
    if core in ("pg", "a2c", "a3c", "ppo", "impala", "appo"):
        words += [f"{at}.fragment_length=20", f"{at}.batch_size=40"]
        words += ["resources.num_learners=1"] if core == "a3c" else []
        words += [f"{at}.minibatch_size=20", f"{at}.num_epochs=2"] if core == "ppo" else []
        words += [f"{at}.microbatch_size=20"] if "microbatch_size" in block["config"] else []
    # A run of one process has no samplers that wait for weights.
    return [*words, "runner.broadcast_interval=1"] if "broadcast_interval" in block["config"] else words


def value_at(values: dict, path: str):
    for key in path.split("."):
        values = values[key]
    return values


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data sets, by the names of their environments."""
    folder = tmp_path_factory.mktemp("data")
    return {env: data_of(env, folder / env) for env in ("CartPole-v1", "Pendulum-v1")}


def from_data(one, data) -> list[str]:
    """The words that an imported file leaves to the command line."""
    return [f"data.path={data[one.env]}"] if {"data.path"} & {*one.asked, *one.places} else []


@pytest.mark.parametrize("name", EXPECTED)
def test_a_block_becomes_what_it_asks_for_and_starts(name, imported, data, tmp_path, capsys):
    folder, made = imported
    one = made[name]
    words = ["--config-dir", str(folder), f"tuned={one.algo}/{one.name}", f"run_dir={tmp_path / 'run'}"]
    if one.env == "Pong" or name in PLANNED:
        seen = []
        own = ["resources=debug", *(["resources.num_learners=1"] if one.algo == "a3c" else [])]
        assert compose([*words, *own], lambda cfg, choices: seen.append(plain(cfg)) or show_plan(cfg, choices)) == 0
        assert SHOWN[one.env] in capsys.readouterr().out
        changed, (resolved,) = {word.split("=")[0] for word in own}, seen
    else:
        own = from_data(one, data) + tiny(BLOCKS[name], one.algo, one.inner or EXPECTED[name].get("algo.inner.name") or one.algo)
        assert _dispatch(["train", *words, *own]) == 0
        rows = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
        assert rows[-1]["env_steps"] >= STEPS
        changed, resolved = (
            {word.split("=")[0] for word in own},
            yaml.safe_load((tmp_path / "run/config.yaml").read_text()),
        )
    for option, wanted in EXPECTED[name].items():
        written = one.values.get(option)  # the file's own value, where the quick start has another
        assert (written if option in changed else value_at(resolved, option)) == wanted, option
    chosen = {f"{group}.{part}" for group in ("replay", "model", "runner") for part in ("_choice",)}
    for option, value in one.values.items():  # all that is written is used
        assert option in changed or option in chosen or value_at(resolved, option) == value, option


def test_every_block_can_start_as_it_was_imported(imported, data):
    """The test above makes blocks small. Here every number is the block's own."""
    folder, made = imported
    machines = [Machine(cores=cores, env_step_sec=lambda make_env, count: 1e-4) for cores in (2, 16)]

    def job(cfg, _):
        for machine in machines:
            layout = plan(type_config(plain(cfg)), machine)
            if layout.replay is not None:
                layout.replay.check(2**45, layout.resources.device)
        return 0

    for one in made.values():
        words = ["--config-dir", str(folder), f"tuned={one.algo}/{one.name}", "logger=[]", *from_data(one, data)]
        assert compose(words, job) == 0


def test_what_the_blocks_ask_for_in_vain_is_said(imported):
    _, made = imported
    lost = {(name, line.key) for name, one in made.items() for line in one.lines if line.how == "not mapped"}
    assert lost == {
        ("impala-training-2.40", "model.vf_share_layers"),
        ("impala-tune-2.40", "stop.training_iteration"), ("appo-tune-2.40", "stop.training_iteration"),
        ("marwil-0.7", "replay_buffer_size"),
        ("cql-1.x", "input"), ("cql-2.40", "input"),  # RLlib's default, which plays, is no data
        *(("dqn-training-2.40", key) for key in ("before_learn_on_batch", "categorical_distribution_temperature", "burn_in_len")),
    }  # fmt: skip


def test_the_page_of_options_is_the_commands(monkeypatch):
    """rlrun import-rllib --table tests/rllib/seeds.yaml tests/rllib/agents.yaml > docs/rllib_options.md"""
    pytest.importorskip("mpe2", reason="the page says which agents simple_spread has")
    root = HERE.parent.parent
    monkeypatch.chdir(root)
    files = ["tests/rllib/seeds.yaml", "tests/rllib/agents.yaml"]
    assert page(files, *translated(files, None)) + "\n" == (root / "docs" / "rllib_options.md").read_text()


TRAINING = {  # the parameters of training(...) that the page of 2.40 lists
    "ppo": "use_critic use_gae lambda_ use_kl_loss kl_coeff kl_target vf_loss_coeff entropy_coeff entropy_coeff_schedule clip_param vf_clip_param"
    " grad_clip lr_schedule vf_share_layers",
    "dqn": "target_network_update_freq replay_buffer_config store_buffer_in_checkpoints lr_schedule epsilon adam_epsilon grad_clip"
    " num_steps_sampled_before_learning_starts tau num_atoms v_min v_max noisy sigma0 dueling hiddens double_q n_step before_learn_on_batch"
    " training_intensity td_error_loss_fn categorical_distribution_temperature burn_in_len",
    "sac": "twin_q q_model_config policy_model_config tau initial_alpha target_entropy n_step store_buffer_in_checkpoints replay_buffer_config"
    " training_intensity clip_actions grad_clip optimization_config actor_lr critic_lr alpha_lr target_network_update_freq _deterministic_loss"
    " _use_beta_distribution num_steps_sampled_before_learning_starts",
    "appo": "vtrace use_gae lambda_ clip_param use_kl_loss kl_coeff kl_target target_network_update_freq tau target_worker_clipping"
    " circular_buffer_num_batches circular_buffer_iterations_per_batch target_update_frequency use_critic",
    "impala": "vtrace vtrace_clip_rho_threshold vtrace_clip_pg_rho_threshold num_gpu_loader_threads num_multi_gpu_tower_stacks minibatch_buffer_size"
    " replay_proportion replay_buffer_num_slots learner_queue_size learner_queue_timeout timeout_s_sampler_manager timeout_s_aggregator_manager"
    " broadcast_interval grad_clip opt_type lr_schedule decay momentum epsilon vf_loss_coeff entropy_coeff entropy_coeff_schedule"
    " _separate_vf_optimizer _lr_vf num_aggregation_workers max_requests_in_flight_per_aggregator_worker",
    "bc": "beta bc_logstd_coeff moving_average_sqd_adv_norm_update_rate moving_average_sqd_adv_norm_start vf_coeff grad_clip",
    "marwil": "beta bc_logstd_coeff moving_average_sqd_adv_norm_update_rate moving_average_sqd_adv_norm_start vf_coeff grad_clip",
    "cql": "bc_iters temperature num_actions lagrangian lagrangian_thresh min_q_weight deterministic_backup",
}  # fmt: skip
DQN = (
    "discount batch_size min_steps_learn delta_clip replay_size replay_ratio target_update_tau target_update_interval n_step_return learning_rate OptimCls"
    " optim_kwargs initial_optim_state_dict clip_grad_norm eps_steps double_dqn prioritized_replay pri_alpha pri_beta_init pri_beta_final pri_beta_steps"
    " default_priority ReplayBufferCls updates_per_sync"
)
AGENT = "eps_init eps_final eps_final_min eps_itr_min eps_itr_max eps_eval"
MODEL = "image_shape output_size fc_sizes dueling use_maxpool channels kernel_sizes strides paddings input_size hidden_sizes grad_scale"
RLPYT = {  # constructor arguments of rlpyt's algorithms, agents and models
    "dqn": f"{DQN} {AGENT} {MODEL}",
    "c51": f"{DQN} V_min V_max {AGENT} n_atoms {MODEL} layer_sizes",
    "rainbow": f"{DQN} V_min V_max {AGENT} n_atoms {MODEL} layer_sizes",
    "r2d2": f"{DQN} batch_T batch_B warmup_T store_rnn_state_interval pri_eta input_priorities input_priority_shift value_scale_eps {AGENT} {MODEL}"
    " fc_size lstm_size head_size",
}  # fmt: skip


@pytest.mark.parametrize("algo", TRAINING)
def test_explain_has_every_parameter_of_training(algo):
    rows = {row["rllib"]: row for row in option_map(algo)}
    missing = set(TRAINING[algo].split()) - rows.keys()
    assert not missing and all(rows[name]["rlrun"] or rows[name]["why"] for name in TRAINING[algo].split())


@pytest.mark.parametrize("algo", RLPYT)
def test_explain_has_every_argument_of_rlpyt(algo, capsys):
    rows = {
        name: row
        for row in option_map(algo)
        if row["rllib"].startswith("rlpyt ")
        for name in row["rllib"].removeprefix("rlpyt ").split(", ")
    }
    assert not set(RLPYT[algo].split()) - rows.keys()
    assert _dispatch(["explain", algo]) == 0
    said = capsys.readouterr().out
    assert all(row["rllib"] in said and (row["rlrun"] or row["why"]) for row in rows.values())
