"""Estimates of a policy's value from episodes that another policy played, and intervals for them.

Precup, Sutton and Singh 2000; Thomas 2015 (dissertation); Jiang and Li 2016, arXiv:1511.03722; Thomas and Brunskill
2016, arXiv:1604.00923; Maurer and Pontil 2009, arXiv:0907.3740.

E episodes of up to T steps are tensors [E, T]; the steps of an episode come first, and `valid` is False behind them.
What stands in those places is never read. The value is that of the discounted return. With rho_t = pi(a_t|s_t) /
b(a_t|s_t), the weight of the first steps is w_t = rho_0 ... rho_t. An episode that has ended keeps its last weight.

Weights are kept as logarithms, and sums of many are scaled by their largest, so that a product of a thousand ratios
neither overflows nor vanishes beside others like it. All results are float64."""

from __future__ import annotations

import functools
import math
import statistics
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 2**22  # numbers that a bootstrap holds at a time
CACHED = 2**18  # numbers that a processor's cache holds
MANY = 100_000  # degrees of freedom with which Student's t distribution is nearly normal


class Terms(NamedTuple):
    """An estimate as a function of the episodes, which a bootstrap evaluates again for other draws of them:

    mean_i plain_i + sum_k (sum_i w_ik x_ik / sum_i w_ik)"""

    plain: Tensor  # [E]
    log_weight: Tensor | None = None  # [E, K] log w
    x: Tensor | None = None  # [E, K]


class Estimate(NamedTuple):
    """An estimate of a policy's value."""

    value: Tensor  # []; NaN if it divides by weights that are all 0
    # [E] numbers with mean `value`. Those of ordinary estimates are independent of each other. Those of weighted ones
    # are linearised: value + E w_i / sum w (x_i - weighted mean of x), whose deviation is that of the estimate for
    # large E (the delta method).
    each: Tensor
    effective: (
        Tensor  # [] effective sample size (sum w)^2 / sum w^2 of the weights of whole episodes; E without weights
    )
    log_mean_weight: Tensor  # [] log of the mean weight of whole episodes, whose expectation is 1
    terms: Terms

    @property
    def weighted(self) -> bool:
        """Whether the estimate is a quotient, whose contributions are not independent."""
        return self.terms.log_weight is not None


class EstimateInterval(NamedTuple):
    """An interval for the value that an estimate estimates."""

    low: float
    high: float


def log_weights(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """Returns log w_t [E, T], of log_ratio [E, T] log pi(a|s) - log b(a|s). It is -inf from an action on that the
    policy never takes. Behind the end, it is that of the last step."""
    return log_ratio.double().masked_fill(~valid, 0.0).cumsum(1)


def effective_size(log_weight: Tensor) -> Tensor:
    """Returns (sum w)^2 / sum w^2 [] of log w [E]; 0 if all weights are 0 (Kong 1992)."""
    size = (2 * log_weight.logsumexp(0) - (2 * log_weight).logsumexp(0)).exp()
    return torch.where((log_weight > -math.inf).any(), size, 0.0)


def discounted_return(reward: Tensor, valid: Tensor, discount: float) -> Tensor:
    """Returns sum_t discount^t r_t [E] of reward [E, T]."""
    return (_discounts(reward, discount) * _clean(reward, valid)).sum(1)


def importance_sampling(reward: Tensor, log_ratio: Tensor, valid: Tensor, discount: float) -> Estimate:
    """Ordinary importance sampling: mean_i w_i G_i, with w the weight of the whole episode and G its return. Unbiased
    if b takes every action that pi takes (Precup et al. 2000, section 3).

    Args: reward, log_ratio, valid [E, T]."""
    whole = log_weights(log_ratio, valid)[:, -1]
    ret = discounted_return(reward, valid, discount)
    return _ordinary(torch.zeros_like(ret), whole.unsqueeze(1), ret.unsqueeze(1), whole)


def per_decision(reward: Tensor, log_ratio: Tensor, valid: Tensor, discount: float) -> Estimate:
    """Per-decision importance sampling: mean_i sum_t discount^t w_t r_t. Unbiased as the ordinary one, and of less
    variance, because a reward is not weighted by what was done after it (Precup et al. 2000, section 4).

    Args: reward, log_ratio, valid [E, T]."""
    weight = log_weights(log_ratio, valid)
    paid = _discounts(reward, discount) * _clean(reward, valid)
    return _ordinary(torch.zeros_like(weight[:, 0]), weight, paid, weight[:, -1])


def weighted(reward: Tensor, log_ratio: Tensor, valid: Tensor, discount: float) -> Estimate:
    """Weighted importance sampling: sum_i w_i G_i / sum_i w_i. Biased, consistent, and never outside the range of the
    returns (Precup et al. 2000, section 3).

    Args: reward, log_ratio, valid [E, T]."""
    whole = log_weights(log_ratio, valid)[:, -1]
    ret = discounted_return(reward, valid, discount)
    return _weighted(torch.zeros_like(ret), whole.unsqueeze(1), ret.unsqueeze(1), whole)


def step_wise_weighted(reward: Tensor, log_ratio: Tensor, valid: Tensor, discount: float) -> Estimate:
    """Weighted importance sampling of every step: sum_t discount^t (sum_i w_t r_t / sum_i w_t). Biased and consistent
    (Thomas 2015, section 3.9, "consistent weighted per-decision").

    The sums over i are over all episodes: an episode that has ended earns 0 and keeps its last weight. To divide by the
    weights of the episodes that still run would be inconsistent where the policies end episodes unlike each other.

    Args: reward, log_ratio, valid [E, T]."""
    weight = log_weights(log_ratio, valid)
    paid = _discounts(reward, discount) * _clean(reward, valid)
    return _weighted(torch.zeros_like(weight[:, 0]), weight, paid, weight[:, -1])


def doubly_robust(
    reward: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
    discount: float,
    value: Tensor,
    q: Tensor,
    end_value: Tensor,
    *,
    self_normalized: bool = False,
) -> Estimate:
    """The doubly robust estimate, by a model Q of the policy's action values and V(s) = sum_a pi(a|s) Q(s, a):

        mean_i [V(s_0) + sum_t discount^t w_t (r_t + discount V(s_{t+1}) - Q(s_t, a_t))]

    This is the recursion V(s_t) + rho_t (r_t + discount DR_{t+1} - Q(s_t, a_t)) written out (Jiang and Li 2016, eq.
    10). It is unbiased whatever Q is, and exact in every episode if Q is right and the environment is deterministic. If
    self_normalized, w_t is divided by the mean weight of all episodes at step t, and the estimate is biased and
    consistent (Thomas and Brunskill 2016, section 5).

    Args: reward, log_ratio, valid [E, T]; value, q [E, T] V(s_t) and Q(s_t, a_t); end_value [E] the value of what comes
    behind the last step: 0 if the episode has terminated, V of its last observation if it was only cut off."""
    weight = log_weights(log_ratio, valid)
    value, last = _clean(value, valid), valid.sum(1, keepdim=True) - 1
    after = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], 1)
    after = after.scatter(1, last, end_value.double().unsqueeze(1))
    error = _clean(reward, valid) + discount * after - _clean(q, valid)
    error = _discounts(reward, discount) * error.masked_fill(~valid, 0.0)
    made = _weighted if self_normalized else _ordinary
    return made(value[:, 0], weight, error, weight[:, -1])


def direct(value: Tensor) -> Estimate:
    """The direct method: the mean of a model's values V(s_0) [E] of the first observations. Only as good as the model:
    no interval over episodes knows of its errors."""
    plain = value.double()
    size = torch.tensor(float(len(plain)), dtype=torch.float64)
    return Estimate(plain.mean(), plain, size, torch.zeros((), dtype=torch.float64), Terms(plain))


def _ordinary(plain: Tensor, log_weight: Tensor, x: Tensor, whole: Tensor) -> Estimate:
    """mean_i [plain_i + sum_k w_ik x_ik], with plain [E], log_weight and x [E, K] and the episodes' weights [E]."""
    each = plain + _sum_of_products(log_weight, x, 1)
    value = plain.mean() + _sum_of_products(log_weight.flatten(), x.flatten(), 0) / len(plain)
    return Estimate(value, each, effective_size(whole), _log_mean(whole), Terms(each))


def _weighted(plain: Tensor, log_weight: Tensor, x: Tensor, whole: Tensor) -> Estimate:
    """mean_i plain_i + sum_k (sum_i w_ik x_ik / sum_i w_ik), with the same arguments."""
    share = log_weight.softmax(0)
    mean = (share * x).sum(0)
    value = plain.mean() + mean.sum()
    each = value + plain - plain.mean() + len(plain) * (share * (x - mean)).sum(1)
    return Estimate(value, each, effective_size(whole), _log_mean(whole), Terms(plain, log_weight, x))


def _log_mean(log_weight: Tensor) -> Tensor:
    return log_weight.logsumexp(0) - math.log(len(log_weight))


def _sum_of_products(log_weight: Tensor, x: Tensor, dim: int) -> Tensor:
    """sum exp(log_weight) x over a dimension. A weight that is too large for a number is none beside a small x."""
    size = log_weight + x.abs().log()
    largest = size.amax(dim, keepdim=True)
    largest = torch.where(largest > -math.inf, largest, 0.0)
    total = (x.sign() * (size - largest).exp()).sum(dim)
    return total.sign() * (total.abs().log() + largest.squeeze(dim)).exp()


def _clean(x: Tensor, valid: Tensor) -> Tensor:
    return x.double().masked_fill(~valid, 0.0)


def _discounts(x: Tensor, discount: float) -> Tensor:
    """discount^t [T]."""
    return discount ** torch.arange(x.shape[1], dtype=torch.float64, device=x.device)


# -- intervals ---------------------------------------------------------------------------------------------------------


def bootstrap(
    terms: Terms, rng: torch.Generator, confidence: float = 0.95, repetitions: int = 2000
) -> EstimateInterval:
    """The percentile bootstrap over episodes (Efron and Tibshirani 1993, section 13.3): E episodes are drawn with
    replacement, and the estimate is made again of each draw. Weighted estimates divide by the weights of the draw.
    Draws in which all weights are 0 have no estimate and are left out."""
    episodes = len(terms.plain)
    made = []
    width = episodes if terms.log_weight is None else max(episodes, terms.log_weight.shape[1])
    for count in _pieces(repetitions, width):
        drawn = torch.randint(episodes, (count, episodes), generator=rng)
        times = torch.zeros(count, episodes, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones_like(times))  # how often each episode was drawn
        made.append(_resampled(terms, times))
    values = torch.cat(made)
    tail = (1 - confidence) / 2
    low, high = torch.nanquantile(values, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return EstimateInterval(low, high)


def _pieces(total: int, width: int) -> list[int]:
    size = max(1, CHUNK // width)
    return [min(size, total - start) for start in range(0, total, size)]


def _resampled(terms: Terms, times: Tensor) -> Tensor:
    """The estimate [R] of each draw, with times [R, E]."""
    value = times @ terms.plain / times.shape[1]
    if terms.log_weight is None or terms.x is None:
        return value
    largest = terms.log_weight.amax(0)
    weight = (terms.log_weight - torch.where(largest > -math.inf, largest, 0.0)).exp()
    below = times @ weight  # [R, K]
    parts = times @ (weight * terms.x) / below
    # Where the draw missed every episode of more than 1e-308 of the largest weight, sums are scaled by those it has.
    log_weight, x, log_times = terms.log_weight.T.contiguous(), terms.x.T.contiguous(), times.log()
    for pairs in (below == 0).nonzero().split(max(1, CACHED // times.shape[1])):
        draw, k = pairs.unbind(1)
        parts[draw, k] = ((log_weight[k] + log_times[draw]).softmax(1) * x[k]).sum(1)
    return value + parts.sum(1)


def student(each: Tensor, confidence: float = 0.95) -> EstimateInterval:
    """Student's t interval: mean +- t_{n-1, (1 + confidence) / 2} s / sqrt(n), of contributions [n]."""
    count = len(each)
    if count < 2:
        return EstimateInterval(-math.inf, math.inf)
    mean = float(each.mean())
    error = t_quantile((1 + confidence) / 2, count - 1) * float(each.std()) / math.sqrt(count)
    return EstimateInterval(mean - error, mean + error)


@functools.cache
def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution for a probability from 0.5 to 1, by bisection.

    With t = sqrt(n) tan(a), the probability of at most t is 1/2 + c times the integral of cos^(n-1) from 0 to a, with c
    = Gamma((n + 1) / 2) / (sqrt(pi) Gamma(n / 2)). For large n, where the integrand is a narrow peak, the quantile is
    z + (z^3 + z) / (4 n), of the normal quantile z (Abramowitz and Stegun 1964, 26.7.5); the next is below 1e-8."""
    if freedom >= MANY:
        z = statistics.NormalDist().inv_cdf(probability)
        return z + (z**3 + z) / (4 * freedom)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    steps = 2000  # of Simpson's rule

    def below(angle: float) -> float:
        a = torch.linspace(0.0, angle, steps + 1, dtype=torch.float64)
        y = a.cos() ** (freedom - 1)
        return 0.5 + scale * angle / steps / 3 * float(y[0] + 4 * y[1::2].sum() + 2 * y[2:-1:2].sum() + y[-1])

    low, high = 0.0, min(math.pi / 2, math.atan(1e6 / math.sqrt(freedom)))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def bernstein(each: Tensor, low: float, high: float, confidence: float = 0.95) -> EstimateInterval:
    """The empirical Bernstein interval of independent numbers [n] between low and high (Maurer and Pontil 2009, theorem
    4, for both sides): with x scaled to [0, 1] and d = 1 - confidence,

        mean +- sqrt(2 var ln(4 / d) / n) + 7 ln(4 / d) / (3 (n - 1))

    It holds for every n and every distribution within the bounds, and is cut at them. Raises ValueError if the bounds
    are not finite and in order, or if a number is outside of them."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"an empirical Bernstein interval needs two finite bounds, and not {low:g} and {high:g}")
    slack = 1e-9 * (high - low)
    if float(each.min()) < low - slack or float(each.max()) > high + slack:
        raise ValueError(
            f"an empirical Bernstein interval is for numbers between its bounds, {low:g} and {high:g}, and one episode"
            f" contributes {float(each.min() if float(each.min()) < low - slack else each.max()):g}"
        )
    count = len(each)
    if count < 2:
        return EstimateInterval(low, high)
    x = (each - low) / (high - low)
    log = math.log(4 / (1 - confidence))
    error = math.sqrt(2 * float(x.var()) * log / count) + 7 * log / (3 * (count - 1))
    mean = float(x.mean())
    scaled = (max(0.0, mean - error), min(1.0, mean + error))
    return EstimateInterval(*(low + (high - low) * end for end in scaled))
