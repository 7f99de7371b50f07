"""Outcomes of episodes in a replay's ring, by their definition, where episodes are about as long as the ring or longer."""

import numpy as np
import pytest
import torch

from rlrun.core.batch import Batch, Field
from rlrun.replay.outcomes import Outcomes
from rlrun.replay.storage import Plain

LENGTH, ROWS, DISCOUNT = 32, 8, 0.9


def episode(count, rng, cut):
    """Rows of an episode that is terminated, or cut by a time limit, and the dead row behind it. The values of all rows
    are recorded."""
    reward = np.append(rng.normal(size=count), 0.0).astype(np.float32)
    place = np.arange(count + 1)
    last, value = place == count - 1, rng.normal(size=count + 1).astype(np.float32)
    ends = {"terminated": last & (not cut), "truncated": last & cut}
    return {"reward": reward, "value": value, "is_first": place == 0, "valid": place < count, **ends}


@pytest.mark.parametrize("cut", [0, 1, 2], ids=["terminated", "cut", "by turns"])
@pytest.mark.parametrize("counts", [(30, 3, 90), (29, 31, 31, 4), (70, 10), (27, 32, 33, 100, 1, 5, 200, 2)])
def test_rows_of_long_episodes_get_their_own_outcome_and_rows_of_open_ones_none(counts, cut):
    """A row has the outcome of its own episode and no other, and the last rows of an episode have one, however long
    it was. Behind a time limit, the recorded value of the last observation stands for what would have followed."""
    rng = np.random.default_rng(0)
    made = [episode(count, rng, bool(cut and number % cut == 0)) for number, count in enumerate(counts)]
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
        for name in fields:
            tree[name].values[0, slot : slot + ROWS] = part[name][:, 0]
        ended = outcomes.add(slice(0, 1), first, Batch(part))
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
        over_at = rows["terminated"] | rows["truncated"]
        end = np.array([np.flatnonzero((number == number[one]) & over_at)[0] for one in row])
        # The last observation of an episode that was cut comes with the next row.
        assert (known == (rows["valid"][row] & (end + rows["truncated"][end] < head))).all()
        told = outcomes.read(np.zeros_like(row), row)
        for place in np.flatnonzero(known):
            own = rows["reward"][row[place] : end[place] + 1].astype(np.float64)
            to_go = (own * DISCOUNT ** np.arange(len(own))).sum()
            if rows["truncated"][end[place]]:
                to_go += DISCOUNT ** len(own) * rows["value"][end[place] + 1]
            assert told["return_to_go"][place] == pytest.approx(to_go, abs=1e-4)
            whole = rows["reward"][(number == number[row[place]])].astype(np.float64).sum()
            assert told["episode_return"][place] == pytest.approx(whole, abs=1e-4)
    assert over >= len(counts) - 1
