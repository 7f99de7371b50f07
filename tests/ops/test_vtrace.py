"""V-trace against a literal and slow implementation of the paper's sum."""

import numpy as np
import pytest
import torch

from rlrun.ops.returns import gae
from rlrun.ops.vtrace import vtrace


def brute_force(log_rho, discount, reward, value, bootstrap, valid, rho_clip, c_clip, pg_clip, lambda_, mixed=False):
    """Computes eq. 1 per column as an O(T^2) sum of products. A dead row ends the trajectory at its own observation."""
    rows, columns = reward.shape
    values = np.concatenate([value, bootstrap[None]])
    target = values.copy()
    advantage = np.zeros((rows, columns))
    clip = lambda x, bound: min(x, bound) if bound > 0 else x  # noqa: E731
    for b in range(columns):
        for s in range(rows):
            total, product = 0.0, 1.0
            for t in range(s, rows):
                if not valid[t, b]:
                    break
                rho = np.exp(log_rho[t, b])
                delta = clip(rho, rho_clip) * (reward[t, b] + discount[t, b] * values[t + 1, b] - values[t, b])
                total += product * delta
                product *= discount[t, b] * lambda_ * clip(rho, c_clip)
            target[s, b] = values[s, b] + total
        for s in range(rows):
            if valid[s, b]:
                rho = clip(np.exp(log_rho[s, b]), pg_clip)
                share = lambda_ if mixed else 1.0
                following = share * target[s + 1, b] + (1 - share) * values[s + 1, b]
                advantage[s, b] = rho * (reward[s, b] + discount[s, b] * following - values[s, b])
    return target[:-1], advantage


@pytest.mark.parametrize("bootstrap", ["target", "mixed"])
@pytest.mark.parametrize("clips", [(1.0, 1.0, 1.0, 1.0), (2.0, 0.7, 1.3, 0.9), (0.0, 0.0, 0.0, 1.0)])
def test_equals_the_papers_sum(clips, bootstrap):
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows, columns = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        shape = (rows, columns)
        log_rho, reward, value = rng.normal(size=shape), rng.normal(size=shape), rng.normal(size=shape)
        last = rng.normal(size=columns)
        discount = 0.9 * (rng.random(shape) > 0.25)
        valid = rng.random(shape) > 0.2
        expected = brute_force(log_rho, discount, reward, value, last, valid, *clips, bootstrap == "mixed")
        tensor = lambda x: torch.from_numpy(np.asarray(x))  # noqa: E731
        next_value = np.concatenate([value[1:], last[None]])
        rho_clip, c_clip, pg_clip, lambda_ = clips
        got = vtrace(
            tensor(log_rho), tensor(discount), tensor(reward), tensor(value), tensor(next_value), tensor(valid),
            rho_clip=rho_clip, c_clip=c_clip, pg_rho_clip=pg_clip, lambda_=lambda_, bootstrap=bootstrap,
        )  # fmt: skip
        np.testing.assert_allclose(got.target.numpy(), expected[0], atol=1e-12)
        np.testing.assert_allclose(got.advantage.numpy(), expected[1], atol=1e-12)


def test_on_policy_without_clips_is_the_n_step_return():
    reward = torch.tensor([[1.0], [2.0], [3.0]])
    value = torch.tensor([[10.0], [20.0], [30.0]])
    got = vtrace(
        torch.zeros(3, 1),
        torch.full((3, 1), 0.5),
        reward,
        value,
        torch.tensor([[20.0], [30.0], [40.0]]),
        torch.ones(3, 1, dtype=torch.bool),
    )
    expected = [1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 40)), 2 + 0.5 * (3 + 0.5 * 40), 3 + 0.5 * 40]
    torch.testing.assert_close(got.target, torch.tensor(expected)[:, None])
    torch.testing.assert_close(got.advantage, torch.tensor(expected)[:, None] - value)


def test_mixed_advantages_are_gae_where_all_weights_are_1_and_the_papers_are_not():
    torch.manual_seed(0)
    reward, value, next_value = torch.randn(3, 6, 4)
    value[1:] = next_value[:-1]
    valid = torch.rand(6, 4) > 0.2
    discount = 0.9 * (torch.rand(6, 4) > 0.2)
    made = {
        kind: vtrace(torch.zeros(6, 4), discount, reward, value, next_value, valid, lambda_=0.9, bootstrap=kind)
        for kind in ("target", "mixed")
    }
    wanted = gae(reward, discount, value, next_value, valid, 0.9)
    torch.testing.assert_close(made["mixed"].advantage, wanted.masked_fill(~valid, 0.0))
    assert (made["target"].advantage - made["mixed"].advantage).abs().max() > 0.05
    torch.testing.assert_close(made["target"].target, made["mixed"].target)


def test_garbage_in_dead_rows_changes_nothing():
    torch.manual_seed(0)
    log_rho, reward, value, next_value = (torch.randn(5, 2) for _ in range(4))
    valid = torch.tensor([[1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], dtype=torch.bool)
    discount = torch.full((5, 2), 0.9)
    clean = vtrace(log_rho, discount, reward, value, next_value, valid)
    dirty = [torch.where(valid, x, torch.nan) for x in (log_rho, discount, reward)]
    again = vtrace(*dirty, value, next_value, valid)
    torch.testing.assert_close(again.target, clean.target)
    torch.testing.assert_close(again.advantage, clean.advantage)
    assert clean.advantage[~valid].abs().max() == 0


def test_refuses_shapes_that_differ():
    one = torch.zeros(3, 2)
    with pytest.raises(AssertionError):
        vtrace(one, one, one, one, torch.zeros(4, 2), one.bool())
