"""Minari's sets are read with h5py and pyarrow alone, never make an environment, and are written so that Minari reads them."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.core.errors import UserError
from rlrun.core.specs import Agents, Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested
from rlrun.datasets.minari import MinariSet, folder_of, is_minari, space_of
from rlrun.datasets.minari_writer import write_minari
from rlrun.datasets.trajectories import DataFacts, Trajectory

PENDULUM = {
    "observation": {
        "type": "Box",
        "dtype": "float32",
        "shape": [3],
        "low": [-1.0, -1.0, -8.0],
        "high": [1.0, 1.0, 8.0],
    },
    "action": {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]},
}
ENV = {"id": "Pendulum-v1", "entry_point": "os:abort", "max_episode_steps": 200, "kwargs": {}}


def about(folder, observation=PENDULUM["observation"], action=PENDULUM["action"], **more):
    """Writes the metadata of a set."""
    data = {
        "data_format": "parquet", "total_episodes": 2, "total_steps": 9, "dataset_id": "pendulum/mine-v0", "minari_version": "0.5.4",
        "observation_space": json.dumps(observation), "action_space": json.dumps(action), "env_spec": json.dumps(ENV),
        "algorithm_name": "SAC", "ref_min_score": -1200.0, "ref_max_score": -150.0, **more,
    }  # fmt: skip
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "metadata.json").write_text(
        json.dumps({key: value for key, value in data.items() if value is not None})
    )
    return folder


def flat(values, pad=0):
    """An Arrow array of lists of one length, as Minari stores boxes."""
    values = np.asarray(values)
    rows = np.pad(values.reshape(len(values), -1), ((0, pad), (0, 0)))
    return pa.FixedSizeListArray.from_arrays(rows.reshape(-1), rows.shape[1])


def numbers(length, seed=0):
    """Observations and actions of Pendulum [length (+ 1), ...]."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (length + 1, 3)).astype(np.float32), rng.uniform(-2, 2, (length, 1)).astype(np.float32)


def episode(folder, number, obs, action, kind="parquet", ends=(False, True), rewards=None, infos=None):
    """Writes an episode as Minari's Arrow and Parquet storages do, with every column padded to the observations."""
    count = len(obs) - 1
    flags = [np.append(np.arange(count) == count - 1, False) & end for end in ends]
    rewards = np.append(np.arange(count, dtype=np.float64), 0.0) if rewards is None else rewards
    columns = {
        "observations": obs if isinstance(obs, pa.Array) else flat(obs), "actions": action if isinstance(action, pa.Array) else flat(action, 1),
        "rewards": rewards, "terminations": flags[0], "truncations": flags[1],
    }  # fmt: skip
    if infos is not None:
        columns["infos"] = pa.array([{"log_prob": value} for value in infos])
    place = folder / "data" / str(number)
    place.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if kind == "parquet":
        parquet.write_table(table, place / "part-0.parquet")
    else:
        with pa.OSFile(str(place / "part-0.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return place / f"part-0.{kind}"


def trajectories(source):
    return [one for piece in range(source.pieces()) for one in source.read(piece)]


def refused(folder, *words, spec=None):
    with pytest.raises(UserError) as error:
        trajectories(MinariSet(folder, spec))
    text = str(error.value)
    assert all(word in text for word in words) and "\n" not in text, text


def two(folder, kind="parquet"):
    about(folder, data_format=kind)
    episode(folder, 0, *numbers(5), kind, infos=[-0.5] * 6)
    episode(folder, 1, *numbers(4, 1), kind, ends=(True, False), infos=[-1.0] * 5)
    return folder


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_set_is_read_without_minari(tmp_path, kind):
    source = MinariSet(two(tmp_path / "mine-v0", kind))
    first, second = trajectories(source)
    obs, action = numbers(5)
    assert first.steps == 5 and len(first) == 6 and first.whole and first.truncated[4] and not first.terminated.any()
    assert second.steps == 4 and second.terminated[3] and not second.truncated.any()
    np.testing.assert_array_equal(first.obs["observation"], obs)
    np.testing.assert_allclose(first.action[:5], action / 2, rtol=1e-6)
    assert first.reward.tolist() == [0, 1, 2, 3, 4, 0] and first.reward.dtype == np.float32
    np.testing.assert_array_equal(first.record["log_prob"][:5], np.float32(-0.5))
    facts = source.facts
    assert facts.spec.name == "Pendulum-v1" and facts.spec.max_episode_steps == 200
    assert facts.spec.action == Box(shape=(1,), dtype="float32", low=(-2.0,), high=(2.0,))
    assert facts.spec.observation == Box(shape=(3,), dtype="float32", low=(-8.0,), high=(8.0,))
    assert (facts.random_return, facts.expert_return, facts.policies) == (-1200.0, -150.0, ("SAC",))
    assert is_minari(tmp_path / "mine-v0") and not is_minari(tmp_path)


def test_sets_are_found_by_path_and_by_id(tmp_path, monkeypatch):
    folder = two(tmp_path / "sets" / "pendulum" / "mine-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    for name in (folder, folder / "data", str(folder), "pendulum/mine-v0", "minari:pendulum/mine-v0"):
        assert folder_of(name) == folder / "data", name
    assert folder_of("pendulum/mine-v1") is None
    refused("minari:pendulum/mine-v1", "no Minari set")


def test_the_environment_in_the_metadata_is_never_made(tmp_path):
    """Its entry point would end the process."""
    source = MinariSet(two(tmp_path / "mine-v0"))
    assert len(trajectories(source)) == 2
    about(tmp_path / "old-v0", observation_space=None)
    refused(tmp_path / "old-v0", "observation space", "does not make for you")


def test_the_spaces_of_env_must_be_those_of_the_set(tmp_path):
    folder = two(tmp_path / "mine-v0")
    own = MinariSet(folder).facts.spec
    spec = EnvSpec(
        name="Mine", obs={"observation": Box(shape=(3,), dtype="float32", low=(-1.0,), high=(1.0,))}, action=own.action
    )
    assert MinariSet(folder, spec).facts.spec == spec, "bounds of observations may differ"
    refused(
        folder,
        "actions",
        "other bounds",
        spec=EnvSpec(name="X", obs=own.obs, action=Box(shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,))),
    )
    refused(folder, "observations", spec=EnvSpec(name="X", obs={"observation": Discrete(n=3)}, action=own.action))


def test_nested_spaces_masks_and_choices(tmp_path):
    choice = {"type": "Discrete", "n": 3, "start": 1, "dtype": "int64"}
    parts = {
        "position": PENDULUM["observation"],
        "action_mask": {"type": "MultiBinary", "n": 3},
        "level": {"type": "MultiDiscrete", "nvec": [2, 3], "start": [0, 0]},
    }
    about(tmp_path, {"type": "Dict", "subspaces": parts}, choice, total_episodes=1)
    obs, _ = numbers(4)
    levels, mask = np.array([[0, 2], [1, 1], [0, 0], [1, 0], [0, 1]]), np.ones((5, 3), dtype=np.int8)
    packed = pa.StructArray.from_arrays(
        [flat(obs), flat(mask), flat(levels)], names=["position", "action_mask", "level"]
    )
    episode(tmp_path, 0, packed, pa.array([1, 3, 2, 1, 0]))
    source = MinariSet(tmp_path)
    (one,) = trajectories(source)
    assert one.action.tolist() == [0, 2, 1, 0, 0]
    np.testing.assert_array_equal(one.obs["observation"]["level"], levels)
    np.testing.assert_array_equal(one.obs["observation"]["position"], obs)
    assert one.obs["action_mask"].shape == (5, 3) and one.obs["action_mask"].dtype == np.int64
    assert (
        source.facts.spec.obs["action_mask"] == MultiBinary(shape=(3,))
        and "action_mask" not in source.facts.spec.observation.parts
    )


def test_an_end_in_the_middle_is_a_dead_row_and_none_at_all_is_not_whole(tmp_path):
    about(tmp_path, total_episodes=1)
    obs, action = numbers(4)
    path = episode(tmp_path, 0, obs, action, ends=(False, False))
    table = parquet.read_table(path)
    at = table.column_names.index("terminations")
    parquet.write_table(table.set_column(at, "terminations", pa.array([False, True, False, False, False])), path)
    (one,) = trajectories(MinariSet(tmp_path))
    assert not one.whole and one.valid.tolist() == [True, True, False, True, True, False]
    np.testing.assert_array_equal(one.obs["observation"], obs[[0, 1, 2, 2, 3, 4]])


@pytest.mark.parametrize("key, value, words", [
    ("total_episodes", 0, "no episodes"), ("total_episodes", "2", "no episodes"), ("data_format", "zarr", "'zarr'"), ("total_episodes", 3, "behind episode 1"),
    ("observation_space", "{", "damaged observation space"), ("observation_space", '{"type": "Text"}', "space Text"), ("action_space", '{"type": "Box"}', "damaged action space"),
    ("action_space", json.dumps({**PENDULUM["action"], "low": [2.0]}), "lowest value is its highest"),
    ("action_space", json.dumps({**PENDULUM["action"], "shape": [10**9]}), "damaged action space"), ("action_space", "[" * 100_000, "damaged action space"),
])  # fmt: skip
def test_damaged_metadata_get_a_sentence(tmp_path, key, value, words):
    about(two(tmp_path), **{key: value})
    refused(tmp_path, words)


def test_observations_of_whole_numbers_lose_no_fractions(tmp_path):
    """Whole numbers that are stored as floats are read."""
    space = {**PENDULUM["observation"], "dtype": "int32", "low": [-9] * 3, "high": [9] * 3}
    about(tmp_path, observation=space, total_episodes=1)
    obs, action = np.arange(18.0).reshape(6, 3), numbers(5)[1]
    episode(tmp_path, 0, obs, action)
    (one,) = trajectories(MinariSet(tmp_path))
    assert one.obs["observation"].dtype == np.int32 and (one.obs["observation"] == obs).all()
    episode(tmp_path, 0, obs + 0.7, action)
    refused(tmp_path, "episode 0: observations holds a number with a fraction", "Box([3], int32)")


def test_damaged_episodes_get_a_sentence(tmp_path):
    two(tmp_path)
    obs, action = numbers(5)
    episode(tmp_path, 0, np.where(np.arange(3) == 1, np.nan, obs).astype(np.float32), action)
    refused(tmp_path, "episode 0", "finite")
    episode(tmp_path, 0, obs, action, rewards=np.array([1.0, np.inf, 0, 0, 0, 0]))
    refused(tmp_path, "episode 0: rewards")
    for large, rewards, words in ((1e300, None, "observations"), (1.0, np.full(6, 1e39), "rewards")):
        episode(tmp_path, 0, obs.astype(np.float64) * large, action, rewards=rewards)
        refused(tmp_path, f"episode 0: {words} holds a number that is too large")
    episode(tmp_path, 0, obs[:, :2], action)
    refused(tmp_path, "cannot be read", "reshape")
    path = episode(tmp_path, 0, obs, action)
    data = path.read_bytes()
    for end in (0, 10, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:end])
        refused(tmp_path, "cannot be read")
    path.unlink()
    refused(tmp_path, "no parquet file of episode 0")
    (tmp_path / "data" / "metadata.json").write_text("{")
    refused(tmp_path, "metadata.json cannot be read")
    assert not is_minari(tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["Box", "Discrete", "Dict", "Tuple", "MultiDiscrete", "MultiBinary", "float32", "O"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "n", "nvec", "shape", "low", "high", "dtype", "start", "subspaces"]), inner, max_size=6), max_leaves=12,
))  # fmt: skip
def test_any_json_is_a_space_or_refused_on_opening(data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        about(Path(folder), observation=data)
        with pytest.raises(UserError):
            trajectories(MinariSet(folder))  # a space that is one by chance still has no episodes


def test_bounds_and_dtypes_of_boxes():
    box = {"type": "Box", "dtype": "float64", "shape": [2], "low": [-1, float("-inf")], "high": [1, 5]}
    assert space_of(box, "observation") == Box(shape=(2,), dtype="float32", low=(-np.inf,), high=(5.0,))
    assert space_of(box, "action") == Box(shape=(2,), dtype="float64", low=(-1.0, -np.inf), high=(1.0, 5.0))
    assert space_of({"type": "MultiDiscrete", "nvec": [[2], [3]]}, "action") == MultiDiscrete(
        sizes=(2, 3), starts=(0, 0), shape=(2, 1)
    )
    for bad in (
        {**box, "dtype": "object"},
        {**box, "low": [float("nan"), 0]},
        {"type": "Discrete", "n": 0},
        {"type": "MultiBinary", "n": -1},
        {"type": "MultiDiscrete", "nvec": ["a"]},
    ):
        with pytest.raises((ValueError, TypeError)):
            space_of(bad, "action")


# HDF5, and what needs Minari itself


def hdf5(folder, obs, action, **more):
    h5py = pytest.importorskip("h5py")
    about(folder, data_format="hdf5", total_episodes=1, **more)
    count = len(obs) - 1
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["observations"], group["actions"], group["rewards"] = obs, action, np.arange(count, dtype=np.float64)
        group["terminations"], group["truncations"] = np.arange(count) == count - 1, np.zeros(count, dtype=bool)
    return folder / "data" / "main_data.hdf5"


def test_hdf5_is_read_with_h5py_alone(tmp_path):
    obs, action = numbers(6)
    path = hdf5(tmp_path, obs, action)
    (one,) = trajectories(MinariSet(tmp_path))
    np.testing.assert_array_equal(one.obs["observation"], obs)
    assert one.steps == 6 and one.terminated[5] and one.record == {}
    data = path.read_bytes()
    for end in (0, 100, len(data) // 2):
        path.write_bytes(data[:end])
        refused(tmp_path, "cannot be read")


def test_hdf5_may_not_lead_out_of_its_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    obs, action = numbers(6)
    other = hdf5(tmp_path / "other", obs, action)
    path = hdf5(tmp_path / "mine", obs, action)
    with h5py.File(path, "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = h5py.ExternalLink(str(other), "episode_0/observations")
    refused(tmp_path / "mine", "no observations of its own")
    with h5py.File(path, "a") as file:
        del file["episode_0/observations"]
        layout = h5py.VirtualLayout(shape=obs.shape, dtype=obs.dtype)
        layout[:] = h5py.VirtualSource(str(other), "episode_0/observations", shape=obs.shape)
        file["episode_0"].create_virtual_dataset("observations", layout)
    refused(tmp_path / "mine", "observations are in another file")


class Listed:
    """A Source of trajectories in a list."""

    def __init__(self, found, facts):
        self.found, self.facts, self.name, self.most_rows = found, facts, "listed", None

    def pieces(self):
        return len(self.found)

    def read(self, piece):
        yield self.found[piece]


def trajectory(obs, action, valid, terminated=(), whole=True):
    count = len(valid)
    flags = np.isin(np.arange(count), terminated)
    reward = np.where(valid, np.arange(count), 0).astype(np.float32)
    record = {"log_prob": np.where(valid, -0.25, 0).astype(np.float32)}
    return Trajectory(obs, action, reward, flags, np.zeros(count, dtype=bool), np.array(valid), record, whole=whole)


SPECS = {
    "numbers": (Box(shape=(3,), dtype="float32", low=(-8.0,), high=(8.0,)), Box(shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 1.0))),
    "choices": (Discrete(n=5, start=2), MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,))),
    "pictures": (Box(shape=(40, 36, 3), dtype="uint8", low=(0.0,), high=(255.0,)), Discrete(n=4)),
    "parts": (
        Nested(spaces=(("a", Box(shape=(2,), dtype="float32", low=(-1.0,), high=(1.0,))), ("b", MultiBinary(shape=(3,)))), ordered=False),
        Nested(spaces=(("0", Discrete(n=2)), ("1", Box(shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,)))), ordered=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("name", SPECS)
def test_what_is_written_is_read_again_to_the_bit_by_us_and_by_minari(tmp_path, monkeypatch, name, kind):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space, action_space = SPECS[name]
    rng = np.random.default_rng(0)

    def values(part, count, action=False):
        if isinstance(part, Nested):
            return {key: values(one, count, action) for key, one in part.spaces}
        if isinstance(part, Box) and part.dtype == "uint8":
            return rng.integers(0, 256, (count, *part.shape), dtype=np.uint8)
        return part.sample(rng, count)

    valid = [True] * 7 + [False]
    found = [trajectory({"observation": values(space, 8)}, values(action_space, 8, True), valid, [6]) for _ in range(3)]
    facts = DataFacts(
        spec=EnvSpec(name="X", obs={"observation": space}, action=action_space),
        policies=("PPO",),
        random_return=1.0,
        expert_return=9.0,
    )
    folder = write_minari(Listed(found, facts), "made/mine-v0", data_format=kind)
    assert folder == tmp_path / "made" / "mine-v0"
    source = MinariSet(folder)
    again = trajectories(source)
    assert (source.facts.random_return, source.facts.expert_return, source.facts.policies) == (1.0, 9.0, ("PPO",))
    assert source.facts.spec.obs == facts.spec.obs and source.facts.spec.action == facts.spec.action
    assert len(again) == 3
    for one, other in zip(found, again, strict=True):
        np.testing.assert_equal(other.obs, one.obs)
        for part in ("reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(other, part), getattr(one, part))
        np.testing.assert_array_equal(other.record["log_prob"], one.record["log_prob"])
        theirs, ours = (value if isinstance(value, dict) else {"": value} for value in (other.action, one.action))
        for key, value in theirs.items():
            np.testing.assert_allclose(value[:7], ours[key][:7], atol=1e-6)
    assert minari.load_dataset("made/mine-v0").total_steps == 21
    assert [len(one.rewards) for one in minari.load_dataset("made/mine-v0").iterate_episodes()] == [7, 7, 7]


def test_minari_itself_writes_what_we_read(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from gymnasium import spaces

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    frames = np.broadcast_to(np.arange(0, 200, 5, dtype=np.uint8)[:, None, None], (4, 40, 40, 3)).copy()
    buffer = minari.data_collector.EpisodeBuffer(
        observations=frames,
        actions=np.array([0, 1, 0]),
        rewards=[1.0, 2.0, 3.0],
        terminations=[False] * 3,
        truncations=[False, False, True],
    )
    space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    for kind in ("hdf5", "parquet", "arrow"):
        minari.create_dataset_from_buffers(
            f"jpeg/{kind}-v0", [buffer], observation_space=space, action_space=spaces.Discrete(2), data_format=kind
        )
        (one,) = trajectories(MinariSet(f"jpeg/{kind}-v0"))
        assert one.ret == 6.0 and one.truncated[2] and one.obs["observation"].dtype == np.uint8
        assert np.abs(one.obs["observation"].astype(int) - frames).max() <= 8, "JPEG is lossy"


@pytest.mark.parametrize("whole", [False, True])
def test_of_an_action_that_was_clipped_or_rounded_the_probability_is_unknown(tmp_path, whole):
    pytest.importorskip("minari")
    low, high = ((0.0, 0.0), (3.0, 3.0)) if whole else ((-2.0, 0.0), (2.0, 1.0))
    space = Box(shape=(2,), dtype="int64" if whole else "float32", low=low, high=high)
    action = space.from_env(np.array([[1, 1], [0, 1], [0, 0], [1, 0], [0, 0]]))
    action[1, 0], action[3, 1] = 1.5, -1.01
    if whole:
        action[0, 1] += 0.1
    one = trajectory({"observation": np.zeros((5, 3), np.float32)}, action, [True] * 4 + [False], [3])
    box = SPECS["numbers"][0]
    facts = DataFacts(spec=EnvSpec(name="X", obs={"observation": box}, action=space))
    (again,) = trajectories(MinariSet(write_minari(Listed([one], facts), tmp_path / "clipped-v0")))
    assert np.isnan(again.record["log_prob"][:4]).tolist() == [whole, True, False, True]
    assert again.record["log_prob"][2] == -0.25 and not again.has_log_prob and one.has_log_prob


def test_dead_rows_in_the_middle_cut_an_episode_and_an_open_end_is_a_truncation(tmp_path):
    pytest.importorskip("minari")
    obs = np.arange(24, dtype=np.float32).reshape(8, 3)
    valid = [True, True, False, True, True, True, True, False]
    one = trajectory({"observation": obs}, np.zeros((8, 2), dtype=np.float32), valid, [1], whole=False)
    facts = DataFacts(spec=EnvSpec(name="X", obs={"observation": SPECS["numbers"][0]}, action=SPECS["numbers"][1]))
    folder = write_minari(Listed([one], facts), tmp_path / "cut-v0")
    assert folder == tmp_path / "cut-v0" and "MINARI_DATASETS_PATH" not in os.environ
    first, second = trajectories(MinariSet(folder))
    np.testing.assert_array_equal(first.obs["observation"], obs[:3])
    np.testing.assert_array_equal(second.obs["observation"], obs[3:])
    assert first.terminated[1] and second.truncated[3] and not second.terminated.any()
    with pytest.raises(UserError, match="already exists"):
        write_minari(Listed([one], facts), tmp_path / "cut-v0")
    with pytest.raises(UserError, match="Malformed"):
        write_minari(Listed([one], facts), tmp_path / "no version")
    with pytest.raises(UserError, match="no steps"):
        write_minari(Listed([], facts), tmp_path / "none-v0")


def test_sets_that_minari_cannot_hold_are_refused(tmp_path):
    pytest.importorskip("minari")
    spec = EnvSpec(
        name="X", obs={"observation": Discrete(n=2)}, action=Discrete(n=2), agents=Agents(groups=(("all", ("a", "b")),))
    )
    with pytest.raises(UserError, match="several agents"):
        write_minari(Listed([], DataFacts(spec=spec)), tmp_path / "x-v0")


def test_without_minari_writing_says_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "minari", None)
    facts = DataFacts(spec=EnvSpec(name="X", obs={"observation": Discrete(n=2)}, action=Discrete(n=2)))
    with pytest.raises(UserError, match="setup minari"):
        write_minari(Listed([], facts), tmp_path / "x-v0")
    monkeypatch.setitem(sys.modules, "h5py", None)
    about(tmp_path, data_format="hdf5")
    refused(tmp_path, "needs h5py", "setup minari")
