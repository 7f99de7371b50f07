"""Slates: the best one by three methods, values, and draws without replacement."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from rlrun.ops.slates import best_slate, drawn_log_prob, drawn_slate, slate_value

ONES = torch.ones


def draws(count, items, seed=0):
    """(weight, nothing, value, null) of `count` cases, with weights of very different sizes."""
    rng = torch.Generator().manual_seed(seed)
    weight = (3.0 * torch.randn(count, items, generator=rng, dtype=torch.float64)).exp()
    nothing = (3.0 * torch.randn(count, generator=rng, dtype=torch.float64)).exp()
    return (
        weight,
        nothing,
        torch.randn(count, items, generator=rng, dtype=torch.float64) * 10,
        torch.randn(count, generator=rng, dtype=torch.float64) * 10,
    )


def by_program(v, v0, q, q0, size):
    """The value of the best slate by the paper's linear program (eq. 20 to 22, after Charnes and Cooper)."""
    count = len(v)  # unknowns: y_1 ... y_C, t
    shares = np.array([*v, v0])
    bounds = np.hstack([np.eye(count), -np.ones((count, 1))])
    made = linprog(
        -np.array([*(v * q), v0 * q0]),
        A_ub=bounds,
        b_ub=np.zeros(count),
        A_eq=[shares, [*np.ones(count), -size]],
        b_eq=[1.0, 0.0],
        bounds=(0, None),
    )
    return -made.fun


def test_slate_value_by_linear_program_equals_brute_force():
    """And the method used here equals both; greedy and top-k slates are never above it (known answer 30)."""
    weight, nothing, value, null = draws(1000, 8)
    places = ONES(3, dtype=torch.float64)
    every = torch.tensor(list(itertools.combinations(range(8), 3)))
    worths = torch.stack([slate_value(weight, nothing, value, null, one.expand(1000, 3), places) for one in every])
    best = worths.max(0).values
    found = best_slate(weight, nothing, value, null, places)
    assert all(len(set(slate)) == 3 for slate in found.tolist())
    torch.testing.assert_close(slate_value(weight, nothing, value, null, found, places), best, rtol=1e-9, atol=1e-9)
    for case in range(60):
        solved = by_program(weight[case].numpy(), float(nothing[case]), value[case].numpy(), float(null[case]), 3)
        assert solved == pytest.approx(float(best[case]), rel=1e-6, abs=1e-6)
    for rule in ("greedy", "top_k"):
        slate = best_slate(weight, nothing, value, null, places, rule)
        assert all(len(set(one)) == 3 for one in slate.tolist())
        gap = best - slate_value(weight, nothing, value, null, slate, places)
        assert gap.min() > -1e-9 and gap.max() > 0.1


def test_places_that_count_more_get_the_better_items():
    weight, nothing, value, null = draws(300, 5, seed=1)
    places = torch.tensor([0.3, 2.0, 1.0], dtype=torch.float64)
    every = torch.tensor(list(itertools.permutations(range(5), 3)))
    worths = torch.stack([slate_value(weight, nothing, value, null, one.expand(300, 3), places) for one in every])
    found = best_slate(weight, nothing, value, null, places)
    worth = slate_value(weight, nothing, value, null, found, places)
    torch.testing.assert_close(worth, worths.max(0).values, rtol=1e-9, atol=1e-9)


def test_with_all_candidates_in_the_slate_every_rule_is_the_same():
    """Known answer 29: C = S."""
    weight, nothing, value, null = draws(50, 4, seed=2)
    for rule in ("optimal", "greedy", "top_k"):
        slate = best_slate(weight, nothing, value, null, ONES(4, dtype=torch.float64), rule)
        assert (slate.sort(-1).values == torch.arange(4)).all()


def test_drawn_slates_have_the_probabilities_of_their_order():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    slates = drawn_slate(logits.expand(60000, 4), 2, torch.Generator().manual_seed(0))
    for first, second in itertools.permutations(range(4), 2):
        share = ((slates[:, 0] == first) & (slates[:, 1] == second)).float().mean()
        log_prob = drawn_log_prob(logits, torch.tensor([first, second]))
        p = logits.softmax(0)
        assert float(log_prob) == pytest.approx(math.log(p[first] * p[second] / (1 - p[first])), rel=1e-4)
        assert float(share) == pytest.approx(float(log_prob.exp()), abs=0.01)
    assert drawn_log_prob(logits, torch.tensor([1, 1])) == -math.inf
