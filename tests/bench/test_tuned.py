"""Which tuned files `benchmark tuned` runs, and how it judges their runs."""

import pytest

from rlrun.bench.tuned import choose
from rlrun.core.errors import UserError


def test_the_seconds_of_a_gpu_make_no_file_fast_without_one():
    with_gpu, without = ([bar.tuned for bar in choose([], True, 1, has_gpu)] for has_gpu in (True, False))
    assert "ppo/pong_gpu" in with_gpu and "ppo/pong_gpu" not in without and "pg/cartpole" in without
    with pytest.raises(UserError, match="quick enough for --fast on a machine without a GPU"):
        choose(["ppo/pong_gpu"], True, 1, False)
    assert [bar.tuned for bar in choose(["ppo/pong_gpu"], False, 1, False)] == ["ppo/pong_gpu"], "it was asked for by name"
