"""In which units the actions of RLlib's files are, and what is said of it."""

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from datasets_of_tests import data_of
from rllib_files import episode, line, part, plain
from test_rllib_json import CARTPOLE, PENDULUM, refused, trajectories, write
from wired import checked

from rlrun.cli import _dispatch
from rlrun.core.errors import UserError
from rlrun.core.specs import Box, EnvSpec
from rlrun.datasets.open import open_source
from rlrun.datasets.rllib_json import RLlibJson
from rlrun.datasets.rllib_parquet import RLlibParquet
from rlrun.runtime.advice import notes


def test_a_run_says_that_actions_beyond_the_bounds_are_taken_to_be_normalised(typed, tmp_path):
    """They are torques in [-2, 2]. With data.actions_normalized=false they are read as such."""
    columns = episode(8, width=3, actions=np.array([[-2.0], [2.0], [1.0], [-1.0], [0.3], [1.5], [0.0], [1.00001]]))
    write(tmp_path / "out", line(columns))
    words = ["algo=cql", "env=Pendulum-v1", f"data.path={tmp_path / 'out'}", "logger=[]"]
    (told,) = (note for note in notes(checked(typed(*words))) if "outside [-1, 1]" in note)
    assert told.startswith(f"{tmp_path / 'out'}: 3 of the 8 actions") and "data.actions_normalized=false" in told
    assert not any("[-1, 1]" in note for note in notes(checked(typed(*words, "data.actions_normalized=false"))))
    (inferred,) = (note for note in open_source(str(tmp_path / "out")).facts.notes if "[-1, 1]" in note)
    assert inferred.startswith("3 of the 8 actions")


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_more_than_the_first_batch_is_looked_at_for_actions_beyond_the_bounds(tmp_path, kind):
    """RLlib's SAC writes a row into each line."""
    columns = episode(40, width=3, actions=np.append(np.zeros(30), np.full(10, 1.5))[:, None])
    del columns["infos"]
    lines = [part(columns, i, i + 1) for i in range(40)]
    if kind == "json":
        source = RLlibJson(write(tmp_path / "out", *map(line, lines)), PENDULUM)
    else:
        rows = [{"type": "SampleBatch", **plain(one)} for one in lines]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=1)
        source = RLlibParquet(tmp_path, PENDULUM)
    (told,) = (note for note in source.facts.notes if "outside [-1, 1]" in note)
    assert told.startswith("10 of the 40 actions")


def test_actions_normalized_is_refused_where_it_changes_nothing(tmp_path):
    """It is for numbers with bounds in RLlib's files, and rlrun's own sets say by themselves what their units are."""
    numbers = np.array([[-2.0], [2.0], [1.0]])
    write(tmp_path / "torques", line(episode(3, width=3, actions=numbers)))
    write(tmp_path / "choices", line(episode(3)))
    own = data_of("Pendulum-v1", tmp_path / "own")
    for algo, env, folder in (("cql", "Pendulum-v1", own), ("dqn", "CartPole-v1", tmp_path / "choices")):
        words = [f"algo={algo}", "runner=offline", f"env={env}", "data.actions_normalized=false"]
        with pytest.raises(UserError, match="does nothing in this run: it is for RLlib's files in which actions"):
            _dispatch(["train", "--plan", *words, f"data.path={folder}"])
    words = ["train", "--plan", "algo=cql", "env=Pendulum-v1", "data.actions_normalized=false"]
    assert _dispatch([*words, f"data.path={tmp_path / 'torques'}"]) == 0
    more = [f"++data.path={{{own}: 0.5, {tmp_path / 'torques'}: 0.5}}"]
    assert _dispatch([*words, *more]) == 0, "one of several sets is enough"


@pytest.mark.parametrize("low", [0, -2, 3])
@pytest.mark.parametrize("normalized", [True, False])
def test_actions_of_boxes_of_whole_numbers_are_counted_from_the_lower_bound_or_as_they_are(tmp_path, normalized, low):
    """RLlib's unsquash_action sends low + action to the environment, and normalises no whole numbers."""
    box = Box(shape=(1,), dtype="int64", low=(low,), high=(low + 3.0,))
    spec = EnvSpec(name="Steps", obs=CARTPOLE.obs, action=box)
    written = np.arange(4)[:, None] + (0 if normalized else low)
    columns = episode(4, actions=written)
    source = RLlibJson(write(tmp_path / "out", line(columns)), spec, normalized)
    (one,) = trajectories(source)
    assert box.to_env(one.action[:4]).ravel().tolist() == list(range(low, low + 4))
    density = np.log(columns["action_prob"] / 0.5)  # each of the four numbers has a part of [-1, 1]
    np.testing.assert_allclose(one.record["log_prob"][:4], density, rtol=1e-5)
    assert not any("normalised" in note for note in source.facts.notes)
    for wrong in (written - 1, written + 1, written + 0.5):
        path = write(tmp_path / "wrong", line({**columns, "actions": wrong}))
        refused(path, "actions hold", f"from {low} to {low + 3}", "data.actions_normalized=false", spec=spec, normalized=normalized)


class Steps(gymnasium.Env):
    """An environment whose actions are whole numbers from `low` on."""

    def __init__(self, low):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        self.action_space = gymnasium.spaces.Box(low, low + 3, (1,), np.int64)


def test_actions_normalized_is_for_boxes_of_whole_numbers_that_do_not_begin_at_0(tmp_path):
    folder = write(tmp_path / "out", line(episode(1, actions=np.array([[0]]))))
    words = ["train", "--plan", "algo=cql", "env=test_rllib_actions:Steps", f"data.path={folder}"]
    assert _dispatch([*words, "env.kwargs.low=-2", "data.actions_normalized=false"]) == 0
    with pytest.raises(UserError, match="does nothing in this run: it is for RLlib's files in which actions"):
        _dispatch([*words, "env.kwargs.low=0", "data.actions_normalized=false"])
