"""Estimates of a policy's value: against exact expectations, formulas written slowly, and each other. The numbers are those of the known answers 10 to 13 of issue 24."""

import itertools
import math
import time

import pytest
import torch

from rlrun.ops import estimators
from rlrun.ops.estimators import (
    bernstein,
    bootstrap,
    direct,
    discounted_return,
    doubly_robust,
    effective_size,
    importance_sampling,
    log_weights,
    per_decision,
    step_wise_weighted,
    student,
    t_quantile,
    weighted,
)

PLAIN = {"is": importance_sampling, "pdis": per_decision, "wis": weighted, "step_wis": step_wise_weighted}
DISCOUNT = 0.9


def some_episodes(seed=0, count=6, steps=5):
    """Random rewards, log ratios, a mask of episodes of unlike lengths, and a model's V, Q and value behind the end; dead places hold NaN."""
    rng = torch.Generator().manual_seed(seed)
    length = torch.randint(1, steps + 1, (count, 1), generator=rng)
    valid = torch.arange(steps) < length
    reward, log_ratio, value, q = (
        torch.randn(count, steps, generator=rng, dtype=torch.float64).masked_fill(~valid, math.nan) for _ in range(4)
    )
    return reward, log_ratio, valid, value, q, torch.randn(count, generator=rng, dtype=torch.float64)


# -- the stop chain ----------------------------------------------------------------------------------------------------
# At each of at most three steps, stop (reward 1 + t / 2, and the end) or go on (reward 0).

GOES, STOPS = 0, 1
STOP_B, STOP_PI = 0.5, 0.2


def chances(stop):
    return {STOPS: stop, GOES: 1 - stop}


def stop_chain():
    """All episodes of the chain: actions of each, and its probability when b acts."""
    every = [(STOPS,), (GOES, STOPS), (GOES, GOES, STOPS), (GOES, GOES, GOES)]
    return every, [math.prod(chances(STOP_B)[a] for a in actions) for actions in every]


def tensors(episodes):
    """Rewards, log ratios and the mask of episodes of the stop chain."""
    steps = max(len(actions) for actions in episodes)
    reward, log_ratio = (torch.full((len(episodes), steps), math.nan, dtype=torch.float64) for _ in range(2))
    valid = torch.zeros(len(episodes), steps, dtype=torch.bool)
    for e, actions in enumerate(episodes):
        for t, action in enumerate(actions):
            valid[e, t] = True
            reward[e, t] = 1 + t / 2 if action == STOPS else 0.0
            log_ratio[e, t] = math.log(chances(STOP_PI)[action] / chances(STOP_B)[action])
    return reward, log_ratio, valid


def truth():
    every, _ = stop_chain()
    made = [
        math.prod(chances(STOP_PI)[a] for a in actions)
        * sum(DISCOUNT**t * (1 + t / 2) for t, a in enumerate(actions) if a == STOPS)
        for actions in every
    ]
    return sum(made)


def model(q_stop, q_go, stop=STOP_PI):
    """V(s_t) and Q(s_t, a_t) [E, T] of the chain's episodes for these Q(t, stop) and Q(t, go)."""
    every, _ = stop_chain()
    value, q = (torch.zeros(len(every), 3, dtype=torch.float64) for _ in range(2))
    for e, actions in enumerate(every):
        for t, action in enumerate(actions):
            q[e, t] = q_stop[t] if action == STOPS else q_go[t]
            value[e, t] = stop * q_stop[t] + (1 - stop) * q_go[t]
    return value, q


def test_11_the_exact_expectation_on_the_stop_chain_is_the_truth_for_is_pdis_and_dr():
    every, probability = stop_chain()
    p = torch.tensor(probability, dtype=torch.float64)
    assert truth() == pytest.approx(0.62336, abs=5e-6)
    given = tensors(every)
    for of in (importance_sampling, per_decision):
        assert abs(float((p * of(*given, DISCOUNT).each).sum()) - truth()) < 1e-12
    for seed in range(3):  # whatever the model says
        rng = torch.Generator().manual_seed(seed)
        q_stop, q_go = (torch.randn(3, generator=rng, dtype=torch.float64) for _ in range(2))
        made = doubly_robust(*given, DISCOUNT, *model(q_stop, q_go), torch.zeros(4, dtype=torch.float64))
        assert abs(float((p * made.each).sum()) - truth()) < 1e-12
        assert float(made.each.std()) > 0.1, "a wrong model leaves a spread"


def test_11_the_weighted_estimates_come_to_the_truth_with_the_number_of_episodes():
    every, probability = stop_chain()
    # Each episode as often as it is expected in 8 episodes: what the estimates are for infinitely many.
    often = [actions for actions, p in zip(every, probability, strict=True) for _ in range(round(8 * p))]
    assert len(often) == 8
    for of in (weighted, step_wise_weighted):
        assert abs(float(of(*tensors(often), DISCOUNT).value) - truth()) < 1e-12
    value, q = model([0.3, -1.0, 2.0], [1.0, 0.0, 0.5])
    index = torch.tensor([every.index(actions) for actions in often])
    made = doubly_robust(*tensors(often), DISCOUNT, value[index], q[index], torch.zeros(8), self_normalized=True)
    assert abs(float(made.value) - truth()) < 1e-12


@pytest.mark.parametrize("name", ["wis", "step_wis"])
def test_11_drawn_episodes_come_near_the_truth(name):
    rng = torch.Generator().manual_seed(0)
    every, probability = stop_chain()
    errors = []
    for count in (200, 20_000):
        drawn = torch.multinomial(torch.tensor(probability), count, replacement=True, generator=rng).tolist()
        errors.append(abs(float(PLAIN[name](*tensors([every[i] for i in drawn]), DISCOUNT).value) - truth()))
    assert errors[1] < 0.02 and errors[1] < errors[0] + 0.01


def test_dividing_by_the_episodes_that_still_run_would_tend_elsewhere():
    """The error of RLlib's estimator: 0.416 in place of 0.623."""
    every, probability = stop_chain()
    reward, log_ratio, valid = tensors(every)
    p = torch.tensor(probability, dtype=torch.float64)
    weight = log_weights(log_ratio, valid).exp()
    wrong = 0.0
    for t in range(3):
        runs = valid[:, t]
        mean = (p * weight[:, t])[runs].sum() / p[runs].sum()
        wrong += float(DISCOUNT**t * (p * weight[:, t] * reward[:, t])[runs].sum() / mean)
    assert wrong == pytest.approx(0.416, abs=0.002)


# -- formulas ----------------------------------------------------------------------------------------------------------


def slow(name, reward, log_ratio, valid, discount):
    """The formulas, one number at a time."""
    episodes = [
        [(float(reward[e, t]), math.exp(float(log_ratio[e, t]))) for t in range(valid.shape[1]) if valid[e, t]]
        for e in range(len(valid))
    ]
    weights = [list(itertools.accumulate((rho for _, rho in one), lambda a, b: a * b)) for one in episodes]
    returns = [sum(discount**t * r for t, (r, _) in enumerate(one)) for one in episodes]
    count = len(episodes)
    if name == "is":
        return sum(w[-1] * g for w, g in zip(weights, returns, strict=True)) / count
    if name == "pdis":
        return (
            sum(
                discount**t * w[t] * r for one, w in zip(episodes, weights, strict=True) for t, (r, _) in enumerate(one)
            )
            / count
        )
    if name == "wis":
        return sum(w[-1] * g for w, g in zip(weights, returns, strict=True)) / sum(w[-1] for w in weights)
    total = 0.0
    for t in range(valid.shape[1]):
        below = sum(w[min(t, len(w) - 1)] for w in weights)  # an ended episode keeps its last weight
        above = sum(w[t] * one[t][0] for one, w in zip(episodes, weights, strict=True) if t < len(one))
        total += discount**t * above / below
    return total


@pytest.mark.parametrize("name", PLAIN)
def test_the_estimates_are_their_formulas(name):
    for seed in range(5):
        reward, log_ratio, valid, *_ = some_episodes(seed)
        made = PLAIN[name](reward, log_ratio, valid, DISCOUNT)
        assert float(made.value) == pytest.approx(slow(name, reward, log_ratio, valid, DISCOUNT), rel=1e-12)
        assert float(made.each.mean()) == pytest.approx(float(made.value), rel=1e-12)
        assert made.weighted == name.endswith("wis")


def test_doubly_robust_is_its_recursion_and_its_weighted_form_is_its_sum():
    for seed in range(5):
        reward, log_ratio, valid, value, q, end = some_episodes(seed)
        made = doubly_robust(reward, log_ratio, valid, DISCOUNT, value, q, end)
        for e in range(len(valid)):
            length = int(valid[e].sum())
            # Jiang and Li's recursion ends with the value of what follows the last step.
            back = float(end[e])
            for t in reversed(range(length)):
                rho = math.exp(float(log_ratio[e, t]))
                back = float(value[e, t]) + rho * (float(reward[e, t]) + DISCOUNT * back - float(q[e, t]))
            assert float(made.each[e]) == pytest.approx(back, rel=1e-10)
        weights = log_weights(log_ratio, valid).exp()
        # Thomas and Brunskill 2016, eq. 10: sum_i sum_t d^t (w_t (r - Q) + w_{t-1} V), with w_{-1} = 1 / E.
        share = weights / weights.sum(0)
        before = torch.cat([torch.full_like(share[:, :1], 1 / len(share)), share[:, :-1]], 1)
        total = 0.0
        for e in range(len(valid)):
            length = int(valid[e].sum())
            for t in range(length):
                total += DISCOUNT**t * float(share[e, t] * (reward[e, t] - q[e, t]) + before[e, t] * value[e, t])
            total += DISCOUNT**length * float(share[e, length - 1] * end[e])
        wdr = doubly_robust(reward, log_ratio, valid, DISCOUNT, value, q, end, self_normalized=True)
        assert float(wdr.value) == pytest.approx(total, rel=1e-10)
        assert float(wdr.each.mean()) == pytest.approx(total, rel=1e-10)


def test_10_equal_policies_have_weights_of_1_and_every_estimate_is_the_mean_return():
    reward, _, valid, *_ = some_episodes()
    equal = torch.zeros_like(reward)
    mean = float(discounted_return(reward, valid, DISCOUNT).mean())
    for of in PLAIN.values():
        made = of(reward, equal, valid, DISCOUNT)
        assert float(made.value) == pytest.approx(mean, abs=1e-12)
        assert float(made.effective) == pytest.approx(len(valid)) and float(made.log_mean_weight) == pytest.approx(0)
    assert torch.equal(log_weights(equal, valid), torch.zeros(valid.shape, dtype=torch.float64))


def test_10_dr_of_equal_policies_is_the_mean_return_in_expectation_whatever_the_model_says():
    every, _ = stop_chain()
    p = torch.tensor([math.prod(chances(STOP_PI)[a] for a in actions) for actions in every], dtype=torch.float64)
    reward, _, valid = tensors(every)
    for q_stop, q_go in (([0.0] * 3, [0.0] * 3), ([5.0, -2.0, 1.0], [3.0, 0.5, -7.0])):
        made = doubly_robust(
            reward, torch.zeros_like(reward), valid, DISCOUNT, *model(q_stop, q_go), torch.zeros(4, dtype=torch.float64)
        )
        assert abs(float((p * made.each).sum()) - truth()) < 1e-12


def test_12_dr_with_exact_values_has_no_spread_where_nothing_is_left_to_chance():
    every, _ = stop_chain()
    q_stop = [1.0, 1.5, 2.0]
    q_go = [0.0, 0.0, 0.0]
    for t in (1, 0):
        q_go[t] = DISCOUNT * (STOP_PI * q_stop[t + 1] + (1 - STOP_PI) * q_go[t + 1])
    made = doubly_robust(*tensors(every), DISCOUNT, *model(q_stop, q_go), torch.zeros(4, dtype=torch.float64))
    assert float((made.each - truth()).abs().max()) < 1e-12
    assert float(direct(model(q_stop, q_go)[0][:, 0]).value) == pytest.approx(truth(), abs=1e-12)


# -- weights that are very large or very small -------------------------------------------------------------------------


def test_long_episodes_do_not_overflow_and_do_not_vanish_in_weighted_estimates():
    steps = 5000
    reward = torch.ones(3, steps)
    valid = torch.ones(3, steps, dtype=torch.bool)
    ratio = torch.tensor([-1.0, -1.0, -1.0]).unsqueeze(1).expand(3, steps).clone()
    ratio[0, -1] += math.log(2.0)  # weights e^-5000 times 2, 1 and 1, which no number can hold
    reward[0, 0] = 5.0
    made = weighted(reward, ratio, valid, 1.0)
    assert float(made.value) == pytest.approx((2 * (steps + 4) + 2 * steps) / 4, rel=1e-12)
    assert float(made.effective) == pytest.approx(16 / 6, rel=1e-9)
    assert float(made.log_mean_weight) == pytest.approx(-steps + math.log(4 / 3), rel=1e-9)
    assert float(step_wise_weighted(reward, ratio, valid, 1.0).value) == pytest.approx(steps - 1 + 7 / 3)
    turned = weighted(reward, -ratio, valid, 1.0)
    assert torch.isfinite(turned.each).all() and float(turned.value) == pytest.approx(
        (0.5 * (steps + 4) + 2 * steps) / 2.5
    )
    low, high = bootstrap(made.terms, torch.Generator().manual_seed(0))
    assert steps - 1e-6 <= low <= high <= steps + 4 + 1e-6
    # The product is a number although the weight is none.
    paid, twice = torch.full((1, 2), 1e-200, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    huge = importance_sampling(paid, torch.full((1, 2), 400.0), twice, 1.0)
    assert float(huge.value) == pytest.approx(2 * math.exp(800 - 200 * math.log(10)), rel=1e-9)


def test_an_action_that_the_policy_never_takes_has_weight_0_from_there_on():
    reward = torch.tensor([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]])
    log_ratio = torch.tensor([[0.0, -math.inf, 3.0], [0.0, 0.0, 0.0]])
    valid = torch.ones(2, 3, dtype=torch.bool)
    assert per_decision(reward, log_ratio, valid, 1.0).each.tolist() == pytest.approx([1.0, 3.0])
    assert importance_sampling(reward, log_ratio, valid, 1.0).each.tolist() == pytest.approx([0.0, 3.0])
    made = weighted(reward, log_ratio, valid, 1.0)
    assert float(made.value) == pytest.approx(3.0) and float(made.effective) == pytest.approx(1.0)
    none = weighted(reward[:1], log_ratio[:1], valid[:1], 1.0)
    assert math.isnan(float(none.value)) and float(none.effective) == 0.0
    assert float(importance_sampling(reward[:1], log_ratio[:1], valid[:1], 1.0).value) == 0.0


def test_the_effective_size_is_the_number_of_equal_weights():
    assert float(effective_size(torch.full((7,), -2000.0, dtype=torch.float64))) == pytest.approx(7)
    assert float(effective_size(torch.tensor([0.0, -60.0]))) == pytest.approx(1)
    assert float(effective_size(torch.tensor([3.0, 1.0]).log())) == pytest.approx(16 / 10)


# -- intervals ---------------------------------------------------------------------------------------------------------


def test_the_quantiles_of_student_are_those_of_the_tables():
    for probability, freedom, value in (
        (0.975, 1, 12.7062),
        (0.975, 10, 2.2281),
        (0.95, 5, 2.0150),
        (0.995, 30, 2.7500),
        (0.975, 10_000, 1.9602),
        (0.975, 20_000_000, 1.9600),
        (0.9995, 500_000, 3.2905),
    ):
        assert t_quantile(probability, freedom) == pytest.approx(value, abs=5e-5)


def test_students_interval_is_its_formula_with_both_tails():
    x = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    low, high = student(x)
    assert (low + high) / 2 == pytest.approx(3.75)
    assert (high - low) / 2 == pytest.approx(3.1824 * math.sqrt(9.583333 / 4), rel=1e-4)
    assert student(x[:1]) == (-math.inf, math.inf)


def test_empirical_bernstein_is_its_formula_and_refuses_what_has_no_bounds():
    x = torch.tensor([0.0, 1.0] * 200, dtype=torch.float64)
    low, high = bernstein(x, 0.0, 1.0)
    log = math.log(4 / 0.05)
    assert high == pytest.approx(0.5 + math.sqrt(2 * float(x.var()) * log / 400) + 7 * log / (3 * 399))
    scaled = bernstein(10 * x - 5, -5.0, 5.0)
    assert scaled == pytest.approx((10 * low - 5, 10 * high - 5))
    assert bernstein(x[:3], 0.0, 1.0) == (0.0, 1.0), "it is cut at the bounds"
    for bounds in ((0.0, 0.5), (0.0, math.inf), (1.0, 0.0)):
        with pytest.raises(ValueError, match="bounds"):
            bernstein(x, *bounds)


def test_a_bootstrap_of_long_episodes_is_fast_where_weights_vanish():
    """The weights of most draws and steps are less than 1e-308 of the largest, and some are 0. A loop over these draws
    and steps took tens of seconds."""
    rng = torch.Generator().manual_seed(2)
    log_weight = (torch.randn(20, 2000, generator=rng, dtype=torch.float64) * 1e5).clamp(max=9e4)
    log_weight[0] = 1e7
    log_weight[1:, 3] = -math.inf
    x = torch.randn(20, 2000, generator=rng, dtype=torch.float64)
    times = torch.randint(3, (300, 20), generator=rng).double()
    times[:, 0] = 0
    terms = estimators.Terms(torch.randn(20, generator=rng, dtype=torch.float64), log_weight, x)
    before = time.process_time()
    found = estimators._resampled(terms, times)
    assert found.isnan().all(), "no drawn episode has a weight at step 3"
    log_weight[1:, 3] = 5.0
    found = estimators._resampled(terms, times)
    assert time.process_time() - before < 4
    for draw in range(3):
        share = (log_weight + times[draw].log()[:, None]).softmax(0)
        expected = times[draw] @ terms.plain / 20 + (share * x).sum()
        assert float(found[draw]) == pytest.approx(float(expected), rel=1e-9)


def test_a_bootstrap_makes_the_estimate_again_of_every_draw():
    """All draws of 3 episodes are 27: their estimates are what the bootstrap must find."""
    reward, log_ratio, valid, value, q, end = some_episodes(3, count=3)
    estimates = {name: of(reward, log_ratio, valid, DISCOUNT) for name, of in PLAIN.items()}
    estimates["wdr"] = doubly_robust(reward, log_ratio, valid, DISCOUNT, value, q, end, self_normalized=True)
    for name, made in estimates.items():
        every = []
        for draw in itertools.product(range(3), repeat=3):
            i = list(draw)
            again = (
                doubly_robust(reward[i], log_ratio[i], valid[i], DISCOUNT, value[i], q[i], end[i], self_normalized=True)
                if name == "wdr"
                else PLAIN[name](reward[i], log_ratio[i], valid[i], DISCOUNT)
            )
            every.append(float(again.value))
            times = torch.bincount(torch.tensor(i), minlength=3).double()
            assert float(estimators._resampled(made.terms, times.unsqueeze(0))) == pytest.approx(every[-1], rel=1e-9), (
                name
            )
        low, high = bootstrap(made.terms, torch.Generator().manual_seed(0), repetitions=20_000)
        assert low == pytest.approx(min(every)) and high == pytest.approx(max(every)), "1 of 27 draws is the rarest"
        assert bootstrap(made.terms, torch.Generator().manual_seed(1)) == bootstrap(
            made.terms, torch.Generator().manual_seed(1)
        )


def covered(kind, replications, count=50):
    """The share of sets of `count` episodes of the stop chain whose 95% interval has the truth in it."""
    rng = torch.Generator().manual_seed(7)
    every, probability = stop_chain()
    reward, log_ratio, valid = tensors(every)
    # Policies that are nearer to each other than in the other tests, so that the tails are light.
    near = {STOPS: 0.4, GOES: 0.6}
    for e, actions in enumerate(every):
        for t, action in enumerate(actions):
            log_ratio[e, t] = math.log(near[action] / 0.5)
    right = sum(
        math.prod(near[a] for a in actions)
        * sum(DISCOUNT**t * (1 + t / 2) for t, a in enumerate(actions) if a == STOPS)
        for actions in every
    )
    name, how = kind
    value, q = model([0.5, 1.0, 1.0], [0.5, 1.0, 0.0], near[STOPS])  # a model that is wrong
    inside = 0
    for _ in range(replications):
        i = torch.multinomial(torch.tensor(probability), count, replacement=True, generator=rng)
        given = (reward[i], log_ratio[i], valid[i], DISCOUNT)
        if name in PLAIN:
            made = PLAIN[name](*given)
        else:
            made = doubly_robust(*given, value[i], q[i], torch.zeros(count), self_normalized=name == "wdr")
        if how == "bootstrap":
            low, high = bootstrap(made.terms, rng, repetitions=500)
        elif how == "t":
            low, high = student(made.each)
        else:  # no return is above 2 * 0.81, and no weight above 1.2^3
            low, high = bernstein(made.each, 0.0, 2.0 * 1.2**3)
        inside += low <= right <= high
    return inside / replications


KINDS = [
    ("pdis", "t"),
    ("pdis", "bootstrap"),
    ("pdis", "bernstein"),
    ("wis", "bootstrap"),
    ("step_wis", "bootstrap"),
    ("step_wis", "t"),
    ("dr", "t"),
    ("dr", "bootstrap"),
    ("wdr", "bootstrap"),
]


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_13_intervals_cover_the_truth_in_a_few_hundred_sets(kind):
    """300 sets of 50: three deviations of a share of 0.95 are 0.038."""
    share = covered(kind, 300)
    assert share >= 0.90
    assert share == 1.0 if kind[1] == "bernstein" else share < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_13_intervals_cover_as_often_as_they_say(kind):
    """2,000 sets of 50: between 92% and 98%. Empirical Bernstein promises at least 95% and covers more."""
    share = covered(kind, 2000)
    assert share >= 0.95 if kind[1] == "bernstein" else 0.92 <= share <= 0.98
