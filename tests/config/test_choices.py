"""Options that exist only with a choice of their group: Hydra refuses them elsewhere, and old runs that have them load."""

import pytest
import yaml

from rlrun.cli import _dispatch
from rlrun.config.saved import saved_config
from rlrun.config.signature import sign
from rlrun.core.errors import UserError

RUN = ["env=CartPole-v1", "resources=debug", "logger=[]", "model.hidden=[8]"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["algo=dqn", "replay.alpha=0.7"], "replay.alpha is an option of replay=prioritized"),
        (["algo=ppo", "replay.beta=1"], "replay.beta is an option of replay=prioritized"),
        (["algo=r2d2", "model.memory.heads=4"], "model.memory.heads is an option of model=gtrxl"),
        (["algo=ppo", "model.memory.size=8"], "model.memory.size is an option of model=gru, gtrxl or lstm"),
        (["algo=ppo", "runner.num_shards=2"], "runner.num_shards is an option of runner=distributed_replay"),
        (["algo=dqn", "model.share_value=false"], "is an option of algo=a2c, .* or ppo; dqn does not use it"),
        (["algo=td3", "model.action_distribution=beta"], "is an option of .*sac.*; td3 does not use it"),
        (["algo=apex", "model.log_std=1"], "; apex around dqn does not use it"),
        (["algo=icm", "algo@algo.inner=dqn", "model.share_value=true"], "; icm around dqn does not use it"),
    ],
)
def test_the_sentence_names_the_choice_that_has_the_option(words, said):
    with pytest.raises(UserError, match=said):
        _dispatch(["train", "--plan", *words, *RUN])


def test_old_runs_have_options_that_did_nothing(tmp_path, capsys):
    """Runs made before these options moved into one choice load as they are, and go on."""
    small = ["algo.learning_starts=30", "replay.capacity=300", "algo.batch_size=20", "env_steps=60"]
    runs = {
        "dqn": (["algo=dqn", *small], ("replay", {"alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6})),
        "ppo": (
            ["algo=ppo", "model=lstm", "algo.fragment_length=16", "algo.batch_size=16", "algo.minibatch_size=16"],
            ("memory", {"layers": 1, "heads": 2, "length": 50}),
        ),
        "pg": (["algo=pg"], ("memory", {"size": 256, "layers": 1, "heads": 2, "length": 50, "prev_action": False})),
    }
    for name, (words, (group, old)) in runs.items():
        run = tmp_path / name
        assert _dispatch(["train", *words, *RUN, "env_steps=60", f"run_dir={run}"]) == 0
        now = saved_config(run)
        file = run / "config.yaml"
        values = yaml.safe_load(file.read_text())
        node = values["replay"] if group == "replay" else values["model"]["memory"]
        node |= old
        file.write_text(yaml.safe_dump(values))
        sign(file)
        capsys.readouterr()
        assert saved_config(run) == now and capsys.readouterr().err == ""
        assert _dispatch(["resume", str(run), "env_steps=2000"]) == 0
        node[next(iter(old))] = 3
        file.write_text(yaml.safe_dump(values))
        sign(file)
        assert saved_config(run) == now
        assert f"{next(iter(old))}=3 never did anything" in capsys.readouterr().err
