"""Rows of other libraries' files become trajectories that say whether they are whole episodes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_of_tests import FRAMES
from rllib_files import episode, joined, line, part, several
from test_rllib_json import CARTPOLE, trajectories, write

from rlrun.core.specs import Box, Discrete, EnvSpec
from rlrun.datasets.rllib_json import RLlibJson
from rlrun.datasets.rllib_parquet import RLlibParquet


def without(columns, *names):
    return {name: values for name, values in columns.items() if name not in names}


def bits(one):
    return "".join(str(int(live)) for live in one.valid)


@pytest.mark.parametrize(
    "rows, unknown, found",
    [
        # Rows of an episode of ten steps, columns that the file lacks, and the trajectories: their rows, and wholeness.
        ([range(10)], (), [("11111111110", True)]),
        ([range(10)], ("t",), [("11111111110", True)]),
        ([range(5, 10)], (), [("111110", False)]),
        ([range(5, 10)], ("new_obs",), [("111110", False)]),
        ([range(3), range(7, 10)], (), [("11101110", False)]),
        ([range(3), range(7, 10)], ("t",), [("11101110", False)]),
        ([range(3), range(7, 10)], ("new_obs",), [("1101110", False)]),
        ([range(3), range(5, 6), range(7, 10)], ("new_obs",), [("1101110", False)]),
        ([range(1), range(7, 10)], ("new_obs",), [("1110", False)]),
        ([range(7, 10), range(3)], (), [("1110", False), ("1110", False)]),
    ],
)
@pytest.mark.parametrize("together", (True, False))
def test_only_every_step_of_an_episode_is_a_whole_one_and_no_missing_step_is_invented(
    tmp_path, rows, unknown, found, together
):
    """Whether its rows are in one line or in several. Behind missing steps, a dead row keeps apart what did not follow
    each other."""
    columns = without(episode(10), *unknown)
    parts = [part(columns, one.start, one.stop) for one in rows]
    path = write(tmp_path / "out", *([line(joined(*parts))] if together else map(line, parts)))
    other = line(without(episode(4, 2), *unknown))  # an episode from its beginning, in which t is 0
    write(path, other, name="a.json")
    for spec in (None, CARTPOLE):
        made = [one for one in trajectories(RLlibJson(path, spec)) if one.steps != 4 or not one.whole]
        assert [(bits(one), one.whole) for one in made] == found
        pairs = {tuple(a) + tuple(b) for a, b in zip(episode(10)["obs"], episode(10)["new_obs"], strict=True)}
        for one in made:
            obs = one.obs["observation"]
            ends = [tuple(obs[i]) + tuple(obs[i + 1]) for i in np.flatnonzero(one.valid & ~one.terminated)]
            assert set(ends) <= pairs


def test_an_episode_that_was_forgotten_does_not_begin_where_it_goes_on(tmp_path):
    columns = without(episode(6, 1), "t")
    others = [line(without(episode(1, i, i), "t")) for i in range(2, 270)]
    path = write(tmp_path / "out", line(part(columns, 0, 3)), *others, line(part(columns, 3, 6)))
    found = [one for one in trajectories(RLlibJson(path)) if one.steps == 3]
    assert [one.whole for one in found] == [False, False]


def test_steps_may_be_counted_from_1_and_those_of_agents_who_take_turns_are_no_gaps(tmp_path):
    columns = episode(6, start=1)
    assert [one.whole for one in trajectories(RLlibJson(write(tmp_path / "one", line(columns)), CARTPOLE))] == [True]
    turns = [{**episode(5, 9, n), "t": np.arange(n, 10 + n, 2), "agent_index": np.full(5, n)} for n in range(2)]
    for unknown, name in (((), "next"), (("new_obs",), "alone")):
        lines = several({"a": joined(*(without(one, *unknown) for one in turns))})
        found = trajectories(RLlibJson(write(tmp_path / name, lines)))
        assert [(bits(one), one.whole) for one in found] == [("111110", True)] * 2


@pytest.mark.parametrize("unknown", [(), ("new_obs",), ("eps_id",)])
@pytest.mark.parametrize("rows, files", [(200, 1), (1, 1), (7, 1), (10, 20)])  # in a line; and how many files there are
def test_episodes_of_a_set_whose_t_never_begins_again_are_whole_unless_new_obs_says_otherwise(
    tmp_path, unknown, rows, files
):
    """t then counts the rows of the set from its beginning to its end, and says nothing about episodes."""
    columns = without(joined(*(episode(10, i, i, start=10 * i) for i in range(20))), *unknown)
    lines = [line(part(columns, first, first + rows)) for first in range(0, 200, rows)]
    for number in range(files):
        write(tmp_path / "out", *lines[number::files], name=f"{number:02}.json")
    for spec in (None, CARTPOLE):
        found = trajectories(RLlibJson(tmp_path / "out", spec))
        assert [(one.steps, one.whole) for one in found] == [(10, True)] * 20
    less = [line(joined(part(columns, 0, 102), part(columns, 105, 200)))]
    found = trajectories(RLlibJson(write(tmp_path / "less", *less)))
    assert [i for i, one in enumerate(found) if not one.whole] == ([10] if "new_obs" in columns else [])


@pytest.mark.parametrize("looked_at", [1, 5000])
def test_a_set_that_begins_inside_an_episode_counts_from_1_with_and_without_env(tmp_path, looked_at, monkeypatch):
    monkeypatch.setattr("rlrun.datasets.rllib_json.LOOKED_AT", looked_at)
    later = [line(episode(10, i, i, start=1)) for i in range(1, 20)]
    path = write(tmp_path / "out", line(part(episode(30, 0, start=1), 20, 30)), *later)
    for spec in (None, CARTPOLE):
        assert [one.whole for one in trajectories(RLlibJson(path, spec))] == [False] + [True] * 19


@pytest.mark.parametrize("unknown", [(), ("new_obs",)])
@pytest.mark.parametrize("stride, start", [(4, 0), (4, 4), (0.05, 0), (0.05, 0.05)])  # frames of four for a step; seconds
@pytest.mark.parametrize("rows", [100, 3])
def test_t_may_count_in_strides(tmp_path, stride, start, unknown, rows):
    """Steps that are missing are found too, and a note counts those that cannot be used without them."""

    def read(name, made, spec):
        lines = [line(part(made, first, first + rows)) for first in range(0, len(made["t"]), rows)]
        source = RLlibJson(write(tmp_path / name, *lines), spec)
        return trajectories(source), [one for one in source.facts.notes if "t goes on" in one]

    made = [without(episode(10, i, i), *unknown) for i in range(10)]
    for one in made:
        one["t"] = start + stride * np.arange(10)
    less = [joined(part(made[0], 0, 3), part(made[0], 5, 10)), part(made[1], 1, 10), *made[2:]]
    for spec in (None, CARTPOLE):
        found, told = read("all", joined(*made), spec)
        assert [(bits(one), one.whole) for one in found] == [("1" * 10 + "0", True)] * 10 and not told
        found, told = read("less", joined(*less), spec)
        left_out = "new_obs" in unknown
        assert [(bits(one), one.whole) for one in found] == [
            ("110111110" if left_out else "1110111110", False), ("1" * 9 + "0", False), *[("1" * 10 + "0", True)] * 8
        ]  # fmt: skip
        assert [one.startswith("Of 87 steps inside episodes that were looked at, 1 are") for one in told] == [True] * left_out


def test_rows_whose_observations_say_that_they_follow_each_other_do_so_whatever_t_says(tmp_path):
    columns = episode(10) | {"t": np.array([0, 2, 3, 7, 8, 9, 12, 15, 16, 21])}
    (one,) = trajectories(RLlibJson(write(tmp_path / "out", line(columns))))
    assert (bits(one), one.whole) == ("11111111110", True)


def test_files_of_one_second_are_read_in_the_order_of_their_numbers(tmp_path):
    columns = episode(12)
    for number in range(12):
        name = f"output-2021-05-01_12-00-00_worker-1_{number}.json"
        write(tmp_path / "out", line(part(columns, number, number + 1)), name=name)
    (one,) = trajectories(RLlibJson(tmp_path / "out"))
    assert one.steps == 12 and one.whole
    folder = tmp_path / "parquet"
    folder.mkdir()
    for number in range(12):
        rows = without(part(columns, number, number + 1), "infos")
        pq.write_table(pa.table({name: np.asarray(values).tolist() for name, values in rows.items()}), folder / f"{number}.parquet")
    (one,) = trajectories(RLlibParquet(folder))
    assert one.steps == 12 and one.whole


@pytest.mark.parametrize("limit, value", [("LONGEST_ROWS", 7), ("LONGEST_BYTES", 7 * 23)])
@pytest.mark.parametrize("unknown", [(), ("t", "eps_id"), ("new_obs",)])
def test_an_episode_whose_end_takes_too_long_is_read_in_parts(tmp_path, limit, value, unknown, monkeypatch):
    """Each decision is in one of them with the observation behind it, and with the frames before it, which a part
    repeats in dead rows."""
    monkeypatch.setattr(f"rlrun.datasets.stitcher.{limit}", value)
    single = np.random.default_rng(0).integers(0, 256, (41, 2, 2), dtype=np.uint8)
    frames = np.stack([single[[max(0, at - back) for back in (2, 1, 0)]] for at in range(41)]).transpose(0, 2, 3, 1)
    columns = episode(40, actions=np.linspace(-1, 1, 80).reshape(40, 2))
    columns["obs"], columns["new_obs"] = frames[:-1], frames[1:]
    columns = without(columns, *unknown)
    lines = [line(part(columns, i, i + 3), ("obs", "new_obs")) for i in range(0, 40, 3)]
    parts = trajectories(RLlibJson(write(tmp_path / "out", *lines), FRAMES))
    left_out = "new_obs" in unknown  # the limit of 40 steps ended the episode, and what is behind it is unknown
    assert [one.steps for one in parts] == [9, 9, 9, 9, 4 - left_out] and not any(one.whole for one in parts)
    assert not any(one.terminated.any() for one in parts) and parts[-1].truncated[-2] == (not left_out)
    step = 0
    for one in parts:
        lead = 2 if step else 0
        assert one.valid.tolist() == [False] * lead + [True] * one.steps + [False]
        np.testing.assert_array_equal(one.obs["observation"], frames[step - lead : step + one.steps + 1, ..., -1])
        np.testing.assert_array_equal(one.action[:-1], np.float32(columns["actions"])[step - lead : step + one.steps])
        step += one.steps


@pytest.mark.parametrize("unknown", [(), ("new_obs",)])
@pytest.mark.parametrize("longest", [5, 1000])  # rows of one trajectory
def test_stacks_are_those_of_the_file_behind_missing_steps_and_at_a_start_inside_an_episode(
    tmp_path, unknown, longest, monkeypatch
):
    """A learner stacks the frames of the rows before a decision, which must be those that its policy saw."""
    monkeypatch.setattr("rlrun.datasets.stitcher.LONGEST_ROWS", longest)
    space = Box(shape=(3, 2), dtype="float32", low=(0.0,), high=(99.0,), stacked=True)
    spec = EnvSpec(name="Game", obs={"observation": space}, action=Discrete(n=2), stack=3)
    stacks = np.stack([[[max(0, at - back) + 1.0] * 2 for back in (2, 1, 0)] for at in range(31)]).astype(np.float32)
    for begin in (0, 4):
        columns = {**episode(30), "obs": stacks[:-1], "new_obs": stacks[1:]}
        kept = [part(without(columns, *unknown), *ends) for ends in ((begin, 9), (9, 11), (15, 16), (17, 30))]
        path = write(tmp_path / f"{begin}", *[line(one, ("obs", "new_obs")) for one in kept])
        found = trajectories(RLlibJson(path, spec))
        assert len(found) > 1 or longest == 1000
        decided, pairs = [], 0
        for one in found:
            frames = np.concatenate([np.zeros((2, 2), np.float32), one.obs["observation"]])
            for row in np.flatnonzero(one.valid):
                at = int(frames[row + 2, 0]) - 1
                decided.append(at)
                seen, then = (frames[first : first + 3, 0].tolist() for first in (row, row + 1))
                wanted = [stacks[step, :, 0].tolist() for step in (at, at + 1)]
                # Frames before an episode are 0 where rlrun stacks them.
                wanted = [[0.0 if at + n - 2 + i < 0 else x for i, x in enumerate(one)] for n, one in enumerate(wanted)]
                assert seen == wanted[0]
                if not one.terminated[row]:
                    assert then == wanted[1]
                    pairs += 1
        missing = {10, 15} if unknown else ()  # what is behind these steps is not in the file
        assert decided == [at for at in [*range(begin, 11), 15, *range(17, 30)] if at not in missing]
        assert pairs >= 19 - begin
