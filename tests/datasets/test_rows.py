"""What is drawn from data: the same rows that the trajectories hold, with ends, returns, shares, filters and a place to go on."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch
from datasets_of_tests import FRAMES, VECTOR, Listed, episode, facts

from rlrun.config.types import typed
from rlrun.core.algorithm import FromReplay
from rlrun.core.batch import Batch, Field
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.moments import moments_of
from rlrun.core.schedule import Clock
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Discrete, MultiDiscrete, Nested
from rlrun.datasets.open import open_source
from rlrun.datasets.options import DataConfig
from rlrun.datasets.reading import DataNeeds, RowReader, to_go
from rlrun.datasets.rows import DataRows, WithData
from rlrun.envs.previous import with_previous
from rlrun.replay.buffer import Replay
from rlrun.replay.layout import ReplayConfig
from rlrun.runtime.recorded_episodes import RecordedEpisodes

PLAIN = {
    "path": "x", "share": None, "buffer": 100_000, "readers": 2, "min_return": None, "max_return": None,
    "reward_scale": 1.0, "reward_shift": 0.0, "actions_normalized": True,
}  # fmt: skip
MEMORY = {
    "name": "uniform", "capacity": 1, "compress": False, "directory": None, "device": "cpu", "checkpoint": False, "checkpoint_max_gb": 0.0,
}  # fmt: skip


def asked(**options) -> FromReplay:
    return FromReplay(fragment_length=1, num_envs=1, learning_starts=1, ratio=1.0, **options)


def needs(spec=VECTOR, rows=1, record=None, core=None, core_every=0, **options) -> DataNeeds:
    return DataNeeds(spec, record or {}, core or {}, core_every, rows, asked(rows_from=rows, **options))


def made(sources, wanted, seed=0, memory=None, rank=0, generation=0, **options) -> DataRows:
    cfg = typed(DataConfig, PLAIN | options, "data")
    pairs = sources if isinstance(sources, list) else [(sources, 1.0)]
    rows = DataRows(
        pairs,
        wanted,
        cfg,
        typed(ReplayConfig, MEMORY | (memory or {}), "replay"),
        Seeds(seed),
        rank,
        torch.device("cpu"),
        generation,
    )
    rows.read()
    return rows


def check_transitions(batch: Batch, given_: dict, steps: int, discount: float = 1.0) -> None:
    """Every column is what some trajectory holds: `steps` rows from a live one on, and the observation at their end."""
    for column in range(batch.reward.shape[1]):
        number, row = (int(x) for x in batch.obs.observation[0, column])
        one = given_[number]
        assert one.valid[row]
        live = 0
        while live < steps and one.valid[row + live]:
            live += 1
        assert batch.valid[:, column].tolist()[: live + 1] == [True] * live + [False] * (live < steps)
        for i in range(live):
            assert batch.reward[i, column] == one.reward[row + i] and batch.action[i, column] == one.action[row + i]
            assert bool(batch.terminated[i, column]) == bool(one.terminated[row + i])
        assert batch.obs.observation[-1, column].tolist() == [number, row + live]


@pytest.mark.parametrize("steps", (1, 3))
def test_transitions_are_those_of_the_trajectories(steps, written):
    given_ = {n: episode(n, 4 + n % 9, terminated=n % 2 == 0, life=n % 3 == 0) for n in range(60)}
    source = open_source(str(written(given_.values(), group_rows=50)))
    rows = made(source, needs(rows=steps))
    assert rows.whole
    seen = set()
    for _ in range(120):
        batch = rows.sample(64, Clock())
        check_transitions(batch, given_, steps)
        seen |= {tuple(one) for one in batch.obs.observation[0].tolist()}
    assert len(seen) == sum(one.steps for one in given_.values()), "every decision is drawn"
    rows.close()


def test_a_set_larger_than_memory_is_read_again_and_again(written):
    """Every decision is drawn about as often as any other, and memory holds a part of them."""
    given_ = {n: episode(n, 20 + n % 50) for n in range(400)}
    source = open_source(str(written(given_.values(), group_rows=300)))
    rows = made(source, needs(), buffer=2500)
    assert not rows.whole and rows.rows < 5000
    total = sum(one.steps for one in given_.values())
    counts = np.zeros((400, 80))
    for _ in range(6 * total // 200):
        batch = rows.sample(200, Clock())
        number, row = batch.obs.observation[0].long().unbind(-1)
        np.add.at(counts, (number.numpy(), row.numpy()), 1)
    check_transitions(batch, given_, 1)
    mean = np.array([counts[n, : one.steps].mean() for n, one in given_.items()])
    assert 5.0 < mean.mean() < 7.0 and mean.min() > 2.0 and mean.max() < 12.0
    rows.close()


@pytest.mark.parametrize("pieces", (50, 1))
@pytest.mark.parametrize("buffer", (100_000, 2500))
@pytest.mark.parametrize("kind", ("uniform", "prioritized"))
def test_a_resumed_run_draws_the_same_rows(buffer, kind, pieces, written, monkeypatch):
    """Whether the set has pieces that are read as a whole, or one piece that is larger than memory."""
    monkeypatch.setattr("rlrun.datasets.reading.PART_ROWS", 300)
    given_ = [episode(n, 20 + n % 50) for n in range(400)]
    source = Listed(given_, facts(), each=400) if pieces == 1 else open_source(str(written(given_, group_rows=300)))
    memory = {} if kind == "uniform" else {"name": kind, "alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6}
    record = {"log_prob": Field((), torch.float32)}
    rows = made(source, needs(record=record), buffer=buffer, memory=memory)
    assert rows.whole is (buffer == 100_000)

    def update(rows) -> Batch:
        batch = rows.sample(100, Clock())
        rows.write(batch.key, priority=batch.log_prob[0].abs())
        return batch

    for _ in range(70):
        update(rows)
    state = rows.state()
    expected = [update(rows) for _ in range(40)]
    again = made(source, needs(record=record), buffer=buffer, memory=memory)
    again.load(state, None)
    for one in expected:
        other = update(again)
        for name in ("reward", "action", "key", "weight", "log_prob"):
            assert torch.equal(one[name], other[name]), name
    if pieces == 1:
        return
    # Neither a set of another size nor one of the same size takes its place.
    for folder, numbers in (("other", range(50)), ("alike", range(1, 401))):
        lengths = {"other": lambda n: 30, "alike": lambda n: 20 + (n - 1) % 50}[folder]
        other_set = open_source(str(written((episode(n, lengths(n)) for n in numbers), folder=folder, group_rows=300)))
        with pytest.raises(UserError, match="has changed since"):
            made(other_set, needs(record=record), buffer=buffer, memory=memory).load(state, None)


@pytest.mark.parametrize("told", (True, False))
@pytest.mark.parametrize("buffer", (18_200, 2500))
def test_a_run_goes_on_in_a_ring_of_another_length(buffer, told):
    """Earlier versions made a shorter ring, into which a set of as many rows as the buffer did not fit, and did not say
    how long it was. Each row keeps its priority, and a set that fits now stays in memory as a whole."""
    given_ = [episode(n, 20 + n % 50) for n in range(400)]
    source, short = Listed(given_, facts(), each=400), Listed(given_[:350], facts(), each=400)
    source.most_rows = 10**9
    memory = {"name": "prioritized", "alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6}
    old = made(source, needs(), buffer=buffer, memory=memory)
    assert not old.whole
    for number in range(70):
        batch = old.sample(500, Clock())
        old.write(batch.key, priority=batch.reward[0].abs() + number)
    state, before = old.state(), old.shelves[0].ring.draws
    if not told:
        del state["shelves"][0]["length"]
    source.most_rows = None
    again = made(source, needs(), buffer=buffer, memory=memory)
    again.load(state, None)
    ring = again.shelves[0].ring
    draws = ring.draws
    assert again.whole is (buffer == 18_200) and ring.length > old.shelves[0].ring.length
    ring.check_valid()
    _, rows = draws.place(np.flatnonzero(draws.may))
    values = draws.tree.leaves[draws.may]
    kept = (rows >= before.window(0)[0]) & (not again.whole)  # the others are not those that the old ring had
    assert kept.sum() == (0 if again.whole else before.count)
    assert (values[kept] == before.tree.leaves[rows[kept] % before.length]).all()
    assert (values[~kept] == before.largest).all()
    again.sample(100, Clock())
    if told and again.whole:
        with pytest.raises(UserError, match="has changed since"):
            made(short, needs(), buffer=buffer, memory=memory).load(state, None)


def test_a_piece_is_read_in_parts_of_whole_trajectories(monkeypatch):
    """Filters leave parts empty, a part ends with the trajectory that fills it, and passes follow each other."""
    monkeypatch.setattr("rlrun.datasets.reading.PART_ROWS", 100)
    given_ = [episode(n, 9 + n) for n in range(60)]
    cfg = typed(DataConfig, PLAIN | {"min_return": 0.0}, "data")
    reader = RowReader(Listed(given_, facts(), each=40), needs(), cfg, Seeds(3), 0)
    found = list(itertools.islice(reader.parts(), 80))
    places = [part.place for part in found]
    assert places == sorted(places) and [part.number for part in found if part.place == 2] == list(range(places.count(2)))
    assert all(part.over == (part.place != after.place) for part, after in itertools.pairwise(found))
    for turn in range(2):
        parts = [part for part in found if part.place // 2 == turn]
        order = [n for piece in reader.order(turn) for n in range(40 * piece, min(40 * piece + 40, 60))]
        kept = [n for n in order if given_[n].ret >= 0.0]
        rows = [part.rows for part in parts if part.rows is not None]
        firsts = np.concatenate([one["obs"]["observation"][one["is_first"]] for one in rows])
        assert firsts.tolist() == [[n, 0] for n in kept]
        assert sum(part.kept + part.left_out for part in parts) == 60
        assert max(len(one["reward"]) for one in rows) < 100 + max(map(len, given_))
    again = next(reader.parts(found[7].place, found[7].number))
    assert again[:2] == found[7][:2] and np.array_equal(again.rows["reward"], found[7].rows["reward"])
    reader.close()


def slow_to_go(one, discount):
    count = len(one)
    total, scale, distance = np.zeros(count), np.zeros(count), np.zeros(count, dtype=int)
    for row in range(count):
        at = row
        while one.valid[at]:
            total[row] += discount ** (at - row) * one.reward[at]
            at += 1
            if one.terminated[at - 1]:
                break  # a lost life, behind which the game may go on at once
        distance[row] = at - row
        scale[row] = 0.0 if at == row or one.terminated[at - 1] else discount ** (at - row)
    return total, scale, distance


@pytest.mark.parametrize("spec", (VECTOR, FRAMES), ids=lambda spec: spec.name)
def test_returns_to_go_and_the_observation_at_the_end(spec, written):
    given_ = [episode(n, 3 + 5 * (n % 17), spec, terminated=n % 2 == 0, life=n % 3 == 0) for n in range(60)]
    for one in given_[1::3]:
        one.terminated[1 : len(one) - 2 : 5] = True  # lost lives without a dead row
    for one in given_:
        found = to_go(one.reward, one.valid, one.terminated, 0.97)
        for value, expected in zip(found.values(), slow_to_go(one, 0.97), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    for buffer in (100_000, 1100):
        rows = made(Listed(given_, facts(spec)), needs(spec, returns=0.97), buffer=buffer)
        for _ in range(20):
            batch = rows.sample(32, Clock())
            assert batch.end.is_first.shape == (1, 32) and batch.return_to_go.shape == (1, 32)
            if spec is VECTOR:
                for column in range(32):
                    number, row = (int(x) for x in batch.obs.observation[0, column])
                    total, scale, distance = slow_to_go(given_[number], 0.97)
                    assert batch.return_to_go[0, column] == pytest.approx(total[row], rel=1e-5, abs=1e-6)
                    assert batch.end_discount[0, column] == pytest.approx(scale[row], rel=1e-5)
                    assert batch.end.obs.observation[0, column].tolist() == [number, row + distance[row]]
        rows.close()


def test_stacks_of_frames_are_put_together_again(written):
    given_ = [episode(n, 6, FRAMES) for n in range(30)]
    rows = made(open_source(str(written(given_, facts(FRAMES)))), needs(FRAMES))
    stacks = {}
    for one in given_:
        frames = one.obs["observation"]
        for row in range(len(one)):
            part = [frames[row - back] if row >= back else np.zeros_like(frames[0]) for back in (2, 1, 0)]
            stacks[np.stack(part).tobytes()] = (one, row)
    for _ in range(10):
        batch = rows.sample(16, Clock())
        for column in range(16):
            one, row = stacks[batch.obs.observation[0, column].numpy().tobytes()]
            assert torch.equal(batch.action[0, column], torch.from_numpy(one.action[row]))
            assert stacks[batch.obs.observation[1, column].numpy().tobytes()] == (one, row + 1)
    rows.close()


def test_sequences_with_memory_and_the_last_action(written):
    """Sequences of 4 rows from every second row on, recurrent state 0, and prev_action as the row before has it."""
    spec = dataclasses.replace(
        VECTOR,
        obs={
            **VECTOR.obs,
            "prev_action": Discrete(n=3),
            "prev_reward": Box(shape=(1,), dtype="float32", low=(-1,), high=(1,)),
        },
    )
    given_ = {n: episode(n, 5 + n % 6) for n in range(40)}
    wanted = needs(
        spec, 4, core={"h": Field((2,), torch.float32)}, core_every=2, sequences=True, starts_every=2, obs="all"
    )
    rows = made(open_source(str(written(given_.values()))), wanted)
    batch = rows.sample(50, Clock())
    assert batch.obs.observation.shape == (5, 50, 2) and batch.core.h.shape == (1, 50, 2) and not batch.core.h.any()
    large = wanted._replace(core={"h": Field((100_000,), torch.float32)})
    assert large.layout(1000).bytes == wanted.layout(1000).bytes  # zeros are not stored with rows
    rows.write(batch.key, core=batch.core.map(torch.ones_like))
    assert not rows.sample(50, Clock()).core.h.any()
    for column in range(50):
        for t in range(5):
            number, row = (int(x) for x in batch.obs.observation[t, column])
            if bool(batch.is_first[t, column]):
                assert row == 0 and batch.obs.prev_action[t, column] == 0 and batch.obs.prev_reward[t, column] == 0
            elif row > 0 and t > 0 and batch.valid[t - 1, column]:
                assert batch.obs.prev_action[t, column] == given_[number].action[row - 1]
                assert batch.obs.prev_reward[t, column] == given_[number].reward[row - 1]
    rows.close()


def test_the_last_action_of_data_is_the_one_that_was_executed():
    """Data hold what a Gaussian drew, also beyond the bounds."""
    bare = dataclasses.replace(VECTOR, action=Box(shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 3.0)))
    spec, source = with_previous(bare, True, False), Listed([episode(n, 9, bare) for n in range(12)], facts(bare))
    rows = made(source, needs(spec, 4, sequences=True, starts_every=1, obs="all"))
    batch = rows.sample(50, Clock())
    rows.close()
    all_rows = RecordedEpisodes(source, spec).rows
    for obs, action, first, valid in (
        (batch.obs.prev_action[1:-1], batch.action[:-1], batch.is_first[1:-1], batch.valid[:-1]),
        (all_rows.obs.prev_action[1:], all_rows.action[:-1], all_rows.is_first[1:], all_rows.valid[:-1]),
    ):
        after = valid & ~first
        assert (action[after].abs() > 1).any() and torch.equal(obs[after], action[after].clamp(-1, 1))


def test_15_sets_are_mixed_by_their_shares():
    """Known answer 15 of the reference: counts within 3 sigma, a share of 0 is never drawn, and the same seed draws the same."""
    sets = [Listed([episode(100 * k + n, 9) for n in range(20)], facts()) for k in range(3)]
    mix = [(sets[0], 0.7), (sets[1], 0.3), (sets[2], 0.0)]
    rows = made(mix, needs())
    batches = [rows.sample(50, Clock()) for _ in range(100)]
    which = torch.cat([batch.obs.observation[0, :, 0] for batch in batches]) // 100
    count = int((which == 0).sum())
    assert not (which == 2).any() and abs(count - 3500) < 3 * np.sqrt(5000 * 0.7 * 0.3)
    again, other = made(mix, needs()), made(mix, needs(), seed=1)
    assert torch.equal(again.sample(50, Clock()).obs.observation, batches[0].obs.observation)
    assert not torch.equal(other.sample(50, Clock()).obs.observation, batches[0].obs.observation)
    # What updates write: priorities, and the recurrent state of a world model, for which data have no room.
    rows.write(batches[0].key, priority=torch.ones(50), core=Batch(deter=torch.zeros(1, 50, 4)))


def test_trajectories_are_filtered_and_rewards_scaled(written, capsys):
    """By the returns of whole episodes: parts of episodes have the smallest and the largest ones here."""
    given_ = [episode(n, 9) for n in range(40)]
    returns = np.array([one.ret for one in given_])
    cut = [dataclasses.replace(episode(40 + n, 9), whole=False) for n in range(8)]
    for n, one in enumerate(cut):
        one.reward[one.valid] = (-90.0, 0.1, 90.0, 0.1)[n % 4]
    given_ += cut
    source = open_source(str(written(given_)))
    rows = made(source, needs(), min_return=0.0, max_return=2.0)
    kept = {n for n, ret in enumerate(returns) if 0.0 <= ret <= 2.0}
    assert {int(x) for x in rows.sample(2000, Clock()).obs.observation[0, :, 0]} == kept
    assert rows.shelves[0].left_out == 48 - len(kept)
    said = f"leave out {48 - len(kept)} of the 48 trajectories of {source.name} that were read, 8 because they are only parts"
    assert said in capsys.readouterr().out
    with pytest.raises(UserError, match=r"nothing to learn from in 48 trajectories; data\.min_return .* 48 of them, 8 "):
        made(source, needs(), min_return=1e6)
    with pytest.raises(UserError, match="has no whole episode"):
        made(Listed(cut, facts()), needs(), reward_scale="returns")
    # Several sets have one scale, and one that nothing is drawn from has no part in it.
    low, high = (Listed([one for one in given_ if (one.ret > 1.0) is above], facts()) for above in (False, True))
    far = Listed([dataclasses.replace(one, reward=one.reward * 100) for one in given_], facts())
    for sets in (source, [(low, 0.5), (high, 0.5), (far, 0.0)]):
        batch = made(sets, needs(), reward_scale="returns", reward_shift=-1.0).sample(64, Clock())
        for column in range(64):
            number, row = (int(x) for x in batch.obs.observation[0, column])
            expected = given_[number].reward[row] * 1000 / (returns.max() - returns.min()) - 1
            assert batch.reward[0, column] == pytest.approx(expected, rel=1e-4, abs=1e-3)
    same = [(Listed(given_[:1], facts()), 0.5), (Listed(given_[:1], facts()), 0.5)]
    with pytest.raises(UserError, match="all returns of listed, listed are the same"):
        made(same, needs(), reward_scale="returns")


def test_a_part_of_every_batch_comes_from_data():
    sets = [Listed([episode(k * 100 + n, 9) for n in range(20)], facts()) for k in range(2)]
    memory = {"name": "prioritized", "alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6}
    one, two = (made(source, needs(), memory=memory) for source in sets)
    ring = one.shelves[0].ring
    assert isinstance(ring, Replay)
    mixed = WithData(ring, two, 12)
    batch = mixed.sample(32, Clock())
    assert (batch.obs.observation[0, :20, 0] < 100).all() and (batch.obs.observation[0, 20:, 0] >= 100).all()
    before = (ring.draws.tree.total, two.shelves[0].ring.draws.tree.total)
    mixed.write(batch.key, priority=torch.cat((torch.full((20,), 9.0), torch.full((12,), 1e-3))))
    assert ring.draws.tree.total > before[0] and two.shelves[0].ring.draws.tree.total < before[1]


def test_weights_of_several_sets_belong_to_one_batch():
    """w = (N P)^-beta of each row in its own set, relative to the largest of the batch: a set's share of the weight is
    then its share of the rows."""
    rng = np.random.default_rng(5)
    sets = [Listed([episode(100 * k + n, 9) for n in range(size)], facts()) for k, size in enumerate((20, 50, 30))]
    memory = {"name": "prioritized", "alpha": 1.0, "beta": 1.0, "priority_epsilon": 0.0}
    alone = made(sets[2], needs(), memory=memory)
    mixed = made([(sets[0], 0.95), (sets[1], 0.05)], needs(), memory=memory)
    weights = []  # of every start, by its key
    for ring in (*(shelf.ring for shelf in mixed.shelves), alone.shelves[0].ring):
        keys = ring.draws.place(np.flatnonzero(ring.draws.may))[1]
        priority = rng.lognormal(sigma=1.5, size=len(keys))
        ring.write(torch.from_numpy(keys), priority=torch.from_numpy(priority))
        weights.append(dict(zip(keys.tolist(), priority.mean() / priority, strict=True)))
    both = WithData(alone.shelves[0].ring, mixed, 12)
    rows, weight = torch.zeros(2), torch.zeros(2)
    for _ in range(1500):
        for drawn, own in ((mixed, 0), (both, 20)):
            batch = drawn.sample(own + 12, Clock())
            expected = [weights[2][key] for key in batch.key[:own].tolist()]
            expected += [weights[key % 2][key // 2] for key in batch.key[own:].tolist()]
            largest = max(expected)
            assert batch.weight.tolist() == pytest.approx([one / largest for one in expected], rel=1e-5)
            assert drawn.largest_weight == pytest.approx(largest, rel=1e-5)
            which = batch.key[own:] % 2
            rows += torch.bincount(which, minlength=2)
            weight += torch.bincount(which, batch.weight[own:] * largest, minlength=2)
    assert weight[1] / weight.sum() == pytest.approx(float(rows[1] / rows.sum()), rel=0.1)


def test_what_does_not_fit_is_said(written):
    source = open_source(str(written([episode(n, 5) for n in range(3)])))
    for spec, said in (
        (
            dataclasses.replace(VECTOR, action=Discrete(n=4)),
            r"holds other rows: actions Discrete\(3\), where vectors has Discrete\(4\)",
        ),
        (FRAMES, "holds other rows: observations"),
        (dataclasses.replace(VECTOR, obs={**VECTOR.obs, "state": Discrete(n=2)}), "has no state in its observations"),
    ):
        with pytest.raises(UserError, match=said):
            made(source, needs(spec))
    with pytest.raises(UserError, match="has no q_taken with its rows"):
        made(source, needs(record={"q_taken": Field((), torch.float32)}))
    with pytest.raises(RunFailed, match="no whole trajectory"):
        long = Listed([episode(0, 9000)], facts())
        made(long, needs(returns=0.9), buffer=1100).sample(4, Clock())


def boxes(low: float, shape=(1,)) -> Box:
    return Box(shape=shape, dtype="float32", low=(low,), high=(9.0,))


@pytest.mark.parametrize(
    "theirs, ours",
    [
        (Discrete(n=64), Discrete(n=16)),
        (Discrete(n=16), Discrete(n=64)),
        (Discrete(n=4, start=1), Discrete(n=4)),
        (
            MultiDiscrete(sizes=(2, 3), starts=(0, 0), shape=(2,)),
            MultiDiscrete(sizes=(3, 2), starts=(0, 0), shape=(2,)),
        ),
        (
            Nested(spaces=(("a", Discrete(n=3)), ("b", boxes(0.0))), ordered=False),
            Nested(spaces=(("a", Discrete(n=4)), ("b", boxes(0.0))), ordered=False),
        ),
    ],
    ids=str,
)
def test_observations_of_other_choices_are_neither_learnt_from_nor_added_to(theirs, ours, written):
    """Their rows have the same form, and only the spaces tell that their numbers mean something else."""
    told = [facts(dataclasses.replace(VECTOR, obs={"observation": space})) for space in (theirs, ours)]
    folder = written([episode(n, 5, told[0].spec) for n in range(3)], told[0])
    said = re.escape(f"{folder} holds other rows: observations {theirs}, where vectors has {ours}")
    with pytest.raises(UserError, match=said):
        made(open_source(str(folder)), needs(told[1].spec))
    with pytest.raises(UserError, match=said):
        written([], told[1], folder=folder.name)
    written([episode(9, 5, told[0].spec)], told[0], folder=folder.name)
    assert sum(open_source(str(folder)).rows_of) == 4 * 6


def test_other_bounds_of_observations_make_no_other_rows(written):
    """Nor does another order of their parts, because rows hold numbers as they are, by name."""
    parts = (("a", Discrete(n=3)), ("b", boxes(0.0)))
    others = (("b", boxes(-9.0)), ("a", Discrete(n=3)))
    one, two = (
        dataclasses.replace(VECTOR, obs={"observation": Nested(spaces=spaces, ordered=False)})
        for spaces in (parts, others)
    )
    folder = written([episode(0, 5, one)], facts(one))
    written([episode(1, 5, two)], facts(two), folder=folder.name)
    rows = made(open_source(str(folder)), needs(two))
    assert rows.shelves[0].kept == 2, "both files are read as one set"
    rows.close()


def test_learners_read_the_same_and_draw_different_rows(written):
    source = open_source(str(written((episode(n, 20) for n in range(400)), group_rows=300)))
    one, two = (made(source, needs(), buffer=2500, rank=rank) for rank in (0, 1))
    assert torch.equal(one.shelves[0].ring.tree["reward"].flat, two.shelves[0].ring.tree["reward"].flat)
    assert not torch.equal(one.sample(50, Clock()).key, two.sample(50, Clock()).key)
    state = one.state()
    two.load(state, None)
    again = made(source, needs(), buffer=2500)
    again.load(state, None)
    assert not torch.equal(again.sample(50, Clock()).key, two.sample(50, Clock()).key)


@pytest.mark.parametrize("sets", (1, 2))
def test_a_learner_goes_on_with_its_own_draws_or_with_new_ones_in_every_generation(sets, written):
    """Where a checkpoint has nothing of this learner, it takes the first learner's place in the data."""
    given_ = [episode(n, 20) for n in range(400)]
    source = [(open_source(str(written(given_, group_rows=300, folder=str(i)))), 1.0) for i in range(sets)]
    memory = {"name": "prioritized", "alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6}
    one, two = (made(source, needs(), buffer=2500, memory=memory, rank=rank) for rank in (0, 1))
    for rows in (one, two):
        for number in range(40):
            batch = rows.sample(100, Clock())
            rows.write(batch.key, priority=batch.reward[0].abs() + number * (1 + rows.rank))
    first, own = one.state(), two.state()
    expected = two.sample(50, Clock()).key
    drawn = []
    for generation, state in ((1, own), (1, first), (2, first)):
        again = made(source, needs(), buffer=2500, memory=memory, rank=1, generation=generation)
        again.load(state, None)
        drawn.append(again.sample(50, Clock()).key)
    assert torch.equal(drawn[0], expected)
    assert not torch.equal(drawn[1], expected) and not torch.equal(drawn[1], drawn[2])


def test_moments_are_computed_while_rows_are_read(written):
    """What was read is not kept beside the memory until everything has been read."""
    source = open_source(str(written((episode(n, 20) for n in range(400)), group_rows=300)))
    cfg = typed(DataConfig, PLAIN, "data")
    rows = DataRows(
        [(source, 1.0)], needs(), cfg, typed(ReplayConfig, MEMORY, "replay"), Seeds(0), 0, torch.device("cpu")
    )
    there = rows.read(lambda batch: rows.rows if bool(batch.valid.any()) else None)
    assert there == sorted(set(there)) and there[0] < 2000 and there[-1] > 8000
    assert list(rows.shelves[0].stream) == []  # nothing is read ahead of a set that is in memory


@pytest.mark.parametrize("pieces", (400, 1))
@pytest.mark.parametrize("buffer", (100_000, 2500))
def test_moments_are_those_of_the_whole_set(buffer, pieces, written, monkeypatch):
    """Whether the set fits into memory or not, each decision that filters leave counts once."""
    monkeypatch.setattr("rlrun.datasets.reading.PART_ROWS", 300)
    given_ = [episode(n, 20 + n % 50) for n in range(400)]
    source = Listed(given_, facts(), each=400) if pieces == 1 else open_source(str(written(given_, group_rows=300)))
    cfg = typed(DataConfig, PLAIN | {"buffer": buffer, "min_return": 0.0}, "data")
    memory, pairs = typed(ReplayConfig, MEMORY, "replay"), [(source, 0.6), (source, 0.4)]
    rows = DataRows(pairs, needs(), cfg, memory, Seeds(0), 0, torch.device("cpu"))
    found = rows.read(lambda batch: batch.obs.observation[:-1][batch.valid] if bool(batch.valid.any()) else None)
    assert rows.whole is (buffer == 100_000)
    kept = [one for one in given_ if one.ret >= 0.0]
    expected = np.concatenate([one.obs["observation"][one.valid] for one in kept])
    assert sorted(torch.cat(found).tolist()) == sorted([*expected.tolist(), *expected.tolist()])
    rows.close()
    rows = DataRows(pairs, needs(), cfg, memory, Seeds(0), 0, torch.device("cpu"))
    each = rows.read(lambda batch: [moments_of(batch.obs.observation[:-1][batch.valid])])
    whole = moments_of(torch.from_numpy(expected))
    assert len(each) == 2, "they are merged while a set is read, and not kept for each of its parts"
    for (one,) in each:
        assert one.samples == whole.samples
        assert torch.allclose(one.mean, whole.mean, rtol=1e-12) and torch.allclose(one.m2, whole.m2, rtol=1e-12)
    rows.close()


@pytest.mark.parametrize("counted", (True, False))
def test_a_set_of_as_many_rows_as_the_buffer_is_read_once(counted):
    """Whether its format says how many rows it has or not."""
    for size in (3071, 3072, 3073):
        source = Listed([episode(0, 999), episode(1, size - 1001)], facts())
        source.most_rows = size if counted else None
        rows = made(source, needs(), buffer=size)
        assert rows.whole and rows.shelves[0].ring.starts == size - 2
        rows.close()


def test_a_small_set_of_any_format_takes_little_memory():
    given_ = [episode(n, 20) for n in range(100)]
    known, unknown = Listed(given_, facts()), Listed(given_, facts())
    known.most_rows = 4000
    rows = [made(source, needs(), buffer=100_000) for source in (known, unknown)]
    assert rows[0].shelves[0].ring.length < 10_000 and rows[1].shelves[0].ring.length >= 100_000
    assert all(one.whole for one in rows) and rows[0].rows == rows[1].rows
