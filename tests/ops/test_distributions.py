import torch

from rlrun.ops.distributions import Categorical, Gaussian


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
    expected = torch.distributions.kl_divergence(theirs, torch.distributions.Independent(torch.distributions.Normal(mean + 1, (log_std * 0.5).exp()), 1))
    torch.testing.assert_close(ours.kl(other), expected)


def test_sampling_uses_the_generator_alone():
    logits = torch.randn(50, 4)
    first = Categorical(logits).sample(torch.Generator().manual_seed(3))
    torch.manual_seed(99)
    assert torch.equal(first, Categorical(logits).sample(torch.Generator().manual_seed(3)))
    assert not torch.equal(first, Categorical(logits).sample(torch.Generator().manual_seed(4)))
