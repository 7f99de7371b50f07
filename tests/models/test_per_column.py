"""Parameters per column: every way to evaluate them gives the output of a net with those parameters."""

import copy

import pytest
import torch
from torch import nn

from rlrun.core.batch import Batch
from rlrun.models.per_column import PerColumn


class Net(nn.Module):
    """A net with the call that policies' nets have."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 4), nn.Linear(5, 2)

    def forward(self, obs, is_first, state):
        hidden = torch.tanh(self.hidden(obs["observation"]["numbers"]))
        return self.head(torch.cat([hidden, is_first.float().unsqueeze(-1)], -1)), state


@pytest.mark.parametrize("at_once", [True, False])
def test_every_column_has_parameters_of_its_own(at_once):
    torch.manual_seed(0)
    net = Net()
    per_column = PerColumn(net, at_once, choose=lambda said: said.argmax(-1, keepdim=True) + said)
    noise = torch.randn(6, per_column.size)
    obs = Batch(observation=Batch(numbers=torch.randn(6, 3)))
    is_first = torch.tensor([True, False, True, False, False, True])
    with torch.no_grad():
        vectors = per_column.vector() + noise
        wanted = []
        for b in range(6):
            alone = copy.deepcopy(net)
            nn.utils.vector_to_parameters(vectors[b], alone.parameters())
            said = alone(obs[b : b + 1].map(lambda x: x.unsqueeze(0)), is_first[b : b + 1].unsqueeze(0), Batch())[0][0]
            wanted.append((said.argmax(-1, keepdim=True) + said)[0])
        torch.testing.assert_close(per_column.outputs(vectors, obs, is_first), torch.stack(wanted))
        assert torch.equal(per_column.disturbed(noise, obs, is_first), torch.stack(wanted))
        vectors[2] = 0.0  # a change in place, as when a column begins an episode
        assert torch.equal(per_column.outputs(vectors, obs, is_first)[2], torch.zeros(2))


def test_the_net_s_own_parameters_are_one_vector_that_learns():
    net = Net()
    per_column = PerColumn(net, at_once=True)
    per_column.vector().square().sum().backward()
    assert per_column.size == 3 * 4 + 4 + 5 * 2 + 2 == len(per_column.vector())
    assert torch.equal(net.head.weight.grad, 2 * net.head.weight)


@pytest.mark.parametrize("at_once", [True, False])
def test_frozen_parameters_are_the_net_s_own_for_every_column(at_once):
    net = Net()
    net.hidden.requires_grad_(False)
    per_column = PerColumn(net, at_once)
    net.requires_grad_(False)  # as in a copy that only acts
    assert per_column.size == 5 * 2 + 2 == len(per_column.vector())
    obs, is_first = Batch(observation=Batch(numbers=torch.randn(6, 3))), torch.zeros(6, dtype=torch.bool)
    vectors = torch.randn(6, per_column.size)
    hidden = torch.tanh(net.hidden(obs.observation.numbers))
    wanted = (vectors[:, :10].view(6, 2, 5)[:, :, :4] @ hidden.unsqueeze(-1)).squeeze(-1) + vectors[:, 10:]
    torch.testing.assert_close(per_column.outputs(vectors, obs, is_first), wanted)
    torch.testing.assert_close(per_column.disturbed(vectors - per_column.vector(), obs, is_first), wanted)
