import math

import pytest
import torch
from torch import distributions as theirs

from rlrun.core.batch import Batch
from rlrun.ops.distributions import (
    EDGE,
    Bernoulli,
    Beta,
    Categorical,
    Gaussian,
    Joint,
    MultiCategorical,
    SquashedGaussian,
)


def test_categorical_agrees_with_torch():
    torch.manual_seed(0)
    logits, others = torch.randn(6, 4), torch.randn(6, 4)
    action = torch.randint(4, (6,))
    ours, theirs = Categorical(logits), torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    other = torch.distributions.Categorical(logits=others)
    torch.testing.assert_close(ours.kl(Categorical(others)), torch.distributions.kl_divergence(theirs, other))
    torch.testing.assert_close(ours[2:4].log_prob(action[2:4]), theirs.log_prob(action)[2:4])


def test_categorical_samples_its_probabilities():
    probabilities = torch.tensor([0.1, 0.2, 0.7])
    samples = Categorical(probabilities.log().expand(20000, 3)).sample(torch.Generator().manual_seed(0))
    frequencies = torch.bincount(samples, minlength=3) / 20000
    torch.testing.assert_close(frequencies, probabilities, atol=0.015, rtol=0)


def test_gaussian_agrees_with_torch():
    torch.manual_seed(0)
    mean, log_std, action = torch.randn(6, 3), torch.randn(3), torch.randn(6, 3)
    ours = Gaussian(mean, log_std)
    theirs = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    other = Gaussian(mean + 1, log_std * 0.5)
    expected = torch.distributions.kl_divergence(
        theirs, torch.distributions.Independent(torch.distributions.Normal(mean + 1, (log_std * 0.5).exp()), 1)
    )
    torch.testing.assert_close(ours.kl(other), expected)


def test_sampling_uses_the_generator_alone():
    logits = torch.randn(50, 4)
    first = Categorical(logits).sample(torch.Generator().manual_seed(3))
    torch.manual_seed(99)
    assert torch.equal(first, Categorical(logits).sample(torch.Generator().manual_seed(3)))
    assert not torch.equal(first, Categorical(logits).sample(torch.Generator().manual_seed(4)))


def pairs():
    """Returns (ours, torch's, another of ours, another of torch's) over 5 rows; torch's have the same actions."""
    torch.manual_seed(0)
    logits, mean, log_std = torch.randn(5, 6), torch.randn(5, 2), 0.3 * torch.randn(5, 2)
    alpha, beta = 1.5 + torch.rand(5, 2), 1.2 + torch.rand(5, 2)
    independent = lambda d: theirs.Independent(d, 1)  # noqa: E731
    stretch = [theirs.AffineTransform(-1.0, 2.0)]
    switches = [independent(theirs.Bernoulli(logits=x)) for x in (logits, logits.flip(0))]
    betas = [
        independent(theirs.TransformedDistribution(theirs.Beta(a, b), stretch))
        for a, b in ((alpha, beta), (beta, alpha))
    ]
    squashed = [
        independent(theirs.TransformedDistribution(theirs.Normal(mean + d, log_std.exp()), [theirs.TanhTransform()]))
        for d in (0.0, 0.5)
    ]
    return {
        "bernoulli": (Bernoulli(logits, (6,)), switches[0], Bernoulli(logits.flip(0), (6,)), switches[1]),
        "beta": (Beta(alpha, beta, (2,)), betas[0], Beta(beta, alpha, (2,)), betas[1]),
        "squashed": (
            SquashedGaussian(mean, log_std, (2,)),
            squashed[0],
            SquashedGaussian(mean + 0.5, log_std, (2,)),
            squashed[1],
        ),
    }


@pytest.mark.parametrize("kind", ["bernoulli", "beta", "squashed"])
def test_agrees_with_torch(kind):
    ours, torchs, other, other_torchs = pairs()[kind]
    rng = torch.Generator().manual_seed(1)
    samples = torch.stack([ours.sample(rng).float() for _ in range(20000)])
    torch.testing.assert_close(ours.log_prob(samples[0]), torchs.log_prob(samples[0]), atol=1e-4, rtol=1e-4)
    many = torchs.sample((20000,))
    torch.testing.assert_close(samples.mean(0), many.mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(samples.std(0), many.std(0), atol=0.03, rtol=0)
    torch.testing.assert_close(ours.entropy(), -torchs.log_prob(many).mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(
        ours.kl(other), (torchs.log_prob(many) - other_torchs.log_prob(many)).mean(0), atol=0.05, rtol=0.05
    )
    at_mode = ours.log_prob(ours.mode())
    if kind != "squashed":  # its mode() is the median, because squashing moves the peak of the density
        assert (at_mode >= ours.log_prob(samples[:500]).max(0).values - 1e-4).all()


def test_the_entropy_of_a_squashed_gaussian_is_the_integral_over_its_actions():
    """For every deviation that a head can have. The integral is taken over the actions themselves, in float64, on grids
    that are much finer than the density."""
    fine = torch.linspace(-9.0, 9.0, 40001, dtype=torch.float64)
    for log_std in torch.arange(-5.0, 2.01, 0.5).tolist():
        for mean in torch.arange(-3.0, 3.01, 0.5).tolist():
            x = mean + math.exp(log_std) * fine  # before tanh
            log_normal = theirs.Normal(torch.tensor(mean).double(), torch.tensor(math.exp(log_std)).double()).log_prob(
                x
            )
            log_slope = -2.0 * (x.abs() + torch.log1p(torch.exp(-2.0 * x.abs())) - math.log(2.0))  # log d tanh(x) / dx
            wanted = float(torch.trapezoid(log_normal.exp() * (log_slope - log_normal), x))
            numbers = [torch.tensor([value], requires_grad=True) for value in (mean, log_std)]
            got = SquashedGaussian(*numbers, (1,)).entropy()
            assert float(got.detach()) == pytest.approx(wanted, abs=2e-3), (mean, log_std)
            got.backward()
            by_mean = float(torch.trapezoid(log_normal.exp() * -2.0 * torch.tanh(x), x))
            by_log_std = 1.0 + float(torch.trapezoid(log_normal.exp() * -2.0 * torch.tanh(x) * (x - mean), x))
            for number, slope in zip(numbers, (by_mean, by_log_std), strict=True):
                assert float(number.grad) == pytest.approx(slope, abs=5e-3), (mean, log_std)


@pytest.mark.parametrize("log_std", [-3.0, -1.0, 1.0])
@pytest.mark.parametrize("mean", [0.0, -5.0, 7.0, 7.5, -7.5, 9.0])
def test_ratios_of_a_squashed_gaussian_are_right_up_to_the_bounds(mean, log_std):
    """When its mean moves by a tenth of a deviation, the divergence that samples show is that of the inner Gaussians
    without what tanh hides near a bound, which is integrated in float64."""
    std, edge = math.exp(log_std), math.atanh(1 - EDGE)
    means = mean, mean + 0.1 * std
    old, new = (SquashedGaussian(torch.full((200000, 1), m), torch.full((200000, 1), log_std), (1,)) for m in means)
    action = old.sample(torch.Generator().manual_seed(0))
    log_ratio = old.log_prob(action) - new.log_prob(action)
    x = torch.linspace(-edge, edge, 2_000_001, dtype=torch.float64)
    p, q = (theirs.Normal(torch.tensor(m).double(), torch.tensor(std).double()) for m in means)
    wanted = torch.trapezoid(p.log_prob(x).exp() * (p.log_prob(x) - q.log_prob(x)), x)
    for low, high in ((-edge - 40 * std, -edge), (edge, edge + 40 * std)):
        masses = [float(_mass(m, std, low, high)) for m in means]
        wanted += masses[0] * (math.log(masses[0]) - math.log(masses[1])) if min(masses) > 0 else 0.0
    assert float(log_ratio.mean()) == pytest.approx(float(wanted), abs=2e-3)
    assert float(log_ratio.neg().exp().mean()) == pytest.approx(1.0, abs=5e-3), "the weights of the samples sum to one"


def _mass(mean, std, low, high):
    """The probability of a normal variable between two numbers, where the far one of both is infinity."""
    by_root = std * math.sqrt(2)
    return 0.5 * (math.erfc((low - mean) / by_root) if low > 0 else math.erfc((mean - high) / by_root))


def test_a_bound_has_the_density_of_what_lies_beyond_it_and_finite_gradients():
    mean = torch.tensor([[-1000.0], [-7.0], [0.0], [7.0], [1000.0]], requires_grad=True)
    log_std = torch.full((5, 1), -1.0, requires_grad=True)
    log_prob = SquashedGaussian(mean, log_std, (1,)).log_prob(torch.ones(5, 1))
    wanted = [_mass(m, math.exp(-1.0), math.atanh(1 - EDGE), math.inf) / EDGE for m in (7.0, 1000.0)]
    torch.testing.assert_close(log_prob[3:].exp(), torch.tensor(wanted), atol=0.0, rtol=0.05)
    slopes = torch.autograd.grad(log_prob.sum(), (mean, log_std), create_graph=True)
    again = torch.autograd.grad(sum(slope.sum() for slope in slopes), (mean, log_std))
    assert all(bool(x.isfinite().all()) for x in (log_prob, *slopes, *again))
    assert (slopes[0][:4] > 0).all() and slopes[0][4] == 0, "nothing is gained beyond the bound"


def test_only_numbers_at_a_bound_take_the_time_of_their_probability(monkeypatch):
    """PyTorch computes log_ndtr one number after another: three times as long for most numbers as for 0."""
    given, log_ndtr = [], torch.special.log_ndtr
    monkeypatch.setattr(torch.special, "log_ndtr", lambda x: given.append(x) or log_ndtr(x))
    action = torch.tensor([[0.3, 1.0, -0.9], [-1.0, 0.0, 0.99]])
    squashed = SquashedGaussian(torch.full((2, 3), 0.5), torch.zeros(2, 3), (3,))
    log_prob = squashed.log_prob(action)
    assert torch.equal(given[0] != 0, action.abs() == 1)
    parts = [SquashedGaussian(squashed.mean[:, [i]], squashed.log_std[:, [i]], (1,)).log_prob(action[:, [i]]) for i in range(3)]
    torch.testing.assert_close(log_prob, sum(parts))


def test_the_mode_of_a_flat_beta_is_its_middle():
    """Below a logit of -16.6, 1 + softplus is exactly 1 in float32."""
    logits = torch.tensor([[-17.0, -40.0, -17.0, 2.0], [-17.0, -40.0, -15.5, -17.0]])
    alpha, beta = 1.0 + torch.nn.functional.softplus(logits)
    assert alpha[0] == beta[0] == 1.0
    assert Beta(alpha, beta, (4,)).mode().tolist() == [0.0, 0.0, -1.0, 1.0]
    almost = 1.0 + torch.tensor([2.0**-23])  # alpha + beta is 2 in float32, alpha - 1 is not 0
    assert Beta(almost, torch.ones(1), (1,)).mode().item() == 1.0


def everything():
    logits = torch.randn(4, 5)
    return Joint({"a": Categorical(torch.randn(4, 3)), "b": MultiCategorical(logits, (2, 3), (2,)), "c": Gaussian(torch.randn(4, 6), torch.zeros(6), (2, 3)),
                  "d": Joint({"e": Bernoulli(torch.randn(4, 2), (2,)), "f": Beta(1 + torch.rand(4, 1), 2 + torch.rand(4, 1), (1,))})})  # fmt: skip


def test_a_joint_one_is_the_product_of_its_parts():
    torch.manual_seed(0)
    joint = everything()
    action = joint.sample(torch.Generator().manual_seed(0))
    assert (
        action.a.shape == (4,)
        and action.b.shape == (4, 2)
        and action.c.shape == (4, 2, 3)
        and action.d.e.shape == (4, 2)
        and action.d.f.shape == (4, 1)
    )
    parts = {"a": action.a, "b": action.b, "c": action.c, "d": action.d}
    torch.testing.assert_close(joint.log_prob(action), sum(joint.parts[name].log_prob(x) for name, x in parts.items()))
    torch.testing.assert_close(joint.entropy(), sum(part.entropy() for part in joint.parts.values()))
    two = joint.parts["b"]
    torch.testing.assert_close(two.log_prob(action.b), sum(two.parts[i].log_prob(action.b[:, i]) for i in (0, 1)))


def test_what_is_recorded_makes_the_same_distribution_again():
    torch.manual_seed(0)
    joint, other = everything(), everything()
    action = joint.sample(torch.Generator().manual_seed(0))
    again = other.from_record(joint.record())
    torch.testing.assert_close(again.log_prob(action), joint.log_prob(action))
    torch.testing.assert_close(again.kl(other), joint.kl(other))
    torch.testing.assert_close(joint[1:3].log_prob(action[1:3]), joint.log_prob(action)[1:3])
    assert again.kl(joint).abs().max() < 1e-5 and joint.kl(other).min() > 0
    assert isinstance(joint.record(), Batch) and torch.equal(joint.mode().a, again.mode().a)


def test_masked_actions_have_probability_zero_and_do_no_harm():
    logits = torch.randn(200, 4, requires_grad=True)
    mask = torch.tensor([True, False, True, False]).expand(200, 4)
    made = Categorical(logits, mask)
    samples = made.sample(torch.Generator().manual_seed(0))
    assert set(samples.tolist()) == {0, 2} and set(made.mode().tolist()) <= {0, 2}
    two = Categorical(logits[:, [0, 2]])
    torch.testing.assert_close(made.entropy(), two.entropy())
    torch.testing.assert_close(made.log_prob(samples), two.log_prob(samples // 2))
    (made.entropy().sum() + made.kl(Categorical(logits.detach().flip(0), mask)).sum()).backward()
    assert torch.isfinite(logits.grad).all() and logits.grad[:, [1, 3]].abs().max() == 0
    only = Categorical(torch.randn(1, 3), torch.tensor([[False, True, False]]))
    assert only.entropy().item() == pytest.approx(0.0, abs=1e-6) and only.log_prob(
        torch.tensor([1])
    ).item() == pytest.approx(0.0, abs=1e-6)
    assert math.exp(only.log_prob(torch.tensor([0])).item()) == 0.0


def test_no_illegal_action_wins_however_low_the_others_are():
    """Networks without bounds make such logits of observations that are as large."""
    mask = torch.tensor([[False, True, False], [True, True, False]])
    made = Categorical(logits := torch.tensor([[0.0, -2e9, 1.0], [-3e18, 5.0, 1e18]], requires_grad=True), mask)
    assert made.log_probs.exp().tolist() == [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]] and made.mode().tolist() == [1, 1]
    made.entropy().sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_a_divergence_of_very_unlike_spreads_has_a_gradient():
    log_std = torch.tensor([[-60.0, -20.0]], requires_grad=True)
    Gaussian(torch.zeros(1, 2), log_std, (2,)).kl(Gaussian(torch.zeros(1, 2), torch.zeros(1, 2), (2,))).sum().backward()
    assert torch.isfinite(log_std.grad).all()
