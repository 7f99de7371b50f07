"""An exploration: keeps to its last action for a while, which gets every environment away from where it begins."""

from __future__ import annotations

import torch

import rlrun


class Sticky(rlrun.Exploration):
    """Repeats the last action with a probability that begins at `stay` and falls with an environment's own decisions.

    Otherwise it draws from the policy. This is for discrete actions and policies that are distributions."""

    def __init__(self, spec, stay: float = 0.9, patience: float = 1000.0):
        super().__init__(spec)
        self.stay, self.patience = stay, patience

    def initial_state(self, columns, place, device):
        return {
            "last": torch.zeros(columns, dtype=torch.int64, device=device),
            "decisions": torch.zeros(columns, device=device),
        }

    def choose(self, wanted, obs, is_first, state, clock, rng):
        stay = self.stay * torch.exp(-state["decisions"] / self.patience) * ~is_first
        drawn, kept = wanted.sample(rng), state["last"]
        stays = torch.rand(stay.shape, generator=rng, device=stay.device) < stay
        action = torch.where(stays, kept, drawn)
        log_prob = (stay * (action == kept) + (1 - stay) * wanted.log_prob(action).exp()).log()
        return rlrun.Chosen(action, log_prob, {"last": action, "decisions": state["decisions"] + 1})
