"""RLlib's Parquet files are read into the trajectories that were recorded, and nothing in them is ever run."""

import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rllib_files import episode, joined, message, pack, packed_program, part, state

from rlrun.core.errors import UserError
from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.datasets import packed as packing
from rlrun.datasets.rllib_parquet import RLlibParquet, is_rllib_parquet

ODD = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=9)
    | st.text(max_size=9)
)


class RaysTensor(pa.ExtensionType):
    """What Ray registers in a process of its own, and what is unknown elsewhere."""

    def __init__(self, said):
        self.said = said if isinstance(said, bytes) else json.dumps(list(said)).encode()
        super().__init__(pa.list_(pa.float32()), "ray.data.arrow_tensor")

    def __arrow_ext_serialize__(self):
        return self.said

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls(json.loads(serialized))


def newer(columns, name="abc"):
    """The columns of RLlib 2.40 and later."""
    count = len(columns["rewards"])
    return {
        "eps_id": [name] * count, "agent_id": [None] * count, "module_id": [None] * count, "obs": columns["obs"], "new_obs": columns["new_obs"],
        "actions": columns["actions"], "rewards": np.asarray(columns["rewards"], dtype=np.float64), "terminateds": columns["dones"],
        "truncateds": np.zeros(count, dtype=bool), "action_logp": np.log(np.asarray(columns["action_prob"])).astype(np.float32),
    }  # fmt: skip


def lists(values):
    return pa.array(np.asarray(values).tolist())


def write(path, columns, **how):
    """how: makes an Arrow array of a column, by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({name: how[name](value) if name in how else lists(value) if isinstance(value, np.ndarray) else pa.array(value) for name, value in columns.items()})  # fmt: skip
    parquet.write_table(table, path, row_group_size=how.get("rows", 1000))
    return path


def trajectories(source):
    return [one for piece in range(source.pieces()) for one in source.read(piece)]


def refused(path, *words, spec=None):
    with pytest.raises(UserError) as error:
        trajectories(RLlibParquet(path, spec))
    text = str(error.value)
    assert all(word in text for word in words) and "\n" not in text, text


def packed(values):
    return pa.array([pack(np.array(one)) for one in values])


def tensor(values):
    kind = RaysTensor(np.asarray(values).shape[1:])
    return pa.ExtensionArray.from_storage(
        kind, pa.array(np.asarray(values).reshape(len(values), -1).tolist(), pa.list_(pa.float32()))
    )


def varying(values):
    rows = [{"data": np.ravel(one).tolist(), "shape": list(np.shape(one))} for one in values]
    return pa.array(rows)


def fixed(values):
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))


@pytest.mark.parametrize("made", [lists, packed, tensor, varying, fixed])
def test_transitions_are_read_however_arrays_are_written(tmp_path, made):
    columns = episode()
    write(
        tmp_path / "CartPole-v1" / "run-000001-00001" / "1_000000_000000.parquet",
        newer(columns),
        obs=made,
        new_obs=made,
    )
    source = RLlibParquet(tmp_path)
    (one,) = trajectories(source)
    assert one.steps == 56 and len(one) == 57 and one.ret == 56 and one.terminated[55] and one.whole
    np.testing.assert_array_equal(one.obs["observation"], np.concatenate([columns["obs"], columns["new_obs"][-1:]]))
    assert one.obs["observation"].dtype == np.float32 and one.action.dtype == np.int64
    np.testing.assert_allclose(one.record["log_prob"][:56], np.log(columns["action_prob"]), rtol=1e-6)
    assert source.facts.spec.action == Discrete(n=2) and source.facts.spec.observation.shape == (4,)
    assert is_rllib_parquet(tmp_path) and not is_rllib_parquet(tmp_path / "nowhere")


def test_images_in_tensors_and_packed_actions(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    columns = newer(
        {
            **episode(5),
            "obs": frames[:-1],
            "new_obs": frames[1:],
            "actions": np.linspace(-1, 1, 5, dtype=np.float32)[:, None],
        }
    )
    write(tmp_path / "a.parquet", columns, obs=packed, new_obs=packed, actions=packed)
    (one,) = trajectories(RLlibParquet(tmp_path))
    np.testing.assert_array_equal(one.obs["observation"], frames)
    assert one.obs["observation"].dtype == np.uint8
    np.testing.assert_array_equal(one.action[:5], columns["actions"])
    space = Box(shape=(3, 4, 5), dtype="uint8", low=(0.0,), high=(255.0,))
    spec = EnvSpec(
        name="Game", obs={"observation": space}, action=Box(shape=(1,), dtype="float32", low=(-2.0,), high=(2.0,))
    )
    (one,) = trajectories(RLlibParquet(tmp_path, spec, actions_normalized=False))
    np.testing.assert_array_equal(one.obs["observation"], np.moveaxis(frames, -1, 1))
    np.testing.assert_allclose(one.action[:5], columns["actions"] / 2)


def test_an_episode_goes_on_over_row_groups_and_files_and_only_these_files_are_one_piece(tmp_path):
    a, b, c = (newer(episode(20, seed=i), name) for i, name in enumerate("abc"))
    write(tmp_path / "1_000000_000000.parquet", joined(a, part(b, 0, 7)), rows=6)
    write(tmp_path / "1_000001_000000.parquet", part(b, 7, 20))
    write(tmp_path / "1_000002_000000.parquet", c)
    source = RLlibParquet(tmp_path)
    assert source.pieces() == 2
    found = trajectories(source)
    assert [(one.steps, one.whole, len(one)) for one in found] == [(20, True, 21)] * 3
    np.testing.assert_array_equal(found[1].obs["observation"][:-1], b["obs"])


def test_truncations_and_episodes_without_an_end(tmp_path):
    columns = newer(episode(5))
    columns["truncateds"], columns["terminateds"] = columns["terminateds"], columns["truncateds"]
    open_end = newer(episode(4, whole=False), "b")
    write(tmp_path / "a.parquet", joined(columns, open_end))
    cut, going_on = trajectories(RLlibParquet(tmp_path))
    assert cut.truncated[4] and not cut.terminated.any() and cut.whole
    assert not going_on.whole and going_on.steps == 4


@pytest.mark.parametrize("as_lists, lookback", [(False, 0), (False, 3), (True, 2)])
def test_whole_episodes_in_messagepack(tmp_path, as_lists, lookback):
    a, b = episode(12), episode(7, seed=5, whole=False)
    items = [message(state(a, lookback=lookback, lists=as_lists)), message(state(b, whole=False))]
    parquet.write_table(pa.table({"item": items}), tmp_path / "a.parquet")
    first, second = trajectories(RLlibParquet(tmp_path))
    assert (first.steps, first.whole, second.steps, second.whole) == (12, True, 7, False)
    np.testing.assert_array_equal(first.obs["observation"][:-1], a["obs"])
    np.testing.assert_array_equal(first.action[:-1], a["actions"])
    np.testing.assert_allclose(second.record["log_prob"][:-1], np.log(b["action_prob"]), rtol=1e-6)
    assert is_rllib_parquet(tmp_path)


def test_rows_that_are_whole_batches(tmp_path):
    columns = episode(9)
    row = {
        "type": "SampleBatch",
        **{name: np.asarray(value).tolist() for name, value in columns.items() if name != "infos"},
    }
    row |= {"obs": pack(columns["obs"]), "new_obs": pack(columns["new_obs"])}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (one,) = trajectories(RLlibParquet(tmp_path))
    assert one.steps == 9 and one.whole
    np.testing.assert_array_equal(one.obs["observation"][:-1], columns["obs"])


# Damage


def test_damage_is_named_with_the_file_and_the_place(tmp_path):
    columns = newer(episode(3))
    for name, value, words in (
        ("obs", [[1.0], [1.0, 2.0], [1.0]], "rows of different shapes"),
        ("obs", ["a", "b", "c"], "obs holds text"),
        ("obs", [[1.0], None, [1.0]], "obs is empty in 1 rows"),
        ("obs", [[float("nan")]] * 3, "not finite"),
        ("rewards", [1.0, float("inf"), 1.0], "not finite"),
        ("rewards", ["1", "2", "3"], "rewards holds"),
        ("actions", [-1, 0, 1], "-1..1"),
        ("agent_id", ["a", "b", "a"], "several agents"),
        ("new_obs", [[1.0]] * 3, "new_obs has the shape [3, 1]"),
    ):
        write(tmp_path / name / "a.parquet", {**columns, name: value})
        refused(tmp_path / name, "a.parquet, row group 0, rows 0 to 2", words)
    lost = {name: value for name, value in columns.items() if name != "actions"}
    refused(write(tmp_path / "lost" / "a.parquet", lost), "not RLlib's", "eps_id")
    assert not is_rllib_parquet(tmp_path / "lost")
    refused(
        write(
            tmp_path / "open" / "a.parquet",
            {name: value for name, value in columns.items() if name not in ("terminateds", "truncateds")},
        ),
        "terminateds or dones",
    )
    refused(tmp_path / "nowhere", "holds no *.parquet")


def test_a_truncated_file_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", newer(episode(300)))
    data = path.read_bytes()
    for end in (0, 3, 4, 100, len(data) // 2, len(data) - 5, len(data) - 1):
        path.write_bytes(data[:end])
        refused(path, "a.parquet", "cannot be read as Parquet")
        assert not is_rllib_parquet(path)


def test_a_tensor_whose_shape_does_not_fit_is_refused(tmp_path):
    columns = newer(episode(3))
    for said, words in (
        (b"[99999999, 99999999]", "the shape [99999999"),
        (b"[-1]", "whose shape"),
        (b"null", "whose shape"),
        (b"{not json", "rows 0 to 2"),
        (b"[3]", "rows have the shape [3]"),
    ):
        storage = pa.array(columns["obs"].tolist(), pa.list_(pa.float32()))
        write(
            tmp_path / "a.parquet",
            columns,
            obs=lambda _, said=said, storage=storage: pa.ExtensionArray.from_storage(RaysTensor(said), storage),
        )
        refused(tmp_path, "a.parquet", words)


def test_damaged_messages_are_refused(tmp_path):
    good = message(state(episode(4)))
    for item, words in (
        (good[:-1], "breaks off"), (good + b"\xc0", "bytes behind"), (b"\xc1", "0xc1"), (b"\xdd\xff\xff\xff\xff", "breaks off"), (b"\x91" * 100, "inside one another"),
        (message([1, 2]), "no episode of RLlib's"), (message({"observations": 1, "actions": 2, "rewards": 3}), "something else than numbers"),
        (message({**state(episode(4)), "rewards": np.zeros(2)}), "observations for 2 steps"), (b"\x81\x90\xc0", "key that is no text"),
        (message({b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [2**40, 2**40], b"data": b"1234"}), "4 bytes are an array"),
    ):  # fmt: skip
        parquet.write_table(pa.table({"item": [item]}), tmp_path / "a.parquet")
        refused(tmp_path, "a.parquet, row group 0, rows 0 to 0, episode 0", words)
    parquet.write_table(pa.table({"item": [1, 2]}), tmp_path / "a.parquet")
    refused(tmp_path, "no MessagePack")


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_in_columns_and_messages_are_refused_and_do_not_run(tmp_path):
    target = tmp_path / "made_by_the_attack"
    attack = Attack(str(target))
    pickle.loads(pickle.dumps(attack))
    target.rmdir()
    columns = newer(episode(3))
    write(tmp_path / "a" / "a.parquet", {**columns, "obs": [packed_program(pickle.dumps(attack, protocol=5))] * 3})
    refused(tmp_path / "a", "row group 0", "obs holds something else")
    evil = state(episode(4))
    evil["observations"]["data"] = np.array([attack] * 5, dtype=object)
    parquet.write_table(pa.table({"item": [message(evil)]}), tmp_path / "b.parquet")
    refused(tmp_path / "b.parquet", "episode 0: observations holds Python objects")
    fine = state(episode(4))
    fine["infos"]["data"] = np.array([attack], dtype=object)  # infos are never looked into
    parquet.write_table(pa.table({"item": [message(fine)]}), tmp_path / "c.parquet")
    assert len(trajectories(RLlibParquet(tmp_path / "c.parquet"))) == 1
    assert not target.exists()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_with_any_byte_changed_is_read_or_refused(tmp_path, data):
    path = write(tmp_path / "a.parquet", newer(episode(8)))
    changed = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    try:
        found = trajectories(RLlibParquet(path))
    except UserError:
        return
    assert all(not one.valid[-1] and np.isfinite(one.obs["observation"]).all() for one in found)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        ODD,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=10,
    )
)
def test_messages_are_read_as_they_were_written(value):
    assert packing.message(message(value)) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_random_messages_are_values_or_refused(data):
    try:
        packing.message(data)
    except ValueError:
        return


def test_an_empty_set_is_refused(tmp_path):
    columns = {name: value[:0] for name, value in newer(episode(3)).items()}
    write(tmp_path / "a.parquet", columns)
    refused(tmp_path, "has no rows")
