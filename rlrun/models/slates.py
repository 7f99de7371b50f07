"""Networks about pairs of a user and a document, for slates of documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.core.errors import UserError, closest
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiDiscrete, Nested
from rlrun.models.encoders import NetConfig
from rlrun.models.model import Model


@dataclass(frozen=True)
class Display:
    """What of an environment a slate is about."""

    size: int  # S, the places of a slate
    count: int  # C, the candidates
    features: int  # E, numbers of a candidate
    candidates: str  # name of the observation part [C, E] with the candidates
    click: str  # name of the part that says which place of the last slate was chosen, or S for none
    user: EnvSpec | None  # the environment without these two parts; None if nothing else is observed


def display_of(spec: EnvSpec, candidates: str, click: str) -> Display:
    """Raises UserError where an environment does not show candidates and choices as slates need them."""
    action, name, space = spec.action, spec.name, spec.observation
    if not isinstance(action, MultiDiscrete) or len(set(action.sizes)) != 1 or len(action.shape) != 1:
        raise UserError(f"a slate is a MultiDiscrete action with one number for each place, and {name} takes {action}")
    size, count = len(action.sizes), action.sizes[0]
    if size > count:
        raise UserError(f"{name} asks for slates of {size} documents, and there are only {count} candidates")
    if "action_mask" in spec.obs:
        raise UserError(f"{name} masks its actions, and slates are made of all candidates that are shown")
    parts = space.parts if isinstance(space, Nested) else {}
    for option, part in (("candidates", candidates), ("click", click)):
        if part not in parts:
            raise UserError(
                f"algo.{option}={part}: {name} observes {space}, which has no such part.{closest(part, list(parts))}"
            )
    documents, chosen = parts[candidates], parts[click]
    if not isinstance(documents, Box) or len(documents.shape) != 2 or documents.shape[0] != count:
        raise UserError(
            f"algo.candidates={candidates} must hold a row of numbers for each of the {count} candidates, not"
            f" {documents}"
        )
    if not isinstance(chosen, Discrete) or chosen.n != size + 1:
        raise UserError(
            f"algo.click={click} must be Discrete({size + 1}): the place in the slate that was chosen, or {size} for"
            f" none; it is {chosen}"
        )
    assert isinstance(space, Nested)
    rest = tuple((key, value) for key, value in space.spaces if key not in (candidates, click))
    user = None
    if rest:
        user = replace(spec, obs={**spec.obs, "observation": replace(space, spaces=rest)})
    return Display(size, count, documents.shape[1], candidates, click, user)


class PairNet(nn.Module):
    """A number for each candidate, and for choosing none of them, as the user of this moment sees them.

    One network reads a user and a document. Choosing nothing is one more document, whose numbers are 0 and which a
    switch tells from others."""

    def __init__(self, display: Display, model: Model, cfg: NetConfig):
        super().__init__()
        self.display = display
        self.trunk: Any = None if display.user is None else model.trunk(display.user)
        user = 0 if self.trunk is None else self.trunk.features
        inputs = user + display.features + 1
        self.net = model.hidden(inputs, cfg)
        self.last = model.linear(cfg.hidden[-1] if cfg.hidden else inputs, 1, 1.0)

    def forward(self, obs: Batch, is_first: Tensor) -> Tensor:
        """obs [T, B, ...], is_first [T, B] -> [T, B, C + 1], the last one for choosing nothing."""
        observation: Any = obs["observation"]
        documents = observation[self.display.candidates].float()
        documents = nn.functional.pad(documents, (0, 1, 0, 1))
        documents[..., -1, -1] = 1.0
        if self.trunk is not None:
            user = self.trunk(obs.replace(observation=self.about_user(observation)), is_first, Batch())[0]
            user = user.unsqueeze(-2).expand(*user.shape[:-1], documents.shape[-2], -1)
            documents = torch.cat([user, documents], -1)
        return self.last(self.net(documents)).squeeze(-1)

    def about_user(self, observation: Batch) -> Batch:
        """The parts of an observation that are about the user."""
        assert self.display.user is not None
        space = self.display.user.observation
        assert isinstance(space, Nested)
        return Batch({name: observation[name] for name in space.parts})


class AffinityNet(nn.Module):
    """Logits of a choice that are proportional to the inner product of user and document, with two numbers to be
    learnt: the factor, and the logit of choosing nothing."""

    def __init__(self, display: Display):
        super().__init__()
        space = None if display.user is None else display.user.observation
        parts = space.parts if isinstance(space, Nested) else {}
        fitting = [name for name, part in parts.items() if isinstance(part, Box) and part.shape == (display.features,)]
        if len(fitting) != 1:
            raise UserError(
                "algo.choice=affinity multiplies a user by a document: one part of what is observed besides must be"
                f" {display.features} numbers, as many as a document has, and there are {len(fitting)} such parts"
            )
        self.display, self.user = display, fitting[0]
        self.factor, self.nothing = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, obs: Batch, is_first: Tensor) -> Tensor:
        """As PairNet.forward."""
        observation: Any = obs["observation"]
        product = (observation[self.display.candidates].float() * observation[self.user].float().unsqueeze(-2)).sum(-1)
        nothing = self.nothing.expand(*product.shape[:-1], 1)
        return torch.cat([self.factor * product, nothing], -1)
