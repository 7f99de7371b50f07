"""The rlrun command: bad input gives a sentence and exit code 2 before any worker starts; help, lists, completion."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import yaml
from omegaconf import ListConfig

from rlrun import cli
from rlrun.config.completion import suggestions
from rlrun.config.option_names import OTHERS, known_keys
from rlrun.config.paths import package
from rlrun.config.types import parse_assignments
from rlrun.core.errors import UserError
from rlrun.envs.names import family_of

PONG = ["train", "algo=impala", "env=Pong"]
CARTPOLE = ["train", "algo=impala", "env=CartPole-v1"]

BAD = [
    (["train", "algo=impala", "env=Pongg"], "Did you mean Pong"),
    (["train", "algo=impala", "env=CartPol-v1"], "CartPole-v1"),
    (["train", "algo=impala", "env=no_such_package:Env-v0"], "cannot import no_such_package"),
    (["train", "algo=impla", "env=Pong"], "Did you mean impala"),
    (["train", "algo=nosuch", "--help"], "There is no algorithm 'nosuch'. rlrun list algos shows all."),
    (["help", "nosuch"], "There is no command 'nosuch'."),
    (["enjoy"], "Did you mean watch? rlrun --help"),
    (["trian"], "Did you mean train? rlrun --help"),
    (["PPO"], "Did you mean rlrun train algo=ppo env=NAME? rlrun --help"),
    (["tensorboard"], "TensorBoard is a program of its own: tensorboard --logdir runs. rlrun --help"),
    (["train", "algo=bc", "env=data", "data.path=nowhere"], "there is no file or folder nowhere"),
    (["train", "algo=bc", "env=data"], "no data say what the environment is (data.path=)"),
    (["train", "algo=ppo", "env=data"], "no data say what the environment is"),
    (["train", "algo=ppo", "env=CartPole-v1", "--cfg=all"], "--cfg prints the whole config of a command where job"),
    (["train", "algo=ppo", "env=CartPole-v1", "-c"], "where job follows it: -c job"),
    (["train", "algo=pg", "env=CartPole-v1", "model.memory.kind=[]"], "model.memory.kind must be one of none, lstm, gru, gtrxl, not []."),
    (["train", "algo=pg", "env=my_env.py:MyEnv"], "MyEnv of a file my_env.py is named env=my_env:MyEnv, and the file"),
    (["train", "algo=pg", "env=my_env.py"], "env=my_env.py: name the class too, as in env=my_env:MyEnv; the file has"),
    (["train", "algo=pg", "env=/home/me/my_env.py"], "name the class too, as in env=my_env:MyEnv; the file has"),
    (["train", "algo=pg", "env=./my_env.py:MyEnv"], "MyEnv of a file my_env.py is named env=my_env:MyEnv, and the file"),
    (["train", "env=Pong"], "algo= is missing"),
    (["train", "algo=impala"], "env= is missing"),
    (["train", "algo=impala", "env_steps=9"], "env= is missing"),
    (["train", "env=Pong", "algo.lr=1"], "algo= is missing"),
    ([*PONG, "algo.lrr=1"], "no option algo.lrr. Did you mean algo.lr"),
    ([*PONG, "envsteps=5"], "Did you mean env_steps"),
    ([*PONG, "+algo.typo=1"], "no option algo.typo"),
    ([*PONG, "+typo=1"], "no option typo"),
    ([*PONG, "seed=abc"], "seed must be a whole number, not 'abc'"),
    ([*PONG, "seed=1.5"], "seed must be a whole number"),
    ([*PONG, "env_steps=0"], "env_steps must be at least 1"),
    ([*PONG, "algo.lr=-1"], "algo.lr must be at least 0, not -1"),
    ([*PONG, "algo.lr=fast"], "algo.lr: a schedule is"),
    ([*PONG, "algo.discount=1.5"], "algo.discount must be between 0 and 1, not 1.5"),
    ([*PONG, "algo.batch_size=501"], "multiple of fragment_length"),
    ([*PONG, "algo.optimizer.kind=lamb"], "must be one of adam, adamw, radam, laprop, rmsprop, rmsprop_tf, sgd"),
    ([*PONG, "model=nature_cn"], "Did you mean nature_cnn"),
    ([*CARTPOLE, "model=memory/lstm"], "There is no model 'memory/lstm'. Did you mean lstm? There are: agents, auto, "),
    ([*PONG, "env.size=200"], "env.size must be auto or between 1 and 160, not 200"),
    ([*PONG, "resources.device=cuda:99"], "CUDA devices are visible"),
    ([*PONG, "resources.device=tpu"], "is not a device"),
    ([*PONG, "resources.envs_per_sampler=7"], "must divide the 8 columns"),
    ([*PONG, "runner.replay_proportion=1"], "needs replay_slots"),
    ([*CARTPOLE, "model=nature_cnn"], "reads images"),
    ([*CARTPOLE, "resources=debug", "resources.inference=local"], "need inference=serial"),
    ([*CARTPOLE, "algo.value_lr=0.1", "model.share_value=true"], "shares its trunk"),
    (
        ["train", "algo=impala", "env=spaces_of_text:Text-v0"],
        "rlrun takes Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these",
    ),
    (["train", "algo=impala", "env=rlrun/Masked-v0", "env.kwargs.stuck=at once"], "leaves no legal action"),
    (["train", "algo=ppo", "env=rlrun/Masked-v0", "model=nature_cnn"], "reads images"),
    (["train", "algo=ppo", "env=CartPole-v1", "algo.gamma=0.9"], "RLlib's gamma is algo.discount here"),
    (["train", "algo=ppo", "env=CartPole-v1", "algo.simple_optimizer=true"], "has no counterpart: with it RLlib 0.5"),
    (
        ["train", "algo=ppo", "env=CartPole-v1", "runner.broadcast_interval=3"],
        "is an option of runner=actor_learner, which was not chosen",
    ),
    (["train", "algo=ppo", "env=CartPole-v1", "runner=actor_learner"], "newest policy's rows alone"),
    (
        ["train", "algo=ppo", "env=CartPole-v1", "resources.num_samplers=many"],
        "must be a whole number or auto, not 'many'",
    ),
    (["train", "algo=ppo", "env=Pong", "algo.normalize_reward=true"], "set reward_clip=none"),
    (["train", "--lr", "3e-4"], "options are key=value"),
    ([*CARTPOLE, "seed=1,2"], "one value each"),
    ([*CARTPOLE, "logger=[tensorbord]"], "Did you mean tensorboard"),
    ([*CARTPOLE, "env_steps", "100"], "not of the form key=value"),
    (["train", "algo=ppo", "env=CartPole-v1", "data.share=0.5", "data.path=x"], "or for runner=replay with data.share; this run"),
    ([*CARTPOLE, "model.memory=lstm"], "model.memory must be a group of keys, not 'lstm'"),
    (["train", "algo=ppo", "env=CartPole-v1", "+algo@algo.inner=a2c"], "There is no option algo.inner"),
    (["train", "tuned=null", "algo=ppo", "env=CartPole-v1"], "tuned=null: there is no such choice"),
    (["train", "algo=ppo", "env=CartPole-v1", "algo.lr=range(1,4)"], "one value each; several values are for rlrun sweep"),
    (["train", "algo=ppo", "env=CartPole-v1", "model=world_model"], "model.deter is an option of a world model, and ppo has none"),
    (["train", "algo=dqn", "env=CartPole-v1", "model=gaussian_world_model"], "is an option of a world model, and dqn has none"),
    (["train", "algo=multi", "env=TicTacToe-v0", "algo@algo.options.player_0=icm"], "icm cannot be inside multi: it holds another"),
    ([*CARTPOLE, "model.hidden[0]=3"], "a list is given as a whole, as in model.hidden=[64,64]"),
    ([*CARTPOLE, "algo..lr=3"], "'algo..lr' cannot be the name of an option"),
    ([*CARTPOLE, "model/output=action"], "model/output= is no group of which a file can be chosen. The groups are algo, env,"),
    ([*CARTPOLE, "modle=lstm"], "There is no option modle. Did you mean model,"),
    (["train", "alg=ppo", "env=CartPole-v1"], "There is no option alg. Did you mean algo?"),
    ([*CARTPOLE, "resources.ray.address=x"], "resources.ray.address is an option of resources=ray, which was not chosen"),
    (["sweep", "algo=ppo", "env=CartPole-v1", "seed=range(0,100M)"], "and a sweep takes at most 10,000"),
    (["sweep", "algo=ppo", "env=CartPole-v1", "--cluster", "ray", "--queue", "foo=3"], "--queue foo: there is no such option"),
    (["sync", "/tmp", "logger.mlflow.uri=3"], "logger.mlflow.uri must be a text, not 3"),
    (["sync", "/tmp", "logger.mlflow.uri=a", "logger.mlflow.uri=b"], "logger.mlflow.uri= is given twice"),
    (["sync", "/tmp", "logger.mlflow.experiment=${oc.env:HOME}"], "only rlrun train fills in ${...}; write the value itself"),
    (["train", "ppo", "CartPole-v1"], "'ppo' is not of the form key=value. Did you mean algo=ppo env=CartPole-v1?"),
    ([*CARTPOLE, "model.observation_filter=meanstd"], "mean_std"),
    (["train", "tuned=impala/pongg"], "Did you mean impala/pong"),
    (["train", "tuned=impala/pong", "logger=[consle]"], "logger"),
    (["trian"], "Did you mean train"),
    (["list", "algoz"], "Did you mean algos"),
    (["list", "algos", "foo"], "'foo' is one too many"),
    (["explain", "impla"], "Did you mean impala"),
    (["explain", "ppo", "dqn"], "'dqn' is one too many"),
    (["explain", "env=TwoStepGame-v0", "algo.lr=1"], "options such as env.kwargs"),
    (["benchmark", "throughputt"], "Did you mean throughput"),
    (["evaluate", "/nowhere"], "there is no folder /nowhere"),
    (["watch"], "takes one run directory"),
    (["train", "algo=sac", "env=Pendulum-v1", "algo.target_tua=1"], "Did you mean algo.target_tau"),
    (
        ["train", "algo=sac", "env=Pendulum-v1", "algo.ent_coef=1"],
        "ent_coef is algo.initial_alpha here (sac's goes on learning from there unless algo.alpha_lr=0)",
    ),
    (
        ["train", "algo=apex", "env=Pong", "algo@algo.inner=iqn", "algo.inner.num_cosinez=3"],
        "Did you mean algo.inner.num_cosines",
    ),
    (["train", "algo=apex", "env=Pong", "algo.inner.learning_rate=3"], "learning_rate is algo.inner.lr here"),
    (
        ["train", "tuned=td3/pendulum", "algo.learning_rate=1"],
        "Stable-Baselines3's learning_rate is algo.actor_lr here",
    ),
    (["train", "algo=ppo", "env=CartPole-v1", "num_steps=8"], "CleanRL's num_steps is algo.fragment_length here."),
    (["train", "algo=ppo", "env=CartPole-v1", "env_id=8"], "CleanRL's env_id is env here."),
    (["train", "tuned=td3/pendulum", "algo.inner.lr=1"], "no option algo.inner.lr."),
    (["train", "algo=ppo", "env=CartPole-v1", "algo.vf_coef=1"], "algo.value_coef here (twice theirs,"),
    (["train", "algo=ppo", "env=CartPole-v1", "algo.vf_loss_coeff=1"], "algo.value_coef here (twice RLlib's number,"),
    (["train", "algo=ppo", "env=CartPole-v1", "algo.n_envs=8"], "algo.batch_size here (algo.batch_size / algo.frag"),
    (["train", "algo=dqn", "env=CartPole-v1", "algo.n_envs=8"], "n_envs is algo.num_envs here."),
    (["train", "algo=dqn", "env=CartPole-v1", "algo.train_freq=4"], "times batch_size over train_freq times n_envs)"),
    (["train", "algo=sac", "env=Pendulum-v1", "algo.gradient_steps=4"], "over train_freq times n_envs)"),
    (["train", "algo=ppo", "env=CartPole-v1", "algo.clip_range_vf=1"], "algo.value_clip here (theirs is the error of"),
    (["train", "algo=ppo", "env="], "env= has no value"),
    ([*CARTPOLE, "run_dir="], "run_dir= has no value"),
    (["sweep", "algo=ppo", "env=CartPole-v1", "model=", "seed=1,2"], "model= has no value"),
    (["train", "--package", "foo", *CARTPOLE[1:]], "--package is not a flag: options are key=value, such as"),
    (["train", "--algo", "ppo"], "--algo is not a flag: options are key=value, so write algo=ppo; rlrun"),
    ([*CARTPOLE, "--env_steps=9"], "options are key=value, so write env_steps=9; rlrun"),
    (["train", "-f", "tuned.yaml"], "-f is not a flag here; tuned=NAME is a tuned file, and rlrun import-rllib"),
    (["train", "tuned=tuned/ppo/cartpole.yaml"], ". Did you mean ppo/cartpole? There are"),
    (["train", "tuned=cartpole-sac"], ". Did you mean sac/cartpole? There are"),
    (["train", "tuned=ppo/cartpol"], ". Did you mean ppo/cartpole, "),
    ([*CARTPOLE, "policy=MlpPolicy"], "Stable-Baselines3's policy is model here (its networks follow"),
    ([*CARTPOLE, "-p=foo"], "-p=foo is not a flag here"),
    ([*CARTPOLE, "--resolve"], "--resolve changes what --cfg job prints"),
    (["train", "--shell-completion", *CARTPOLE[1:]], "--shell-completion is not a flag"),
    (["train", "-sc", "query=bash", *CARTPOLE[1:]], "-sc is not a flag here"),
    (["report", "a", "out=b.html"], "out=b.html: --out is a flag here, so write --out b.html"),
    (["report", "a", "--html"], "There is no flag --html here. Did you mean --out? There is --out."),
    (["doctor", "--window"], "--window is not a flag here: options are key=value, as in window=..."),
    (["doctor", "fps=3"], "There is no option fps. There is runs_root."),
    (["list", "games"], "There is no list of 'games'. Did you mean envs?"),
    (["compare", "a", "a", "--foo"], "There is no flag --foo here. This command takes no flags."),
    (["setup", "--plan"], "name them, as in rlrun setup mujoco --plan"),
    (["train", "resume=runs/some"], "rlrun resume RUN_DIR goes on with one"),
    (["resume", "/nowhere", "env_steps=1"], "there is no folder /nowhere"),
    ([*CARTPOLE, "logger=wandb"], "There is no logger 'wandb'. There are: console"),
    (["train", "algo=pg", "env=[CartPole-v1,Acrobot-v1]"], "env= takes one name, without brackets; rlrun sweep takes"),
    ([*CARTPOLE, "resources=[debug,auto]"], "resources= takes one name"),
    ([*CARTPOLE, "model/memory=[lstm]"], "model/memory= takes one name"),
    ([*CARTPOLE, "algo@algo.options.one=[3]"], "algo@algo.options.one= takes one name"),
    ([*CARTPOLE, "logger=[3]"], "a list of loggers holds names, such as logger=[console,"),
    ([*CARTPOLE, "logger=[console],[mlflow]"], "one value each"),
    ([*CARTPOLE, "logger=[[console]]"], "a list of loggers holds names"),
    ([*CARTPOLE, "=3"], "'=3' is not of the form key=value"),
    ([*CARTPOLE, "+@algo=ppo"], "'+@algo=ppo' is not of the form key=value"),
    ([*CARTPOLE, "logger=null"], "logger=[] writes nothing"),
    ([*CARTPOLE, "algo=null"], "algo=null: there is no such choice; give a name, or leave this word out"),
    ([*CARTPOLE, "env=null"], "env=null: there is no such choice"),
    ([*CARTPOLE, "model=null"], "model=null: there is no such choice"),
    ([*CARTPOLE, "runner=null"], "runner=null: there is no such choice"),
    ([*CARTPOLE, "resources=null"], "resources=null: there is no such choice"),
    ([*CARTPOLE, "model/memory=null"], "model/memory=null: there is no such choice"),
    ([*CARTPOLE, "~algo.lr"], "no option can be taken away"),
    ([*CARTPOLE, "replay=prioritizd"], "Did you mean prioritized"),
    (["train", "--plan", "algo=ppo", "env=CartPole-v1", "replay=prioritized"], "algo=ppo learns from no replay"),
    ([*CARTPOLE, "algo@foo=ppo"], "algo@algo.inner where it is inside another"),
    (["benchmark", "replay", "algo=ppo"], "algo=ppo: benchmark replay takes capacity=ROWS"),
    (["benchmark", "replay", "capacity=inf"], "must be numbers of rows"),
    (["benchmark", "replay", "--json=/nowhere/x.json"], "there is no such folder"),
    (["benchmark", "throughput", *CARTPOLE[1:], "--json", "/"], "this is not the name of a file"),
    (["benchmark", "throughput", *CARTPOLE[1:], "seconds=nan"], "seconds must be a number of at least 5"),
    (["benchmark", "throughput", "--all", "seconds=inf"], "seconds must be a number of at least 5"),
    (["benchmark", "tuned", "pg/*", "--json=/nowhere/x.json", "--dry-run"], "there is no such folder"),
    (["benchmark", "tuned", "pg/*", "--json=/tmp", "--dry-run"], "this is not the name of a file"),
]


def test_suggestions_are_options_that_the_chosen_algorithm_has():
    assert (
        "algo.target_tau" in known_keys("sac")
        and "algo.target_tau" not in known_keys("ppo")
        and "algo.vtrace" not in known_keys("sac")
    )
    assert {"algo.target_tau", "algo.vtrace", "replay.capacity", "model.memory.size", "env_steps"} <= set(known_keys())


@pytest.mark.parametrize("filtered", ["default", "error", "ignore"])
def test_notices_are_printed_without_the_line_that_said_them(tmp_path, filtered):
    script = (
        "import sys, warnings, rlrun.cli as cli; from rlrun.core.errors import Notice; sys.argv = ['rlrun', '--version']\n"
        "try: cli.main()\nexcept SystemExit: pass\nwarnings.warn('ours', Notice); warnings.warn('theirs')"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONWARNINGS": filtered},
    ).stderr.splitlines()  # fmt: skip
    assert said[0] == "warning: ours" and (filtered == "ignore" or said[-1].endswith("UserWarning: theirs"))


def test_a_file_of_the_current_folder_does_not_take_the_place_of_pythons(tmp_path):
    here = tmp_path / "mine"
    here.mkdir()
    for name in ("random", "numpy", "torch"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name}')")
    done = subprocess.run([sys.executable, "-m", "rlrun", "list", "algos"], cwd=here, capture_output=True, text=True)
    assert done.stdout.startswith("a2c"), done.stderr


def test_names_of_other_libraries_lead_to_options_that_exist():
    files = [yaml.safe_load((package() / "data" / f"{file}.yaml").read_text()) for _, file in OTHERS]
    names = {name: row for file in files for name, row in file.items()}
    assert len(names) == sum(len(file) for file in files) > 75, "one library's name would hide another's"
    assert {option for row in names.values() for option in row["ours"]} <= {*known_keys(), "env", "resources", "model", "logger"}
    assert all(set(row) <= {"ours", "how"} and row["ours"] for row in names.values())


@pytest.fixture(autouse=True)
def outside_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rlrun"])
    yield
    assert [p.name for p in tmp_path.iterdir() if p.name != "mine"] == [], "bad input must leave nothing"


@pytest.mark.parametrize("words, said", BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_a_sentence(words, said):
    with pytest.raises(UserError) as caught:
        cli._dispatch(list(words))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("word, said", [
    ("episodes=[", r"^episodes=\[: the value cannot be read; a bracket or a quote may be missing$"),
    ("episodes=${", r"^episodes=\$\{: only rlrun train fills in "),
    ("eval.every=", "^eval.every= has no value; a shell variable behind it may not be set$"),
])  # fmt: skip
def test_a_value_that_is_cut_off_or_missing_is_a_sentence(word, said):
    with pytest.raises(UserError, match=said):
        parse_assignments(["seed=null", word])


@pytest.mark.parametrize("words", [["x" * 300], ["missing", f"algo.hidden=[{'8,' * 200}8]"]])
def test_a_word_that_no_path_can_be_is_a_sentence(words):
    with pytest.raises(UserError, match=r"cannot be read: File name too long|there is no folder missing"):
        cli._dispatch(["evaluate", *words])


def test_the_exit_code_is_2_and_no_traceback_is_shown():
    process = subprocess.run(
        [sys.executable, "-m", "rlrun", *PONG, "algo.lrr=1"], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert process.stderr.startswith("rlrun: There is no option algo.lrr")


def test_words_that_are_given_twice_are_said():
    from rlrun.commands.train import given_twice

    said = given_twice(["--plan", "seed=1", "algo=ppo", "seed=2", "+a=1", "a=2", "a=3"])
    assert said == ["note: seed=2 counts, and seed=1 does not", "note: a=3 counts, and +a=1 and a=2 do not"]
    assert given_twice(["seed=1", "seed=1", "env.kwargs={a: 1}", "env.kwargs={b: 1}"]) == []
    (one,) = given_twice([f"logger.mlflow.uri=postgresql://me:secret@{host}/x" for host in "ab"])
    assert "secret" not in one and one.count("://***@") == 2
    with pytest.raises(UserError, match="--config-dir is given twice"):
        cli.own_folder(["--config-dir=.", "--config-dir", "."])


def test_a_tuned_file_of_another_algorithm_is_refused(tmp_path):
    from rlrun.commands.train import check_tuned

    with pytest.raises(UserError, match="is for algo=impala, not algo=dqn"):
        check_tuned({"tuned": "impala/pong"}, {"algo": {"name": "dqn"}})
    impala = {"algo": {"name": "impala"}}
    assert check_tuned({"tuned": "impala/pong", "env": "Pong"}, impala) == []
    (note,) = check_tuned({"tuned": "impala/pong", "env": "Breakout"}, impala)
    assert note == "note: tuned=impala/pong was made for env=Pong, not env=Breakout"
    assert check_tuned({"tuned": None}, {"algo": {"name": "dqn"}}) == []


def test_a_game_that_was_measured_names_its_tuned_files():
    from rlrun.commands.train import tuned_for_game

    def said(algo, env, tuned=None):
        return tuned_for_game({"tuned": tuned, "env": env["name"]}, {"algo": {"name": algo}, "env": env})

    pong, cartpole = {"family": "atari", "name": "Pong"}, {"family": "gym", "name": "CartPole-v1"}
    (note,) = said("ppo", pong)
    assert note == "note: tuned=ppo/pong and tuned=ppo/pong_gpu have options that were measured on Pong"
    assert said("ppo", cartpole) == said("ppo", {**pong, "name": "Tennis"}) == said("mbmpo", pong) == []
    assert said("ppo", pong, "ppo/pong") == []


@pytest.mark.parametrize(
    "words, noted",
    [
        (["algo=ppo", "algo.batch_size=64", "algo.fragment_length=32"], True),
        (["algo=ppo", "algo.batch_size=64", "algo.fragment_length=32", "algo.minibatch_size=32"], False),
        (["algo=ppo", "algo.batch_size=256", "algo.fragment_length=32"], False),
        (["algo=ppo"], False),
        (["algo=a2c", "algo.batch_size=64", "algo.fragment_length=32"], False),
    ],
)
def test_a_batch_as_small_as_a_minibatch_of_sb3_has_a_note(words, noted, capsys):
    assert cli._dispatch(["train", "--plan", *words, "env=CartPole-v1", "resources=debug"]) == 0
    said = "note: algo.batch_size=64 is the rows of a whole update, which Stable-Baselines3 calls n_steps x n_envs; its batch_size"
    assert (said in capsys.readouterr().out) == noted


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["--version"], ["list", "algos"], ["list", "envs"], ["list", "tuned"], ["explain", "impala"]],
)
def test_what_only_prints(words, capsys):
    assert cli._dispatch(list(words)) == 0
    out = capsys.readouterr().out
    expected = {
        "algos": "impala",
        "envs": "Breakout",
        "tuned": "impala/pong",
        "impala": "vtrace_clip_rho_threshold",
        "--version": "0.1",
    }
    assert expected.get(words[-1] if words else "", "train") in out


@pytest.mark.parametrize("words", [["throughput"], ["throughput", "--all"], ["throughput", "algo=ppo"], ["replay"]])
def test_help_of_a_benchmark_describes_it_and_measures_nothing(capsys, words):
    assert cli._dispatch(["benchmark", *words, "--help"]) == 0
    assert capsys.readouterr().out.startswith("rlrun benchmark throughput algo=... env=...")


def test_help_has_the_comments_and_only_the_options_of_the_chosen_algorithm(capsys):
    assert cli._dispatch(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert "algo=ALGO" in out and "# every random number of the run is derived from it" in out
    assert "fragment_length" not in out and "hydra" not in out
    assert cli._dispatch(["train", "algo=impala", "env=Pendulum-v1", "-h"]) == 0
    out = capsys.readouterr().out
    assert "fragment_length: 20" in out and "vtrace_clip_rho_threshold" in out and "actor_learner" in out
    assert "target_entropy" not in out and "max_episode_steps" in out
    with pytest.raises(UserError, match="Did you mean impala"):
        cli._dispatch(["train", "algo=impla", "--help"])
    assert cli._dispatch(["help", "report"]) == 0
    assert capsys.readouterr().out.startswith("rlrun report ")


def test_a_file_that_is_named_with_a_dot_is_named_rightly(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"There is no env 'my_env\.MyEnv'"):
        family_of("my_env.MyEnv")
    (folder / "my_env.py").touch()
    with pytest.raises(UserError, match=r"MyEnv of a file my_env\.py is named env=my_env:MyEnv"):
        family_of("my_env.MyEnv")


@pytest.mark.parametrize("flag", ["--cfg job", "--cfg=job", "-c job"])
def test_cfg_prints_the_config(flag, capsys):
    cli._dispatch([*PONG, *flag.split()])
    assert "fragment_length: 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resources", "num_learners: auto"),
        ("runner", "runner=on_policy"),
        ("replay", "replay=prioritized"),
        ("model", "model=gtrxl"),
        ("model=lstm", "model=memory/lstm"),
        ("logger", "uri: null"),
        ("env", "env=atari"),
        ("stop", "no_improvement_steps: null   "),
        ("eval", "estimate:"),
        ("checkpoint", "# number of latest checkpoints"),
        ("data", "# Data to learn from"),
        ("algo=ppo", "clip_param"),
    ],
)
def test_explain_knows_every_group(name, said, capsys):
    assert cli._dispatch(["explain", name]) == 0
    assert said in capsys.readouterr().out


def test_an_environment_is_explained_with_its_options(capsys):
    assert cli._dispatch(["explain", "env=MultiAgentCartPole-v0", "env.kwargs={num_agents:3}"]) == 0
    said = capsys.readouterr().out
    assert "3: agent_0, agent_1, agent_2" in " ".join(said.split()) and "\nname: MultiAgentCartPole-v0\n" in said


def test_every_section_of_the_config_can_be_explained(capsys):
    from rlrun.config.texts import of_runs, sections, text_of

    runs = yaml.safe_load(of_runs())
    whole = yaml.safe_load(text_of("train"))
    assert runs == {key: value for key, value in whole.items() if key not in ("defaults", "hydra")}
    assert set(sections()) == {key for key, value in runs.items() if isinstance(value, dict)}
    for name, text in sections().items():
        assert yaml.safe_load(text) == {name: runs[name]}


def test_lists_of_algorithms_are_whole_sentences(capsys):
    from rlrun.commands.list import first_sentence

    assert first_sentence("A (Mnih et al. 2016) b.\nMore.") == "A (Mnih et al. 2016) b."
    assert cli._dispatch(["list", "algos"]) == 0
    told = "\n".join(capsys.readouterr().out.splitlines()).replace("\n ", " ").splitlines()
    assert len(told) > 40 and all(line.rstrip().endswith(".") for line in told)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_every_shell(shell, capsys, monkeypatch):
    assert cli._dispatch(["-sc", f"install={shell}"]) == 0
    script = capsys.readouterr().out
    assert f"query={shell}" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=20)
    monkeypatch.setenv("COMP_LINE", "rlrun train algo=sac algo.vtrace")
    monkeypatch.delenv("COMP_POINT", raising=False)
    assert cli._dispatch(["-sc", f"query={shell}"]) == 0 and capsys.readouterr().out.strip() == ""
    monkeypatch.setenv("COMP_LINE", "rlrun train algo=impala algo.vtrace")
    cli._dispatch(["-sc", f"query={shell}"])
    assert "algo.vtrace=" in capsys.readouterr().out.split()
    with pytest.raises(UserError, match="bash, zsh or fish"):
        cli._dispatch(["-sc", "install=tcsh"])


@pytest.mark.parametrize("lr", ["0.001", "[[0,0.0],[100,0.001]]", "{start: 0.1, end: 0.0, steps: 10}",
                                "{start: 0.1, end: 0.01, steps: 10, curve: exponential}"])  # fmt: skip
@pytest.mark.parametrize("base", [["tuned=impala/cartpole"], ["algo=impala", "env=CartPole-v1"]])
def test_a_schedule_replaces_whatever_stood_there(base, lr, capsys):
    import yaml

    cli._dispatch(["train", *base, f"algo.lr={lr}", "--cfg", "job"])
    assert yaml.safe_load(capsys.readouterr().out)["algo"]["lr"] == yaml.safe_load(lr)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("rlrun tr", ["train"]),
        ("rlrun train algo=im", ["algo=impala"]),
        ("rlrun train env=Breako", ["env=Breakout"]),
        ("rlrun train algo.los", ["algo.loss_reduction="]),
        ("rlrun train tuned=impala/po", ["tuned=impala/pong"]),
        ("rlrun train stop.w", ["stop.wall_sec="]),
        ("rlrun list a", ["algos"]),
        ("rlrun explain im", ["impala"]),
        ("rlrun explain res", ["resources"]),
        ("rlrun explain model=l", ["model=lstm"]),
        ("rlrun setup mu", ["mujoco"]),
        ("rlrun benchmark gr", ["growth"]),
    ],
)
def test_completion(line, expected):
    assert suggestions(line)[: len(expected)] == expected


def test_completion_is_quick_because_torch_is_not_imported():
    code = "import os, sys; os.environ['COMP_LINE'] = 'rlrun train env=Po'; from rlrun.cli import _dispatch; _dispatch(['-sc', 'query=bash']); "
    process = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True, timeout=60
    )
    assert "env=Pong" in process.stdout and process.stdout.strip().endswith("False")


def test_an_env_of_the_users_own_package(tmp_path, monkeypatch):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "my_package.py").write_text(
        "import gymnasium\nfrom rlrun.envs.debug import Identity\ngymnasium.register('MyEnv-v0', entry_point=Identity)\n"
    )
    run = package / "run"
    words = [
        "train",
        "algo=impala",
        "env=my_package:MyEnv-v0",
        "env.kwargs.n=3",
        "env_steps=200",
        "resources=debug",
        "logger=[]",
        f"run_dir={run}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    process = subprocess.run(
        [sys.executable, "-m", "rlrun", *words], capture_output=True, text=True, timeout=120, env=environment
    )
    assert process.returncode == 0, process.stderr
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    assert (run / "summary.json").exists()


def test_suggestions_name_options_that_exist():
    from rlrun.config.option_names import known_keys

    known = known_keys("impala")
    assert "resources.cuda_graphs" in known and not [
        name for name in known if name.startswith(("resources.resources.", "resources.checkpoint."))
    ]


def test_plan_prints_what_a_run_would_be_made_of_and_starts_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--plan", "algo=ppo", "env=CartPole-v1"]
    assert cli._dispatch([*words, "resources=debug"]) == 0
    said = capsys.readouterr().out
    assert "on_policy: 1 learner on cpu" in said and "the learner steps the environments itself" in said
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"algo\.lr must be at least 0"):
        cli._dispatch([*words, "algo.lr=-1"])


def test_ctrl_c_while_options_are_composed_is_an_interruption(monkeypatch):
    """In the middle of a list, OmegaConf would take the exception for an error of its own."""
    items, inherited = [], signal.getsignal(signal.SIGINT)
    before = signal.default_int_handler  # a shell lets jobs in its background ignore the signal
    set_item = ListConfig._set_item_impl

    def interrupted(self, key, value):
        items.append(value)
        if len(items) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        set_item(self, key, value)

    monkeypatch.setattr(ListConfig, "_set_item_impl", interrupted)
    signal.signal(signal.SIGINT, before)
    try:
        with pytest.raises(KeyboardInterrupt):
            cli.compose(CARTPOLE[1:], lambda cfg, choices: pytest.fail("the command goes on"))
        assert len(items) > 5 and signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, inherited)
