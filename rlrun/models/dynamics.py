"""An ensemble of models of an environment's dynamics, and the environment that they make together.

Source: Clavera et al. 2018, arXiv:1809.05214, section 4.1 and appendix A.2; the author's code
(jonasrothfuss/model_ensemble_meta_learning) and RLlib's MBMPO."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlrun.core.env import Rows, Step
from rlrun.core.errors import FAILURES, told
from rlrun.core.plugins import load_object
from rlrun.core.ranges import Count, NotNegative, PositiveShareBelowOne, ShareBelowOne
from rlrun.core.schedule import Schedule
from rlrun.core.specs import Box, EnvSpec, executed
from rlrun.models.encoders import flat_size, flatten

TINY = 1e-10  # added to deviations
ROUNDING = 2e-7  # the rounding of a difference between two numbers of float32, relative to these numbers
STILL = 1e-6  # the share of its mean up to which the deviation of an input may be rounding
Reward = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (obs, action, next obs) [B, ...] -> [B]


class EnsembleLayer(nn.Module):
    """A linear layer of M nets at once, whose weights may be given by a direction and a length (weight normalisation,
    Salimans & Kingma 2016)."""

    def __init__(self, members: int, inputs: int, outputs: int, normed: bool):
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # PyTorch's own initial weights
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))
        self.length = nn.Parameter(self.weight.detach().norm(dim=1, keepdim=True)) if normed else None

    def forward(self, x: Tensor) -> Tensor:
        """x [M, N, inputs] -> [M, N, outputs]."""
        weight = self.weight if self.length is None else self.length * F.normalize(self.weight, dim=1)
        return torch.baddbmm(self.bias, x, weight)


class Ensemble(nn.Module):
    """M nets that predict how much an observation changes. Inputs and changes are normalised by the moments of the data
    that they were fitted to."""

    def __init__(self, spec: EnvSpec, members: int, hidden: Sequence[int], weight_norm: bool, normalize: bool):
        super().__init__()
        space = spec.observation
        assert isinstance(space, Box)
        self.spec, self.members, self.normalize = spec, members, normalize
        self.inputs, self.outputs = space.size + flat_size(spec.action), space.size
        widths = (self.inputs, *hidden, self.outputs)
        self.layers = nn.ModuleList(
            EnsembleLayer(members, before, after, weight_norm) for before, after in itertools.pairwise(widths)
        )
        for name, size in (("input", self.inputs), ("change", self.outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_deviation", torch.ones(size))
        self.input_mean: Tensor
        self.input_deviation: Tensor
        self.change_mean: Tensor
        self.change_deviation: Tensor
        # Bounds that all numbers of an observation have in common.
        self.low, self.high = space.low[0], space.high[0]

    def inputs_of(self, obs: Tensor, action: Tensor) -> Tensor:
        """obs [N, ...] and actions of rows [N, ...], as a policy drew them -> [N, inputs]."""
        space = self.spec.action
        return torch.cat([obs.flatten(1).float(), flatten(space, executed(space, action))], 1)

    @torch.no_grad()
    def measure(self, x: Tensor, change: Tensor) -> None:
        """Takes the moments of data x [N, inputs] and change [N, outputs], if they are to be normalised.

        An input that never changes is shifted to 0 and not scaled, because its deviation is only rounding. A number
        that changes by the same amount in every step is predicted to do so, and the nets' output for it is ignored."""
        if self.normalize:
            x, change = x.double(), change.double()
            mean, deviation = x.mean(0), x.std(0, unbiased=False)
            constant = deviation <= (STILL * mean.abs()).clamp(min=TINY)
            self.input_mean.copy_(mean)
            self.input_deviation.copy_(deviation.masked_fill(constant, 1.0))
            deviation = change.std(0, unbiased=False)
            rounding = (ROUNDING * x[:, : self.outputs].abs().amax(0)).clamp(min=TINY)
            self.change_mean.copy_(change.mean(0))
            self.change_deviation.copy_(deviation.masked_fill(deviation <= rounding, 0.0))

    def normalized(self, change: Tensor) -> Tensor:
        """Changes as the nets predict them."""
        made = (change - self.change_mean) / (self.change_deviation + TINY)
        return made.masked_fill(self.change_deviation == 0, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [M, N, inputs], one set for each member -> normalised changes [M, N, outputs]."""
        x = (x - self.input_mean) / (self.input_deviation + TINY)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)

    def next(self, obs: Tensor, x: Tensor) -> Tensor:
        """The observations [M, N, outputs] that follow obs [M, N, outputs] according to each member, for inputs x
        [M, N, inputs] made of them."""
        change = self(x) * self.change_deviation + self.change_mean
        return (obs + change).clamp(self.low, self.high)


def known_reward(spec: EnvSpec) -> Reward:
    """Returns the method that says what an environment pays, for batches.

    Raises ValueError, with a sentence, if it does not give a number for each row."""
    space, path, rng = spec.observation, spec.reward_class, np.random.default_rng(0)
    actions: Any = spec.action
    assert isinstance(space, Box) and path is not None
    method = f"the method reward(obs, action, next_obs) of {path}"
    # A sum over rows, and not over numbers, must not have the right shape by chance.
    rows = next(count for count in (2, 3, 4) if count not in (space.size, flat_size(spec.action)))
    obs, after = (
        rng.uniform(-1.0, 1.0, (rows, *space.shape)).clip(space.low[0], space.high[0]).astype(np.float32)
        for _ in range(2)
    )
    try:
        made: Any = load_object(path, "env", object)(**spec.reward_kwargs)
        paid = np.asarray(made.reward(obs, actions.to_env(actions.sample(rng, rows)), after), dtype=np.float32)
    except FAILURES as error:  # the user's own code may raise anything
        raise ValueError(f"{method} fails for a batch of {rows} rows: {told(error, __file__)}") from None
    if paid.shape != (rows,):
        raise ValueError(
            f"{method} must return a number for each row of a batch, [{rows}] for {rows} rows, not {list(paid.shape)}"
        )
    return made.reward


class LearntEnv:
    """An ensemble as a VectorEnv, whose tasks are the numbers of its members. Episodes begin with observations that
    real ones began with, and never end; what they pay is known from the observations."""

    def __init__(self, ensemble: Ensemble, reward: Reward, columns: int, rng: torch.Generator):
        self.ensemble, self.reward, self.rng = ensemble, reward, rng
        self.spec, self.count = ensemble.spec, columns
        self.starts = torch.zeros(0)  # observations [N, ...] that episodes begin with
        self.tasks = torch.zeros(columns, dtype=torch.int64)

    def sample_tasks(self, count: int, seed: int) -> list[int]:
        """All members as often as each other, or once more."""
        return [number % self.ensemble.members for number in range(count)]

    def set_tasks(self, tasks: Sequence[int]) -> None:
        self.tasks = torch.tensor(tasks)

    def reset(self, generation: int) -> Rows:
        picks = torch.randint(len(self.starts), (self.count,), generator=self.rng, device=self.rng.device)
        self.obs = self.starts[picks].clone()
        return {"observation": self.obs.cpu().numpy()}

    @torch.no_grad()
    def step(self, action: Any) -> Step:
        given = torch.from_numpy(np.asarray(action)).to(self.obs.device)
        x, flat = self.ensemble.inputs_of(self.obs, given), self.obs.flatten(1)
        order = torch.argsort(self.tasks, stable=True)
        each = torch.bincount(self.tasks, minlength=self.ensemble.members)
        if (each == each[0]).all():  # the columns of all members at once
            rows = order.view(self.ensemble.members, -1).to(flat.device)
            after = torch.empty_like(flat)
            after[rows] = self.ensemble.next(flat[rows], x[rows])
        else:
            members = self.ensemble.members
            every = self.ensemble.next(flat.expand(members, -1, -1), x.expand(members, -1, -1))
            after = every[self.tasks.to(flat.device), torch.arange(self.count, device=flat.device)]
        before, self.obs = self.obs, after.view_as(self.obs)
        taken: Any = self.spec.action.to_env(action)
        paid = self.reward(before.cpu().numpy(), taken, self.obs.cpu().numpy())
        nobody = np.zeros(self.count, dtype=bool)
        rows_after = {"observation": self.obs.cpu().numpy()}
        return Step(rows_after, np.asarray(paid, dtype=np.float32), nobody, nobody, ~nobody, nobody, {})

    def close(self) -> None:
        """Does nothing, because there is nothing to close."""


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig:
    """Options of the ensemble and of how it is fitted."""

    members: Annotated[int, Count]
    hidden: tuple[Annotated[int, Count], ...]
    weight_norm: bool
    normalize: bool
    capacity: Annotated[int, Count]
    lr: Annotated[Schedule, NotNegative]
    max_epochs: Annotated[int, Count]
    batch_size: Annotated[int, Count]
    valid_share: Annotated[float, PositiveShareBelowOne]
    patience: Annotated[float, ShareBelowOne]


class Patience:
    """Says which members of an ensemble are still to be fitted: those whose rolling mean of errors on held-out rows has
    not grown yet (RLlib's MBMPO, the author's code)."""

    def __init__(self, members: int, decay: float):
        self.decay = decay
        self.going = torch.ones(members, dtype=torch.bool)
        self.mean: Tensor | None = None

    def hear(self, error: Tensor) -> Tensor:
        """Takes the errors [M] after an epoch, and returns which members have stopped now [M]."""
        error = error.detach().cpu()
        before = 2.0 * error if self.mean is None else self.mean
        self.mean = self.decay * (1.5 * error if self.mean is None else self.mean) + (1 - self.decay) * error
        stopped = self.going & (before < self.mean)
        self.going = self.going & ~stopped
        return stopped
