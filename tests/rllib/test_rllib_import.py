"""Imports RLlib's tuned examples of each release."""

import copy
import functools
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from conftest import compose

from rlrun.cli import _dispatch
from rlrun.commands import import_rllib
from rlrun.config.run import type_config
from rlrun.core.errors import UserError
from rlrun.machine.machine import Machine, measured
from rlrun.rllib.algorithms import DEFAULTS_OF, RUNS
from rlrun.rllib.kinds import known_kinds
from rlrun.rllib.translate import translate
from rlrun.rllib.yaml_files import (
    GROUPS,
    Imported,
    data,
    defaults,
    flattened,
    flow,
    for_old_stack,
    machinery,
    numbers,
    read,
)
from rlrun.runtime.plan import plan

RELEASES = yaml.safe_load((Path(__file__).parent / "rllib_tuned.yaml").read_text())
# number of experiments in each release whose environment rlrun has; the others use environments of RLlib's test suite
COVERED = {"0.7.0": (47, 47), "1.13": (91, 108), "2.7": (102, 122), "2.49": (38, 45)}
# options that files of these releases set and whose effect is lost; all others are mapped, or dropped with a reason
NOT_MAPPED = {
    "no_done_at_end": 4,  # of SAC, whose time limits were ends
    "batch_mode": 6, "observation_fliter": 1, "evaluation_interval": 26, "input": 12, "stop.evaluation/episode_reward_mean": 1,
    "stop.evaluation/sampler_results/episode_reward_mean": 4, "stop.evaluation/env_runners/episode_return_mean": 1,
    "num_envs_per_env_runner": 1, "num_envs_per_worker": 3,  # grids of them
    "stop.training_iteration": 8,  # those of A2C, IMPALA, APPO and CRR, whose iterations a clock ends
}  # fmt: skip
# RLlib's defaults whose effect is lost: it trains IMPALA's and APPO's memories through 20 of a fragment's 50 rows
DEFAULTS_NOT_MAPPED = {"model.max_seq_len": 4}


@functools.cache
def translated():
    made, refused = {}, {}
    for release, files in RELEASES.items():
        for name, experiment in files.items():
            try:
                made[release, name] = translate(name, experiment, name)
            except UserError as error:
                refused[release, name] = str(error)
    return made, refused


def values(release, name, **other):
    (one,) = translate(name, {**RELEASES[release][name], **other}, name)
    return one.values


def test_every_example_of_an_algorithm_that_rlrun_has_is_imported_or_lacks_its_environment():
    made, refused = translated()
    count = {release: (sum(key[0] == release for key in made), len(files)) for release, files in RELEASES.items()}
    assert count == COVERED
    assert all(
        "is an environment of RLlib's own examples" in reason or "unity3d" in reason or "Bullet" in reason
        for reason in refused.values()
    )


def experiments():
    """(name, the experiment, one of its translations) of all releases and of the documentation's blocks."""
    seeds = yaml.safe_load((Path(__file__).parent / "seeds.yaml").read_text())
    for (release, name), files in translated()[0].items():
        for one in files:
            yield f"{release} {name}", RELEASES[release][name], one
    for name, experiment in seeds.items():
        if experiment["run"] in RUNS:
            for one in translate(name, experiment, name):
                yield name, experiment, one


def test_every_option_is_listed_and_few_have_no_counterpart():
    missing, defaults_missing = Counter(), Counter()
    for name, experiment, one in experiments():
        listed = {line.key for line in one.lines}
        for key, value in {
            **experiment.get("config", {}),
            **{k: v for k, v in experiment.items() if k not in ("stop", "config")},
        }.items():
            parts = value if isinstance(value, dict) and "grid_search" not in value else ()
            inner = [any(said.startswith(f"{key}.{part}") for said in listed) for part in parts]
            assert key in listed or value == {} or (inner and all(inner)), (name, key)
        for line in one.lines:
            assert line.became or line.why, (name, line)
            assert line.why or line.how == "mapped", (name, line)
            if line.how == "not mapped" and " " in name:
                (missing if line.given else defaults_missing)[line.key] += 1
    assert missing == NOT_MAPPED and defaults_missing == DEFAULTS_NOT_MAPPED


def test_every_line_is_true_and_every_value_is_listed():
    """What a line says was written is in the file, all that is in the file has a line, and defaults are RLlib's own."""
    for name, _, one in experiments():
        chosen = {"algo": one.algo, "env": one.env, "algo@algo.inner": one.inner}
        chosen |= {key.removesuffix("._choice"): value for key, value in one.values.items() if key.endswith("._choice")}
        written = {key: flow(value) for key, value in {**one.values, **one.places}.items() if not key.endswith("._choice")}
        said = set()
        for line in one.lines:
            assert (line.key == "") == (line.how == "added") and (line.became == "" or line.how in ("mapped", "added"))
            target, _, value = line.became.partition("=")
            if target in written:
                assert written[target] == value, (name, line)
            elif line.became and target not in ("runner", "seed"):
                pairs = dict(part.split("=") for part in line.became.split())
                assert all(chosen[key] == part for key, part in pairs.items()), (name, line)
                target = " ".join(pairs)
            said |= {target, *target.split()}
            if not line.given:
                assert line.key in KNOWN_DEFAULTS, (name, line)
        assert written.keys() | {key for key, value in chosen.items() if value} <= said, (name, written.keys() - said)


# What options mean that an imported file leaves to conf/: what RLlib does, or nothing that matters there. Where conf/
# changes one of these, rlrun/rllib has to write it.
LEFT = {
    "optimizer.kind": "adam", "optimizer.epsilon": 1e-8, "optimizer.decay": 0.99, "optimizer.momentum": 0.0, "optimizer.beta1": 0.9, "optimizer.beta2": 0.999,
    "value_coef": 0.5, "reward_clip": "none", "microbatch_size": None, "sequence_length": 16, "lr_kl_target": None, "lr_kl_bounds": [1e-6, 0.01],
    "optimizer.agc": 0.0, "optimizer.warmup_updates": 0, "stop_kl": None, "normalize_value": False, "normalize_reward": False, "c_clip": 1.0, "rho_clip": 1.0, "pg_rho_clip": 1.0, "lambda_": 1.0, "value_lr": None,
    "loss_reduction": "sum", "runner.replay_slots": 0, "runner.minibatch_buffer_size": 1, "head.gradient_scale": 0.70710678, "runner.fake_sampler": False, "runner.queue_timeout_sec": 300.0, "head.encoder_layer": False,
    "head.sigma0": 0.5, "exploration.eval_epsilon": 0.0, "exploration.temperature": 1.0, "exploration.noise_std": 1.0, "exploration.noise_epsilon": 0.1,
    "exploration.theta": 0.15, "priority_eta": 0.9, "num_atoms": 51, "v_min": -10.0, "v_max": 10.0, "actor.layer_norm": False, "critic.layer_norm": False,
    "optimizer.centered": False, "optimizer.weight_decay": 0.0, "optimizer.max_grad_value": 0.0, "max_grad_value": 0.0,
    "advantage_bootstrap": "target", "model.conv_activation": "auto", "model.conv_filters": None, "model.conv_padding": "none", "model.conv_hidden": "auto",
    "model.free_log_std": True, "model.value_head": "linear", "model.q_head": "linear", "l2": 0.0, "counted_share": 0.34, "return_processing": "centered_rank", "cut_share": 0.6, "kl_target": 0.01,
    "explore": True, "random_steps": 0, "exploration.kind": "sampled", "exploration.kwargs": {}, "use_critic": True,
    "model.encoder": "auto", "model.encoder_kwargs": {}, "model.layer_norm": False, "model.observation_clip": 10.0, "model.autoregressive": False,
    "model.action_embedding": None, "model.log_std": 0.0, "model.temperature": 1.0, "model.memory.kind": "none", "model.memory.prev_action": False, "model.memory.prev_reward": False,
}  # fmt: skip
# those that mean nothing where they are left, such as the nets of models that are not used
MEANINGLESS = (
    "model.memory.",
    "model.hidden",
    "model.activation",
    "model.init",
    "model.share_value",
    "model.value_sees",
    "replay_ratio",
)
OTHERS = {("ars", "optimizer.kind"): "sgd", ("sac", "model.action_distribution"): "squashed_gaussian"}
NO_SEQUENCES = {"sequence_length": None, "burn_in": 0, "sequence_stride": 1, "zero_init_state": False}
OTHERS |= {(algo, name): value for algo in ("sac", "ddpg", "td3", "apex_ddpg") for name, value in NO_SEQUENCES.items()}

# RLlib's QMIX has none of these; its hypernetwork is one layer, so that nothing has the width of a hidden one
MIXED = {"head.noisy": False, "burn_in": 0, "zero_init_state": False, "hypernet_layers": 1, "hypernet_hidden": 64}
MIXED |= {"reward_scale": 1.0, "reward_shift": 0.0, "lambda_": 0.0}
OTHERS |= {("qmix", name): value for name, value in MIXED.items()}
# RLlib's MADDPG draws the softmax whose temperature is 1, and has a critic for every agent
MADDPG = {
    "temperature": 1.0,
    "local_agents": [],
    "agent_id": True,
    "exploration.epsilon": 0.0,
    "exploration.std": 0.1,
    "exploration.scale": 1.0,
}
OTHERS |= {("maddpg", name): value for name, value in MADDPG.items()}


# What RLlib's Dreamer has in its code; nothing ends in its dreams, and it sees images alone
DREAMER = {
    "exploration.kind": "noise",
    "continuation": False,
    "continue_coef": 10.0,
    "model.min_std": 0.1,
    "model.mean_scale": 5.0,
    "model.action_min_std": 1e-4,
    "model.conv_activation": "relu",
    **{f"model.{part}_layers": count for part, count in (("encoder", 2), ("decoder", 2), ("reward", 2), ("continue", 3), ("value", 3), ("policy", 4))},
}  # fmt: skip
OTHERS |= {("dreamer", name): value for name, value in DREAMER.items()}

# RLlib's AlphaZero has one kind of search, which ends nowhere, and evaluates with as many simulations
SEARCH = {"root": "puct", "min_depth": 0, "max_depth": None, "considered": 16, "value_scale": 0.1, "visit_offset": 50.0}
OTHERS |= {("alphazero", f"search.{name}"): value for name, value in SEARCH.items()}
OTHERS |= {("alphazero", name): None for name in ("temperature_moves", "eval_simulations")} | {("alphazero", "symmetries"): False}
# RLlib's SlateQ has one kind of slate, and no places; its networks are not those of model.*. Its bandits have no prior.
SLATES = {
    "optimizer.kind": "rmsprop", "candidates": "candidates", "click": "click", "slates": "optimal", "train_slates": "optimal", "place_factors": False,
    "q.activation": "relu", "q.layer_norm": False, "choice_net.activation": "relu", "choice_net.hidden": [64, 32], "choice_net.layer_norm": False,
    "exploration.kind": "epsilon_greedy", "model.observation_filter": "none",
}  # fmt: skip
OTHERS |= {("slateq", name): value for name, value in SLATES.items()}
OTHERS |= {("alphazero", "ranked.best"): None}  # RLlib has no such return
OTHERS |= {("ars", "actor.activation"): "tanh"}  # of hidden layers, of which it has none
BANDIT = {"items": None, "click": "click", "products": False, "scale": 1.0, "noise": "fixed", "noise_shape": 6.0, "noise_scale": 6.0, "initial_pulls": 0, "exploration.kind": "uncertainty"}  # fmt: skip
OTHERS |= {(algo, name): value for algo in ("lin_ucb", "lin_ts") for name, value in BANDIT.items()}
# RLlib's MAML and MBMPO differentiate inner steps
OTHERS |= {(algo, "first_order"): False for algo in ("maml", "mbmpo")}

# RLlib's BC and MARWIL have neither of these; CQL's replay plays no part, and nothing is sampled
IMITATION = {"entropy_coef": 0.0, "log_std_coef": 0.0, "weight_clip": 0.0, "sequence_length": None, "burn_in": 0}
OTHERS |= {(algo, name): value for algo in ("bc", "marwil") for name, value in IMITATION.items()}
OTHERS |= {("marwil", "learns_from"): "data", ("marwil", "fragment_length"): 64}
UNUSED = {"fragment_length": 1, "num_envs": 1, "replay_ratio": 256.0, "learning_starts": 100, "random_steps": 100}
UNUSED |= {"input_priorities": False, "lagrangian_threshold": 5.0, "model.action_distribution": "squashed_gaussian"}
OTHERS |= {(algo, name): value for algo in ("cql", "crr") for name, value in {**NO_SEQUENCES, **UNUSED}.items()}
OTHERS |= {("crr", "temperature"): 1.0, ("crr", "weight_clip"): 20.0, ("crr", "n_step"): 1}  # its default weights have neither number


def leaves(values, path=""):
    for key, value in values.items():
        if isinstance(value, dict) and value and set(value) != {"start", "end", "steps"}:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


@pytest.mark.parametrize("run", RUNS)
def test_what_is_not_written_means_what_rllib_does(run):
    env = "Pendulum-v1" if run in ("DDPG", "TD3", "SAC", "CQL", "APEX_DDPG") else "CartPole-v1"
    env = {"MADDPG": "TwoStepGame", "contrib/MADDPG": "TwoStepGame", "SlateQ": "InterestEvolutionRecSimEnv", "SLATEQ": "InterestEvolutionRecSimEnv"}.get(run, env)
    (one,) = translate("a", {"run": run, "env": env}, "a")
    if one.algo == "dreamerv3":  # RLlib's is the algorithm of 2023, with other networks, optimisers and losses
        assert any(line.key == "model_size" and "which is of 2023" in line.why for line in one.lines)
        return
    inner = [f"algo@algo.inner={one.inner}"] if one.inner else []
    config = base(one.algo, one.env, one.values.get("model._choice"), one.values.get("replay._choice"), *inner)
    for path, value in leaves({group: config[group] for group in ("algo", "runner", "model")}):
        option = path.removeprefix("algo.inner.").removeprefix("algo.")
        if path in one.values or path.endswith("name") or option.startswith(MEANINGLESS) or "by_observation." in path:
            continue
        if option == "model.action_distribution" and one.algo not in ("sac", "cql"):
            continue  # gaussian, which model.free_log_std is about
        core = one.inner or one.algo
        wanted = OTHERS.get((core, option), OTHERS.get((one.algo, option), LEFT.get(option, "unknown")))
        assert value == wanted, f"{one.algo}: {path} is {value}, which is not known to be RLlib's"


# RLlib's own defaults: those of defaults.yaml and classes.yaml, and conv_filters, of which null is the default
KNOWN_DEFAULTS = {
    key
    for run in RUNS
    for era in ("old", "middle", "new")
    for key in flattened(defaults(DEFAULTS_OF.get(run, run), era))
} | {"model.conv_filters"}
for family in ("choices", "noises"):
    KNOWN_DEFAULTS |= {f"exploration_config.{name}" for own in data("classes.yaml")[family].values() for name in own}


@functools.cache
def base(algo, env, model, replay, *inner):
    chosen = [*(f"{group}={name}" for group, name in (("model", model), ("replay", replay)) if name), *inner]
    return compose(f"algo={algo}", f"env={env}", *chosen)


def test_every_imported_file_would_start():
    machine = Machine(cores=64, env_step_sec=lambda make_env, count: 1e-4)
    for files in translated()[0].values():
        for one in files:
            config = type_config(whole(one))  # raises where an option would be refused
            assert config.algo.name == one.algo
            if "model._choice" in one.values and one.env.startswith(("CartPole", "StatelessCartPole", "Pendulum")):
                plan(config, machine)  # whose sizes must fit a memory's too


def test_minibatches_hold_whole_sequences(tmp_path, capsys):
    """RLlib's defaults, minibatches of 128 rows of 4,000 and sequences of 20 rows, fit together only there."""
    file = tmp_path / "x.yaml"
    file.write_text(
        "a: {run: PPO, env: CartPole-v1, config: {model: {use_lstm: true}}}\n"
        "b: {run: PPO, env: CartPole-v1, config: {model: {use_attention: true}, exploration_config: {type: Curiosity}}}\n"
        "c: {run: PPO, env: CartPole-v1, config: {train_batch_size: 256, rollout_fragment_length: 64, sgd_minibatch_size: 8, num_workers: 1,"
        " model: {use_lstm: true, max_seq_len: 32}}}\n"
    )
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "algo.minibatch_size=100 (128 does not divide the batch of 4000)" in " ".join(said.split())
    assert "algo.inner.minibatch_size=100" in said
    assert "algo.minibatch_size=32 (whole sequences of 32 rows)" in " ".join(said.split())


def test_a_file_that_would_not_start_is_not_written(tmp_path, monkeypatch):
    """Every option by itself is one of rlrun's, and a run would refuse them together."""
    file = tmp_path / "x.yaml"
    file.write_text("a: {run: PPO, env: CartPole-v1, config: {num_workers: 1}}\n")
    text = Imported.text
    monkeypatch.setattr(Imported, "text", lambda one, *facts: text(one, *facts) + "eval: {episodes: 3}\n")
    with pytest.raises(UserError, match=r"a\.yaml would not start: eval\.episodes=3 does nothing in this run"):
        import_rllib.main([str(file), "--dir", str(tmp_path / "made")])
    assert not (tmp_path / "made").exists()


def test_free_log_std_is_for_continuous_actions():
    for place in ({"free_log_std": False}, {"model": {"free_log_std": False}}):
        discrete, continuous = (
            translate("a", {"run": "PPO", "env": env, "config": place}, "a")[0]
            for env in ("CartPole-v1", "Pendulum-v1")
        )
        assert "model.free_log_std" not in discrete.values and continuous.values["model.free_log_std"] is False
        key = "free_log_std" if "free_log_std" in place else "model.free_log_std"
        assert [(line.how, line.why) for line in discrete.lines if line.key == key] == [
            ("dropped", "actions are discrete")
        ]


def test_ppo_of_atari_means_the_same():
    games = translate("atari-ppo", RELEASES["0.7.0"]["atari-ppo.yaml"], "atari-ppo.yaml")
    assert [(one.name, one.env) for one in games] == [
        (f"atari-ppo-{game.lower()}", game) for game in ("Breakout", "BeamRider", "Qbert", "SpaceInvaders")
    ]  # fmt: skip
    expected = {
        "algo.fragment_length": 100, "algo.batch_size": 5000, "algo.minibatch_size": 500, "algo.num_epochs": 10, "algo.lambda_": 0.95, "algo.kl_coef": 0.5,
        "algo.clip": 0.1, "algo.value_clip": 10, "algo.entropy_coef": 0.01, "algo.reward_clip": "sign", "model.share_value": True,
        "algo.lr": 5e-5, "algo.max_grad_norm": 0.0, "algo.normalize_advantage": "batch", "algo.value_coef": 2.0, "env_steps": 10_000_000, "env.size": 84,
    }  # fmt: skip
    assert {key: games[0].values[key] for key in expected} == expected


def test_dqn_counts_target_updates_and_schedules_in_our_units():
    (one, *_) = translate("atari-dqn", RELEASES["0.7.0"]["atari-dqn.yaml"], "atari-dqn.yaml")
    assert (
        one.algo == "dqn" and one.values["replay._choice"] == "uniform" and one.values["replay.capacity"] == 1_000_000
    )
    # 8,000 env steps, an update of 32 every 4
    assert one.values["algo.replay_ratio"] == 8 and one.values["algo.target_update_interval"] == 2000
    assert one.values["algo.exploration.epsilon"] == {"start": 1.0, "end": 0.01, "steps": 200_000}
    assert (
        one.values["algo.optimizer.epsilon"] == 1.5e-4
        and one.values["algo.learning_starts"] == 20_000
        and not one.values["algo.double"]
    )
    apex, *_ = translate("atari-apex", RELEASES["0.7.0"]["atari-apex.yaml"], "atari-apex.yaml")
    assert (
        apex.algo == "apex"
        and apex.values["algo.inner.target_update_interval"] == 98
        and apex.values["algo.inner.num_envs"] == 64
    )
    assert apex.values["algo.inner.n_step"] == 3 and apex.values["runner.num_shards"] == 4
    assert apex.values["replay.beta"] == {"start": 0.4, "end": 1.0, "steps": 2_000_000.0}


def test_atoms_and_noise_choose_the_algorithm():
    assert translate("a", RELEASES["0.7.0"]["atari-dist-dqn.yaml"], "a")[0].algo == "c51"
    (rainbow,) = translate("a", RELEASES["0.7.0"]["pong-rainbow.yaml"], "a")
    assert rainbow.algo == "rainbow" and rainbow.values["algo.exploration.epsilon"] == {
        "start": 1.0,
        "end": 0.0,
        "steps": 2.0,
    }
    assert (
        rainbow.values["algo.head.noisy"] is True
        and rainbow.values["env.size"] == 42
        and rainbow.values["replay._choice"] == "prioritized"
    )
    assert values("2.7", "simple_q/cartpole-simpleq.yaml")["algo.head.hidden"] == []


def test_memory_exploration_and_whole_episodes():
    r2d2 = values("2.7", "r2d2/stateless-cartpole-r2d2.yaml")
    assert (
        r2d2["algo.batch_size"] == 50
        and r2d2["algo.sequence_length"] == 20
        and r2d2["algo.burn_in"] == 20
        and r2d2["algo.zero_init_state"] is True
    )
    assert (
        r2d2["replay.capacity"] == 100_000
        and r2d2["model.memory.size"] == 64
        and r2d2["algo.value_rescaling"] == 1e-3
    )
    soft = values("2.7", "dqn/cartpole-dqn-softq.yaml")
    assert (
        soft["algo.exploration.kind"] == "soft_q"
        and soft["algo.exploration.temperature"] == 0.5
        and soft["algo.exploration.epsilon"] == 0.0
    )
    noise = values("2.7", "dqn/cartpole-dqn-param-noise.yaml")
    assert (noise["algo.exploration.kind"], noise["algo.exploration.epsilon"]) == ("parameter_noise", 0.01)
    assert noise["algo.exploration.noise_epsilon"] == 0.01 and noise["algo.random_steps"] == 10_000

    def of_its_time(name):
        return values("0.7.0", name, config={**RELEASES["0.7.0"][name]["config"], "sample_batch_size": 200})

    hopper = of_its_time("hopper-ppo.yaml")  # each of 64 environments plays until it has 2,500 rows
    assert (
        hopper["runner.complete_episodes"] is True
        and hopper["algo.fragment_length"] == 2600
        and hopper["algo.batch_size"] == 166_400
    )
    cheetah = of_its_time("halfcheetah-ppo.yaml")  # two rounds of 200 rows from 256 environments
    assert (
        cheetah["algo.fragment_length"] == 200
        and cheetah["algo.batch_size"] == 102_400
        and cheetah["algo.batch_size"] % cheetah["algo.minibatch_size"] == 0
    )


@pytest.mark.parametrize(
    "name, rows, batch",
    [
        ("ppo/pendulum-ppo.yaml", 26, 520),  # 512 of 20 environments
        ("ppo/halfcheetah-ppo.yaml", 256, 65_536),
        ("ppo/hopper-ppo.yaml", 2500, 160_000),  # whole episodes
        ("ppo/pong-ppo.yaml", 32, 5120),
        ("ppo/cartpole-ppo.yaml", 200, 4000),  # whole rounds, which stay as they are
    ],
)
def test_ppo_changes_fragments_that_do_not_make_up_the_batch(name, rows, batch):
    made = values("1.13", name)
    assert (made["algo.fragment_length"], made["algo.batch_size"]) == (rows, batch)


def test_the_older_defaults_are_those_of_their_time():
    old = RELEASES["0.7.0"]["regression_tests/cartpole-appo.yaml"]
    assert values("0.7.0", "regression_tests/cartpole-appo.yaml")["algo.vtrace"] is False
    (one,) = translate("a", {**old, "config": {"sample_batch_size": 10}}, "a")
    assert one.values["algo.vtrace"] is False
    (one,) = translate("a", {**old, "config": {"rollout_fragment_length": 10}}, "a")
    assert one.values["algo.vtrace"] is True


@pytest.mark.parametrize("run, greedy", [("PPO", False), ("DQN", True), ("ES", None)])
def test_evaluations_that_a_stop_asks_for_act_as_rllibs_do(run, greedy):
    """DQN's own evaluation_config has explore=false, and those of ES are greedy anyway, as eval.greedy is by default."""
    (one,) = translate("a", {"run": run, "env": "CartPole-v1", "stop": {"evaluation/episode_reward_mean": 400}}, "a")
    assert (one.values["eval.every"], one.values.get("eval.greedy")) == (50_000, greedy)


def test_an_evaluation_that_cannot_be_counted_says_how_it_would_act():
    said = {run: told_of(run, {"evaluation_interval": 1})[1]["evaluation_interval"] for run in ("IMPALA", "QMIX", "ES")}
    assert [how for how, _, _ in said.values()] == 3 * ["not mapped"]
    assert {run: "eval.greedy=false" in why for run, (_, _, why) in said.items()} == {"IMPALA": True, "QMIX": False, "ES": False}


def test_stops():
    (one,) = translate("a", {"run": "PPO", "env": "CartPole-v1", "stop": {"evaluation/env_runners/episode_return_mean": 400, "training_iteration": 5,
                       "time_total_s": 60, "mystery": 1}, "pass_criteria": {"num_env_steps_sampled_lifetime": "1e5"}}, "a")  # fmt: skip
    assert (
        one.values["eval.every"]
        and "stop.return_mean" not in one.values
        and one.values["stop.wall_sec"] == 60
        and one.values["env_steps"] == 5 * 4000  # RLlib's loop ends there, before what the file wants to see
    )
    assert {line.key: line.how for line in one.lines if line.key.startswith(("stop", "pass"))} == {
        "stop.evaluation/env_runners/episode_return_mean": "not mapped", "stop.training_iteration": "mapped", "stop.time_total_s": "mapped",
        "stop.mystery": "not mapped", "pass_criteria.num_env_steps_sampled_lifetime": "dropped",
    }  # fmt: skip
    (one,) = translate(
        "a", {"run": "PPO", "env": "CartPole-v1", "stop": {"episode_reward_mean": 150, "timesteps_total": 1e5}}, "a"
    )
    for run, options, steps in (
        ("PPO", {"train_batch_size": 800}, 8000),
        ("DQN", {}, 10_000),
        ("DQN", {"min_sample_timesteps_per_iteration": 300}, 3000),
        ("DQN", {"min_sample_timesteps_per_reporting": 300}, 3000),
        ("DQN", {"min_train_timesteps_per_iteration": 300}, None),
        ("PPO", {"min_sample_timesteps_per_iteration": 5000}, 80_000),  # two whole batches each
        ("PPO", {"min_sample_timesteps_per_iteration": 300}, 40_000),
        ("PPO", {"min_time_s_per_iteration": 5}, None),
        ("A2C", {}, None),
        ("IMPALA", {}, None),
    ):
        file = {"run": run, "env": "CartPole-v1", "stop": {"training_iteration": 10}, "config": options}
        (made,) = translate("a", file, "a")
        (line,) = (line for line in made.lines if line.key == "stop.training_iteration")
        assert (line.how, line.became) == (("mapped", f"env_steps={steps}") if steps else ("not mapped", ""))
        assert made.values["env_steps"] == (steps or 10_000_000)
    assert (
        one.values["stop.return_mean"] == 150
        and one.values["expected"]["return"] == 150
        and one.values["expected"]["env_steps"] == 100_000
    )


@pytest.mark.parametrize(
    "stop, passes, wanted, expected, hows",
    [  # (return, env steps, seconds) that end the run, those that are expected, and what becomes of the pass criteria
        ({"episode_reward_mean": 200, "timesteps_total": 100}, {"episode_reward_mean": 150, "timesteps_total": 1000},
         (200, 100, None), (150, 100), ["mapped", "dropped"]),
        ({"time_total_s": 60}, {"episode_reward_mean": 150, "timesteps_total": 1000}, (None, 10**9, 60), (150, 1000), ["mapped", "mapped"]),
        ({}, {"episode_reward_mean": 150, "timesteps_total": 1000}, (150, 1000, None), (150, 1000), ["mapped", "mapped"]),
        ({"evaluation/episode_reward_mean": 100}, {"episode_reward_mean": 150, "timesteps_total": 1000}, (150, 1000, None), (150, 1000),
         ["mapped", "mapped"]),
        ({"episode_reward_mean": 200, "env_runners/episode_return_mean": 180, "timesteps_total": 100}, {}, (180, 100, None), (180, 100), []),
        ({"episode_reward_mean": float("nan"), "timesteps_total": 100}, {}, (None, 100, None), None, []),
        ({"timesteps_total": float("inf"), "time_total_s": 60}, {}, (None, 10**9, 60), None, []),
    ],
)  # fmt: skip
def test_stop_ends_the_run_and_pass_criteria_say_what_is_expected(stop, passes, wanted, expected, hows):
    (one,) = translate("a", {"run": "PPO", "env": "CartPole-v1", "stop": stop, "pass_criteria": passes}, "a")
    assert tuple(one.values.get(key) for key in ("stop.return_mean", "env_steps", "stop.wall_sec")) == wanted
    reached = one.values.get("expected")
    assert (reached and (reached["return"], reached["env_steps"])) == expected
    assert [line.how for line in one.lines if line.key.startswith("pass_criteria")] == hows
    written = {f"{key}={flow(value)}" for key, value in one.values.items()}
    assert {line.became for line in one.lines if line.key.startswith(("stop", "pass")) and line.became} <= written


@pytest.mark.parametrize(
    "env, stop, options, steps, why",
    [
        ("CartPole-v1", {}, {}, 10**7, "the file never stops; this run ends at 10,000,000 env steps"),
        ("CartPole-v1", {"mystery": 3}, {}, 10**7, "nothing in the file's `stop` has a counterpart here; this run ends at 10,000,000"),
        ("CartPole-v1", {}, {"lr_schedule": [[0, 1e-3], [1.5e8, 0]]}, 150_000_000, "its longest schedule ends there"),
        ("CartPole-v1", {"time_total_s": 60}, {}, 10**9, "stop.wall_sec=60.0 ends the run; so many env steps are not to end it before"),
        ("CartPole-v1", {"episode_reward_mean": 150, "time_total_s": 60}, {}, 10**9, "stop.return_mean=150.0 or stop.wall_sec=60.0 ends"),
        ("CartPole-v1", {"time_total_s": 60}, {"entropy_coeff_schedule": [[0, 0.1], [3e9, 0]]}, 3 * 10**9, "stop.wall_sec=60.0 ends"),
        ("PongNoFrameskip-v4", {"time_total_s": 60}, {}, 10**7, "RLlib's Atari tables end there"),
    ],
)  # fmt: skip
def test_a_file_without_env_steps_ends_where_it_says_and_why(env, stop, options, steps, why):
    (one,) = translate("a", {"run": "PPO", "env": env, "stop": stop, "config": options}, "a")
    (line,) = (line for line in one.lines if line.became.startswith("env_steps="))
    assert (one.values["env_steps"], line.how) == (steps, "added") and why in line.why


RESOURCES = (
    "num_cpus_per_env_runner num_cpus_per_worker num_gpus_per_worker num_gpus_per_env_runner num_cpus_per_learner num_gpus_per_learner num_learner_workers"
    " num_gpus_per_learner_worker num_cpus_per_learner_worker num_cpus_for_main_process num_aggregator_actors_per_learner remote_worker_envs"
    " remote_env_batch_wait_ms placement_strategy custom_resources_per_worker custom_resources_per_env_runner local_gpu_idx create_local_env_runner"
    " max_requests_in_flight_per_learner max_requests_in_flight_per_aggregator_actor gym_env_vectorize_mode validate_env_runners_after_construction"
)


@pytest.mark.parametrize("run", ["PPO", "IMPALA", "DQN", "A3C"])
def test_options_of_rllibs_resources_are_known(run):
    config = dict.fromkeys(RESOURCES.split(), 1)
    (one,) = translate("a", {"run": run, "env": "CartPole-v1", "config": config}, "a")
    lines = {line.key: line for line in one.lines if line.given}
    assert all(lines[key].how == "dropped" and lines[key].why for key in config)


@pytest.mark.parametrize("run", ["PPO", "A3C", "DDPPO", "APEX", "MAML", "DREAMERV3"])
def test_the_name_of_workers_in_algorithm_config_is_that_in_the_dictionary(run):
    env = "ray.rllib.examples.env.pendulum_mass.PendulumMassEnv" if run == "MAML" else "CartPole-v1"
    made = []
    for name in ("num_workers", "num_rollout_workers"):
        (one,) = translate("a", {"run": run, "env": env, "config": {name: 3}}, "a")
        (line,) = (line for line in one.lines if line.key == name)
        made.append((one.values, line.how, line.became, line.why.replace("num_rollout_workers", "num_workers")))
    assert made[0] == made[1] and made[0][1] != "not mapped"


def test_qmix_has_the_mixers_that_rllib_has():
    def made(**config):
        return translate("a", {"run": "QMIX", "env": "two_step_game", "config": config}, "a")[0]

    assert [made(mixer=one).algo for one in ("qmix", "vdn", None)] == ["qmix", "vdn", "iql"]
    garbage = made(mixer="garbage")
    (line,) = (line for line in garbage.lines if line.key == "mixer")
    assert (garbage.algo, line.how, line.why) == ("qmix", "not mapped", "in RLlib it is one of qmix, vdn, not garbage")


def test_bounds_and_epsilons_mean_what_they_meant():
    (a2c, *_) = translate("a", RELEASES["0.7.0"]["atari-a2c.yaml"], "a")
    # RLlib's 40 bounds the gradient of a sum over 500 rows
    assert a2c.values["algo.batch_size"] == 500 and a2c.values["algo.max_grad_norm"] == 0.08
    block = {"opt_type": "adam", "decay": 0.99, "momentum": 0.0, "epsilon": 0.1}
    (impala,) = translate("a", {"run": "IMPALA", "env": "CartPole-v1", "config": block}, "a")
    assert impala.values["algo.optimizer.epsilon"] == 1e-8
    assert {line.key: line.how for line in impala.lines}["epsilon"] == "dropped"
    (impala,) = translate("a", {"run": "IMPALA", "env": "CartPole-v1", "config": {"opt_type": "rmsprop"}}, "a")
    assert impala.values["algo.optimizer.epsilon"] == 0.1 and impala.values["algo.optimizer.kind"] == "rmsprop_tf"
    (new,) = translate(
        "a", {"run": "PPO", "env": "CartPole-v1", "config": {"rollout_fragment_length": 50, "vf_clip_param": 7.0}}, "a"
    )
    assert new.values["algo.value_loss_clip"] == 7 and new.values["algo.value_clip"] == 0


def test_what_a_grid_loses_is_said():
    config = {"train_batch_size": {"grid_search": [4000, 8000]}, "num_sgd_iter": {"grid_search": [3, 5]}}
    (one,) = translate("a", {"run": "PPO", "env": "CartPole-v1", "config": config}, "a")
    said = {line.key: line.why for line in one.lines}
    assert (
        "the first of 2: a sweep over the others is yours" in said["train_batch_size"]
        and "yours" not in said["num_sgd_iter"]
    )
    assert one.grid == {"algo.num_epochs": [3, 5]}


@pytest.mark.parametrize(
    "run, group, inside",
    [
        ("PPO", "model", {"gamma": 0.5, "lr": 0.1, "seed": 3, "lambda": 0.2}),
        ("DQN", "exploration_config", {"lr": 0.5, "gamma": 0.5}),
        ("DQN", "replay_buffer_config", {"lr": 0.5, "n_step": 5}),
    ],
)
def test_a_group_changes_no_option_of_the_algorithm(run, group, inside):
    values, said, _ = told_of(run, {group: inside})
    assert {key: said[f"{group}.{key}"][0] for key in inside} == dict.fromkeys(inside, "not mapped")
    plain = told_of(run, {})[0]
    assert {key: value for key, value in values.items() if plain.get(key) != value} == {}


REFUSED = [  # (run, option, value, what rlrun's option becomes, which is RLlib's default)
    ("PPO", "lr", {"uniform": [1e-4, 1e-3]}, "algo.lr", 5e-5),
    ("PPO", "lr", "lambda spec: 1e-4", "algo.lr", 5e-5),
    ("PPO", "gamma", "high", "algo.discount", 0.99),
    ("PPO", "num_sgd_iter", "ten", "algo.num_epochs", 30),
    ("PPO", "vf_loss_coeff", "x", "algo.value_coef", 2.0),
    ("PPO", "lambda", 95, "algo.lambda_", 1.0),
    ("PPO", "lambda_", 95, "algo.lambda_", 1.0),
    ("PPO", "clip_param", -1, "algo.clip", 0.3),
    ("PPO", "clip_param", {"grid_search": [0.1, -1]}, "algo.clip", 0.3),
    ("PPO", "lr", {"grid_search": [1e-4, "x"]}, "algo.lr", 5e-5),
    ("PPO", "observation_filter", {"grid_search": ["MeanStdFilter", "Mine"]}, "model.observation_filter", "none"),
    ("DQN", "gamma", 3.0, "algo.discount", 0.99),
    ("DQN", "target_network_update_freq", "often", "algo.target_update_interval", 125),
    ("SAC", "tau", 7.0, "algo.target_tau", 5e-3),
    ("PPO", "model", {"use_lstm": True, "max_seq_len": 0}, "algo.sequence_length", 20),
    ("PPO", "model", {"use_attention": True, "attention_num_heads": 0}, "model.memory.heads", 1),
    ("PPO", "model", {"lstm_cell_size": -3, "use_lstm": True}, "model.memory.size", 256),
]  # fmt: skip


@pytest.mark.parametrize("run, option, value, target, default", REFUSED)
def test_a_refused_value_leaves_rllibs_default(run, option, value, target, default):
    values, _, one = told_of(run, {option: value})
    assert values[target] == pytest.approx(default) and not one.grid
    assert any(line.how == "not mapped" and line.given for line in one.lines)
    said = [line for line in one.lines if line.became.startswith(f"{target}=")]
    assert [line.how == "added" or not line.given for line in said] == [True]
    assert option in ("lambda_", "model") or f"RLlib's default, because {option} is refused" in said[0].why


SWITCHES = [[[0, 1e-3], [10, 1e-4]], [[0, 1e-2], [10, 1e-4]]]
GRIDS = [  # (run, options, the option that is a grid, what its line says, values that are written, the file's own grid)
    ("DQN", {"prioritized_replay": [False, True]}, "prioritized_replay", ("mapped", "replay=uniform"), {"replay._choice": "uniform"}, {}),
    ("DQN", {"soft_q": [False, True]}, "soft_q", ("dropped", ""), {"algo.exploration.kind": "epsilon_greedy"}, {}),
    ("DQN", {"parameter_noise": [False, True]}, "parameter_noise", ("dropped", ""), {"algo.exploration.kind": "epsilon_greedy"}, {}),
    ("DQN", {"per_worker_exploration": [False, True]}, "per_worker_exploration", ("dropped", ""), {"algo.exploration.epsilon_min": None}, {}),
    ("PPO", {"lr": 1e-3, "lr_schedule": SWITCHES}, "lr_schedule", ("mapped", "algo.lr="), {"algo.lr": SWITCHES[0]}, {"algo.lr": SWITCHES}),
    ("DQN", {"lr_schedule": SWITCHES}, "lr_schedule", ("mapped", "algo.lr="), {"algo.lr": SWITCHES[0]}, {"algo.lr": SWITCHES}),
    ("DDPG", {"lr_schedule": SWITCHES}, "lr_schedule", ("mapped", "algo.actor_lr="), {"algo.actor_lr": SWITCHES[0], "algo.critic_lr": SWITCHES[0]}, {}),
    ("PPO", {"model": {"use_lstm": {"grid_search": [False, True]}}}, "model.use_lstm", ("dropped", ""), {}, {}),
    ("APPO", {"_separate_vf_optimizer": [False, True]}, "_separate_vf_optimizer", ("dropped", ""), {}, {}),
    ("SAC", {"_use_beta_distribution": [False, True]}, "_use_beta_distribution", ("dropped", ""), {}, {}),
    ("PPO", {"train_batch_size": 1000, "minibatch_size": ["auto", 100]}, "minibatch_size", ("mapped", "algo.minibatch_size=1000"), {}, {"algo.minibatch_size": [1000, 100]}),
    ("PPO", {"num_workers": [1, 2]}, "num_workers", ("not mapped", ""), {}, {}),
    ("SAC", {"alpha_lr": [1e-3, 1e-4]}, "alpha_lr", ("mapped", "algo.alpha_lr="), {"algo.alpha_lr": 1e-3}, {"algo.alpha_lr": [1e-3, 1e-4]}),
    ("PPO", {"evaluation_interval": [2, 1]}, "evaluation_interval", ("mapped", "eval.every=8000"), {}, {}),
    ("PPO", {"model": [{"fcnet_hiddens": [8]}, {}]}, "model", ("not mapped", ""), {"model.hidden": [8]}, {}),
    ("DQN", {"exploration_config": [{"type": "SoftQ"}, {"type": "Random"}]}, "exploration_config", ("not mapped", ""), {"algo.exploration.kind": "soft_q"}, {}),
    ("A2C", {"grad_clip": [40.0, 10.0]}, "grad_clip", ("mapped", "algo.max_grad_norm=0.2"), {}, {"algo.max_grad_norm": [0.2, 0.05]}),
    ("SAC", {"grad_clip": [40.0, 10.0]}, "grad_clip", ("mapped", "algo.max_grad_norm=40"), {}, {"algo.max_grad_norm": [40, 10]}),
    ("IMPALA", {"entropy_coeff": [0.01, -0.02]}, "entropy_coeff", ("mapped", "algo.entropy_coef=0.01"), {}, {"algo.entropy_coef": [0.01, 0.02]}),
    ("PPO", {"sample_batch_size": 200, "vf_clip_param": [1.0, 2.0]}, "vf_clip_param", ("mapped", "algo.value_clip=1.0"),
     {"algo.value_loss_clip": 0.0}, {"algo.value_clip": [1.0, 2.0]}),
]  # fmt: skip


@pytest.mark.parametrize("run, config, key, line, wanted, grid", GRIDS)
def test_the_first_value_of_a_grid_is_translated_and_the_others_are_said(run, config, key, line, wanted, grid):
    top = {name: {"grid_search": value} if isinstance(value, list) else value for name, value in config.items()}
    values, said, one = told_of(run, top)
    how, became, why = said[key]
    assert how == line[0] and became.startswith(line[1]) and "the first of 2" in why
    assert {name: values[name] for name in wanted} == wanted and one.grid == grid
    assert "lr" not in config or said["lr"][2] == "lr_schedule wins"


@pytest.mark.parametrize("nested", [False, True])
def test_a_grid_of_the_environments_own_options_is_swept(nested, tmp_path, capsys):
    kwargs = {"is_slippery": {"grid_search": [True, False]}, "map_name": "4x4"}
    config = {"env_config": {"config": kwargs} if nested else kwargs}
    (one,) = translate("a", {"run": "PPO", "env": "FrozenLake-v1", "config": config}, "a")
    assert one.values["env.kwargs"] == {"is_slippery": True, "map_name": "4x4"}
    assert one.grid == {"env.kwargs.is_slippery": [True, False]}
    key = "env_config.config.is_slippery" if nested else "env_config.is_slippery"
    (line,) = [line for line in one.lines if line.key == key]
    assert line.how == "mapped" and "the file's head has the sweep" in line.why
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"a": {"run": "PPO", "env": "FrozenLake-v1", "config": config}}))
    assert _dispatch(["import-rllib", str(tmp_path / "a.yaml"), "--dir", str(tmp_path / "out"), "--quiet"]) == 0
    printed = capsys.readouterr().out.splitlines()[-1].strip()
    (file,) = tmp_path.glob("**/tuned/*/*.yaml")
    assert f"# Its grid: {printed}" in file.read_text().splitlines()  # the head has the whole command
    assert _dispatch([*shlex.split(printed)[1:], "--dry-run"]) == 0 and "2 jobs" in capsys.readouterr().out


@pytest.mark.parametrize("nested", [False, True])
def test_a_time_limit_among_the_environments_own_options_is_rlruns(nested):
    """gymnasium.make takes it for itself. Of a class of the user's it is rlrun's too, which refuses it as an argument."""
    for limit, grid in ((50, {}), ({"grid_search": [50, 70]}, {"env.max_episode_steps": [50, 70]})):
        kwargs = {"max_episode_steps": limit, "goal_velocity": 0.1}
        config = {"env_config": {"config": kwargs} if nested else kwargs}
        (one,) = translate("a", {"run": "PPO", "env": "MountainCar-v0", "config": config}, "a")
        assert one.values["env.kwargs"] == {"goal_velocity": 0.1} and one.values["env.max_episode_steps"] == 50
        key = "env_config.config.max_episode_steps" if nested else "env_config.max_episode_steps"
        said = {line.key: (line.how, line.became) for line in one.lines}
        assert said[key] == ("mapped", "env.max_episode_steps=50") and one.grid == grid


def test_a_grid_of_an_atari_option_or_of_groups_is_its_first_value():
    config = {"env_config": {"full_action_space": {"grid_search": [False, True]}}}
    values, said, _ = told_of("PPO", config, "PongNoFrameskip-v4")
    assert values["env.full_action_space"] is False and "the first of 2" in said["env_config.full_action_space"][2]
    config = {"env_config": {"grid_search": [{"goal_velocity": 0.1}, {"goal_velocity": 0.2}]}}
    (one,) = translate("a", {"run": "PPO", "env": "MountainCar-v0", "config": config}, "a")
    assert one.values["env.kwargs"] == {"goal_velocity": 0.1} and not one.grid
    assert any(line.how == "not mapped" and "the first of 2" in line.why for line in one.lines)


def test_text_of_the_environments_own_options_stays_text():
    kwargs = {"maze": ["0011", "0110"], "year": "2020", "size": 3, "inside": {"code": "1e6"}}
    (one,) = translate("a", {"run": "PPO", "env": "my_package:Mine-v0", "config": {"env_config": kwargs, "lr": "1e-3"}}, "a")
    assert one.values["env.kwargs"] == kwargs and one.values["algo.lr"] == 1e-3


def test_grids_of_steps_and_of_the_end_are_translated():
    config = {"horizon": {"grid_search": [100, 200]}, "framework": {"grid_search": ["tf", "torch"]}}
    stop = {"timesteps_total": {"grid_search": [5000, 9000]}}
    values, said, _ = told_of("PPO", config, "PongNoFrameskip-v4", stop=stop)
    assert (values["env.max_frames"], values["env_steps"]) == (400, 5000)
    assert all("the first of 2" in said[key][2] for key in ("horizon", "stop.timesteps_total"))
    assert said["framework"][2] == "everything is PyTorch"  # whatever its value


def test_sticky_actions_are_those_of_the_id():
    (one,) = translate(
        "a", {"run": "PPO", "env": "ale_py:ALE/Breakout-v5", "config": {"env_config": {"frameskip": 1}}}, "a"
    )
    assert one.values["env.sticky_actions"] == 0.25
    assert "env.sticky_actions" not in translate("a", {"run": "PPO", "env": "BreakoutNoFrameskip-v4"}, "a")[0].values


FRAMES = [  # (id, env_config, preprocessor_pref, frames of an env step; None: rlrun's 4, sticky actions)
    ("PongNoFrameskip-v4", {}, "deepmind", None, None),
    ("PongNoFrameskip-v4", {}, "rllib", 1, None),
    ("PongDeterministic-v4", {}, "deepmind", None, None),
    ("PongDeterministic-v4", {}, "rllib", 4, None),
    ("SpaceInvadersDeterministic-v4", {}, "deepmind", 3, None),
    ("PongNoFrameskip-v0", {}, "deepmind", None, 0.25),
    ("Pong-v0", {}, "rllib", 4, 0.25),
    ("Pong-v4", {}, "deepmind", None, None),
    ("ALE/Pong-v5", {}, "rllib", 4, 0.25),
    ("ale_py:ALE/Pong-v5", {"frameskip": 1}, "deepmind", None, 0.25),
    ("ALE/Pong-v5", {"frameskip": 1}, "rllib", 1, 0.25),
    ("ALE/Pong-v5", {"frameskip": 2, "repeat_action_probability": 0.0}, "deepmind", 2, 0.0),
    ("ALE/Pong-v5", {"frameskip": 4}, "deepmind", 4, 0.25),
]  # fmt: skip


@pytest.mark.parametrize("env, kwargs, preprocessor, frames, sticky", FRAMES)
def test_frames_and_sticky_actions_are_those_of_the_id(env, kwargs, preprocessor, frames, sticky):
    config = {"env_config": kwargs, "preprocessor_pref": preprocessor, "horizon": 100}
    values, said, _ = told_of("PPO", config, env)
    assert (values.get("env.frame_skip"), values.get("env.sticky_actions")) == (frames, sticky)
    assert values["env.max_frames"] == 100 * (frames or 4)
    assert ("drawn at random" in said["env"][2]) == (env in ("Pong-v0", "Pong-v4"))
    if "frameskip" in kwargs:
        how = "dropped" if frames is None else "mapped"
        assert said["env_config.frameskip"][0] == how


def test_continuous_control_and_evolution():
    made = values("0.7.0", "mountaincarcontinuous-ddpg.yaml")
    assert made["algo.exploration.std"] == 0.3 and made["algo.exploration.scale"] == {
        "start": 1.0,
        "end": 0.02,
        "steps": 40000,
    }
    assert (
        made["algo.actor.hidden"] == [32, 64]
        and made["algo.huber_delta"] is None
        and made["replay._choice"] == "uniform"
        and made["algo.l2"] == 1e-5
    )
    made = values("1.13", "ddpg/pendulum-td3.yaml")
    assert (
        made["algo.policy_delay"] == 2
        and made["algo.target_noise"] == 0.2
        and made["algo.exploration.kind"] == "gaussian"
    )
    assert made["algo.random_steps"] == made["algo.learning_starts"] == 5000 and made["algo.replay_ratio"] == 100
    made = values("1.13", "sac/mspacman-sac.yaml")
    assert (
        made["algo.critic.hidden"] == made["algo.actor.hidden"] == [512]
        and made["algo.target_update_interval"] == 8000
        and made["algo.target_tau"] == 1
    )
    made = values("0.7.0", "pendulum-apex-ddpg.yaml")
    assert (
        made["algo.inner.huber_delta"] == 1.0
        and made["algo.inner.exploration.scale"] == 0.4
        and made["algo.inner.exploration.scale_min"] == pytest.approx(0.4**8)
    )
    made = values("0.7.0", "regression_tests/cartpole-ars.yaml")
    assert made["algo.eval_share"] == 1.0 and made["algo.rollouts_used"] == 25 and made["algo.actor.hidden"] == []
    made = values("2.7", "es/humanoid-es.yaml")
    assert (
        made["algo.episodes_per_batch"] == 1000
        and made["algo.env_steps_per_batch"] == 10000
        and made["model.observation_filter"] == "mean_std"
    )


def test_an_evolution_without_unperturbed_games_cannot_end_at_a_return():
    for chance, how in ((0.0, "not mapped"), (0.2, "mapped")):
        made, said, _ = told_of("ES", {"eval_prob": chance}, stop={"episode_reward_mean": 150})
        assert said["stop.episode_reward_mean"][0] == how and ("stop.return_mean" in made) == (how == "mapped")
    assert "no games of the unperturbed policy" in told_of("ARS", {"eval_prob": 0}, stop={"episode_reward_mean": 9})[1]["stop.episode_reward_mean"][2]


def test_defaults_are_not_said_beside_what_the_file_says_under_another_name():
    config = {
        "num_epochs": 20,
        "lambda_": 0.95,
        "num_env_runners": 2,
        "num_envs_per_env_runner": 4,
        "train_batch_size_per_learner": 2000,
    }
    (one,) = translate("a", {"run": "PPO", "env": "CartPole-v1", "config": config}, "a")
    assert (
        one.values["algo.num_epochs"] == 20
        and one.values["algo.batch_size"] == 2000
        and one.values["algo.fragment_length"] == 250
    )
    assert not [line for line in one.lines if line.key in ("num_sgd_iter", "train_batch_size")]
    (old,) = translate("a", {"run": "PPO", "env": "CartPole-v1", "config": {"num_workers": 2}}, "a")
    assert old.values["algo.fragment_length"] == 200, "before 2.0"
    (dqn,) = translate(
        "a", {"run": "DQN", "env": "CartPole-v1", "config": {"prioritized_replay": False, "buffer_size": 7000}}, "a"
    )
    assert [line.value for line in dqn.lines if line.became.startswith("replay.capacity")] == [7000]


def told_of(run, config, env=None, **beside):
    """(values, {option: (how, became, why)}, the translation) of an experiment with these options."""
    boxes = ("DDPG", "SAC", "TD3", "APEX_DDPG")
    env = env or ("Pendulum-v1" if run in boxes else "TwoStepGame" if "QMIX" in run else "CartPole-v1")
    (one,) = translate("a", {"run": run, "env": env, "config": config, **beside}, "a")
    type_config(whole(one))
    return one.values, {line.key: (line.how, line.became, line.why) for line in one.lines if line.given}, one


def whole(one):
    """The config of a translated file, with all of its values."""
    inner = [f"algo@algo.inner={one.inner}"] if one.inner else []
    inner += [f"runner={one.values['runner._choice']}"] if "runner._choice" in one.values else []
    config = base(one.algo, one.env, one.values.get("model._choice"), one.values.get("replay._choice"), *inner)
    config = copy.deepcopy(config)
    for key, value in one.values.items():
        *groups, last = key.split(".")
        node = config
        for group in groups:
            node = node[group]
        if last != "_choice":
            assert last in node, key
            node[last] = value
    return config


LOST = [  # (run, option, value, environment, what is not mapped, a part of the reason)
    ("TD3", "optimizer_class", "AsyncGradientsOptimizer", None, "optimizer_class", "runner=replay"),
    ("SAC", "exploration_config", {"type": "RND"}, None, "exploration_config.type", "no RND"),
    ("A3C", "exploration_config", {"type": "Curiosity", "eta": 2.0}, None, "exploration_config.eta", "a2c is its synchronous form"),
    ("PPO", "explore", False, "Pendulum-v1", "explore", "a greedy choice of continuous actions has none"),
    ("PPO", "exploration_config", {"type": "EpsilonGreedy"}, None, "exploration_config.type", "by sampling from the policy, which is RLlib's default"),
    ("DQN", "exploration_config", {"type": "ThompsonSampling"}, None, "exploration_config.type", "no ThompsonSampling here.*EpsilonGreedy"),
    ("APEX", "exploration_config", {"type": "mine.RND"}, None, "exploration_config.type", "no RND here.*PerWorkerEpsilonGreedy"),
    ("TD3", "exploration_config", {"type": "RND"}, None, "exploration_config.type", "no RND here.*GaussianNoise"),
    ("DDPG", "exploration_config", {"type": "RND"}, None, "exploration_config.type", "no RND here.*OrnsteinUhlenbeckNoise"),
    ("PPO", "exploration_config", "os:system", None, "exploration_config", "a group of keys, not os:system"),
    ("DQN", "exploration_config", {"type": "os:system"}, None, "exploration_config.type", "in RLlib it is the name of a class, such as EpsilonGreedy, not os:system"),
    ("APEX_QMIX", "exploration_config", {"type": "SoftQ"}, None, "exploration_config.type", "no SoftQ here.*PerWorkerEpsilonGreedy"),
    ("PPO", "use_critic", False, None, "use_critic", "RLlib refuses GAE without a critic"),
    ("APPO", "use_critic", False, None, "use_critic", "V-trace needs values"),
    ("R2D2", "model", {"use_lstm": False}, None, "model.use_lstm", "always has a memory"),
    ("PPO", "lr", [[5, 0.1], [3, 0.2]], None, "lr", "points"),
    ("DQN", "n_step", [3, 1], None, "n_step", "two whole numbers"),
    ("PPO", "batch_mode", "complete", None, "batch_mode", "one of truncate_episodes, complete_episodes"),
    ("PPO", "callbacks", "my_package.Mine", None, "callbacks", r"\[my_package.module:MyCallback\]"),
    ("PPO", "model", {"free_log_std": False}, "my_package:Mine-v0", "model.free_log_std", "if actions are continuous"),
    ("PPO", "model", {"dim": 240}, "PongNoFrameskip-v4", "model.dim", "between 1 and 160"),
    ("PPO", "model", {"conv_filters": [[16, 4, 2], [32, 4]]}, "PongNoFrameskip-v4", "model.conv_filters", "a list of 3"),
    ("PPO", "model", {"post_fcnet_hiddens": [9], "post_fcnet_activation": "linear"}, "PongNoFrameskip-v4", "model.post_fcnet_hiddens", "without a nonlinearity"),
    ("PPO", "model", {"custom_model": "mine"}, None, "model.custom_model", "model.encoder, model.value_head"),
    ("SAC", "policy_model_config", {"custom_model": "mine"}, None, "policy_model_config.custom_model", "model.encoder= stands before"),
    ("SAC", "model", {"use_lstm": True}, None, "model.use_lstm", "no memory either"),
    ("DQN", "model", {"use_attention": True}, None, "model.use_attention", "algo=r2d2"),
    ("PPO", "lambda", 3.0, None, "lambda", "between 0 and 1"),
    ("PPO", "clip_rewards", [0.0, 1.0], None, "clip_rewards", "must be a number or none, sign, not .0.0, 1.0."),
    ("PPO", "clip_rewards", [1.0, -1.0], None, "clip_rewards", r"or \[the least, the largest\], not \[1.0, -1.0\]"),
    ("IMPALA", "grad_clip_by", "norm", None, "grad_clip_by", "norm of the whole gradient, not that of each tensor"),
    ("PPO", "evaluation_parallel_to_training", True, None, "evaluation_parallel_to_training", "training waits"),
    ("PPO", "custom_evaluation_function", "mine", None, "custom_evaluation_function", "rlrun.Evaluation"),
    ("PPO", "evaluation_duration", "auto", None, "evaluation_duration", "a number of games"),
    *[(run, "no_done_at_end", False, None, "no_done_at_end", "which true approximates; false makes it an end") for run in ("PPO", "DQN", "SAC")],
    ("IMPALA", "soft_horizon", True, None, "soft_horizon", "only the environment ends episodes"),
    *[(run, "normalize_actions", False, "Pendulum-v1", "normalize_actions", "act in the environment's units") for run in ("PPO", "SAC")],
    *[("PPO", option, False, None, option, "always shuffled|shuffled anew") for option in ("shuffle_sequences", "shuffle_batch_per_epoch")],
    ("IMPALA", "model", {"use_lstm": True, "max_seq_len": 20}, None, "model.max_seq_len", "fragment of 50 rows, and RLlib's through 20"),
    ("A2C", "model", {"use_lstm": True, "max_seq_len": 5}, None, "model.max_seq_len", "fragment of 20 rows, and RLlib's through 5"),
    ("DQN", "prioritised", True, None, "prioritised", "no such option of DQN"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "option", "value", "env", "lost", "why"), LOST)
def test_what_has_no_counterpart_is_said_with_its_reason(run, option, value, env, lost, why):
    how, became, said = told_of(run, {option: value}, env)[1][lost]
    assert (how, became) == ("not mapped", "") and re.search(why, said), said


SAME = [  # (run, options, what rlrun's options become)
    ("DQN", {"soft_q": False, "parameter_noise": False}, {"algo.exploration.kind": "epsilon_greedy"}),
    ("DQN", {"soft_q": True, "softmax_temp": 0.5}, {"algo.exploration.kind": "soft_q", "algo.exploration.temperature": 0.5}),
    ("DQN", {"exploration_config": {"type": "Random"}}, {"algo.exploration.kind": "random"}),
    ("DDPG", {"exploration_config": {"type": "Random"}}, {"algo.exploration.kind": "random", "algo.random_steps": 0}),
    ("SAC", {"exploration_config": {"type": "ray.rllib.utils.exploration.random.Random"}}, {"algo.exploration.kind": "random"}),
    ("PPO", {"exploration_config": {"type": "StochasticSampling", "random_timesteps": 500}}, {"algo.exploration.kind": "sampled", "algo.random_steps": 500}),
    ("IMPALA", {"exploration_config": {"type": "Random"}, "explore": True}, {"algo.exploration.kind": "random", "algo.explore": True}),
    ("APEX", {"explore": False}, {"algo.inner.explore": False}),
    ("PPO", {"use_critic": False, "use_gae": False, "vf_clip_param": 5.0}, {"algo.use_critic": False, "algo.value_loss_clip": 0.0}),
    ("APPO", {"use_critic": False, "vtrace": False}, {"algo.use_critic": False, "algo.vtrace": False}),
    ("APPO", {"_separate_vf_optimizer": True, "_lr_vf": 0.002, "model": {"vf_share_layers": False}}, {"algo.value_lr": 0.002}),
    ("IMPALA", {"opt_type": "rmsprop", "decay": 0.9}, {"algo.optimizer.kind": "rmsprop_tf", "algo.optimizer.epsilon": 0.1, "algo.optimizer.decay": 0.9}),
    ("IMPALA", {"num_workers": 2}, {"algo.loss_reduction": "sum"}),
    ("IMPALA", {"num_env_runners": 2}, {"algo.loss_reduction": "mean"}),  # the new stack's learner divides by the rows
    ("IMPALA", {"num_env_runners": 2, "enable_rl_module_and_learner": False}, {"algo.loss_reduction": "sum"}),
    ("IMPALA", {"opt_type": "rmsprop", "framework": "torch"}, {"algo.optimizer.kind": "rmsprop"}),
    ("IMPALA", {"minibatch_size": "auto", "train_batch_size_per_learner": 500}, {"algo.batch_size": 500}),
    ("PPO", {"minibatch_size": "auto", "train_batch_size_per_learner": 500}, {"algo.minibatch_size": 500}),
    ("PPO", {"horizon": None}, {}),
    ("PPO", {"normalize_actions": False, "shuffle_sequences": True, "shuffle_batch_per_epoch": True}, {}),  # CartPole's actions are choices
    ("SAC", {"normalize_actions": True, "clip_actions": True}, {}),
    ("IMPALA", {"model": {"use_lstm": True, "max_seq_len": 50}}, {"algo.fragment_length": 50}),
    *[(run, {"horizon": 100, "no_done_at_end": True, "soft_horizon": False}, {"env.max_episode_steps": 100}) for run in ("PPO", "DQN", "DDPG")],
    ("DQN", {"per_worker_exploration": True, "num_workers": 2}, {"algo.exploration.epsilon": 0.4, "algo.exploration.epsilon_min": pytest.approx(0.4**8)}),
    ("DQN", {"exploration_config": {"type": "PerWorkerEpsilonGreedy"}, "num_workers": 1}, {"algo.exploration.epsilon": 0.4, "algo.exploration.epsilon_min": None}),
    ("DQN", {"exploration_config": {"type": "PerWorkerEpsilonGreedy"}}, {"algo.exploration.epsilon": {"start": 1.0, "end": 0.05, "steps": 100000}, "algo.exploration.epsilon_min": None}),
    ("TD3", {"exploration_config": {"type": "PerWorkerOrnsteinUhlenbeckNoise"}, "num_workers": 1}, {"algo.exploration.scale": 0.4, "algo.exploration.scale_min": None}),
    ("DDPG", {"exploration_noise_type": "gaussian", "exploration_gaussian_sigma": 0.3}, {"algo.exploration.kind": "gaussian", "algo.exploration.std": 0.3}),
    ("SAC", {"learning_starts": 100000, "buffer_size": 50000}, {"algo.learning_starts": 50000, "replay.capacity": 50000}),
    ("APEX", {"per_worker_exploration": False}, {"algo.inner.exploration.epsilon_min": None, "algo.inner.exploration.epsilon": {"start": 1.0, "end": 0.02, "steps": 10000}}),
    ("DQN", {"td_error_loss_fn": "mse"}, {"algo.huber_delta": None}),
    ("DQN", {"td_error_loss_fn": "huber"}, {"algo.huber_delta": 1.0}),
    ("DQN", {"replay_buffer_config": {"alpha": 0.7, "beta": 0.2}}, {"replay.alpha": 0.7, "replay.beta": 0.2}),
    ("APPO", {"use_kl_loss": True, "kl_coeff": 0.4}, {"algo.kl_coef": 0.4}),
    ("APPO", {"use_kl_loss": False, "kl_coeff": 0.4}, {"algo.kl_coef": 0.0}),
    ("PPO", {"use_kl_loss": False}, {"algo.kl_coef": 0.0}),
    ("DDPG", {"lr_schedule": [[0, 0.1], [9, 0.0]]}, {"algo.actor_lr": [[0, 0.1], [9, 0.0]], "algo.critic_lr": [[0, 0.1], [9, 0.0]]}),
    ("SAC", {"lr_schedule": [[0, 0.1], [9, 0.0]], "critic_lr": 0.2}, {"algo.actor_lr": [[0, 0.1], [9, 0.0]], "algo.critic_lr": 0.2, "algo.alpha_lr": 3e-4}),
    ("SAC", {"actor_lr": [[0, 0.1], [9, 0.0]]}, {"algo.actor_lr": [[0, 0.1], [9, 0.0]]}),
    ("SAC", {"lr": 0.7}, {"algo.actor_lr": 3e-4}),
    ("SAC", {"policy_model_config": {"fcnet_activation": "swish"}}, {"algo.actor.hidden": [256, 256], "algo.actor.activation": "silu"}),
    ("DDPG", {"twin_q": True}, {"algo.twin_q": True, "algo.policy_delay": 1, "algo.target_noise": 0.0, "algo.exploration.kind": "ou"}),
    ("QMIX", {"mixer": "qmix", "mixing_embed_dim": 8, "optim_alpha": 0.9}, {"algo.mixer_embed": 8, "algo.optimizer.decay": 0.9, "algo.huber_delta": None}),
    ("APEX_QMIX", {"per_worker_exploration": False, "mixer": "vdn"}, {"algo.inner.exploration.epsilon": {"start": 1.0, "end": 0.02, "steps": 10000.0}}),
    ("QMIX", {"sample_batch_size": 4}, {"algo.exploration.epsilon": {"start": 1.0, "end": 0.02, "steps": 10000.0}, "replay.capacity": 10_000}),
    ("QMIX", {"rollout_fragment_length": 4}, {"algo.exploration.epsilon": {"start": 1.0, "end": 0.01, "steps": 40000.0}, "replay.capacity": 1000}),
    # RLlib 1.0 to 1.12 kept so many fragments; its later replays count the rows in them, whatever storage_unit is.
    ("QMIX", {"buffer_size": 500}, {"replay.capacity": 2000}),
    ("QMIX", {"replay_buffer_config": {"capacity": 500, "storage_unit": "fragments"}}, {"replay.capacity": 500}),
    ("R2D2", {"replay_buffer_config": {"capacity": 500, "storage_unit": "sequences"}}, {"replay.capacity": 500}),
    ("R2D2", {"buffer_size": 500}, {"replay.capacity": 500}),
    ("QMIX", {"replay_buffer_config": {"type": "MultiAgentReplayBuffer"}}, {"replay._choice": "uniform", "replay.capacity": 10_000}),
    ("APEX_QMIX", {"mixer": None}, {"algo.inner.reward_of": "agent", "algo.inner.input_priorities": True, "runner.pace": "free"}),
    ("APEX_DDPG", {"policy_delay": 3}, {"algo.inner.policy_delay": 3, "algo.inner.twin_q": False}),
    ("PPO", {"model": {"framestack": True, "dim": 96}}, {}),
    ("PPO", {"grad_clip": None}, {"algo.max_grad_norm": 0.0}),
    ("PPO", {"clip_rewards": [-2, 2]}, {"algo.reward_clip": 2.0}),
    ("PPO", {"clip_rewards": 0}, {"algo.reward_clip": "none"}),
    ("IMPALA", {"grad_clip": None}, {"algo.max_grad_norm": 0.0}),
    *[(run, {"grad_clip": 0.5, "grad_clip_by": "value"}, {"algo.max_grad_norm": 0.0, "algo.optimizer.max_grad_value": 0.5}) for run in ("PPO", "DQN", "SAC", "DDPG", "QMIX", "SlateQ")],
    ("A2C", {"grad_clip": 40.0, "grad_clip_by": "value"}, {"algo.max_grad_norm": 0.0, "algo.optimizer.max_grad_value": 0.2}),
    ("PPO", {"grad_clip": None, "grad_clip_by": "norm"}, {"algo.max_grad_norm": 0.0}),
    ("IMPALA", {"entropy_coeff_schedule": [[0, -0.01], [9, 0.0]]}, {"algo.entropy_coef": [[0, 0.01], [9, 0.0]]}),
    ("PPO", {"entropy_coeff": -0.01}, {"algo.entropy_coef": -0.01}),
    ("PPO", {"evaluation_interval": 2, "evaluation_config": {"explore": False}}, {"eval.greedy": True, "eval.every": 8000}),
    ("DQN", {"evaluation_interval": 3, "evaluation_config": {"explore": True}}, {"eval.greedy": False, "eval.every": 3000}),
    # RLlib's evaluations explore unless the file or the algorithm's own defaults say otherwise.
    ("PPO", {"evaluation_interval": 1, "explore": True}, {"eval.greedy": False}),
    ("PPO", {"evaluation_interval": 1, "explore": False}, {"eval.greedy": True}),
    ("SAC", {"evaluation_interval": 2, "min_time_s_per_iteration": 0}, {"eval.every": 200, "eval.greedy": False}),
    ("SAC", {"evaluation_interval": 1, "sample_batch_size": 1, "min_iter_time_s": 0}, {"eval.greedy": True}),
    ("DQN", {"evaluation_interval": 1, "explore": True}, {"eval.greedy": True}),
    ("TD3", {"evaluation_interval": 1}, {"eval.greedy": True}),
    ("PPO", {"evaluation_interval": 1, "evaluation_num_workers": 3, "evaluation_duration": 900, "evaluation_duration_unit": "timesteps"},
     {"eval.env_steps": 900, "eval.workers": 3, "eval.parallel": False}),
    ("PPO", {"evaluation_interval": 1, "evaluation_num_env_runners": 8, "evaluation_num_episodes": 5, "evaluation_parallel_to_training": True},
     {"eval.episodes": 5, "eval.workers": 5, "eval.parallel": True}),
    ("APEX", {}, {"runner.pace": "ratio", "algo.inner.replay_ratio": 1.0}),
    ("APEX", {"sample_batch_size": 50, "buffer_size": 9000}, {"runner.pace": "free"}),
    ("APEX_DDPG", {"buffer_size": 9000}, {"runner.pace": "free"}),
    ("APEX", {"training_intensity": 4}, {"runner.pace": "ratio", "algo.inner.replay_ratio": 4.0}),
    ("APPO", {"target_network_update_freq": 2}, {"algo.target_update_interval": 16, "runner.num_sgd_iter": 2, "runner.minibatch_buffer_size": 4}),
    ("APPO", {"target_update_frequency": 2, "num_sgd_iter": 3}, {"algo.target_update_interval": 6}),
    ("A2C", {"microbatch_size": 900}, {"algo.microbatch_size": 200, "algo.batch_size": 200}),
    ("DDPPO", {"num_workers": 3}, {"algo.fragment_length": 100, "algo.batch_size": 1500}),  # 5 environments for each worker
    ("DDPPO", {"num_workers": 3, "rollout_fragment_length": 40}, {"algo.fragment_length": 40, "algo.batch_size": 600}),
    ("DDPPO", {"num_workers": 3, "num_envs_per_worker": 1, "train_batch_size": -1}, {"algo.fragment_length": 100, "algo.batch_size": 300}),
    ("IMPALA", {"num_envs_per_worker": 32, "rollout_fragment_length": 512, "train_batch_size": 4096}, {"algo.fragment_length": 512, "algo.batch_size": 16_384}),
    ("APPO", {"num_envs_per_worker": 8, "train_batch_size": 750}, {"algo.fragment_length": 50, "algo.batch_size": 800}),
    ("APPO", {"num_envs_per_worker": 5}, {"algo.fragment_length": 50, "algo.batch_size": 500}),
    ("A2C", {"microbatch_size": 30}, {"algo.microbatch_size": 40, "algo.batch_size": 200}),
    ("PPO", {"model": {"fcnet_hiddens": [8], "post_fcnet_hiddens": [4], "fcnet_activation": "relu"}}, {"model.hidden": [8, 4], "model.activation": "relu"}),
    ("DDPG", {"use_state_preprocessor": True, "model": {"fcnet_hiddens": [8]}}, {"model.hidden": [8]}),
    # A file that changes a type gets the defaults of RLlib's class; one that says the usual type keeps the algorithm's own.
    ("TD3", {"exploration_config": {"type": "OrnsteinUhlenbeckNoise"}},
     {"algo.random_steps": 1000, "algo.exploration.std": 0.04, "algo.exploration.scale": [[0, 1.0], [1000, 1.0], [11000, 0.02]]}),
    ("TD3", {"exploration_config": {"type": "GaussianNoise", "stddev": 0.3}}, {"algo.random_steps": 10_000, "algo.exploration.std": 0.3, "algo.exploration.scale": 1.0}),
    ("TD3", {"exploration_config": {"type": "PerWorkerGaussianNoise"}, "num_workers": 2}, {"algo.random_steps": 1000, "algo.exploration.scale": 0.4}),
    ("DQN", {"exploration_config": {"type": "ParameterNoise"}}, {"algo.random_steps": 10_000, "algo.exploration.epsilon": 0.01, "algo.exploration.noise_epsilon": 0.01}),
    ("DQN", {"parameter_noise": True}, {"algo.random_steps": 0, "algo.exploration.epsilon": 0.0}),
    ("APEX", {"exploration_config": {"type": "EpsilonGreedy"}}, {"algo.inner.exploration.epsilon": {"start": 1.0, "end": 0.05, "steps": 100_000}}),
    ("DQN", {"exploration_config": {"type": "EpsilonGreedy"}}, {"algo.exploration.epsilon": {"start": 1.0, "end": 0.02, "steps": 10_000}}),
    ("DQN", {"exploration_config": {"type": "ray.rllib.utils.exploration.epsilon_greedy.EpsilonGreedy", "final_epsilon": 0.1}},
     {"algo.exploration.epsilon": {"start": 1.0, "end": 0.1, "steps": 100_000}}),
    ("DQN", {"replay_buffer_config": {"type": "MultiAgentReplayBuffer"}}, {"replay._choice": "uniform", "replay.capacity": 10_000}),
    ("DQN", {"replay_buffer_config": {"type": "MultiAgentPrioritizedReplayBuffer"}}, {"replay._choice": "prioritized", "replay.capacity": 50_000}),
    ("SAC", {"num_env_runners": 1, "replay_buffer_config": {"type": "EpisodeReplayBuffer"}}, {"replay._choice": "uniform", "replay.capacity": 10_000}),
    # RLlib's noise is annealed behind the random steps, but in its releases without exploration_config from the first step on.
    ("DDPG", {"exploration_config": {"random_timesteps": 10_000}}, {"algo.random_steps": 10_000, "algo.exploration.scale": [[0, 1.0], [10_000, 1.0], [20_000, 0.02]]}),
    ("DDPG", {"exploration_config": {"random_timesteps": 0}}, {"algo.exploration.scale": {"start": 1.0, "end": 0.02, "steps": 10_000}}),
    ("DDPG", {"sample_batch_size": 1, "pure_exploration_steps": 500}, {"algo.random_steps": 500, "algo.exploration.scale": {"start": 1.0, "end": 0.02, "steps": 10_000}}),
    ("DDPG", {"exploration_fraction": 0.5}, {"algo.exploration.scale": {"start": 1.0, "end": 0.02, "steps": 50_000}}),
    # SAC had no priorities before it had replay_buffer_config.
    ("SAC", {"sample_batch_size": 1}, {"replay._choice": "uniform", "replay.capacity": 1_000_000}),
    ("SAC", {"buffer_size": 5000}, {"replay._choice": "uniform", "replay.capacity": 5000}),
    ("SAC", {"buffer_size": 5000, "prioritized_replay": True, "prioritized_replay_alpha": 0.5}, {"replay._choice": "prioritized", "replay.alpha": 0.5}),
    ("SAC", {"replay_buffer_config": {"capacity": 5000}}, {"replay._choice": "prioritized", "replay.capacity": 5000}),
    ("APEX", {}, {"runner.max_weight_sync_delay": 32 * 400}),
    ("APEX_DDPG", {"num_workers": 0, "optimizer": {"max_weight_sync_delay": 50}}, {"runner.max_weight_sync_delay": 50}),
]  # fmt: skip


@pytest.mark.parametrize(("run", "config", "wanted"), SAME)
def test_options_become_what_they_mean(run, config, wanted):
    values, said, _ = told_of(run, config)
    assert {key: values[key] for key in wanted} == wanted
    assert not [key for key, (how, _, _) in said.items() if how == "not mapped"]


@pytest.mark.parametrize("run", ["PPO", "SAC", "TD3"])
def test_a_bound_on_each_tensor_is_not_one_on_the_whole_gradient(run):
    values, said, _ = told_of(run, {"grad_clip": 10.0, "grad_clip_by": "norm"})
    assert values["algo.max_grad_norm"] == 0.0 and "algo.optimizer.max_grad_value" not in values
    assert said["grad_clip"][0] == said["grad_clip_by"][0] == "not mapped"


@pytest.mark.parametrize(("config", "bound"), [({}, 0.5), ({"grad_clip": 3.0}, 3), ({"grad_norm_clipping": None}, 0.0)])
def test_the_bound_of_maddpg_is_rllibs_default_under_either_name(config, bound):
    values, said, _ = told_of("MADDPG", config, "TwoStepGame")
    assert values["algo.max_grad_norm"] == bound and all(how == "mapped" for key, (how, _, _) in said.items() if key in config)


def test_a_horizon_is_said_to_bootstrap():
    for env, became in (("CartPole-v1", "env.max_episode_steps=50"), ("PongNoFrameskip-v4", "env.max_frames=200")):
        how, target, why = told_of("PPO", {"horizon": 50}, env)[1]["horizon"]
        assert (how, target) == ("mapped", became) and "a time limit bootstraps here" in why


def test_asynchronous_gradients_have_their_runner():
    config = {"optimizer_class": "AsyncGradientsOptimizer", "num_workers": 2, "buffer_size": 3000}
    for run in ("DQN", "DDPG"):
        values, said, one = told_of(run, config)
        assert said["optimizer_class"][:2] == ("mapped", "runner=async_gradients")
        assert values["resources.num_learners"] == 2 and values["replay.capacity"] == 6000
        assert "override /runner: async_gradients" in one.text("a")


def test_the_optimizer_class_chooses_the_algorithm_or_is_its_runner():
    one = told_of("DQN", {"optimizer_class": "AsyncReplayOptimizer"})[2]
    assert one.algo == "apex" and "runner.name" not in one.values
    assert told_of("APEX", {"optimizer_class": "AsyncReplayOptimizer"})[1]["optimizer_class"][:2] == (
        "mapped",
        "runner=distributed_replay",
    )
    assert told_of("DDPG", {"optimizer_class": "SyncReplayOptimizer"})[1]["optimizer_class"][:2] == (
        "mapped",
        "runner=replay",
    )


def test_curiosity_is_icm_around_the_algorithm():
    sub = {"type": "EpsilonGreedy", "initial_epsilon": 1.0, "final_epsilon": 0.1, "epsilon_timesteps": 500}
    config = {
        "lr": 0.5,
        "exploration_config": {"type": "Curiosity", "eta": 0.25, "lr": 0.01, "feature_dim": 16, "sub_exploration": sub},
    }
    values, said, one = told_of("DQN", config)
    assert (one.algo, one.inner) == ("icm", "dqn")
    wanted = {
        "algo.lr": 0.01, "algo.eta": 0.25, "algo.feature_size": 16, "algo.feature_hidden": [256, 256], "algo.inner.lr": 0.5,
        "algo.inner.exploration.epsilon": {"start": 1.0, "end": 0.1, "steps": 500},
    }  # fmt: skip
    assert {key: values[key] for key in wanted} == wanted
    assert said["exploration_config.sub_exploration.epsilon_timesteps"][0] == "mapped"
    assert told_of("SAC", {"exploration_config": {"type": "Curiosity"}})[2].inner == "sac"
    new = {"num_env_runners": 1, "learner_config_dict": {"intrinsic_reward_coeff": 0.05, "forward_loss_weight": 0.3}}
    values, _, one = told_of("PPO", new)
    assert (one.algo, one.inner, values["algo.eta"], values["algo.beta"]) == ("icm", None, 0.05, 0.3)


def test_re3_is_re3_around_the_algorithm():
    """Its defaults are those of RLlib's callback, and a falling beta is an exponential schedule of env steps."""
    values, said, one = told_of("PPO", {"exploration_config": {"type": "RE3", "sub_exploration": {"type": "StochasticSampling"}}})
    assert (one.algo, one.inner) == ("re3", None) and said["exploration_config.type"][:2] == ("mapped", "algo=re3")
    wanted = {"algo.beta": 0.1, "algo.k_nearest": 49, "algo.embedding_size": 128, "algo.encoder_hidden": [256, 256], "algo.activation": "tanh"}
    assert {key: values[key] for key in wanted} == wanted
    group = {"type": "RE3", "embeds_dim": 16, "k_nn": 5, "beta": 0.2, "beta_schedule": "linear_decay", "rho": 0.1, "random_timesteps": 500,
             "encoder_net_config": {"fcnet_hiddens": [64], "fcnet_activation": "relu", "use_lstm": True}}  # fmt: skip
    values, said, one = told_of("SAC", {"exploration_config": group, "timesteps_per_iteration": 1000})
    assert (one.algo, one.inner) == ("re3", "sac")
    assert (values["algo.embedding_size"], values["algo.k_nearest"], values["algo.encoder_hidden"]) == (16, 4, [64])
    beta = values["algo.beta"]
    assert beta["steps"] == 44_000 and beta["end"] == pytest.approx(0.2 * 0.9**44, rel=1e-2) and beta["curve"] == "exponential"
    lost = {key for key, (how, _, _) in said.items() if how == "not mapped" and key.startswith("exploration_config")}
    assert lost == {"exploration_config.random_timesteps", "exploration_config.encoder_net_config.use_lstm"}
    values, _, one = told_of("DQN", {"exploration_config": {"type": "RE3", "sub_exploration": {"type": "EpsilonGreedy", "final_epsilon": 0.1}}})
    # a sub_exploration inherits nothing from the algorithm, even of the same type
    assert (one.algo, one.inner, values["algo.inner.exploration.epsilon"]) == ("re3", "dqn", {"start": 1.0, "end": 0.1, "steps": 1e5})


def test_attention_is_gtrxl():
    model = {"use_attention": True, "attention_dim": 32, "attention_num_heads": 2, "attention_head_dim": 16, "attention_num_transformer_units": 3,
             "attention_memory_inference": 20, "attention_memory_training": 30, "attention_use_n_prev_actions": 1, "attention_use_n_prev_rewards": 2}  # fmt: skip
    values, said, _ = told_of("PPO", {"model": model})
    wanted = {
        "_choice": "gtrxl",
        "memory.size": 32,
        "memory.heads": 2,
        "memory.layers": 3,
        "memory.length": 20,
        "memory.prev_action": True,
    }
    assert {key: values[f"model.{key}"] for key in wanted} == wanted
    lost = {key for key, (how, _, _) in said.items() if how == "not mapped"}
    assert lost == {"model.attention_memory_training", "model.attention_use_n_prev_rewards"}


LARGE = [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]]
PADDED = {"model.conv_padding": "same_but_last", "model.conv_hidden": [], "model.conv_activation": "relu"}
IMAGES = [  # (environment, RLlib's options, rlrun's)
    ("Pong", {}, {"model.conv_filters": LARGE, **PADDED, "env.size": 84, "env.stack": 4, "env.grayscale": None}),
    ("Pong", {"model": {"dim": 42, "framestack": False}}, {"model.conv_filters": [[16, [4, 4], 2], [32, [4, 4], 2], [256, [11, 11], 1]], "env.size": 42, "env.stack": 1}),
    ("Pong", {"model": {"dim": 96}}, {"model.conv_filters": [*LARGE[:2], [256, [11, 11], 2]], "env.size": 96}),
    ("Pong", {"model": {"dim": 64}}, {"model.conv_filters": [[width, [4, 4], 2] for width in (32, 64, 128, 256)]}),
    ("Pong", {"num_env_runners": 2, "model": {"dim": 64}}, {"model.conv_filters": [[width, [4, 4], 2] for width in (16, 32, 64, 128)]}),
    ("Pong", {"model": {"conv_filters": [[32, 8, 4], [64, [4, 2], 2]], "post_fcnet_hiddens": [512], "conv_activation": "swish", "post_fcnet_activation": "silu"}},
     {"model.conv_filters": [[32, 8, 4], [64, [4, 2], 2]], "model.conv_hidden": [512], "model.conv_activation": "silu", "model.hidden": None}),
    ("Pong", {"model": {"post_fcnet_hiddens": [64, 32], "post_fcnet_activation": "tanh"}}, {"model.conv_hidden": [], "model.hidden": [64, 32], "model.activation": "tanh"}),
    ("Pong", {"preprocessor_pref": "rllib", "model": {"grayscale": False, "dim": 64}}, {"env.grayscale": False, "env.size": 64, "env.stack": 1, "env.frame_skip": 1, "env.fire": False, "algo.reward_clip": "none"}),
    ("Pong", {"preprocessor_pref": "rllib", "clip_rewards": True}, {"env.frame_skip": 1, "algo.reward_clip": "sign"}),
    ("Pong", {"preprocessor_pref": "deepmind"}, {"env.frame_skip": None, "algo.reward_clip": None}),
    ("Pong", {"model": {"grayscale": False, "zero_mean": True}}, {"env.grayscale": None, "env.stack": 4}),
    ("my_package:Mine-v0", {"model": {"conv_filters": [[16, 3, 2]], "num_framestacks": 3, "free_log_std": True}}, {"model.conv_filters": [[16, 3, 2]], **PADDED, "env.stack": 3}),
    ("Pendulum-v1", {"model": {"conv_filters": [[16, 3, 2]]}}, {"model.conv_filters": None, "model.hidden": [256, 256], "model.free_log_std": False}),
    ("Pendulum-v1", {"model": {"free_log_std": True}}, {"model.free_log_std": True}),
]  # fmt: skip


@pytest.mark.parametrize(("env", "config", "wanted"), IMAGES)
def test_networks_of_images_stacks_and_deviations_are_rllibs(env, config, wanted):
    values, said, _ = told_of("PPO", config, {"Pong": "PongNoFrameskip-v4"}.get(env, env))
    assert {key: values.get(key) for key in wanted} == wanted
    assert not [key for key, (how, _, _) in said.items() if how == "not mapped"]


@pytest.mark.parametrize(("stack", "features", "padding"), [({}, 256, "same_but_last"), ({"num_env_runners": 2}, 11 * 11 * 256, "same")])
def test_rllibs_network_for_screens_is_made(stack, features, padding, typed):
    """84, 21 and 11 pixels with borders, and 256 numbers without one: the new API stack's last convolution has one too."""
    values = told_of("PPO", stack, "PongNoFrameskip-v4")[0]
    words = [f"{key}={flow(value)}" for key, value in values.items() if key.startswith(("env.", "model.conv_"))]
    config = typed("algo=ppo", "env=Pong", "resources=debug", *words)
    net = plan(config, measured()).policy_factory(acting=False)().trunk.encoder
    assert net.features == features and net.first.padding == (2, 2)
    assert [layer.in_channels for layer in net.convolutions if hasattr(layer, "in_channels")] == [16, 32]
    assert values["model.conv_padding"] == padding


def test_what_stands_beside_the_config_is_listed():
    beside = {
        "num_samples": 3,
        "checkpoint_freq": 10,
        "local_dir": "/tmp/x",
        "keep_checkpoints_num": 2,
        "restore": "a",
        "mystery": 1,
    }
    values, said, one = told_of("PPO", {}, **beside)
    assert one.grid == {"seed": [1, 2, 3]} and "seed=1,2,3" in one.text("a") and values["checkpoint.keep"] == 2
    hows = {key: said[key][0] for key in beside}
    _, many, one_seed = told_of("PPO", {}, num_samples=10**9)
    assert many["num_samples"][0] == "not mapped" and not one_seed.grid
    assert hows == {"num_samples": "mapped", "checkpoint_freq": "dropped", "local_dir": "dropped", "keep_checkpoints_num": "mapped",
                    "restore": "not mapped", "mystery": "not mapped"}  # fmt: skip


def test_ape_x_is_around_the_distributions_that_an_experiment_asks_for():
    full = {"num_atoms": 11, "noisy": True, "dueling": True, "double_q": True}
    for config, inner in (({"num_atoms": 11}, "c51"), (full, "rainbow")):
        (one,) = translate("a", {"run": "APEX", "env": "CartPole-v1", "config": config}, "a")
        assert one.inner == inner and one.values["algo.inner.num_atoms"] == 11
        assert one.values["algo.inner.input_priorities"] is True
        type_config(whole(one))


def test_files_changed_by_hand_are_not_written_over(tmp_path):
    file, out = tmp_path / "a.yaml", tmp_path / "out"
    file.write_text("x: {run: PG, env: CartPole-v1}")
    assert _dispatch(["import-rllib", str(file), "--dir", str(out), "--quiet"]) == 0
    assert _dispatch(["import-rllib", str(file), "--dir", str(out), "--quiet"]) == 0, "the same again"
    made = out / "tuned" / "pg" / "x.yaml"
    made.write_text(made.read_text() + "\n# by hand\n")
    with pytest.raises(UserError, match="may have been changed by hand"):
        _dispatch(["import-rllib", str(file), "--dir", str(out), "--quiet"])
    assert (
        _dispatch(["import-rllib", str(file), "--dir", str(out), "--quiet", "--force"]) == 0
        and "by hand" not in made.read_text()
    )


def test_a_failed_import_leaves_nothing_behind(tmp_path, monkeypatch):
    """Of several files too: those that would start are not left alone, and what was there stays as it was."""
    monkeypatch.chdir(tmp_path)
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("x: {run: PG, env: CartPole-v1}\ny: {run: A2C, env: CartPole-v1}")
    bad.write_text("z: {run: PPO, env: 'evilmod:E-v0'}")
    (tmp_path / "evilmod.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    both = ["import-rllib", "good.yaml", "bad.yaml", "--dir", "out", "--quiet", "--force"]

    def files():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    with pytest.raises(UserError, match="evilmod"):
        _dispatch(both)
    assert files() == before and not (tmp_path / "out").exists()
    assert _dispatch(["import-rllib", "good.yaml", "--dir", "out", "--quiet"]) == 0
    changed = tmp_path / "out" / "tuned" / "pg" / "x.yaml"
    changed.write_text(changed.read_text() + "# by hand\n")
    before = files()
    with pytest.raises(UserError, match="evilmod"):
        _dispatch(both)
    assert files() == before and not (tmp_path / "out" / "tuned" / "ppo").exists()
    with pytest.raises(UserError, match="two experiments are called x"):
        good.write_text("x: {run: PG, env: CartPole-v1}")
        _dispatch(["import-rllib", "good.yaml", "good.yaml", "--dir", "elsewhere"])


def test_an_experiment_with_the_name_of_a_tuned_file_of_rlruns_has_another(tmp_path, capsys):
    """Hydra would read rlrun's appo/cartpole, and no file of --config-dir."""
    file, made = tmp_path / "a.yaml", tmp_path / "out" / "tuned" / "appo"
    cartpole = "{run: APPO, env: CartPole-v1, config: {num_workers: 1, lr: 0.00123}}"
    file.write_text(f"cartpole: {cartpole}\ncartpole-2: {cartpole}\n")
    for _ in range(2):  # the second import finds the same name
        assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "out"), "--quiet"]) == 0
        said = capsys.readouterr().out
        assert "cartpole is called cartpole-3 here, because rlrun has a tuned file appo/cartpole of its own" in said
        assert "tuned=appo/cartpole-3" in said and "cartpole-2 is called" not in said
    assert sorted(path.name for path in made.iterdir()) == ["cartpole-2.yaml", "cartpole-3.yaml"]
    assert "a.yaml (cartpole).\n" in (made / "cartpole-3.yaml").read_text()


def test_an_environment_of_the_users_own_is_named_by_its_module(tmp_path, monkeypatch):
    """By the command line or by the file; a module of no installed package needs --trust, and the message says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "walks_of_mine").mkdir()
    (tmp_path / "walks_of_mine" / "envs.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\nclass Walk(CartPoleEnv):\n    pass\n"
    )
    (tmp_path / "plain.yaml").write_text("x: {run: PG, env: CartPole-v1}")
    (tmp_path / "own.yaml").write_text("y: {run: PG, env: 'walks_of_mine.envs:Walk'}")
    with pytest.raises(UserError, match=r"walks_of_mine.envs is not part of an installed package: add --trust.*--env names another"):
        _dispatch(["import-rllib", "own.yaml", "--dir", "out", "--quiet"])
    words = ["plain.yaml", "--env", "walks_of_mine.envs:Walk"]
    start = re.escape("out/tuned/pg/x.yaml would not start: walks_of_mine.envs is not part of an installed package: add --trust")
    with pytest.raises(UserError, match=f"^{start}"):
        _dispatch(["import-rllib", *words, "--dir", "out", "--quiet"])
    for name, given in (("x", words), ("y", ["own.yaml"])):
        assert _dispatch(["import-rllib", *given, "--dir", "out", "--quiet", "--trust"]) == 0
        assert "override /env: walks_of_mine.envs:Walk" in (tmp_path / "out" / "tuned" / "pg" / f"{name}.yaml").read_text()


def test_an_environment_of_rllibs_kind_gets_its_options_as_one_dictionary(tmp_path, monkeypatch, capsys):
    """RLlib hands env_config to the constructor of a class. A class that cannot be made is refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    base = "from gymnasium.envs.classic_control import CartPoleEnv\n"
    for name, parameter in (("told_one", "config"), ("told_two", "options")):
        (tmp_path / f"{name}.py").write_text(
            f"{base}class Walk(CartPoleEnv):\n    def __init__(self, {parameter}):\n        super().__init__()\n"
            f"        self.length = {parameter}['length']\n"
        )
        config = "{env_config: {length: {grid_search: [0.5, 0.6]}, more: {a: 1}}}"
        (tmp_path / "a.yaml").write_text(f"x: {{run: PG, env: '{name}:Walk', config: {config}}}")
        assert _dispatch(["import-rllib", "a.yaml", "--dir", name, "--quiet", "--trust"]) == 0
        said, text = capsys.readouterr().out, (tmp_path / name / "tuned" / "pg" / "x.yaml").read_text()
        assert yaml.safe_load(text)["env"]["kwargs"] == {parameter: {"length": 0.5, "more": {"a": 1}}}
        train = f"rlrun train --config-dir {name} tuned=pg/x --trust"
        assert train in said and f"env.kwargs.{parameter}.length=0.5,0.6" in said
        assert _dispatch([*shlex.split(train)[1:], "--plan", "resources=debug", "logger=[]"]) == 0
    for number, (parameters, given, kwargs) in enumerate(
        [
            ("render_mode=None", "{}", None),
            ("length=0.5, config=None", "{length: 0.6}", {"length": 0.6}),
            ("config", "{max_episode_steps: 9}", {"config": {"max_episode_steps": 9}}),
            ("config=None", "{}", {"config": {}}),
        ]
    ):
        (tmp_path / f"told_{number}.py").write_text(
            f"{base}class Walk(CartPoleEnv):\n    def __init__(self, {parameters}):\n        super().__init__()\n"
        )
        (tmp_path / "a.yaml").write_text(f"x: {{run: PG, env: 'told_{number}:Walk', config: {{env_config: {given}}}}}")
        assert _dispatch(["import-rllib", "a.yaml", "--dir", f"out-{number}", "--quiet", "--trust"]) == 0
        found = yaml.safe_load((tmp_path / f"out-{number}" / "tuned" / "pg" / "x.yaml").read_text())
        assert (found.get("env") or {}).get("kwargs") == kwargs
    (tmp_path / "a.yaml").write_text("x: {run: PG, env: 'told_one:Walk', config: {env_config: {size: 1}}}")
    with pytest.raises(UserError, match=r"x.yaml would not start: env=told_one:Walk cannot be made: KeyError: 'length'"):
        _dispatch(["import-rllib", "a.yaml", "--dir", "out", "--quiet", "--trust"])


def test_printed_commands_are_quoted_for_a_shell(tmp_path, capsys):
    file = tmp_path / "a.yaml"
    config = {"lr": {"grid_search": [[[0, 0.1], [9, 0.0]], 0.2]}}
    file.write_text(yaml.safe_dump({"a b": {"run": "PG", "env": "CartPole-v1", "config": config, "num_samples": 2}}))
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "my files"), "--quiet"]) == 0
    _, train, sweep = capsys.readouterr().out.splitlines()
    assert shlex.split(train)[2:] == ["--config-dir", str(tmp_path / "my files"), "tuned=pg/a b"]
    assert shlex.split(sweep)[5:] == ["algo.lr=[[0, 0.1], [9, 0.0]],0.2", "seed=1,2"]


def test_a_name_that_yaml_reads_as_a_number_is_text(tmp_path, capsys):
    file = tmp_path / "a.yaml"
    file.write_text("1: {run: PG, env: CartPole-v1}")
    assert _dispatch(["import-rllib", str(file), "--dir", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("tuned=pg/1")
    assert _dispatch(["train", "--config-dir", str(tmp_path), "tuned=pg/1", "--cfg", "job"]) == 0


def test_numbers_that_yaml_reads_as_text():
    assert numbers(yaml.safe_load("{a: 5e-4, b: 1e6, c: [[0, 1e-3]], d: MeanStdFilter, e: 3, f: '-1e2', g: '.', h: ''}")) == {
        "a": 5e-4, "b": 1e6, "c": [[0, 1e-3]], "d": "MeanStdFilter", "e": 3, "f": -100.0, "g": ".", "h": "",
    }  # fmt: skip


def doubled(value, times, joined):
    """An experiment that is `value` twice, twice again and so on, by aliases. joined: how to write one twice."""
    steps = [f"a{n}: &a{n} {joined.replace('*', f'*a{n - 1}')}" for n in range(1, times + 1)]
    return f"x: {{run: PPO, env: a, config: {{a0: &a0 {value}, {', '.join(steps)}}}}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defaults:\n  - override /env: Pong\n", "is not one of RLlib's tuned files"),
        ("a: [1", "is not YAML"),
        ("", "is not one of RLlib's tuned files"),
        ("x: {run: PG, env: a}\nx: {run: PG, env: b}", "has 'x' twice in one group, the second time in line 2"),
        ("x: {run: PG, env: a, config: {lr: 1, lr: 2}}", "has 'lr' twice in one group"),
        ("x: {run: PPO, env: CartPole-v1, config: &a {model: *a}}", "has an anchor .* with its own alias"),
        ("x: &a {run: PPO, env: CartPole-v1, config: {n_step: [1, *a]}}", "has an anchor .* with its own alias"),
        (doubled("[1]", 18, "[*, *]"), "more than 200,000 characters where its aliases"),
        (doubled("{lr: 1}", 18, "{<<: [*, *]}"), "more than 200,000 characters where its aliases"),
        (doubled("[1]", 120, "[*]"), "inside each other more than 100 deep"),
        (f"x: {{run: PPO, env: a, config: {'[' * 600}{']' * 600}}}", "inside each other more than 100 deep"),
        ("x: {run: PPO, env: a, config: {seed: 2020-13-45}}", "is not YAML: month must be"),
        ("x: {run: MAML, env: Pendulum-v1}", "would not start: maml learns from many tasks"),
        ("x: {run: CQL, env: CartPole-v1}", "RLlib's CQL is for continuous actions.*algo=discrete_cql"),
        ("x: {run: AlphaStar, env: Pendulum-v1}", "rlrun has no AlphaStar: it plays a league"),
        ("x: {run: RNNSAC, env: Pendulum-v1}", "rlrun has no RNNSAC: .*algo=sac has one with model/memory=lstm"),
        ("x: {run: contrib/RandomAgent, env: CartPole-v1}", "rlrun has no contrib/RandomAgent: it learns nothing"),
        ("x: {run: PPPO, env: Pendulum-v1}", "rlrun has no PPPO. Did you mean PPO"),
        ("x: {run: PPO}", "it names no environment"),
        ("x: {run: PG, env: a, stop: {timesteps_total: 0}}", "x: stop.timesteps_total is 0, and it must be above 0"),
        ("x: {run: PG, env: a, stop: {env_runners/num_env_steps_sampled: '-1e3'}}", "sampled is -1000.0, and it must"),
        ("x: {run: PG, env: a, config: {train_batch_size: 0}}", "x: config.train_batch_size is 0, and it must be above"),
        ("x: {run: PG, env: a, config: {train_batch_size: {grid_search: [9, 0]}}}", "train_batch_size is 0, and it"),
        ("x: {run: PG, env: a, config: {rollout_fragment_length: 0}}", "rollout_fragment_length is 0, and it must be"),
        ("x: {run: PG, env: {grid_search: []}}", "x: env.grid_search must be a list of at least one value"),
        ("x: {run: PG, env: a, config: {model: {dim: {grid_search: 3}}}}", "dim.grid_search must be a list .*, not 3"),
        ("x: {run: PPO, env: ray.rllib.examples.env.random_env.RandomEnv}", "names"),
    ],
)
def test_other_files_are_refused(text, said, tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        _dispatch(["import-rllib", str(file), "--dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_what_is_mistyped_or_no_yaml_file_is_said(tmp_path, capsys):
    file, out = tmp_path / "file.yaml", tmp_path / "out"
    file.write_text("x: {run: PPO, env: CartPole-v1, config: {gama: 0.9, replay_buffer_config: {type: Foo}}}")
    assert _dispatch(["import-rllib", str(file), "--dir", str(out)]) == 0
    said = capsys.readouterr().out
    assert "no such option of PPO. Did you mean gamma?" in said
    assert "the name of a class, such as MultiAgentReplayBuffer, not Foo" in said
    assert _dispatch(["import-rllib", str(file), "--dir", str(out), "--quiet"]) == 0
    assert "2 options not mapped" in capsys.readouterr().out
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        _dispatch(["import-rllib", str(file), "--dir", str(file)])
    with pytest.raises(UserError, match=r"ppo\.py is a Python file, which import-rllib does not run"):
        _dispatch(["import-rllib", str(tmp_path / "ppo.py")])


def test_the_command_writes_files_that_train_takes(tmp_path, capsys):
    file = tmp_path / "cartpole.yaml"
    example = RELEASES["2.7"]["ppo/cartpole-ppo-grid-search-example.yaml"]
    file.write_text(yaml.safe_dump({"cartpole-ppo": example, "other": {"run": "MyAlgorithm", "env": "Pendulum-v1"}}))
    out = tmp_path / "out"
    assert _dispatch(["import-rllib", str(file), "--dir", str(out)]) == 1, "one is left out"
    said = capsys.readouterr().out
    # these sizes divide 4000
    assert (
        out / "tuned" / "ppo" / "cartpole-ppo.yaml"
    ).is_file() and "algo.minibatch_size=125,250,500 algo.num_epochs=1,4" in said
    assert "left out: cartpole.yaml, other: rlrun has no MyAlgorithm" in said
    assert _dispatch(["train", "--config-dir", str(out), "tuned=ppo/cartpole-ppo", "--cfg", "job"]) == 0
    assert "num_epochs: 1" in capsys.readouterr().out
    words = [
        "--config-dir",
        str(out),
        "tuned=ppo/cartpole-ppo",
        "algo.num_epochs=1,4",
        "algo.minibatch_size=125,250",
        "--dry-run",
    ]
    assert _dispatch(["sweep", *words]) == 0
    assert "4 jobs" in capsys.readouterr().out


def test_tables_name_algorithms_and_reasons():
    from rlrun.config.paths import options

    assert set(RUNS.values()) <= set(options("algo"))
    assert all(why for why in machinery().values()) and "framework" in machinery()
    assert "made anew" in machinery()["restart_failed_sub_environments"]
    assert read("x: {run: PPO, env: a}", "f") == {"x": {"run": "PPO", "env": "a"}}


ODD = {"list": [1, "x"], "empty": [], "group": {"a": 1}, "null": None, "true": True, "false": False, "text": "x" * 5000}
MEANT = {  # options of RLlib's whose values mean another number or word here, beside those that are written as they are
    ("_separate_vf_optimizer", "true", "algo.value_lr=0.0005"), ("_use_beta_distribution", "true", "model.action_distribution=beta"),
    ("exploration_should_anneal", "true", "algo.exploration.scale={end:0.02, start:1.0, steps:10000}"), ("exploration_should_anneal", "false", "algo.exploration.scale=1.0"),
    ("grad_clip", "null", "algo.max_grad_norm=0.0"), ("grad_norm_clipping", "null", "algo.max_grad_norm=0.0"), ("hiddens", "null", "algo.head.hidden=[]"),
    ("kl_coeff", "null", "algo.kl_coef=0.0"), ("vf_clip_param", "null", "algo.value_clip=0.0"), ("target_entropy", "null", "algo.target_entropy=auto"),
    ("model.use_attention", "true", "model=gtrxl"), ("parameter_noise", "true", "algo.exploration.kind=parameter_noise"),
    ("per_worker_exploration", "true", "algo.exploration.scale=0.4"), ("smooth_target_policy", "true", "algo.target_noise=0.2"),
    ("use_gae", "false", "algo.lambda_=1.0"), ("use_h_function", "true", "algo.value_rescaling=0.001"), ("use_h_function", "false", "algo.value_rescaling=null"),
    ("use_huber", "true", "algo.huber_delta=1.0"), ("use_huber", "false", "algo.huber_delta=null"), ("use_kl_loss", "false", "algo.kl_coef=0.0"),
    ("use_state_preprocessor", "true", "model.hidden=[256, 256]"), ("clip_rewards", "true", "algo.reward_clip=sign"), ("clip_rewards", "false", "algo.reward_clip=none"),
    ("prioritized_replay", "true", "replay=prioritized"), ("input", "group", "data.path=a"), ("prioritized_replay", "false", "replay=uniform"),
}  # fmt: skip


@pytest.mark.parametrize("run", ["PPO", "APPO", "DQN", "DDPG", "SAC", "ES", "R2D2", "A2C", "BC", "MARWIL", "CQL"])
@pytest.mark.parametrize("odd", ODD)
def test_a_value_of_any_kind_leaves_a_true_line(run, odd):
    """All known options have this value. Each is refused with a reason, or means what it means in RLlib."""
    value, config = ODD[odd], {}
    for key in sorted(known_kinds().keys() | machinery().keys()):
        group, _, name = key.partition(".")
        if name and isinstance(config.setdefault(group, {}), dict):
            config[group][name] = value
        elif key not in GROUPS:
            config[key] = value
    env = "Pendulum-v1" if run in ("DDPG", "SAC", "CQL") else "CartPole-v1"
    (one,) = translate("a", {"run": run, "env": env, "config": config}, "a")
    lines = {line.key: line for line in one.lines if line.given}
    assert flattened(config).keys() <= lines.keys()
    for key in flattened(config):
        line = lines[key]
        assert line.how != "not mapped" or (line.why and len(line.why) < 400), line
        if line.how == "mapped":
            same = line.became.partition("=")[2] == flow(value)
            assert same or (key, odd, line.became) in MEANT, line


@pytest.mark.parametrize("name, made", [("a,b", "a_b"), ("my exp (1), \u00e9", "my exp _1"), ("atari-ppo.v2", "atari-ppo.v2"), ("\u00e9", "experiment")])
def test_names_of_experiments_can_be_typed(name, made):
    """A comma would be a sweep for Hydra, and other characters would need quotes."""
    from rlrun.commands.import_rllib import typeable

    assert typeable(name) == made


@pytest.mark.parametrize("config, old_stack, era", [
    ({"num_env_runners": 2}, False, "new"),
    ({"num_env_runners": 2}, True, "middle"),
    ({"num_env_runners": 2, "lr_schedule": [[0, 5e-4], [1000, 0.0]]}, False, "middle"),
    ({"num_env_runners": 2, "lr_schedule": None}, False, "new"),
    ({"num_learners": 0, "exploration_config": {"type": "StochasticSampling"}}, False, "new"),
])  # fmt: skip
def test_names_that_both_stacks_have_do_not_make_a_file_one_of_the_new_stack(config, old_stack, era):
    """RLlib 2.49's tuned files have new names, and say @OldAPIStack."""
    (one,) = translate("a", {"run": "IMPALA", "env": "CartPole-v1", "config": config}, "a", old_stack)
    assert one.values.get("algo.loss_reduction", "mean") == ("mean" if era == "new" else "sum")
    assert for_old_stack("# @OldAPIStack\na: {run: PPO}") and not for_old_stack("a: {run: PPO}")


def test_networks_by_their_new_names_and_without_layers():
    def values(run, **config):
        (one,) = translate("a", {"run": run, "env": "CartPole-v1", "config": config}, "a")
        return one.values, {line.key: (line.how, line.became) for line in one.lines}

    made, _ = values("PPO", model={"fcnet_hiddens": []})
    assert made["model.hidden"] == [] and "model.activation" not in made
    made, _ = values("PPO", model={"fcnet_hiddens": [], "post_fcnet_hiddens": [32]})
    assert made["model.hidden"] == [32] and made["model.activation"] == "relu"
    made, lines = values("DQN", num_env_runners=1, _model_config_dict={"fcnet_hiddens": [48], "head_fcnet_hiddens": [16]})
    assert made["model.hidden"] == [48] and made["algo.head.hidden"] == [16]
    assert lines["_model_config_dict.fcnet_hiddens"] == ("mapped", "model.hidden=[48]")
    made, lines = values("PPO", rl_module={"model_config": {"fcnet_hiddens": [9]}, "module_class": "x"})
    assert made["model.hidden"] == [9] and lines["rl_module"][0] == "not mapped"
