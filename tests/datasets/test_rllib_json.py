"""RLlib's JSON files are read into the trajectories that were recorded, and nothing in them is ever run."""

import base64
import gc
import json
import os
import pickle
import tracemalloc
import zipfile

import lz4.frame
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rllib_files import episode, joined, line, pack, packed_program, part, plain, several
from test_rows import made, needs

from rlrun.core.errors import UserError
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Nested
from rlrun.datasets import packed as packing
from rlrun.datasets.packed import array_of, unpack
from rlrun.datasets.rllib_json import RLlibJson, is_rllib_json

CARTPOLE = EnvSpec(
    name="CartPole-v1",
    obs={"observation": Box(shape=(4,), dtype="float32", low=(-np.inf,), high=(np.inf,))},
    action=Discrete(n=2), max_episode_steps=500,
)  # fmt: skip
CARTPOLE12 = EnvSpec(
    name="CartPole12",
    obs={"observation": Box(shape=(12,), dtype="float32", low=(-np.inf,), high=(np.inf,))},
    action=Discrete(n=2),
)  # fmt: skip
PENDULUM = EnvSpec(
    name="Pendulum-v1",
    obs={"observation": Box(shape=(3,), dtype="float32", low=(-8.0,), high=(8.0,))},
    action=Box(shape=(1,), dtype="float32", low=(-2.0,), high=(2.0,)), max_episode_steps=200,
)  # fmt: skip


def write(folder, *lines, name="output-2020-01-01_00-00-00_worker-0_0.json"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(lines))
    return folder


def trajectories(source):
    return [one for piece in range(source.pieces()) for one in source.read(piece)]


def refused(path, *words, spec=None, normalized=True):
    """The sentence with which a set is refused, when it is opened or read."""
    with pytest.raises(UserError) as error:
        trajectories(RLlibJson(path, spec, normalized))
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    return text


# Known answers


@pytest.mark.parametrize(
    "packed", [(), ("obs", "new_obs"), ("obs", "new_obs", "actions", "rewards", "dones", "action_prob")]
)
def test_known_answer_14_small_json_is_56_rows_and_one_end(tmp_path, packed):
    columns = episode()
    source = RLlibJson(write(tmp_path / "small", line(columns, packed)))
    (one,) = trajectories(source)
    assert len(one) == 57 and one.steps == 56 and one.ret == 56.0
    assert one.terminated.sum() == 1 and one.terminated[55] and not one.truncated.any() and one.whole
    assert one.valid.tolist() == [True] * 56 + [False]
    np.testing.assert_array_equal(one.obs["observation"][:56], columns["obs"])
    np.testing.assert_array_equal(one.obs["observation"][56], columns["new_obs"][-1])
    np.testing.assert_array_equal(one.action[:56], columns["actions"])
    np.testing.assert_allclose(one.record["log_prob"][:56], np.log(columns["action_prob"]), rtol=1e-6)
    assert one.has_log_prob and one.reward.dtype == np.float32 and one.obs["observation"].dtype == np.float32
    assert source.facts.spec.action == Discrete(n=2) and source.facts.spec.observation.shape == (4,)
    said = " ".join(source.facts.notes)
    assert "Discrete(2), because 1 is the largest" in said and "time limit" in said
    assert source.facts.made_by == "RLlib" and source.pieces() == 1
    # Whoever has read all rows to know the spaces knows how much memory they take at most.
    assert source.most_rows == 112 and RLlibJson(tmp_path / "small", CARTPOLE).most_rows is None


def test_plain_and_packed_files_give_the_same_rows_to_the_bit(tmp_path):
    columns = episode(30, seed=3)
    (plain_one,) = trajectories(RLlibJson(write(tmp_path / "plain", line(columns))))
    (packed_one,) = trajectories(RLlibJson(write(tmp_path / "packed", line(columns, ("obs", "new_obs")))))
    for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "record"):
        np.testing.assert_equal(getattr(plain_one, name), getattr(packed_one, name))


def test_a_line_without_rows_says_nothing(tmp_path):
    lines = [line(episode(20, eps_id=1)), line(episode(20, eps_id=2, seed=2))]
    empty = line(part(episode(20), 0, 0))
    one = trajectories(RLlibJson(write(tmp_path / "with", empty, lines[0], empty, lines[1], empty)))
    other = trajectories(RLlibJson(write(tmp_path / "without", *lines)))
    assert [a.obs["observation"].tolist() for a in one] == [b.obs["observation"].tolist() for b in other] and len(one) == 2


def test_a_line_with_several_episodes_is_split_and_an_episode_goes_on_over_lines_and_files(tmp_path):
    first, second, third = episode(7, 1, 1), episode(9, 2, 2), episode(5, 3, 3)
    folder = write(tmp_path / "out", line(joined(first, part(second, 0, 4))), line(part(second, 4, 6)))
    write(folder, line(joined(part(second, 6, 9), third)), name="output-2020-01-01_00-10-00_worker-0_1.json")
    source = RLlibJson(folder)
    found = trajectories(source)
    assert source.pieces() == 1 and [one.steps for one in found] == [7, 9, 5] and all(one.whole for one in found)
    np.testing.assert_array_equal(found[1].obs["observation"], np.concatenate([second["obs"], second["new_obs"][-1:]]))


def test_episodes_of_several_environments_that_take_turns_are_told_apart(tmp_path):
    a, b = episode(6, 1, 1), episode(6, 2, 2)
    lines = [line(joined(part(a, i, i + 2), part(b, i, i + 2))) for i in (0, 2, 4)]
    found = trajectories(RLlibJson(write(tmp_path / "out", *lines)))
    assert [one.steps for one in found] == [6, 6]
    np.testing.assert_array_equal(found[0].obs["observation"][:-1], a["obs"])
    np.testing.assert_array_equal(found[1].obs["observation"][:-1], b["obs"])


def test_files_of_different_workers_and_runs_are_pieces_of_their_own(tmp_path):
    folder = write(tmp_path / "out", line(episode(3, 1)))
    for name in (
        "output-2020-01-01_00-00-00_worker-1_0.json",
        "output-2021-01-01_00-00-00_worker-0_0.json",
        "other.json",
    ):
        write(folder, line(episode(4, 1)), name=name)
    source = RLlibJson(folder)
    assert source.pieces() == 4 and sorted(one.steps for one in trajectories(source)) == [3, 4, 4, 4]
    assert [one.steps for one in source.read(0)] == [one.steps for one in source.read(0)], "it can be read again"


def test_an_episode_that_nothing_ends_is_not_whole_and_one_with_a_gap_has_a_dead_row_there(tmp_path):
    columns = episode(10, whole=False)
    holed = joined(part(columns, 0, 4), part(columns, 6, 10))
    (one,) = trajectories(RLlibJson(write(tmp_path / "out", line(holed))))
    assert not one.whole and one.steps == 8 and one.valid.tolist() == [True] * 4 + [False] + [True] * 4 + [False]
    np.testing.assert_array_equal(one.obs["observation"][4], columns["new_obs"][3])
    np.testing.assert_array_equal(one.obs["observation"][5], columns["obs"][6])
    assert not one.terminated.any() and not one.truncated.any()


def test_an_episode_that_begins_again_under_the_same_name_is_another_one(tmp_path):
    a, b = episode(5, 1, 1, whole=False), episode(6, 1, 2)
    found = trajectories(RLlibJson(write(tmp_path / "out", line(joined(a, b)))))
    assert [(one.steps, one.whole) for one in found] == [(5, False), (6, True)]


def test_an_episode_that_no_line_continues_for_long_is_over(tmp_path):
    lines = [line(episode(3, 1, whole=False))] + [line(episode(1, i, i)) for i in range(2, 270)]
    source = RLlibJson(write(tmp_path / "out", *lines))
    found = trajectories(source)
    assert found[-1].steps == 1 and [one.steps for one in found].index(3) < len(found) - 5
    assert sum(one.steps for one in found) == 3 + 268


@pytest.mark.parametrize("packed", [(), ("obs", "new_obs")], ids=["plain", "packed"])
def test_a_chain_of_files_that_is_larger_than_memory_is_never_held_as_a_whole(tmp_path, packed, monkeypatch):
    """One worker's files are one piece, in which episodes go on from line to line and from file to file. The memory that
    is taken to learn from them does not grow with their number."""
    monkeypatch.setattr("rlrun.datasets.reading.PART_ROWS", 500)
    folder, columns = tmp_path / "out", joined(*(episode(250, n, n, width=12) for n in range(30)))

    def peak(files):
        for number in range(files):
            lines = [part(columns, start, start + 220) for start in range(1500 * number, 1500 * number + 1500, 220)]
            write(folder, *(line(one, packed) for one in lines), name=f"output-2020_worker-0_{number}.json")
        source = RLlibJson(folder, CARTPOLE12)
        assert source.pieces() == 1
        gc.collect()
        tracemalloc.start()
        rows = made(source, needs(CARTPOLE12), buffer=2000, readers=1)
        for _ in range(files * 1500 // 100):
            rows.sample(100, Clock())
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert not rows.whole and rows.shelves[0].fed > files * 1500
        rows.close()
        return most

    few, many = peak(2), peak(5)
    assert many < 1.2 * few, (few, many)


def test_without_new_obs_a_terminated_episode_is_complete_and_another_loses_its_last_step(tmp_path):
    both = []
    for eps, whole in ((1, True), (2, False)):
        columns = episode(6, eps, eps, whole=whole)
        del columns["new_obs"]
        both.append(columns)
    source = RLlibJson(write(tmp_path / "out", line(joined(*both))))
    done, cut = trajectories(source)
    assert done.steps == 6 and done.whole and done.terminated[5]
    assert cut.steps == 5 and not cut.whole and len(cut) == 6
    np.testing.assert_array_equal(cut.obs["observation"], both[1]["obs"])
    assert any("no new_obs" in note for note in source.facts.notes)


def test_terminateds_and_truncateds_are_told_apart_and_dones_at_the_limit_of_the_env_are_truncations(tmp_path):
    newer = episode(6)
    flags = newer.pop("dones")
    newer |= {"terminateds": np.zeros(6, dtype=bool), "truncateds": flags}
    source = RLlibJson(write(tmp_path / "newer", line(newer)))
    (one,) = trajectories(source)
    assert one.truncated[5] and not one.terminated.any() and one.whole
    assert not any("time limit" in note for note in source.facts.notes)
    older = episode(200, width=3, actions=np.zeros((200, 1), dtype=np.float32))
    shorter = episode(199, 7, width=3, actions=np.zeros((199, 1), dtype=np.float32))
    found = trajectories(RLlibJson(write(tmp_path / "older", line(joined(older, shorter))), PENDULUM))
    assert found[0].truncated[199] and not found[0].terminated.any() and found[1].terminated[198]


# Spaces and actions


def test_actions_of_an_environment_are_scaled_where_the_file_has_them_in_its_units(tmp_path):
    numbers = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    columns = episode(5, width=3, actions=numbers)
    (as_is,) = trajectories(RLlibJson(write(tmp_path / "a", line(columns)), PENDULUM))
    np.testing.assert_array_equal(as_is.action[:5], numbers)
    (scaled,) = trajectories(
        RLlibJson(write(tmp_path / "b", line({**columns, "actions": 2 * numbers})), PENDULUM, False)
    )
    np.testing.assert_allclose(scaled.action[:5], numbers, atol=1e-7)
    np.testing.assert_array_equal(scaled.record["log_prob"][:5], as_is.record["log_prob"][:5] + np.float32(np.log(2)))
    source = RLlibJson(tmp_path / "a")
    assert source.facts.spec.action == Box(shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,))
    refused(tmp_path / "b", "units of their environment", "env=", normalized=False)


def test_spaces_follow_from_all_files_of_a_set(tmp_path):
    folder = write(tmp_path / "out", line(episode(4, 1)))
    write(folder, line(episode(4, 2, actions=np.array([0, 5, 1, 2]))), name="z.json")
    assert RLlibJson(folder).facts.spec.action == Discrete(n=6)
    choices = episode(3, actions=np.array([[0, 2], [1, 0], [0, 0]]))
    assert RLlibJson(write(tmp_path / "b", line(choices))).facts.spec.action.sizes == (2, 3)
    # Continuous actions that happen to be whole in the first lines, and actions that are whole everywhere.
    ends, between = (episode(2, number, actions=np.array(at)) for number, at in ((1, [[-1], [1]]), (2, [[0.3], [1.0]])))
    box = RLlibJson(write(tmp_path / "ends", line(ends), line(between))).facts.spec.action
    assert box == Box(shape=(1,), dtype="float32", low=(-1.0,), high=(1.0,))
    refused(write(tmp_path / "whole", line(ends)), "actions are whole numbers -1..1, which are no choices", "give env=")
    grid = episode(4)
    grid["obs"], grid["new_obs"] = np.array([0, 3, 1, 2]), np.array([3, 1, 2, 7])
    numbers = RLlibJson(write(tmp_path / "c", line(grid)))
    assert numbers.facts.spec.observation == Discrete(n=4)
    refused(tmp_path / "c", "obs hold", "Discrete(4)")  # the consequence of the last action is outside


def test_images_have_their_channels_first_and_a_stack_only_its_newest_frame(tmp_path):
    single = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    frames = np.stack([single[[max(0, at - back) for back in (3, 2, 1, 0)]] for at in range(5)]).transpose(0, 2, 3, 1)
    columns = episode(4)
    columns["obs"], columns["new_obs"] = frames[:-1], frames[1:]
    space = Box(shape=(4, 8, 8), dtype="uint8", low=(0.0,), high=(255.0,), stacked=True)
    spec = EnvSpec(name="Game", obs={"observation": space}, action=Discrete(n=2), stack=4)
    path = write(tmp_path / "out", line(columns, ("obs", "new_obs")))
    (one,) = trajectories(RLlibJson(path, spec))
    np.testing.assert_array_equal(one.obs["observation"], frames[..., -1])
    assert one.obs["observation"].dtype == np.uint8 and one.obs["observation"].flags.c_contiguous
    inferred = RLlibJson(path)
    assert inferred.facts.spec.observation == Box(shape=(8, 8, 4), dtype="uint8", low=(0.0,), high=(255.0,))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "bool"])
def test_observations_of_whole_numbers_lose_no_fractions(tmp_path, dtype):
    """And no numbers that the dtype does not have."""
    space = Box(shape=(4,), dtype=dtype, low=(0.0,), high=(1.0,))
    spec = EnvSpec(name="Counts", obs={"observation": space}, action=Discrete(n=2))
    columns = episode(3)
    columns["obs"] = columns["new_obs"] = np.ones((3, 4))
    (one,) = trajectories(RLlibJson(write(tmp_path / "out", line(columns)), spec))
    assert one.obs["observation"].dtype == dtype and one.obs["observation"].all()
    for number in (0.7, -1e30):
        columns["new_obs"] = np.full((3, 4), number)
        refused(write(tmp_path / "out", line(columns)), "obs holds a number with a fraction or out of range", spec=spec)


def test_one_hot_observations_become_the_numbers_of_the_env(tmp_path):
    numbers = np.array([0, 3, 1, 2, 3])
    columns = episode(4)
    hot = np.eye(4, dtype=np.float32)[numbers]
    columns["obs"], columns["new_obs"] = hot[:-1], hot[1:]
    spec = EnvSpec(name="FrozenLake-v1", obs={"observation": Discrete(n=4)}, action=Discrete(n=2))
    (one,) = trajectories(RLlibJson(write(tmp_path / "out", line(columns)), spec))
    assert one.obs["observation"].tolist() == numbers.tolist()


def test_several_policies_and_agents(tmp_path):
    def agent(number, seed):
        columns = episode(4, 9, seed)
        columns["agent_index"] = np.full(4, number)
        return columns

    hunters, prey = joined(agent(0, 1), agent(1, 2)), agent(2, 3)
    path = write(tmp_path / "out", several({"hunter": hunters, "prey": prey}, ("obs", "new_obs")))
    source = RLlibJson(path)
    found = trajectories(source)
    assert [(one.agent, one.policy, one.steps) for one in found] == [(0, 0, 4), (1, 0, 4), (2, 1, 4)]
    assert source.facts.spec.agents.names == ("agent_0", "agent_1", "agent_2")
    assert [name.rsplit(" ", 1)[1] for name in source.facts.policies] == ["hunter", "prey"]
    refused(path, "agent_index is 1", "CartPole-v1 has 1 agents", spec=CARTPOLE)


def test_transitions_on_lines_of_their_own_are_read_too(tmp_path):
    columns = episode(1500)
    rows = [
        json.dumps({name: value[0] for name, value in plain(part(columns, i, i + 1)).items()}) + "\n"
        for i in range(1500)
    ]
    (one,) = trajectories(RLlibJson(write(tmp_path / "out", *rows)))
    assert one.steps == 1500 and one.whole
    np.testing.assert_array_equal(one.obs["observation"][:-1], columns["obs"])


def test_archives_are_read_without_being_unpacked_and_not_twice(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with zipfile.ZipFile(folder / "enormous.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enormous.json", line(episode(5, 1)) + line(episode(6, 2)))
    assert [one.steps for one in trajectories(RLlibJson(folder / "enormous.zip"))] == [5, 6]
    assert os.listdir(folder) == ["enormous.zip"]
    write(folder, line(episode(5, 1)) + line(episode(6, 2)), name="enormous.json")
    source = RLlibJson(folder)
    assert [one.steps for one in trajectories(source)] == [5, 6] and "left out" in source.facts.notes[-1]


def test_patterns_and_foreign_folders(tmp_path):
    write(tmp_path / "out", line(episode(3)))
    assert len(trajectories(RLlibJson(f"{tmp_path}/o*/*.json"))) == 1
    assert is_rllib_json(tmp_path / "out") and not is_rllib_json(tmp_path)
    refused(tmp_path, "holds no *.json")
    refused(tmp_path / "nowhere", "holds no *.json")


def test_environments_that_rllib_flattens_are_refused(tmp_path):
    path = write(tmp_path / "out", line(episode(3)))
    nested = Nested(spaces=(("a", Discrete(n=2)), ("b", Discrete(n=2))), ordered=False)
    refused(path, "several parts", spec=EnvSpec(name="X", obs={"observation": nested}, action=Discrete(n=2)))
    masked = {**CARTPOLE.obs, "action_mask": MultiBinary(shape=(2,))}
    refused(path, "no masks", spec=EnvSpec(name="X", obs=masked, action=Discrete(n=2)))
    refused(path, "obs has the shape [4]", "Pendulum-v1", spec=PENDULUM)
    refused(path, "line 1", "counted from 0", spec=EnvSpec(name="X", obs=CARTPOLE.obs, action=Discrete(n=1)))
    switches = EnvSpec(
        name="X",
        obs={"observation": MultiBinary(shape=(3,))},
        action=MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,)),
    )
    columns = episode(3, actions=np.array([[0, 2], [1, 0], [1, 1]]))
    columns["obs"] = columns["new_obs"] = np.ones((3, 3), dtype=int)
    (one,) = trajectories(RLlibJson(write(tmp_path / "switches", line(columns)), switches))
    assert one.obs["observation"].all() and one.action.tolist() == [[0, 2], [1, 0], [1, 1], [0, 0]]
    columns["new_obs"] = np.full((3, 3), 2)
    refused(write(tmp_path / "switches", line(columns)), "2..2", spec=switches)
    many = MultiDiscrete(sizes=(2, 2), starts=(0, 0), shape=(2,))
    refused(path, "actions have the shape []", spec=EnvSpec(name="X", obs=CARTPOLE.obs, action=many))


# Damage


def test_a_broken_line_is_named_and_never_skipped(tmp_path):
    good = line(episode(3, 1))
    refused(write(tmp_path / "a", good, "{broken\n", good), "line 2", "is no JSON")
    half = line(episode(3, 2))[:-40]
    refused(write(tmp_path / "b", good, half), "line 2 breaks off")
    refused(write(tmp_path / "c", good, "[1, 2]\n"), "line 2", "no batch of RLlib's")
    refused(write(tmp_path / "d", '{"type": "Other"}\n'), "line 1", "'Other'")
    refused(write(tmp_path / "e", ""), "has no rows")
    refused(write(tmp_path / "f", "\n\n"), "has no rows")
    refused(write(tmp_path / "g", "[" * 100_000 + "\n"), "line 1")
    assert len(trajectories(RLlibJson(write(tmp_path / "i", good[:-1])))) == 1, "only the line break is missing"


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("obs", [[float("nan")] * 4] * 3, "obs holds a number that is not finite"),
        ("rewards", [1.0, float("inf"), 1.0], "rewards holds a number that is not finite"),
        ("action_prob", [0.5, float("nan"), 0.5], "action_prob holds a number that is not finite"),
        ("action_prob", [0.5, -0.5, 0.5], "below 0"),
        ("rewards", [1.0, 1.0], "obs has 3 rows, and rewards have 2"),
        ("rewards", 1.0, "one number"),
        ("rewards", [[1.0]] * 3, "the shape [3, 1]"),
        ("obs", [[1.0], [1.0, 2.0], [1.0]], "obs holds rows of different shapes"),
        ("obs", [["a"]] * 3, "obs holds something else than numbers"),
        ("obs", [[None]] * 3, "obs holds something else than numbers"),
        ("obs", [[1e300] * 4] * 3, "too large"),
        ("obs", {"a": 1}, "obs holds something else than numbers"),
        ("new_obs", [[1.0]] * 3, "new_obs has the shape [3, 1]"),
        ("actions", [0, -1, 0], "-1..0"),
        ("actions", [0, 10**7, 0], "give env="),
        ("actions", [0, 10**30, 0], "actions holds something else than numbers"),
        ("agent_index", [0, 0, 10**6], "agent_index is 1000000"),
        ("obs", "no base64!", "not base64"),
        ("obs", "BCJNGGhA", "not a whole LZ4 frame"),
    ],
)
def test_a_column_with_something_else_is_named(tmp_path, name, value, words):
    data = {"type": "SampleBatch", **plain(episode(3)), name: value}
    refused(write(tmp_path / "out", line(episode(3)), json.dumps(data) + "\n"), "line 2", words)


@pytest.mark.parametrize("name", ["obs", "actions", "rewards", "dones"])
def test_a_missing_column_is_named(tmp_path, name):
    columns = episode(3)
    del columns[name]
    refused(write(tmp_path / "out", line(columns)), "line 1 has no column", name)


def test_a_damaged_archive_is_named(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.zip").write_bytes(b"PK\x03\x04 and nothing else")
    refused(folder, "a.zip")
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("a.json", line(episode(50)))
    data = bytearray((folder / "a.zip").read_bytes())
    data[len(data) // 2] ^= 255
    (folder / "a.zip").write_bytes(data)
    refused(folder, "a.zip")
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    refused(folder, "holds no *.json file")


# Nothing is run


class Attack:
    """A pickle that would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def attacks(path):
    attack = Attack(str(path))
    yield pickle.dumps(attack, protocol=5)
    yield pickle.dumps(attack, protocol=0)
    yield pickle.dumps([np.zeros(3), attack], protocol=5)
    yield pickle.dumps(np.array([attack], dtype=object), protocol=5)
    yield pickle.dumps({"obs": attack})
    honest = pickle.dumps(np.zeros((3, 4), dtype=np.float32), protocol=5)
    yield honest + pickle.dumps(attack, protocol=5)  # a second program behind the array
    yield pickle.dumps(attack, protocol=5)[:-1] + b"0" + honest  # and one before it
    older = pickle.dumps(np.zeros((3, 4), dtype=np.float32), protocol=4)
    for old, new in (
        (b"numpy.core.numeric", b"os"),
        (b"numpy._core.numeric", b"os"),
        (b"numpy.core.multiarray", b"os"),
        (b"numpy._core.multiarray", b"os"),
        (b"_frombuffer", b"system"),
        (b"_reconstruct", b"system"),
        (b"ndarray", b"chararray"),
        (b"\x8c\x05dtype", b"\x8c\x05array"),
    ):
        for program in (honest, older):
            if old in program:
                changed = program.replace(bytes([len(old)]) + old, bytes([len(new)]) + new)
                yield changed if changed != program else program.replace(old, new)


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path):
    target = tmp_path / "made_by_the_attack"
    programs = list(attacks(target))
    pickle.loads(programs[0])  # the attack works where it is unpickled
    assert target.is_dir()
    target.rmdir()
    for i, program in enumerate(programs):
        data = {"type": "SampleBatch", **plain(episode(3)), "obs": packed_program(program)}
        refused(write(tmp_path / f"set{i}", json.dumps(data) + "\n"), "line 1: obs", "holds")
        assert not target.exists(), program
    assert len(programs) >= 14


def test_arrays_of_anything_but_numbers_are_refused():
    for array in (
        np.array(["a"]),
        np.array([b"a"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, "f4,i4"),
        np.zeros(2, complex),
    ):
        with pytest.raises(ValueError, match=r"expected|something else"):
            unpack(pack(array))
    with pytest.raises(ValueError, match=r"write it again"):
        unpack(pack(np.zeros(3), protocol=2))


def test_shapes_that_do_not_fit_the_bytes_are_refused():
    honest = pickle.dumps(np.zeros((2, 3), dtype=np.float32), protocol=5)
    shape = b"K\x02K\x03\x86"
    assert honest.count(shape) == 1
    for wrong in (
        b"K\x02K\x04\x86",
        b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86",
        b"K\x02J\xff\xff\xff\xff\x86",
        b"\x8a\x09" + b"\xff" * 8 + b"\x00K\x03\x86",
    ):
        with pytest.raises(ValueError, match=r"array|something else"):
            array_of(honest.replace(shape, wrong))
    assert array_of(honest).shape == (2, 3)


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 3, 1), (1, 0, 2, 3)])
def test_arrays_may_have_their_axes_in_any_order(axes, protocol):
    numbers = np.arange(120, dtype=np.int16).reshape(2, 3, 4, 5).transpose(axes)
    for _ in range(2):  # the second time, the program is known
        np.testing.assert_array_equal(array_of(pickle.dumps(numbers, protocol=protocol)), numbers)


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
@pytest.mark.parametrize("array", [np.zeros((), bool), np.arange(3.0), np.zeros((0, 4), np.uint8), np.ones((300, 2), ">f4")])
def test_arrays_of_old_pythons_and_numpys_are_read(array, module):
    written = pickle.dumps(array, protocol=4)
    own = next(name for name in (b"numpy._core.multiarray", b"numpy.core.multiarray") if name in written)
    program = written.replace(bytes([len(own)]) + own, bytes([len(module)]) + module)  # the frame's length is not looked at
    made = array_of(program)
    assert made.dtype == array.dtype and made.shape == array.shape and made.tobytes() == array.tobytes()


@pytest.mark.parametrize("protocol", [4, 5])
def test_an_accepted_program_does_not_vouch_for_another_of_its_length(protocol):
    honest = pickle.dumps(np.arange(6, dtype=np.float32), protocol=protocol)
    assert array_of(honest).tolist() == list(range(6))
    for at in range(len(honest)):
        changed = bytearray(honest)
        changed[at] ^= 1
        packing._known.clear()
        try:
            alone = array_of(bytes(changed)).tobytes()
        except ValueError:
            alone = None
        array_of(honest)
        try:
            behind = array_of(bytes(changed)).tobytes()
        except ValueError:
            behind = None
        assert alone == behind, at


def test_a_column_that_unpacks_to_more_than_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(packing, "LARGEST", 1 << 20)
    bomb = base64.b64encode(lz4.frame.compress(bytes(1 << 24))).decode()
    with pytest.raises(ValueError, match="more than"):
        unpack(bomb)


def test_every_length_of_a_truncated_column_is_refused():
    text = packed_program(pickle.dumps(np.arange(12.0).reshape(3, 4), protocol=5))
    for end in range(len(text)):
        with pytest.raises(ValueError):
            unpack(text[:end])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_as_programs(data):
    with pytest.raises(ValueError):
        array_of(data)
    with pytest.raises(ValueError):
        unpack(packed_program(data))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_program_with_any_byte_changed_is_an_array_or_refused(data):
    honest = bytearray(pickle.dumps(np.arange(6, dtype=np.int64).reshape(2, 3), protocol=5))
    honest[data.draw(st.integers(0, len(honest) - 1))] = data.draw(st.integers(0, 255))
    try:
        made = array_of(bytes(honest))
    except ValueError:
        return
    assert made.dtype.kind in "biuf" and made.nbytes == 48


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_random_files_are_refused_with_a_sentence(tmp_path, data):
    (tmp_path / "random.json").write_bytes(data)
    with pytest.raises(UserError):
        trajectories(RLlibJson(tmp_path / "random.json"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 5), st.sampled_from(["obs", "actions", "rewards", "dones", "eps_id", "t", "agent_index", "new_obs", "action_prob", "type"]),
       st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=8))  # fmt: skip
def test_a_column_of_any_json_is_read_or_refused_with_a_sentence(tmp_path, count, name, value):
    data = {"type": "SampleBatch", **plain(episode(max(count, 1))), name: value}
    (tmp_path / "odd.json").write_text(json.dumps(data) + "\n")
    try:
        found = trajectories(RLlibJson(tmp_path / "odd.json"))
    except UserError:
        return
    for one in found:
        assert not one.valid[-1] and np.isfinite(one.reward).all() and len(one.obs["observation"]) == len(one)
