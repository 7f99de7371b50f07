"""Compares Replay with a full history of what was added: everything drawn must be what the environment produced."""

import dataclasses
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.types import typed
from rlrun.core.batch import Batch, Field
from rlrun.core.ranks import Ranks
from rlrun.core.schedule import Clock
from rlrun.dataflow.slots import Fragment, Header
from rlrun.replay.buffer import Replay
from rlrun.replay.late import Writes
from rlrun.replay.layout import Layout, ReplayConfig
from rlrun.runners.replay import weighed

S = 4  # frames in a stack
EXAMPLES = int(os.environ.get("REPLAY_EXAMPLES", "15"))


class History:
    """A producer of columns with random ends of episodes that keeps every row. Frames are [1, 2] random pixels."""

    def __init__(self, worker: int, columns: int, rows: int, seed: int, stacked: bool, core_every: int):
        self.worker, self.columns, self.rows, self.stacked, self.core_every = worker, columns, rows, stacked, core_every
        self.rng = np.random.default_rng([seed, worker])
        self.row = self.numbered = 0
        self.past: list[dict] = []  # the fields [B, ...] of every row
        self.over = np.ones(columns, dtype=bool)  # whether the next observation begins an episode
        self.stack = np.zeros((columns, S, 1, 2), dtype=np.uint8)
        self.now = self._observe()

    def _observe(self) -> dict:
        first = self.over.copy()
        frame = self.rng.integers(1, 256, (self.columns, 1, 2), dtype=np.uint8)
        self.stack = np.where(first[:, None, None, None], 0, self.stack)
        self.stack = np.concatenate((self.stack[:, 1:], frame[:, None]), 1)
        number = self.numbered * 100 + self.worker * 10 + np.arange(self.columns)
        self.numbered += 1
        obs = {
            "observation": self.stack.copy() if self.stacked else number.astype(np.float32)[:, None],
            "extra": number.astype(np.int64),
        }
        return {"obs": obs, "is_first": first}

    def fragment(self) -> Fragment:
        rows = []
        for _ in range(self.rows):
            row = self.now
            dead = row.get("dead", np.zeros(self.columns, dtype=bool)) | row.pop(
                "ended", np.zeros(self.columns, dtype=bool)
            )
            terminated = (self.rng.random(self.columns) < 0.15) & ~dead
            truncated = (self.rng.random(self.columns) < 0.1) & ~dead & ~terminated
            life = (self.rng.random(self.columns) < 0.3) & terminated  # a lost life: terminated, but the game continues
            row |= {
                "action": self.rng.integers(5, size=self.columns), "reward": np.where(dead, 0, self.rng.normal(size=self.columns)).astype(np.float32),
                "terminated": terminated, "valid": ~dead, "q": self.rng.normal(size=self.columns).astype(np.float32),
            }  # fmt: skip
            self.over = dead
            self.now = self._observe()
            self.now["ended"] = (terminated & ~life) | truncated  # the next row only resets
            rows.append(row)
        self.past += rows
        ahead = [*rows, self.now]

        def stack(name, among=rows):
            return torch.from_numpy(np.stack([row[name] for row in among]))

        obs = Batch(
            {name: torch.from_numpy(np.stack([row["obs"][name] for row in ahead])) for name in ("observation", "extra")}
        )
        core = torch.from_numpy(
            np.stack([ahead[t]["obs"]["extra"] for t in range(0, self.rows + 1, self.core_every)])
        ).float()
        batch = Batch(obs=obs, is_first=stack("is_first", ahead), truncated=torch.zeros(self.rows, self.columns, dtype=torch.bool), core=Batch(h=core),
                      **{name: stack(name) for name in ("action", "reward", "terminated", "valid", "q")})  # fmt: skip
        header = Header(self.worker, 0, self.row, 0, 0, int(batch.valid.sum()), (), (0.0, 0.0))
        self.row += self.rows
        return Fragment(header, batch)

    def restart(self) -> None:
        """Behaves like a resume that is not exact: rows are numbered from 0 and every column begins an episode."""
        self.past.append({**self.now, "valid": np.zeros(self.columns, dtype=bool)})
        self.past += [
            {
                "valid": np.zeros(self.columns, dtype=bool),
                "obs": self.now["obs"],
                "is_first": np.zeros(self.columns, dtype=bool),
            }
        ] * (self.rows - 1)
        self.row, self.over = 0, np.ones(self.columns, dtype=bool)
        self.now = self._observe()


def config(**changes) -> ReplayConfig:
    values = {"name": "uniform", "capacity": 60, "compress": False, "directory": None, "device": "cpu", "checkpoint": "auto", "checkpoint_max_gb": 1.0}  # fmt: skip
    if changes.get("name") == "prioritized":
        values |= {"alpha": 0.6, "beta": 0.4, "priority_epsilon": 1e-6}
    values |= changes
    return typed(ReplayConfig, values)


def layout(
    *, ends=True, rows=3, rows_from=None, fragment_rows=4, starts_every=1, stacked=True, capacity=60, blocks=2, block=3,
    new_first=False, burn_in=0,
) -> Layout:  # fmt: skip
    pixels = Field((S, 1, 2), torch.uint8) if stacked else Field((1,), torch.float32)
    return Layout(
        obs={"observation": pixels, "extra": Field((), torch.int64)}, action=Field((), torch.int64), record={"q": Field((), torch.float32)},
        core={} if ends else {"h": Field((), torch.float32)}, core_every=starts_every, block=block, blocks=blocks, fragment_rows=fragment_rows, rows=rows,
        rows_from=rows_from or rows, ends=ends, starts_every=starts_every, sequences=not ends, stack=S if stacked else 1, capacity=capacity,
        new_first=new_first, burn_in=burn_in,
    )  # fmt: skip


def make(cfg: ReplayConfig, made: Layout, seed: int = 0, first_priority=None) -> tuple[Replay, list[History]]:
    replay = Replay(cfg, made, torch.Generator().manual_seed(seed), torch.device("cpu"), first_priority)
    sources = [
        History(worker, made.block, made.fragment_rows, seed, made.stack > 1, made.starts_every)
        for worker in range(made.blocks)
    ]
    return replay, sources


def check(batch: Batch, replay: Replay, sources: list[History]) -> None:
    """Asserts that every drawn fragment is a part of the history and not older than what the ring holds."""
    made = replay.layout
    for i, key in enumerate(batch.key.tolist()):
        column, start = key % made.columns, key // made.columns
        source, b = sources[column // made.block], column % made.block
        assert (
            len(source.past) - replay.length < start <= len(source.past) - made.rows and start % made.starts_every == 0
        )
        rows = source.past[start : start + made.rows]
        alive = np.array([row["valid"][b] for row in rows])
        seen = batch.valid[:, i].numpy()
        count = int(seen.sum()) if made.rows_from < made.rows else made.rows
        assert (seen[:count] == alive[:count]).all() or (not made.ends and (seen == alive).all())
        assert alive[0] if made.ends else alive[made.burn_in :].any()
        for t in np.flatnonzero(seen):
            for name in ("action", "reward", "terminated", "q"):
                assert batch[name][t, i] == rows[t][name][b]
        following = [*source.past[start : start + made.rows + 1], source.now][: made.rows + 1]
        if made.ends:
            end = int((~seen).argmax()) if not seen.all() else made.rows
            assert end >= made.rows_from or not alive[: made.rows_from].all()
            following = [following[0], following[end]]
        assert len(following) == len(batch.is_first)
        for t, row in enumerate(following):
            if (
                not made.ends
                and "valid" in row
                and not row["valid"][b]
                and (t == 0 or not following[t - 1]["valid"][b])
            ):
                continue  # a break adds dead rows; no row bootstraps from a dead row that follows a dead row
            assert bool(batch.is_first[t, i]) == bool(row["is_first"][b])
            for name in ("observation", "extra"):
                np.testing.assert_array_equal(batch.obs[name][t, i].numpy(), row["obs"][name][b])
        if not made.ends and alive[0]:  # otherwise memory is reset before the first live row
            assert batch.core.h[0, i] == following[0]["obs"]["extra"][b]


KINDS = {
    "one step": {"rows": 1},
    "n steps": {"rows": 3},
    "n from a range": {"rows": 5, "rows_from": 2},
    "sequences": {"ends": False, "rows": 6, "fragment_rows": 4, "starts_every": 2},
    "sequences with burn-in": {"ends": False, "rows": 6, "fragment_rows": 4, "starts_every": 2, "burn_in": 5},
    "vectors": {"stacked": False, "fragment_rows": 1, "rows": 2},
    "one column": {"blocks": 1, "block": 1, "fragment_rows": 1, "rows": 3},
}


# CI runs the same examples every time. REPLAY_EXAMPLES=500 tries more by hand.
@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES == 15)
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(["uniform", "prioritized"]), st.integers(0, 99), st.data())
def test_whatever_is_drawn_is_what_the_environment_produced(kind, name, seed, data):
    replay, sources = make(config(name=name), layout(**KINDS[kind]), seed)
    for step in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["add", "add", "add", "add", "sample", "sample", "restart"]))
        if action == "restart" and step > 0:
            source = sources[data.draw(st.integers(0, len(sources) - 1))]
            if source.past:
                source.restart()
            replay.add(source.fragment())
        elif action == "sample" and replay.starts > 0:
            batch = replay.sample(16, Clock())
            check(batch, replay, sources)
            replay.write(batch.key, torch.rand(16) * 3)
        else:
            source = sources[data.draw(st.integers(0, len(sources) - 1))]
            replay.add(source.fragment())
        replay.check_valid()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["uniform", "prioritized"])
def test_a_full_ring_draws_every_live_start_that_it_holds_and_no_other(kind, name):
    replay, sources = make(config(name=name), layout(**KINDS[kind]))
    for _ in range(120):
        for source in sources:
            replay.add(source.fragment())
    made, drawn = replay.layout, set()
    for _ in range(60):
        batch = replay.sample(64, Clock())
        drawn |= set(batch.key.tolist())
    check(batch, replay, sources)
    expected = set()
    for column in range(made.columns):
        past = sources[column // made.block].past
        for start in range(len(past) - replay.length + made.stack, len(past) - made.rows + 1):
            rows = past[start + made.burn_in : start + (1 if made.ends else made.rows)]
            if start % made.starts_every == 0 and any(row["valid"][column % made.block] for row in rows):
                expected.add(start * made.columns + column)
    assert drawn == expected
    assert made.capacity <= len(replay) <= made.capacity + made.columns * (made.fragment_rows + made.rows + S + 1)


def test_uniform_draws_are_uniform():
    replay, sources = make(config(), layout(rows=1, capacity=24, blocks=1, block=2))
    for _ in range(9):
        replay.add(sources[0].fragment())
    keys = torch.cat([replay.sample(500, Clock()).key for _ in range(40)])
    counts = torch.unique(keys, return_counts=True)[1].double()
    expected = 20_000 / len(counts)
    assert ((counts - expected).abs() < 5 * expected**0.5).all()


def test_the_few_live_starts_of_an_agent_that_seldom_plays_are_found():
    """With as few draws as here, one start of 20,000 would not be met by chance."""
    replay, sources = make(config(capacity=20_000), layout(rows=1, capacity=20_000, blocks=1, block=2, stacked=False))
    for number in range(2000):
        fragment = sources[0].fragment()
        live = fragment.batch.valid.clone() if number in (700, 1500) else torch.zeros_like(fragment.batch.valid)
        replay.add(dataclasses.replace(fragment, batch=fragment.batch.replace(valid=live)))
    batch = replay.sample(200, Clock())
    check(batch, replay, sources)
    counts = torch.unique(batch.key, return_counts=True)[1]
    assert len(counts) == replay.starts < 20 and batch.valid[0].all() and (counts > 200 / len(counts) / 4).all()


def with_single_rows(fragments, **options):
    """A prioritized replay of 24 single rows, after so many fragments. Returns it, its sources and the keys of its rows."""
    replay, sources = make(
        config(name="prioritized", priority_epsilon=0.0, **options), layout(rows=1, capacity=24, blocks=1, block=2)
    )
    for _ in range(fragments):
        replay.add(sources[0].fragment())
    return replay, sources, replay.sample(1000, Clock()).key.unique()


def test_draws_and_weights_follow_the_priorities():
    replay, _, keys = with_single_rows(9, alpha=0.5, beta=1.0)
    priority = torch.linspace(0.1, 4.0, len(keys))
    replay.write(keys, priority)
    probability = priority.double().sqrt() / priority.double().sqrt().sum()  # eq. 1
    batch = replay.sample(20_000, Clock())
    counts = torch.zeros(len(keys)).index_add(0, torch.searchsorted(keys, batch.key), torch.ones(20_000))
    torch.testing.assert_close((counts / 20_000).double(), probability, atol=2e-3, rtol=0)
    weight = 1.0 / (len(keys) * probability[torch.searchsorted(keys, batch.key)])  # beta 1
    torch.testing.assert_close(batch.weight.double(), weight / weight.max(), atol=1e-5, rtol=1e-5)
    assert replay.largest_weight == pytest.approx(float(weight.max()), rel=1e-5)


def test_draws_are_uniform_where_all_priorities_are_0():
    replay, sources, keys = with_single_rows(9, beta=1.0)
    replay.write(keys, torch.zeros(len(keys)))
    batch = replay.sample(1000, Clock())
    check(batch, replay, sources)
    assert len(batch.key.unique()) == len(keys) == replay.starts
    assert (batch.weight == 1).all() and replay.largest_weight == 1
    replay.write(keys[:1], torch.ones(1))
    assert (replay.sample(100, Clock()).key == keys[0]).all()


def test_new_rows_get_the_largest_priority_and_overwritten_ones_are_passed_over():
    replay, sources, old = with_single_rows(3, alpha=1.0)
    replay.write(old, torch.full(old.shape, 7.0))
    replay.add(sources[0].fragment())
    assert (
        replay.draws.tree.leaves.max() == 7.0
        and (replay.draws.tree.leaves[replay.draws.tree.leaves > 0] == 7.0).all()
    )
    for _ in range(20):
        replay.add(sources[0].fragment())
    before = replay.draws.tree.leaves.copy()
    replay.write(old, torch.full(old.shape, 100.0))
    assert (replay.draws.tree.leaves == before).all(), "rows that are gone have no priority"
    # The largest priority so far stays the largest, although all rows have smaller ones now.
    replay.write(replay.sample(1000, Clock()).key.unique(), torch.full((replay.starts,), 2.0))
    assert (replay.draws.tree.leaves[replay.draws.tree.leaves > 0] == 2.0).all()
    replay.add(sources[0].fragment())
    assert sorted(set(replay.draws.tree.leaves.tolist())) == [0.0, 2.0, 7.0]


def test_the_epsilon_is_added_to_priorities_before_the_exponent():
    """Schaul et al. 2016, section 3.3: p_i = |delta_i| + epsilon, and P(i) is proportional to p_i ** alpha."""
    replay, _, keys = with_single_rows(9, alpha=0.5)
    replay.draws.priorities = dataclasses.replace(replay.draws.priorities, priority_epsilon=0.25)
    priority = torch.arange(len(keys), dtype=torch.float32)
    replay.write(keys, priority)
    leaves = replay.draws.tree.leaves[replay.draws.leaf(*columns_and_rows(keys, replay))]
    assert leaves == pytest.approx([(p + 0.25) ** 0.5 for p in priority.tolist()])


def columns_and_rows(keys, replay):
    """The columns and the absolute rows of keys."""
    rows, columns = divmod(keys.numpy(), replay.layout.columns)
    return columns, rows


def test_every_length_of_a_range_is_drawn_as_often():
    """n is uniform over 2 to 5; a fragment in which nothing ends is cut at the n that was drawn for it."""
    replay, sources = make(config(), layout(rows=5, rows_from=2, blocks=1, block=2))
    for _ in range(12):
        fragment = sources[0].fragment()
        live = torch.ones_like(fragment.batch.valid)
        replay.add(dataclasses.replace(fragment, batch=fragment.batch.replace(valid=live)))
    lengths = replay.sample(4000, Clock()).valid.sum(0)
    counts = torch.bincount(lengths, minlength=6).tolist()
    assert counts[:2] == [0, 0] and all(800 < count < 1200 for count in counts[2:])


def test_first_priorities_see_whole_fragments_and_what_was_recorded_at_their_ends():
    seen = []

    def first(batch):
        seen.append(batch)
        assert batch.q.shape == (3, batch.reward.shape[1]) and "obs" not in batch
        return 1.0 + batch.q[0].abs() + batch.q[2].abs()

    replay, sources = make(
        config(name="prioritized", alpha=1.0, priority_epsilon=0.0), layout(rows=2, blocks=1), first_priority=first
    )
    for _ in range(30):
        replay.add(sources[0].fragment())
        replay.check_valid()
    batch = replay.sample(64, Clock())
    past = sources[0].past
    for key in batch.key.tolist():
        column, row = key % 3, key // 3
        leaf = replay.draws.tree.leaves[replay.draws.leaf(np.array(column), np.array(row))]
        assert leaf == pytest.approx(1.0 + abs(past[row]["q"][column]) + abs(past[row + 2]["q"][column]), rel=1e-6)


def test_behind_a_break_counts_what_was_recorded_before_it():
    """The priority at a break uses records from before the break, and not old contents of the ring."""
    seen = []

    def first(batch):
        seen.append(batch.q)
        return torch.ones(batch.q.shape[1])

    replay, sources = make(config(name="prioritized"), layout(rows=1, blocks=1), first_priority=first)
    for _ in range(30):
        replay.add(sources[0].fragment())
    last = torch.from_numpy(sources[0].past[-1]["q"])
    sources[0].restart()
    seen.clear()
    replay.add(sources[0].fragment())
    rows = torch.cat([q.view(2, 3, -1) for q in seen], -1)  # [start and end of a fragment, columns, starts]
    before = (rows[0] == last[:, None]).float().argmax(-1)  # last row before the break, which has the same numbers now
    columns = torch.arange(3)
    assert torch.equal(rows[0][columns, before], last) and torch.equal(rows[1][columns, before], last)


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
@pytest.mark.parametrize("kind", ["n steps", "sequences"])
@pytest.mark.parametrize("store", ["memory", "packed", "files"])
@pytest.mark.parametrize("fragments", [3, 50])
def test_a_saved_replay_goes_on_as_if_nothing_had_happened(tmp_path, name, kind, store, fragments):
    options = {"memory": {}, "packed": {"compress": True}, "files": {"directory": str(tmp_path / "rows")}}[store]
    first, sources = make(config(name=name, **options), layout(**KINDS[kind]))
    for _ in range(fragments):
        for source in sources:
            first.add(source.fragment())
    if fragments > 3:
        first.write(first.sample(32, Clock()).key, 3 * torch.rand(32))  # the largest is not that of a new replay
    first.save_rows(tmp_path)
    second, _ = make(config(name=name, **options), layout(**KINDS[kind]), seed=5)
    second.load(first.state(), tmp_path)
    second.check_valid()
    for _ in range(20):
        for source in sources:
            fragment = source.fragment()
            for replay in (first, second):
                replay.add(fragment)
        a, b = first.sample(16, Clock()), second.sample(16, Clock())
        assert all(torch.equal(x, y) for x, y in zip(a.leaves(), b.leaves(), strict=True))
        check(a, first, sources)
        for replay in (first, second):
            replay.write(a.key, a.reward[0].abs())
    (tmp_path / "replay-0.bin").write_bytes((tmp_path / "replay-0.bin").read_bytes()[:-200])
    if store != "packed":
        with pytest.raises(Exception, match="end too early"):
            second.load(first.state(), tmp_path)


def test_a_stack_is_stored_once():
    """Checks the size of a million Atari rows, which the benchmarks use."""
    atari = Layout(
        obs={"observation": Field((4, 84, 84), torch.uint8)}, action=Field((), torch.int64), record={}, core={}, core_every=1, block=1, blocks=1,
        fragment_rows=4,
        rows=1, rows_from=1, ends=True, starts_every=1, sequences=False, stack=4, capacity=1_000_000,
    )  # fmt: skip
    assert 7.05e9 < atari.bytes < 7.5e9


def test_nothing_is_drawn_from_ends_alone():
    """When no stored row can begin a fragment, the replay has no starts, so that a learner waits instead of failing."""
    for name in ("uniform", "prioritized"):
        replay, sources = make(config(name=name), layout(rows=1, blocks=1, block=1, fragment_rows=1, stacked=False))
        sources[0].now["ended"] = np.ones(1, dtype=bool)
        replay.add(sources[0].fragment())
        assert len(replay) == 1 and replay.starts == 0
        with pytest.raises(Exception, match="before it had any"):
            replay.sample(4, Clock())
        while replay.starts == 0:
            replay.add(sources[0].fragment())
        assert replay.sample(4, Clock()).valid[0].all()


def test_weights_are_relative_to_the_largest_of_all_learners():
    """Two learners have priorities [4, 1] and [1, 1]; every row has the probability that its own learner gives it."""
    raw = [torch.tensor([4 / 5, 1 / 5]) ** -1, torch.tensor([1 / 2, 1 / 2]) ** -1]

    class Two(Ranks):
        def largest(self, x):
            assert x == raw[self.rank].max()
            return 5.0

    for rank, expected in enumerate(([0.25, 1.0], [0.4, 0.4])):
        own = Batch(weight=raw[rank] / raw[rank].max())
        assert weighed(own, float(raw[rank].max()), Two(rank, 2)).weight.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
@pytest.mark.parametrize("late", [False, True])
def test_a_recorded_field_that_was_written_is_drawn_again_with_its_new_numbers(name, late, monkeypatch):
    replay, sources = make(
        config(name=name), layout(ends=False, rows=6, fragment_rows=4, starts_every=2, stacked=False)
    )
    write = Writes(replay.write, torch.device("cpu"))
    if late:  # as with a GPU
        monkeypatch.setattr(
            torch.cuda, "Event", lambda blocking: SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
        )
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        write.on_gpu = True
    columns, written = replay.layout.columns, {}
    for _ in range(40):
        for source in sources:
            replay.add(source.fragment())
        if replay.starts == 0:
            continue
        batch = replay.sample(8, Clock())
        row, column = batch.key // columns + torch.arange(6)[:, None], batch.key % columns  # [T, B], [B]
        for t in range(6):
            for i in range(8):
                number = written.get((int(column[i]), int(row[t, i])), {})
                assert batch.q[t, i] == number.get(
                    "q", sources[int(column[i]) // 3].past[int(row[t, i])]["q"][int(column[i]) % 3]
                )
                assert t or "h" not in number or batch.core.h[0, i] == number["h"]
        fresh = -1000.0 * row - column
        write(batch.key, q=fresh[:4], core=Batch(h=fresh[[0, 2]]), priority=torch.rand(8))
        write.flush()
        for t in range(4):
            for i in range(8):
                number = written.setdefault((int(column[i]), int(row[t, i])), {})
                number["q"] = float(fresh[t, i])
                if t in (0, 2):
                    number["h"] = float(fresh[t, i])
        replay.check_valid()
    old = batch.key.clone()
    for _ in range(40):
        for source in sources:
            replay.add(source.fragment())
    before = replay.sample(64, Clock())
    replay.write(old, q=torch.full((6, 8), torch.inf))
    assert not (replay.sample(64, Clock()).q == torch.inf).any() and len(before), "rows that are gone are passed over"


def test_a_field_that_nobody_recorded_cannot_be_written():
    replay, sources = make(config(), layout())
    for _ in range(3):
        replay.add(sources[0].fragment())
    key = replay.sample(2, Clock()).key
    for field in ("reward", "core", "no_such_field"):
        with pytest.raises(KeyError, match=field):
            replay.write(key, **{field: torch.zeros(1, 2)})


def test_fragments_that_are_new_come_first_and_once(tmp_path):
    """As the author's online queue of DreamerV3 has it, also across a checkpoint."""
    shape = {"ends": False, "rows": 4, "fragment_rows": 2, "blocks": 2, "block": 2, "stacked": False, "capacity": 160}
    replay, sources = make(config(), layout(**shape, new_first=True))
    assert replay.length == 42 and replay.layout.columns == 4

    def add(times):
        for _ in range(times):
            for source in sources:
                replay.add(source.fragment())

    def drawn(count):
        keys = replay.sample(count, Clock()).key.numpy()
        return [(int(key // 4), int(key % 4)) for key in keys]

    def wanted(first, last):  # fragments of 4 rows and the observation behind them
        alive = replay._startable
        both = [(row, column) for row in range(first, last, 5) for column in range(4)]
        return [(row, column) for row, column in both if alive(np.array([column]), np.array([row]))[0]]

    add(5)  # rows 0 to 9: fragments that begin at 0 and 5
    expected = wanted(0, 10)
    assert len(expected) > 5
    first = drawn(3)
    assert first == expected[:3], "those with the oldest rows first"
    state = replay.state()
    replay.save_rows(tmp_path)
    again, _ = make(config(), replay.layout)
    again.load(state, tmp_path)
    rest = drawn(20)
    assert rest[: len(expected) - 3] == expected[3:]
    assert torch.equal(again.sample(20, Clock()).key, torch.tensor([row * 4 + column for row, column in rest])), "to the bit"
    assert torch.equal(again.draws.rng.get_state(), replay.draws.rng.get_state())
    before = replay.draws.rng.get_state()
    add(3)  # rows 10 to 15: fragments at 10
    fresh = wanted(10, 12)
    assert drawn(len(fresh)) == fresh and torch.equal(replay.draws.rng.get_state(), before), "nothing is drawn at random"
    add(40)  # most fragments are overwritten before they are drawn
    low = replay.draws.window(0)[0]
    kept = drawn(64)
    new = [pair for pair in wanted(-(-low // 5) * 5, 93) if pair[0] >= low]
    assert kept[: len(new)] == new and min(row for row, _ in kept) >= low
    old, _ = make(config(), replay.layout)
    state = replay.state()
    del state["new"]
    replay.save_rows(tmp_path)
    old.load(state, tmp_path)
    assert old.draws.take_new(8) == [], "a checkpoint without the counters: all count as drawn"
