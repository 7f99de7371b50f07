"""Options that exist only with a choice of their group: Hydra refuses them elsewhere, and old runs that have them load."""

import json
import re

import pytest
import torch
import yaml
from conftest import by_hydra, compose, of_groups, optimizer_config

from rlrun.cli import _dispatch
from rlrun.config.automatic import settled
from rlrun.config.run import type_config
from rlrun.config.saved import LEAST_EPSILON, saved_config
from rlrun.config.signature import sign
from rlrun.core.errors import UserError
from rlrun.core.optimizer import ADAMS, RMSPROPS, Optimizer
from rlrun.core.schedule import Clock, Schedule

RUN = ["env=CartPole-v1", "resources=debug", "logger=[]", "model.hidden=[8]"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["algo=dqn", "replay.alpha=0.7"], "replay.alpha is an option of replay=prioritized"),
        (["algo=ppo", "replay.beta=1"], "replay.beta is an option of replay=prioritized"),
        (["algo=r2d2", "model.memory.heads=4"], "model.memory.heads is an option of model=gtrxl"),
        (["algo=ppo", "model.memory.size=8"], "model.memory.size is an option of model=agents, gru, gtrxl or lstm"),
        (["algo=ppo", "runner.num_shards=2"], "runner.num_shards is an option of runner=distributed_replay"),
        (["algo=dqn", "model.share_value=false"], "is an option of algo=a2c, .* or ppo; dqn does not use it"),
        (["algo=td3", "model.action_distribution=beta"], "is an option of .*sac.*; td3 does not use it"),
        (["algo=apex", "model.log_std=1"], "; apex around dqn does not use it"),
        (["algo=icm", "algo@algo.inner=dqn", "model.share_value=true"], "; icm around dqn does not use it"),
        (["algo=ppo", "data.path=~other/rows"], r"data\.path=~other/rows: write the whole path of the folder"),
        (["algo=ppo", "env.frame_skip=4"], "option of Atari games, and env=CartPole-v1 is .*: env.action_repeat=N is the"),
        (["algo=ppo", "env.sticky_actions=0.1"], "option of Atari games, and env=CartPole-v1 is of the family gym$"),
        (["algo=ppo", "logger.mlflow.uri=null"], r"option of the logger mlflow, which logger= leaves out"),
        (["algo=dt"], "There is no algo 'dt'. RLlib's DT: it is the Decision Transformer; algo=bc,.* There are: a2c,"),
        (["algo=simple_q"], "There is no algo 'simple_q'. RLlib's SimpleQ is algo=dqn here"),
        (["algo=td3_bc"], "Choose another algorithm, such as bc, discrete_cql or marwil"),
        (["algo=ppo", "--json"], "--json is not a flag: options are key=value"),
        (["algo=ppo", "algo.lr = 1e-3"], "'algo.lr = 1e-3' is not of the form key=value, without blanks"),
        (["algo=ppo", "algo.lr=1e-3,"], "there is a ',' at its end"),
        (["algo=ppo", "run_dir=runs/a=b"], re.escape("needs quotes, as in \"run_dir='runs/a=b'\"")),
    ],
)
def test_the_sentence_names_the_choice_that_has_the_option(words, said):
    with pytest.raises(UserError, match=said):
        _dispatch(["train", "--plan", *words, *RUN])


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["algo=td3", "env=Pendulum-v1", "algo.exploration.theta=0.3"],
            "used only where algo.exploration.kind=ou, and .* is gaussian",
        ),
        (
            ["algo=ppo", "algo.optimizer.decay=0.5"],
            "used only where algo.optimizer.kind=rmsprop or rmsprop_tf, and .* is adam",
        ),
        (["algo=impala", "runner.requests_in_flight=1"], "is for runs with samplers in processes of their own"),
        (["algo=impala", "runner.broadcast_interval=3"], "is for runs with samplers in processes of their own"),
        (["algo=ppo", "model.log_std=-1"], "is for environments with continuous actions"),
        (
            ["algo=sac", "env=Pendulum-v1", "model.hidden=[]", "model.activation=elu"],
            "is for networks with model.hidden",
        ),
        (
            ["algo=ppo", "eval.greedy=false"],
            r"used only where eval.every is set \(not null, false or 0\), and eval.every is null",
        ),
        (["algo=ars", "model.hidden=[]", "env.reward_clip=sign"], "is for algorithms with algo.reward_clip"),
        (
            ["algo=ppo", "algo.by_observation.images.lr=1"],
            "used only where algo.lr is auto and observations are of the kind images",
        ),
        (["algo=ppo", "algo.lr=1e-3", "algo.by_observation.vectors.lr=1"], "used only where algo.lr is auto"),
        (["algo=ppo", "model.conv_activation=elu"], "model.conv_activation is for images"),
        (["algo=es", "resources=auto", "resources.learner_threads=2"], "one thread makes"),
        (["algo=ppo", "resources.precision=bf16"], "only convolutions use bf16"),
        (["algo=ppo", "env=Pong", "model=mlp", "resources.precision=bf16"], "only convolutions use bf16"),
        (["algo=ppo", "env=Pong", "model=mlp", "resources.compile=true"], "is for encoders with convolutions"),
        (["algo=rainbow", "model.q_head=test_every_option:Last"], "replaces the only layer that could be noisy"),
    ],
)
def test_an_option_that_a_run_does_not_use_is_refused(words, said, tmp_path, monkeypatch):
    """The command ends before anything is made; what is refused is another value than the default."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        _dispatch(["train", *RUN, *words])
    assert list(tmp_path.iterdir()) == []


DREAMERV3 = ["algo=dreamerv3", "env=CartPole-v1"]
RND = ["algo=rnd", "env=FrozenLake-v1"]
TICTACTOE = ["algo=alphazero", "env=TicTacToe-v0", "model=mlp"]


@pytest.mark.parametrize(
    "words, given, used, said",
    [
        (["algo=dreamerv3"], "model.symlog=false", ["env=CartPole-v1", "env=FrozenLake-v1"], "for environments that show numbers"),
        (DREAMERV3, "algo.repval_grad=false", ["", "algo.loss_scales.repval=0"], r"only where algo.loss_scales.repval is set \(.*\), and algo.loss_scales.repval is 0"),
        (DREAMERV3, "algo.reward_grad=false", ["", "algo.loss_scales.rew=0"], "only where algo.loss_scales.rew is set"),
        (DREAMERV3, "algo.slow_rate=0.5", ["", "algo.slow_reg=0"], "for runs that read the slow value"),
        ([*DREAMERV3, "algo.slow_reg=0"], "algo.slow_every=7", ["algo.slow_target=true", "algo.slow_target=false"], "for runs that read the slow value"),
        (["algo=dreamer", "env=CartPole-v1"], "algo.free_nats=1", ["", "algo.kl_coef=0"], "only where algo.kl_coef is set"),
        (["algo=rnd"], "algo.observation_clip=1", ["env=CartPole-v1", "env=FrozenLake-v1"], "for environments that show numbers or images"),
        (RND, "algo.activation=tanh", ["", "algo.predictor_hidden=[]"], "for networks with hidden layers"),
        ([*RND, "algo.predictor_hidden=[]"], "algo.activation=tanh", ["algo.feature_hidden=[4]", "algo.feature_hidden=[]"], "for networks with hidden layers"),
        (["algo=ars", "env=CartPole-v1"], "algo.actor.activation=relu", ["algo.actor.hidden=[8]", ""], r"only where algo.actor.hidden is set .* is \[\]"),
        (["algo=ppo", "env=rlrun/IdentityImage-v0", "model.hidden=[]"], "model.layer_norm=true", ["model.conv_filters=[[4,4,2]]", "model.encoder=mlp"], "for networks with model.hidden, or with the convolutions of nature_cnn or model.conv_filters"),
        (["algo=ars", "env=CartPole-v1"], "algo.actor.layer_norm=true", ["algo.actor.hidden=[8]", ""], "only where algo.actor.hidden is set"),
        (["algo=slateq", "env=rlrun/InterestEvolution-v0"], "algo.q.activation=tanh", ["", "algo.q.hidden=[]"], "only where algo.q.hidden is set"),
        (["algo=td3", "env=Pendulum-v1"], "algo.critic.layer_norm=true", ["", "algo.critic.hidden=[]"], "only where algo.critic.hidden is set"),
        (["algo=re3", "env=CartPole-v1"], "algo.activation=tanh", ["", "algo.encoder_hidden=[]"], "for networks with hidden layers"),
        (["algo=re3", "algo.encoder_hidden=[]"], "algo.activation=tanh", ["env=Pong", "env=CartPole-v1"], "for networks with hidden layers"),
        (["algo=rainbow", "env=CartPole-v1"], "algo.exploration.epsilon_min=0.01", ["algo.exploration.epsilon=0.1", ""], "only where algo.exploration.epsilon is set"),
        (["algo=ddpg", "env=Pendulum-v1"], "algo.exploration.std=0.5", ["", "algo.exploration.scale=0"], "only where algo.exploration.scale is set"),
        (["algo=dqn", "env=CartPole-v1", "replay=prioritized"], "replay.beta=0.9", ["", "replay.alpha=0"], "only where replay.alpha is set"),
        (TICTACTOE, "algo.search.dirichlet_alpha=0.3", ["", "algo.search.dirichlet_share=0"], "only where algo.search.dirichlet_share is set"),
        ([*TICTACTOE, "algo.search.simulations=0"], "algo.search.puct=2", ["algo.eval_simulations=8", ""], "for searches with simulations"),
        (TICTACTOE, "algo.temperature_moves=3", ["", "algo.exploration.kind=random"], "for runs that explore by the search's visits"),
        (["algo=dqn", "env=rlrun/IdentityImage-v0"], "model.conv_hidden=[8]", ["", "algo.head.hidden=[8]"], "layers behind them that algo.head.hidden does not replace"),
        (["algo=maml", "env=PendulumMass-v0"], "model.share_value=true", ["algo.baseline=value", "algo.baseline=linear"], "for algorithms that learn values with a network"),
        (["algo=ppo", "env=CartPole-v1", "eval.every=1000"], "eval.episodes=50", ["", "eval.env_steps=500"], "only where eval.env_steps=null"),
        (["env=CartPole-v1", "eval.every=1000"], "eval.greedy=false", ["algo=ppo", "algo=es"], "for policies that draw actions"),
        (["env=Pong"], "env.life_loss_terminal=false", ["algo=a2c", "algo=es"], "for algorithms that learn from single steps"),
        (["algo=ppo", "env=CartPole-v1"], "checkpoint.best_every_sec=60", ["", "eval.every=1000"], "for runs that training games or a rating judge"),
        (["algo=multi", "env=MultiAgentCartPole-v0"], "algo.options.agent_1.kl_target=0.5", ["algo.options={agent_1: {kl_coef: 0.1}}", ""], r"only where algo.options.agent_1.kl_coef is set"),
    ],
)  # fmt: skip
def test_an_option_is_refused_where_another_one_or_the_environment_switches_it_off(words, given, used, said, capsys):
    """used: a word with which a run uses the option, and another one with which it does not."""
    plans = [["train", "--plan", *words, *filter(None, [word]), given, "logger=[]", "resources=debug"] for word in used]
    assert _dispatch(plans[0]) == 0
    with pytest.raises(UserError, match=f"{re.escape(given)} does nothing in this run: it is .*{said}"):
        _dispatch(plans[1])


def test_a_default_may_be_said_and_a_folder_of_options_counts_as_the_command(tmp_path, capsys):
    assert _dispatch(["train", "--plan", "algo=dqn", "algo.head.sigma0=0.5", "algo.optimizer.decay=0.99", *RUN]) == 0
    (tmp_path / "tuned" / "dqn").mkdir(parents=True)
    lines = "# @package _global_\ndefaults:\n  - override /algo: dqn\n  - override /env: CartPole-v1\nalgo: {head: {sigma0: 0.4}}\n"
    (tmp_path / "tuned" / "dqn" / "mine.yaml").write_text(lines)
    words = ["train", "--plan", "--config-dir", str(tmp_path), "tuned=dqn/mine", *RUN[1:]]
    with pytest.raises(
        UserError, match=r"sigma0=0\.4 does nothing in this run: it is used only where algo\.head\.noisy=true"
    ):
        _dispatch(words)
    assert _dispatch([*words, "algo.head.sigma0=0.5"]) == 0
    assert _dispatch([*words, "algo.head.noisy=true"]) == 0


def test_options_of_a_replay_are_refused_in_a_run_without_one():
    words = ["algo=marwil", "runner=on_policy", "algo.learns_from=experience", "env=CartPole-v1", "replay.capacity=100"]
    with pytest.raises(UserError, match=r"replay\.capacity=100 does nothing in this run: it is for runs that keep a replay"):
        _dispatch(["train", *words, "logger=[]"])


def test_samplers_get_processes_where_an_option_is_about_them(capsys):
    words = ["--plan", "algo=impala", "env=CartPole-v1", "logger=[]", "runner.requests_in_flight=3"]
    assert _dispatch(["train", *words]) == 0
    assert "inference=local: runner.requests_in_flight was set, and only samplers" in capsys.readouterr().out


def test_old_runs_have_options_that_did_nothing(tmp_path, capsys):
    """Runs made before these options moved into one choice load as they are, and go on."""
    small = ["algo.learning_starts=30", "replay.capacity=300", "algo.batch_size=20", "env_steps=60"]
    runs = {
        "dqn": (["algo=dqn", *small], ("replay", {"alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6})),
        "ppo": (
            ["algo=ppo", "model=lstm", "algo.fragment_length=16", "algo.batch_size=16", "algo.minibatch_size=16", "algo.num_epochs=1"],
            ("memory", {"layers": 1, "heads": 2, "length": 50}),
        ),
        "qr_dqn": (
            ["algo=qr_dqn", *small],
            (
                "model",
                {"log_std": 0.0, "share_value": True, "action_distribution": "gaussian", "autoregressive": False},
            ),
        ),
        "pg": (["algo=pg", "algo.fragment_length=10", "algo.batch_size=20"], ("memory", {"size": 256, "layers": 1, "heads": 2, "length": 50, "prev_action": False})),
    }
    for name, (words, (group, old)) in runs.items():
        run = tmp_path / name
        assert _dispatch(["train", *words, *RUN, "env_steps=60", f"run_dir={run}"]) == 0
        now = saved_config(run)
        file = run / "config.yaml"
        values = yaml.safe_load(file.read_text())
        node = {"replay": values.get("replay"), "model": values["model"], "memory": values["model"]["memory"]}[group]
        node |= old
        file.write_text(yaml.safe_dump(values))
        sign(file)
        capsys.readouterr()
        assert saved_config(run) == now and capsys.readouterr().err == ""
        assert _dispatch(["resume", str(run), "env_steps=120"]) == 0
        node[next(iter(old))] = 3
        file.write_text(yaml.safe_dump(values))
        sign(file)
        assert saved_config(run) == now
        assert f"{next(iter(old))}=3 never did anything" in capsys.readouterr().err


def test_old_runs_go_on_with_an_epsilon_of_0_and_a_limit_among_the_arguments(tmp_path):
    """Today both are refused."""
    run, file = tmp_path / "run", tmp_path / "run" / "config.yaml"
    words = ["algo=icm", "algo@algo.inner=dqn", "algo.inner.learning_starts=30", "algo.inner.batch_size=20"]
    few = ["replay.capacity=300", "algo.inner.exploration.epsilon=0.0", "env.action_repeat=5", "env_steps=60"]
    assert _dispatch(["train", *words, *few, *RUN, f"run_dir={run}"]) == 0
    values = yaml.safe_load(file.read_text())

    def now(limit):
        values["env"] |= {"kwargs": {"max_episode_steps": 12}, "max_episode_steps": limit}
        for node in (values["algo"], values["algo"]["inner"]):
            node["optimizer"]["epsilon"] = 0.0
        file.write_text(yaml.safe_dump(values))
        sign(file)
        return saved_config(run)

    assert now(7)["env"]["max_episode_steps"] == 7, "it held where both were given"
    made = now(None)
    assert made["env"]["max_episode_steps"] == 3 and made["env"]["kwargs"] == {}  # decisions of 5 steps
    optimizers = [node["optimizer"]["epsilon"] for node in (made["algo"], made["algo"]["inner"])]
    assert optimizers == [LEAST_EPSILON] * 2 and made["algo"]["inner"]["exploration"]["epsilon"] == 0
    assert _dispatch(["evaluate", str(run), "episodes=2"]) == 0
    assert _dispatch(["resume", str(run), "env_steps=120"]) == 0


@pytest.mark.parametrize("kind", [*ADAMS, *RMSPROPS])
def test_the_least_epsilon_keeps_parameters_without_a_gradient(kind):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = Optimizer([parameter], optimizer_config(kind=kind, epsilon=LEAST_EPSILON), Schedule.parse(0.01), 1.0)
    for updates in range(3):
        optimizer.step(parameter[0] ** 2, Clock(0, updates))
    assert parameter[1] == 1.0 and 0.0 < parameter[0] < 1.0


@pytest.mark.parametrize(
    "words",
    [
        ("env=Pong", "algo=dqn", "replay=prioritized", "resources=debug", "logger=[]"),
        ("algo=icm", "algo@algo.inner=a2c", "model=lstm", "env=MultiAgentCartPole-v0", "logger=[console]"),
        ("tuned=vdn/foraging",),
        ("tuned=apex/two_step_qmix", "logger=[]"),
        ("tuned=dqn/pong42", "env=Breakout", "replay=uniform", "resources=debug"),
        ("tuned=maml/cartpole_mass", "model=lstm"),
    ],
)
def test_tests_compose_what_hydra_does(words):
    """conftest.of_groups puts a config together from parts."""
    assert json.loads(of_groups(words)) == json.loads(by_hydra(words))


@pytest.mark.parametrize("words, expected", [
    (["algo=a3c", "env=Pong"], "mean_std"),
    (["algo=ddppo", "env=Pong", "model=lstm"], "mean_std"),
    (["algo=impala", "env=Pong", "model=impala_resnet", "model.observation_filter=none"], "none"),
    (["algo=ppo", "env=CartPole-v1"], "none"),
    (["algo=appo", "env=rlrun/EverySpace-v0"], "none"),  # an image is one part of several
    (["algo=appo", "env=Pong", "model=own"], "none"),
    (["algo=rnd", "env=Pong"], "none"),
    (["algo=dqn", "env=Pong"], "none"),
    (["algo=dqn", "env=Pong", "model.observation_filter=mean_std"], "mean_std"),
])  # fmt: skip
def test_policy_gradients_normalise_the_pixels_of_images(words, expected):
    words = [word if word != "model=own" else "model.encoder=my_package.module:Encoder" for word in words]
    made, told = settled(compose(*words))
    assert made["model"]["observation_filter"] == expected
    assert ("observation_filter" in told) == (expected == "mean_std" and "model.observation_filter=mean_std" not in words)


@pytest.mark.parametrize("given, expected", [
    ({}, (1536, 768, 64)),
    ({"batch_size": 4000}, (4000, 2000, 50)),  # RLlib's default
    ({"batch_size": 15360}, (15360, 768, 64)),  # the default fragments fit
    ({"batch_size": 1009}, (1009, 1009, 64)),  # a prime, which will be refused
    ({"fragment_length": 2048}, (2048, 2048, 64)),  # as in Stable-Baselines3 with one environment
    ({"fragment_length": 500}, (1500, 500, 60)),
    ({"minibatch_size": 100}, (1500, 750, 100)),
    ({"minibatch_size": 128, "fragment_length": 96}, (1536, 96, 128)),
    ({"batch_size": 2048, "fragment_length": 256, "minibatch_size": 100}, (2048, 256, 100)),  # all given: refused
    ({"batch_size": 0}, (0, 768, 64)),
])  # fmt: skip
def test_sizes_of_a_batch_that_are_not_given_follow_from_those_that_are(given, expected):
    made, told = settled(compose("algo=ppo", "env=CartPole-v1", *(f"algo.{name}={rows}" for name, rows in given.items())))
    names = ("batch_size", "fragment_length", "minibatch_size")
    assert tuple(made["algo"][name] for name in names) == expected
    assert all((f"algo.{name}=" in told) == (name not in given) for name in names)
    if expected[0] % expected[2] == 0 and expected[0] > 0:
        type_config(made)


@pytest.mark.parametrize("words, rate", [
    (["algo=impala", "env=CartPole-v1"], 4e-3),
    (["algo=appo", "env=CartPole-v1", "model=lstm"], 4e-3),
    (["algo=multi", "algo@algo.inner=impala", "env=MultiAgentCartPole-v0"], 4e-3),
    (["algo=impala", "env=CartPole-v1", "model.share_value=true"], None),
    (["algo=appo", "env=CartPole-v1", "algo.use_critic=false", "algo.vtrace=false"], None),
    (["algo=impala", "env=Pong"], None),
    (["algo=impala", "env=Pong", "algo.value_lr=1e-3"], 1e-3),
    (["algo=impala", "env=CartPole-v1", "algo.value_lr=null"], None),
])  # fmt: skip
def test_values_with_a_network_of_their_own_have_a_learning_rate_of_their_own(words, rate):
    made, told = settled(compose(*words))
    algo = made["algo"].get("inner", made["algo"])
    assert algo["value_lr"] == rate and ("value_lr" in told) == (rate == 4e-3)
    if rate is None:
        type_config(made)  # what is chosen is not refused


@pytest.mark.parametrize(
    "text, words, said",
    [
        ("algo: {lr: -1}", [], r"algo.lr must be at least 0, not -1 \(set in {}\)$"),
        ("algo: {lrr: 1}", [], r"There is no option algo.lrr. Did you mean algo.lr\? \(set in {}\)$"),
        ("algo: {lr: -1}", ["algo.lr=-2"], "algo.lr must be at least 0, not -2$"),
        ("algo: {lr: 1}", ["algo.discount=2"], "algo.discount must be between 0 and 1, not 2$"),
        ("stop: {wall_sec: 1}", ["stop={wall_sec: -3}"], "stop.wall_sec must be [a-z0 ]*, not -3$"),
    ],
)
def test_a_wrong_value_is_told_with_the_file_that_sets_it(text, words, said, tmp_path):
    file = tmp_path / "tuned" / "pg" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"# @package _global_\ndefaults: [{{override /env: CartPole-v1}}, {{override /algo: pg}}]\n{text}\n")
    with pytest.raises(UserError, match=said.format(re.escape(str(file)))):
        _dispatch(["train", "--plan", f"--config-dir={tmp_path}", "tuned=pg/mine", *words])


def test_a_sweep_is_no_run(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match=f"{tmp_path} is a sweep, not a run directory .rlrun sweep --resume goes on"):
        _dispatch(["resume", str(tmp_path)])


@pytest.mark.parametrize(
    "table, said",
    [
        ({"vectors": {"hidden": [3]}, "images": {"hidden": [4]}}, None),
        ({"vectors": {"hidden": [3]}}, "must have the groups vectors and images"),
        ({"vectors": 3, "images": 4}, "model.by_observation is no table of defaults"),
        (3, "model.by_observation is no table of defaults: 3"),
    ],
)
def test_a_strangers_table_of_defaults_is_used_or_refused(table, said):
    """Also one of options that its group does not have, which typing the group refuses."""
    values = {"env": {}, "algo": {"name": "pg"}, "model": {"by_observation": table}}
    if said is None:
        assert settled(values, "vectors") == ({"env": {}, "algo": {"name": "pg"}, "model": {}}, "")
    else:
        with pytest.raises(UserError, match=said):
            settled(values, "vectors")
