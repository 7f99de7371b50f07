"""Networks that mix the action values of several agents into the value of the team."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class SumMixer(nn.Module):
    """The sum of the agents' values (VDN, Sunehag et al. 2017, arXiv:1706.05296, eq. 3)."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """q [..., N], state [..., S], which is ignored -> the team's value [...]."""
        return q.sum(-1)


class MonotonicMixer(nn.Module):
    """A network in the agents' values whose weights follow from the state and are never negative, so that the team's
    value rises with each agent's (QMIX, Rashid et al. 2018, arXiv:1803.11485, section 4.1 and figure 2)."""

    def __init__(self, agents: int, state: int, embed: int, hypernet_layers: int, hypernet_hidden: int):
        """embed: width of the mixing network's hidden layer. hypernet_layers: 1 or 2 layers from state to weights."""
        super().__init__()
        self.agents, self.embed = agents, embed

        def hypernet(outputs: int) -> nn.Module:
            if hypernet_layers == 1:
                return nn.Linear(state, outputs)
            return nn.Sequential(nn.Linear(state, hypernet_hidden), nn.ReLU(), nn.Linear(hypernet_hidden, outputs))

        self.first, self.second = hypernet(agents * embed), hypernet(embed)
        self.first_bias = nn.Linear(state, embed)
        self.value = nn.Sequential(nn.Linear(state, embed), nn.ReLU(), nn.Linear(embed, 1))  # the last bias

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """q [..., N], state [..., S] -> the team's value [...]."""
        first = self.first(state).abs().unflatten(-1, (self.agents, self.embed))
        hidden = F.elu((q.unsqueeze(-2) @ first).squeeze(-2) + self.first_bias(state))
        return (hidden * self.second(state).abs()).sum(-1) + self.value(state).squeeze(-1)
