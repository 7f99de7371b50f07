"""Outcomes of episodes in a replay's ring, by their definition, where episodes are about as long as the ring or longer."""

import numpy as np
import pytest
import torch

from rlrun.core.batch import Batch, Field
from rlrun.replay.outcomes import Outcomes
from rlrun.replay.storage import Plain

LENGTH, ROWS, DISCOUNT = 32, 8, 0.9


def episode(count, rng):
    """Rows of an episode that is terminated, and the dead row behind it."""
    reward = np.append(rng.normal(size=count), 0.0).astype(np.float32)
    place = np.arange(count + 1)
    return {"reward": reward, "is_first": place == 0, "terminated": place == count - 1, "valid": place < count}


@pytest.mark.parametrize("counts", [(30, 3, 90), (29, 31, 31, 4), (70, 10), (27, 32, 33, 100, 1, 5, 200, 2)])
def test_rows_of_long_episodes_get_their_own_outcome_and_rows_of_open_ones_none(counts):
    """A row has the outcome of its own episode and no other, and the last rows of an episode have one, however long
    it was."""
    rng = np.random.default_rng(0)
    made = [episode(count, rng) for count in counts]
    rows = {name: np.concatenate([one[name] for one in made]) for name in made[0]}
    number = np.repeat(np.arange(len(counts)), [count + 1 for count in counts])
    fields = {"reward": torch.float32, "value": torch.float32}
    tree = {
        name: Plain(1, LENGTH, Field((), dtype), lambda shape, dtype: torch.zeros(shape, dtype=dtype))
        for name, dtype in fields.items()
    }
    outcomes, over = Outcomes(tree, 1, LENGTH, DISCOUNT, None), 0
    for first in range(0, len(number) // ROWS * ROWS, ROWS):
        part = {name: torch.from_numpy(value[first : first + ROWS, None].copy()) for name, value in rows.items()}
        slot = first % LENGTH
        tree["reward"].values[0, slot : slot + ROWS] = part["reward"][:, 0]
        ended = outcomes.add(slice(0, 1), first, Batch(part, truncated=torch.zeros(ROWS, 1, dtype=torch.bool)))
        over += len(ended)
        head = first + ROWS
        if first == 3 * ROWS:  # a run that goes on from a checkpoint knows what the open episode has paid
            again = Outcomes(tree, 1, LENGTH, DISCOUNT, None)
            again.load_state(outcomes.state())
            for saved, loaded in zip(outcomes.arrays(), again.arrays(), strict=True):
                loaded[:] = saved
            outcomes = again
        row = np.arange(max(0, head - LENGTH + 1), head)
        known = outcomes.known(np.zeros_like(row), row)
        end = np.array([np.flatnonzero((number == number[one]) & rows["terminated"])[0] for one in row])
        assert (known == (rows["valid"][row] & (end < head))).all()
        told = outcomes.read(np.zeros_like(row), row)
        for place in np.flatnonzero(known):
            own = rows["reward"][row[place] : end[place] + 1].astype(np.float64)
            assert told["return_to_go"][place] == pytest.approx((own * DISCOUNT ** np.arange(len(own))).sum(), abs=1e-4)
            whole = rows["reward"][(number == number[row[place]])].astype(np.float64).sum()
            assert told["episode_return"][place] == pytest.approx(whole, abs=1e-4)
    assert over >= len(counts) - 1
