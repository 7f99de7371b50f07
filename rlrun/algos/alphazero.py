"""AlphaZero: learning to guess what a tree search finds (Silver et al. 2018, doi:10.1126/science.aar6404), for two
players, or for one with ranked rewards (Laterre et al. 2018, arXiv:1807.01672).

Rows: single rows of finished episodes, drawn from a replay. Rows in which a player only waited are not drawn. While a
row is acted on, it also holds the state of the environment's simulator (core/games.py), which is not stored.
Recorded: search_policy, the policy that the search recommends; searched, whether it was this column's turn; value, the
search's value or, of the observation behind a time limit, the network's, which stands for the rewards that are missing.
Two players share one policy, which sees the game from the side to move. They are two columns that wait for each other.
A single player without ranked rewards learns discounted returns, and the search rescales the values of sibling moves to
[0, 1] (MuZero, Schrittwieser et al. 2020, rescales over the whole tree). With ranked rewards, an episode counts as 1 if
its return is above a percentile of the last returns, and as -1 if it is below. The search judges the ends of games by
the same percentile, and replayed rows are judged by the newest one.
Options: symmetries, by which each row is mirrored or turned at random, as in AlphaGo Zero; search.root=gumbel
(Danihelka et al. 2022, "Policy improvement by planning with Gumbel") for few simulations; search.min_depth, below
which every move is tried once first; temperature, also for a first part of the game alone.
Differs from the paper: the tree is not kept for the next move; a move that has not been tried has the value of its
node, where the paper's pseudocode has 0 (search.unvisited=zero). Differs from RLlib: docs/alphazero.md.
Metrics: learn/policy_loss: mean cross-entropy of the search's policy and the network's; value_loss: mean squared error;
entropy of the network's policy; kl of the search's policy and the network's, which falls as the search finds less that
is new; explained_variance of the values; with ranked rewards threshold and won, the share of the labels that are 1;
grad_norm before clipping; lr.
Checked: tests/algos/test_tree_search.py (a recursive search; known answers), tests/algos/test_alphazero.py,
tuned/alphazero/.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from rlrun.core.algorithm import Algorithm, FromReplay, LearnerContext, Needs, Update, recorded
from rlrun.core.batch import Batch
from rlrun.core.conditions import EXPERIENCE, PACED, TEMPERED, OnlyFor, OnlyWith
from rlrun.core.errors import Notice, UserError
from rlrun.core.optimizer import OptimizerConfig
from rlrun.core.ranges import Count, NotNegative, Positive
from rlrun.core.schedule import Clock, Schedule
from rlrun.core.specs import EnvSpec
from rlrun.models.model import Model
from rlrun.policies import ActingConfig
from rlrun.policies.planning import CLOSE, RankedConfig, SearchPolicy
from rlrun.policies.search import SearchConfig

# Conditions for moves that are drawn by their visits.
DRAWN = (OnlyWith("explore"), OnlyWith("algo.search.root", "puct"), OnlyFor(TEMPERED))


@dataclass(frozen=True, kw_only=True)
class Config(ActingConfig):
    name: str
    fragment_length: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    num_envs: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    batch_size: Annotated[int, Count]
    replay_ratio: Annotated[float, Positive, OnlyFor(PACED), OnlyFor(EXPERIENCE)]
    learning_starts: Annotated[int, Count, OnlyFor(EXPERIENCE)]
    lr: Annotated[Schedule, NotNegative]
    optimizer: OptimizerConfig
    max_grad_norm: Annotated[float, NotNegative]
    value_coef: Annotated[float, NotNegative]
    search: SearchConfig
    temperature: Annotated[Schedule, NotNegative, *DRAWN]
    temperature_moves: Annotated[Annotated[int, Count] | None, OnlyWith("temperature"), *DRAWN]
    eval_simulations: Annotated[int, NotNegative] | None
    symmetries: bool
    ranked: RankedConfig

    def __post_init__(self):
        if self.ranked.enabled and self.search.discount != 1.0:
            raise ValueError(
                f"search.discount {self.search.discount:g} must be 1 with ranked rewards: an episode is won or lost as"
                " a whole, however far away its end is"
            )


class AlphaZero(Algorithm):
    cfg: Config
    policy: SearchPolicy

    @classmethod
    def needs(cls, cfg: Config) -> Needs:
        return Needs(
            rows=1,
            columns=cfg.batch_size,
            actions=("discrete",),
            record=("search_policy", "searched", "value"),
            simulator=True,
            replay=FromReplay(
                fragment_length=cfg.fragment_length,
                num_envs=cfg.num_envs,
                learning_starts=cfg.learning_starts,
                ratio=cfg.replay_ratio,
                priorities=False,
                outcomes=cfg.search.discount,
                drawn="searched",
            ),
        )

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> SearchPolicy:
        if cfg.symmetries and spec.game is not None and spec.game.make().symmetries() is None:
            raise UserError(f"algo.symmetries=true is for games that know how to be mirrored; {spec.name} does not")
        return SearchPolicy(
            spec,
            model,
            cfg.search,
            cfg.explorer(spec),
            cfg.temperature,
            cfg.temperature_moves,
            cfg.eval_simulations,
            cfg.ranked,
        )

    def __init__(self, policy: SearchPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        super().__init__(policy, spec, cfg, ctx)
        self.optimizer = ctx.optimizer(policy.parameters(), cfg.optimizer, cfg.lr, cfg.max_grad_norm)
        self.turns = None
        alone = not policy.bounded
        if alone and cfg.search.discount == 1.0 and spec.max_episode_steps is not None:
            warnings.warn(
                f"algo.search.discount=1 does not discount rewards. Where a time limit cuts an episode of {spec.name}"
                " off, the network's value stands for the rewards that would follow. If every step is paid, values grow"
                " without a bound: set algo.search.discount=0.997, as in MuZero",
                Notice,
                stacklevel=2,
            )
        if cfg.symmetries and (known := policy.game.symmetries()) is not None:
            self.turns = [torch.from_numpy(table.copy()).to(ctx.device) for table in known]
        if cfg.ranked.enabled:
            seed = int(torch.randint(2**62, (), generator=ctx.rng, device=ctx.device))
            policy.begin_ranks(np.random.default_rng(seed))

    @recorded
    def update(self, batch: Batch, clock: Clock) -> Update:
        loss, shares, same = self.loss(batch)
        steps = self.optimizer.step(loss, clock)
        return Update(self.report(shares, steps, same))

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Returns this learner's shares of l = (z - v)^2 - pi^T log p [] and of metrics, and metrics that all know.

        batch is [1, B]."""
        cfg = self.cfg
        z, same = self.outcome(batch)
        obs, pi = self.turned(batch.obs[:1], batch.search_policy)
        log_p, v = self.policy.unroll(Batch(obs=obs))
        cross_entropy = -(pi * log_p).sum(-1)
        policy_loss, value_loss = self.mean(cross_entropy), self.mean((z - v).square())
        loss = policy_loss + cfg.value_coef * value_loss
        with torch.no_grad():
            search_entropy = -(pi * pi.clamp(min=1e-12).log()).sum(-1)
            shares = {
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": self.mean(-(log_p.exp() * log_p).sum(-1)),
                "kl": self.mean(cross_entropy - search_entropy),
            }
            if cfg.ranked.enabled:
                shares["won"] = self.mean((z > 0).float())
            same["explained_variance"] = self.explained_variance(z, v.detach(), torch.ones_like(z, dtype=torch.bool))
        return loss, shares, same

    def turned(self, obs: Batch, pi: Tensor) -> tuple[Batch, Tensor]:
        """Turns or mirrors each row's board and the search's policy [1, B, A] in one of the game's ways, which is drawn
        uniformly (AlphaGo Zero, methods, "Optimisation")."""
        if self.turns is None:
            return obs, pi
        fields, actions = self.turns
        drawn = (self.ctx.rand(pi.shape[:2]) * len(actions)).long()
        seen, to = obs.observation, actions[drawn]  # [1, B, height, width, planes], [1, B, A]
        flat = seen.flatten(2, 3)
        there = fields[drawn].unsqueeze(-1).expand_as(flat)
        made = {"observation": flat.gather(2, there).view_as(seen), "action_mask": obs.action_mask.gather(-1, to)}
        return Batch(made), pi.gather(-1, to)

    @torch.no_grad()
    def outcome(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns z [1, B]: the return behind each row, or, with ranked rewards, 1 or -1 for its episode."""
        if not self.cfg.ranked.enabled:
            return batch.return_to_go, {}
        threshold, total = self.policy.ranked_threshold, batch.episode_return.double()
        same = torch.ones_like(batch.reward)
        if self.cfg.ranked.ties == "random":
            same = torch.where(self.ctx.rand(batch.reward.shape) < 0.5, same, -same)
        close = threshold.isfinite() & ((total - threshold).abs() <= CLOSE * threshold.abs().clamp(min=1.0))
        z = torch.where(close, same, torch.where(total > threshold, 1.0, -1.0))
        if self.cfg.ranked.best is not None:
            z = torch.where(total >= self.cfg.ranked.best - CLOSE * max(1.0, abs(self.cfg.ranked.best)), 1.0, z)
        return z, {"threshold": threshold.clone()}
