"""The memory by which the learners of one machine exchange numbers."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rlrun.core.errors import ProcessLost
from rlrun.dataflow.blackboard import FLAGS, ROOM, Blackboard
from rlrun.dataflow.meeting import Disconnected

WORLD = 3


def blackboards(timeout_sec=None, look=None) -> list[Blackboard]:
    flags, slots = torch.zeros(WORLD, FLAGS, dtype=torch.int64), torch.zeros(2, WORLD, ROOM, dtype=torch.uint8)
    return [Blackboard(flags, slots, rank, timeout_sec, look) for rank in range(WORLD)]


def test_every_learner_reads_what_all_have_written():
    """Learners are late at random, and what they have read is still there when they have slept."""
    made = blackboards()

    def learner(rank):
        chance = random.Random(rank)
        for number in range(400):
            time.sleep(chance.choice([0.0, 0.0, 0.0, 2e-4]))
            mine = torch.full((number % 7 + rank,), 100.0 * number + rank, dtype=torch.float64)
            parts = made[rank].everyones(mine)
            time.sleep(chance.choice([0.0, 0.0, 2e-4]))
            assert [part.tolist() for part in parts] == [[100.0 * number + r] * (number % 7 + r) for r in range(WORLD)]
            if number % 5 == 0:
                made[rank].meet()
        return True

    with ThreadPoolExecutor(WORLD) as pool:
        assert all(pool.map(learner, range(WORLD)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_numbers_keep_their_type_and_all_learn_where_one_has_too_many(dtype):
    made = blackboards()
    fits = ROOM // torch.empty(0, dtype=dtype).element_size()

    def learner(rank):
        read = made[rank].everyones(torch.ones(fits, dtype=dtype))
        return read[0].dtype, len(read[2]), made[rank].everyones(torch.ones(fits + (rank == 1), dtype=dtype))

    with ThreadPoolExecutor(WORLD) as pool:
        assert list(pool.map(learner, range(WORLD))) == [(dtype, fits, None)] * WORLD


def test_a_learner_that_leaves_behind_a_meeting_does_not_break_it():
    made = blackboards()

    def learner(rank):
        time.sleep(0.01 * rank)
        made[rank].meet()
        made[rank].close()

    with ThreadPoolExecutor(WORLD) as pool:
        assert list(pool.map(learner, range(WORLD))) == [None] * WORLD


def test_nobody_waits_for_a_learner_that_is_gone():
    made = blackboards()
    threading.Timer(0.05, made[2].close).start()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(one.meet) for one in made[:2]]
        for one in waiting:
            with pytest.raises(Disconnected, match="has ended"):
                one.result(timeout=5)


def test_a_wait_ends_with_the_reason_that_look_finds_or_when_it_has_lasted_too_long():
    def look(waited_sec):
        raise ProcessLost("learner-1 was killed by SIGKILL")

    with pytest.raises(ProcessLost, match="learner-1 was killed"):
        blackboards(look=look)[0].meet()
    begun = time.monotonic()
    with pytest.raises(Disconnected, match="no answer for 1 s"):
        blackboards(timeout_sec=1.0)[0].meet()
    assert 0.9 < time.monotonic() - begun < 10
