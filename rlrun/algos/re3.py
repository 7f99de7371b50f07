"""RE3: random encoders for efficient exploration (Seo et al. 2021, arXiv:2102.09430) around another algorithm that
learns the policy of one agent from its rewards, for example algo=re3 algo@algo.inner=sac. docs/exploration.md says
which algorithms can be inside.

Rows: those of the inner algorithm (algo.inner), which learns from the sum of the environment's and an intrinsic
reward.
Recorded: what the inner algorithm records.
An encoder with random weights, which never learns, maps observations to embeddings y. The intrinsic reward of row t is
log(||y_t - y_t^k|| + 1), where y_t^k is the k-th nearest of the other embeddings (eq. 2), weighted by beta. Its mean
over the rows is an estimate of the entropy of the states visited, up to a constant and a factor, so the policy learns
to visit states evenly. beta may fall by a schedule: the paper's beta_0 (1 - rho)^t at env step t is {start: beta_0,
end: beta_0 (1 - rho)^N, steps: N, curve: exponential}.
Around an algorithm with new rows, neighbours are looked for among all live rows of the batch, as in the paper (and
those of all learners). Around an algorithm with a replay they are looked for among the rows of the batch drawn, as
RLlib does, and not in the whole replay, whose embeddings the paper keeps. A batch is a random sample of the replay, in
which distances are larger, but rare states are still those with distant neighbours; with replay=prioritized it is the
sample that the priorities make. A row's reward is computed anew whenever it is drawn.
Differs from RLlib: a row is not its own neighbour, and the reward is the logarithm of a distance. RLlib computes its
reward from the index that the k-th neighbour has in the batch, which says nothing about its distance.
The inner algorithm's reward_clip bounds the environment's rewards only, and its normalize_reward must be false.
Reported returns are those of the environment alone.
Metrics: those of the inner algorithm; learn/intrinsic_reward: mean per row, weighted by beta; state_entropy: the same
without beta, in nats; with beta=0 it is only measured; beta.
Checked: tests/algos/test_re3.py (against a search by brute force), tuned/re3/ (around SAC, the states visited in
Pendulum have more entropy with it than without. Around PPO with beta=300, state_entropy was 0.192, 0.184 and 0.182 for
seeds 1 to 3, the mean of the last ten updates of 40,000 env steps, and 0.183, 0.179 and 0.175 with beta=0; with beta=10
no difference was found).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rlrun.algos.mbmpo import IMAGINES, MBMPO
from rlrun.core.algorithm import Algorithm, LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.conditions import REWARDING_LAYERS, OnlyFor
from rlrun.core.moments import Moments
from rlrun.core.policy import Policy
from rlrun.core.ranges import Count, NotNegative
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.families.intrinsic import check_inner, flat_rows, make_inner, needs_around, random_features
from rlrun.models.model import Model
from rlrun.ops.transforms import clip_reward

PAIRS = 2**22  # distances that are computed at once; 16 MiB of float32


@dataclass(frozen=True, kw_only=True)
class Config:
    name: str
    inner: Any  # Inner
    beta: Annotated[Schedule, NotNegative]
    k_nearest: Annotated[int, Count]
    embedding_size: Annotated[int, Count]
    encoder_hidden: tuple[Annotated[int, Count], ...]
    activation: Annotated[Literal["tanh", "relu", "elu", "silu"], OnlyFor(REWARDING_LAYERS)]

    def __post_init__(self):
        check_inner(self.name, self.inner)


class RE3(Algorithm):
    holds_another = True
    cfg: Config
    inner: Algorithm

    @classmethod
    def can_hold(cls, inner: type[Algorithm]) -> str | None:
        return IMAGINES if issubclass(inner, MBMPO) else None

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return needs_around(cfg.inner)

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> Policy:
        return cfg.inner.algorithm.make_policy(spec, model, cfg.inner.cfg)

    def __init__(self, policy: Policy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.inner = make_inner(cfg.inner, policy, spec, ctx, "beta")
        needs = self.needs(cfg)
        # The rows of a batch, or the fewest of them that can be live where a replay draws fragments.
        rows = needs.columns * (needs.rows if needs.replay is None else needs.replay.rows_from)
        if cfg.k_nearest >= rows:
            raise ValueError(f"k_nearest {cfg.k_nearest} must be below the {rows} rows of a batch")
        self.encoder = random_features(spec, cfg.encoder_hidden, cfg.activation, cfg.embedding_size)
        self.encoder.requires_grad_(False).to(ctx.device)

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, valid = self.cfg, batch.valid
        entropy = self.state_entropy(batch)  # [T, B]
        beta = cfg.beta(clock)
        shares = {"intrinsic_reward": self.mean(beta * entropy, valid), "state_entropy": self.mean(entropy, valid)}
        extrinsic = clip_reward(batch.reward, cfg.inner.cfg.reward_clip)
        update = self.inner.update(batch.replace(reward=extrinsic + beta * entropy), clock)
        return Update({**update.metrics, **self.report(shares, {"beta": beta})}, update.writes)

    @torch.no_grad()
    def state_entropy(self, batch: Batch) -> Tensor:
        """Returns log(||y - y^k|| + 1) [T, B] of the rows of a batch [T(+1), B], and 0 for dead rows."""
        valid = batch.valid.flatten()
        embeddings = self.encoder(flat_rows(batch.obs["observation"][:-1]))  # [T * B, D]
        distance = distance_to_nearest(
            embeddings,
            self._everyones(embeddings),
            self._everyones(valid.float()[:, None])[:, 0] > 0,
            self.cfg.k_nearest,
        )
        return distance.log1p().masked_fill(~valid, 0.0).unflatten(0, batch.valid.shape)

    def _everyones(self, rows: Tensor) -> Tensor:
        """Returns the rows [n, D] of all learners, one learner's behind the other's."""
        return rows if self.ctx.learners == 1 else self.of_all(rows.flatten()).unflatten(0, (-1, rows.shape[1]))

    def absorb_returns(self, moments: list[Moments | None]) -> None:  # type: ignore[override]
        self.inner.absorb_returns(moments)


def distance_to_nearest(points: Tensor, others: Tensor, live: Tensor, k: int) -> Tensor:
    """Returns the distance [N] of each point to the k-th nearest of the other live ones, or to the farthest if
    there are fewer than k.

    points [N, D], others [M, D], which hold the points themselves; live [M] bool says which of the others count. The
    result means nothing for a point that is not live itself.
    """
    found = []
    for part in points.split(max(1, PAIRS // len(others))):
        # Products of matrices would be faster, but equal states would have a distance above 0.
        distance = torch.cdist(part, others, compute_mode="donot_use_mm_for_euclid_dist")
        distance = distance.masked_fill(~live, torch.inf)
        nearest = distance.topk(min(k + 1, len(others)), largest=False).values  # the point itself is the first
        found.append(nearest.masked_fill(nearest.isinf(), 0.0).amax(-1))
    return torch.cat(found)
