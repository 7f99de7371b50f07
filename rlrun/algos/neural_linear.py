"""NeuralLinear: Thompson sampling on the last hidden layer of a network (Riquelme et al. 2018, arXiv:1802.09127).

A network learns rewards by regression. Its last hidden layer gives the features of one Bayesian linear regression for
each arm, whose weights are drawn for every row.

Rows: fragments [T, B] of the newest policy. Up to `memory` rows are kept, and the oldest go first. Every train_interval
updates, the network makes train_steps steps on random rows of the memory. The features of all rows in the memory, and
the regressions, are then computed anew. (DeepBandits' code leaves out the rows that came since the last training.)
Recorded: nothing.
Options: those of lin_ts.py. net is the list of hidden layers. lr, optimizer, max_grad_norm and minibatch_size belong to
the network's training; samplers do not have its last layer. With items, the network reads an item and the rest of the
observation.
Differs from the paper: the prior of the noise is that of the code (shape 6, scale 6), and so is the ridge, 0.25.
Refused: model.observation_filter, whose moments change what features mean while they are added up.
Metrics: learn/error: mean |reward - mean reward predicted|; pulls: rows in the regression; noise_deviation; loss: mean
squared error of the network in its last training; grad_norm; lr.
Checked: tests/algos/test_bandits.py (the regression after training in closed form, forgotten rows),
tuned/neural_linear/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from rlrun.algos.lin_ts import SamplingConfig, publish, sampling_policy
from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.metrics import Means
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.bandits import Pulls, Regression, pulls_of
from rlrun.models.encoders import NetConfig
from rlrun.models.model import Model
from rlrun.policies.bandits import BanditPolicy

ROWS_AT_ONCE = 4096  # rows whose features are computed together


@dataclass(frozen=True, kw_only=True)
class Config(SamplingConfig):
    net: NetConfig
    train_interval: Annotated[int, Count]
    train_steps: Annotated[int, Count]
    minibatch_size: Annotated[int, Count]
    memory: Annotated[int, Count]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]

    def __post_init__(self):
        super().__post_init__()
        if not self.net.hidden:
            raise ValueError("net.hidden is empty, so that no layer would be trained: algo=lin_ts is that algorithm")
        if self.memory < self.batch_size:
            raise ValueError(f"memory {self.memory} must hold the {self.batch_size} rows of an update")


class NeuralLinear(Algorithm):
    cfg: Config
    policy: BanditPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return cfg.needs

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> BanditPolicy:
        return sampling_policy(spec, model, cfg, net=cfg.net)

    def __init__(self, policy: BanditPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        arms, size = policy.mean.shape
        self.regression = Regression(arms, size, cfg.ridge).to(ctx.device)
        self.last = nn.Linear(size - cfg.intercept, arms).to(ctx.device)  # of the network's own regression
        trained = [*policy.features.parameters(), *self.last.parameters()]
        self.optimizer = ctx.optimizer(trained, cfg.optimizer, cfg.lr, cfg.max_grad_norm)
        places = policy.arms.places or 1
        self.memory = PullMemory(cfg.memory * places, policy.features.inputs, ctx.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in self.memory.state_dict():  # older checkpoints have these as the algorithm's own
            if f"{prefix}{name}" in state_dict:
                state_dict[f"{prefix}memory.{name}"] = state_dict.pop(f"{prefix}{name}")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, told = self.cfg, {}
        with torch.no_grad():
            pulls = pulls_of(self.policy, batch, cfg.click, raw=True)
            features = pulls._replace(x=self.policy.features.of(pulls.x))
            predicted = (features.x * self.policy.mean[pulls.arm]).sum(-1)
            shares = {"error": self.mean((pulls.y - predicted).abs(), pulls.valid)}
            self.regression.add([self.total(part) for part in self.regression.of(features)])
            self.remember(pulls)
        if (clock.updates + 1) % cfg.train_interval == 0 and self.memory.filled:
            told = self.train_network(clock)
            self.read_again()
        return Update(self.report(shares, publish(self.policy, self.regression, cfg), told))

    def remember(self, pulls: Pulls) -> None:
        """Puts the live rows of all learners into the memory of each."""
        valid = self.of_all(pulls.valid.to(pulls.y)) > 0
        x = self.of_all(pulls.x.flatten()).unflatten(0, (-1, pulls.x.shape[-1]))
        y, arm = self.of_all(pulls.y), self.of_all(pulls.arm.to(pulls.y)).long()
        self.memory.add(x[valid], y[valid], arm[valid])

    def train_network(self, clock: Clock) -> dict[str, Any]:
        """Makes train_steps steps on the squared error of rewards."""
        means, memory = Means(), self.memory
        for _ in range(self.cfg.train_steps):
            rows = (self.ctx.rand((self.share(self.cfg.minibatch_size),)) * memory.filled).long()
            predicted = self.last(self.hidden(memory.inputs[rows])).gather(1, memory.taken[rows, None]).squeeze(1)
            loss = self.mean((predicted - memory.rewards[rows]).square())
            means.add(self.optimizer.step(loss, clock) | {"loss": self.total(loss.detach())})
        return means.tensors()

    def hidden(self, x: Tensor) -> Tensor:
        """The network's last hidden layer [N, F] for inputs [N, D]."""
        made = self.policy.features.of(x)
        return made[:, :-1] if self.cfg.intercept else made

    @torch.no_grad()
    def read_again(self) -> None:
        """Computes the regression anew, with the network's features of all rows in the memory."""
        self.regression.clear()
        memory = self.memory
        for start in range(0, memory.filled, ROWS_AT_ONCE):
            part = slice(start, min(start + ROWS_AT_ONCE, memory.filled))
            live = torch.ones(part.stop - part.start, dtype=torch.bool, device=memory.rewards.device)
            x = self.policy.features.of(memory.inputs[part])
            self.regression.add(self.regression.of(Pulls(x, memory.rewards[part], memory.taken[part], live)))


class PullMemory(nn.Module):
    """The last pulls. A run that begins with another's weights begins with its pulls too, as many of the newest as it
    has room for, because the regression is made of them again after every training."""

    def __init__(self, size: int, inputs: int, device: torch.device):
        super().__init__()
        self.register_buffer("inputs", torch.zeros(size, inputs, device=device))
        self.register_buffer("rewards", torch.zeros(size, device=device))
        self.register_buffer("taken", torch.zeros(size, dtype=torch.int64, device=device))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))  # pulls that were added so far
        self.inputs: Tensor
        self.rewards: Tensor
        self.taken: Tensor
        self.seen: Tensor

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = {name: state_dict[f"{prefix}{name}"] for name in self.state_dict() if f"{prefix}{name}" in state_dict}
        if saved.keys() == self.state_dict().keys() and len(saved["rewards"]) != len(self.rewards):
            state_dict.update({f"{prefix}{name}": value for name, value in _resized(saved, len(self.rewards)).items()})
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @property
    def filled(self) -> int:
        """The number of pulls that are kept."""
        return min(int(self.seen), len(self.rewards))

    def add(self, x: Tensor, y: Tensor, arm: Tensor) -> None:
        """Writes what the network reads of each pull [N, D], rewards [N] and arms [N] over the oldest pulls."""
        room = len(self.rewards)
        # An update of several agents may have more pulls than there is room for. PyTorch does not say which of two
        # pulls with the same place would stay, and on a GPU it may be another one in each of the three tensors.
        skipped = max(len(y) - room, 0)
        places = (int(self.seen) + torch.arange(skipped, len(y), device=y.device)) % room
        self.inputs[places], self.rewards[places], self.taken[places] = x[skipped:], y[skipped:], arm[skipped:]
        self.seen += len(y)


def _resized(saved: dict[str, Tensor], size: int) -> dict[str, Tensor]:
    """The state of a PullMemory with room for `size` pulls, which holds the newest pulls of another."""
    seen, room = int(saved["seen"]), len(saved["rewards"])
    count = min(seen, room, size)
    newest = (seen - count + torch.arange(count)) % room
    made = {"seen": torch.tensor(count)}
    for name in ("inputs", "rewards", "taken"):
        made[name] = saved[name].new_zeros(size, *saved[name].shape[1:])
        made[name][:count] = saved[name][newest.to(saved[name].device)]
    return made
