"""MBMPO: model-based meta-policy optimisation (Clavera et al. 2018, arXiv:1809.05214, algorithm 1).

MAML (algos/maml.py) whose tasks are the members of an ensemble of learnt models of the dynamics.

Rows: every real environment plays fragment_length rows (whole episodes with runner.complete_episodes=true), with a
policy that was adapted to one member of the ensemble (algorithm 1, line 4). Each update adds their rows to the last
dynamics.capacity ones (line 5) and fits the ensemble to them (line 6). It then makes maml_updates updates of MAML on
imagined rows (lines 7 to 12). Every task is one member; its episodes have imagined_length rows and begin with
observations that real episodes began with. Finally every task's policy is adapted once more, to collect the next real
rows.
Recorded: nothing.
Options: the first random_steps env steps are uniformly random, and no update learns before they are over (with
explore=false there are none).
Differs from the paper: the outer step is PPO's and not TRPO's. Imagined episodes have one length and never end, as in
the author's code; their last rows bootstrap from the value. Rewards are known functions of observations
(envs/rewards.py, or the environment's own method reward(obs, action, next_obs)).
Metrics: those of MAML, of imagined rows, where adapt_0 ... are means over the update's updates of MAML, and
maml_1/adapt_0 ... those of each (RLlib's MAMLIter...); model_loss: mean squared error of normalised changes of held-out
rows after the fit, and model_epochs; model_error_1, _10 and _50: the squared error of predictions so many rows ahead,
relative to the variance of observations, on real rows that the ensemble has not been fitted to; model_rows.
sample/return_mean is that of real episodes.
Checked: tests/algos/test_mbmpo.py (the true environment in place of the ensemble is MAML; fits; early stopping),
tuned/mbmpo/.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from rlrun.algos.maml import MAML
from rlrun.core.algorithm import LearnerContext, Needs, Update
from rlrun.core.batch import Batch
from rlrun.core.env import TaskEnv
from rlrun.core.errors import Notice
from rlrun.core.metrics import Means
from rlrun.core.ranges import Count
from rlrun.core.schedule import Clock
from rlrun.core.specs import Box, EnvSpec
from rlrun.families.meta import MetaConfig
from rlrun.models.dynamics import DynamicsConfig, Ensemble, LearntEnv, Patience, known_reward
from rlrun.models.model import Model
from rlrun.policies import AdaptedPolicy
from rlrun.policies.adapted import by_task, together

STARTS = 1000  # first observations of real episodes that are kept
AHEAD = (1, 10, 50)  # rows of predictions whose error is logged
# Why algorithms that add rewards of their own (icm, rnd, re3) cannot hold this one.
IMAGINES = "it learns from imagined rows, whose rewards are computed from its model, and never sees an added reward"


@dataclass(frozen=True, kw_only=True)
class Config(MetaConfig):
    imagined_length: Annotated[int, Count]
    maml_updates: Annotated[int, Count]
    dynamics: DynamicsConfig


class MBMPO(MAML):
    cfg: Config  # type: ignore[assignment]
    inputs: Tensor
    changes: Tensor
    starts: Tensor
    rows_seen: Tensor
    starts_seen: Tensor
    fits: Tensor

    @classmethod
    def needs(cls, cfg: Config) -> Needs:  # type: ignore[override]
        return Needs(rows=cfg.fragment_length, columns=cfg.num_tasks, actions=("discrete", "box"), on_policy=True)

    @classmethod
    def make_policy(cls, spec: EnvSpec, model: Model, cfg: Config) -> AdaptedPolicy:  # type: ignore[override]
        return AdaptedPolicy(spec, model, cfg.explorer(spec), cfg.num_tasks, envs_per_task=1, saved=True)

    def __init__(self, policy: AdaptedPolicy, spec: EnvSpec, cfg: Config, ctx: LearnerContext):
        if ctx.learners > 1:
            raise ValueError("one learner fits the models: set resources.num_learners=1")
        if not isinstance(spec.observation, Box) or spec.image or spec.columns_per_env > 1 or len(spec.obs) > 1:
            raise ValueError(f"models of the dynamics are for one agent that sees numbers, not for {spec.name}")
        if spec.stack > 1:
            raise ValueError("env.stack must be 1: models of the dynamics predict one observation from one")
        if spec.reward_class is None:
            raise ValueError(
                f"rewards of imagined steps must be known, and {spec.name} has no method reward(obs, action, next_obs);"
                " those of Gymnasium's environments that rlrun knows are not for env.wrappers, env.action_repeat or"
                " env.kwargs that change them"
            )
        if cfg.num_tasks < cfg.dynamics.members:
            warnings.warn(
                f"algo.num_tasks={cfg.num_tasks} is below algo.dynamics.members={cfg.dynamics.members}, so that some"
                " members are fitted and never played",
                Notice,
                stacklevel=2,
            )
        super().__init__(policy, spec, cfg, ctx)
        self.reward = known_reward(spec)
        dynamics = cfg.dynamics
        self.ensemble = Ensemble(spec, dynamics.members, dynamics.hidden, dynamics.weight_norm, dynamics.normalize)
        self.ensemble.to(ctx.device)
        self.model_optimizer = ctx.optimizer(self.ensemble.parameters(), cfg.optimizer, dynamics.lr, 0.0)
        # The last real rows and first observations, which are written in turns.
        for name, shape in (
            ("inputs", (dynamics.capacity, self.ensemble.inputs)),
            ("changes", (dynamics.capacity, self.ensemble.outputs)),
            ("starts", (STARTS, *spec.observation.shape)),
        ):
            self.register_buffer(name, torch.zeros(shape, device=ctx.device))
        for name in ("rows_seen", "starts_seen", "fits"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=ctx.device))

    # -- real rows -----------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, clock: Clock) -> Update:
        cfg, batch = self.cfg, batch.lived()
        metrics: dict[str, Any] = self.prediction_errors(batch) if int(self.fits) else {}
        self.remember(batch)
        metrics["model_rows"] = float(min(int(self.rows_seen), cfg.dynamics.capacity))
        if cfg.explore and clock.env_steps < cfg.random_steps:
            return Update(metrics)
        metrics |= self.fit(clock)
        self.fits += 1
        means, world = Means(), self.world()
        for number in range(cfg.maml_updates):
            told = super().update(self.imagined_rounds(world), clock).metrics
            means.add(told)
            metrics |= {f"maml_{number + 1}/{name}": told[name] for name in told if name.startswith("adapt_")}
        self.adapt_to(world)
        return Update({**metrics, **means.tensors()})

    @torch.no_grad()
    def remember(self, batch: Batch) -> None:
        """Adds the live rows of a batch [T(+1), B, ...], and first observations, to what is kept."""
        obs, live = batch.obs.observation.float(), batch.valid  # whole numbers may have no room for negative changes
        x = self.ensemble.inputs_of(obs[:-1][live], batch.action[live])
        self.write("rows_seen", inputs=x, changes=(obs[1:] - obs[:-1])[live].flatten(1))
        self.write("starts_seen", starts=obs[batch.is_first])

    def write(self, count: str, **new: Tensor) -> None:
        """Writes rows [N, ...] over the oldest ones of buffers of the same size. count: the buffer that counts them."""
        seen = getattr(self, count)
        for name, rows in new.items():
            kept = getattr(self, name)
            rows = rows[-len(kept) :]
            places = (int(seen) + torch.arange(len(rows), device=kept.device)) % len(kept)
            kept[places] = rows.to(kept)
        seen += len(next(iter(new.values()))[-len(getattr(self, next(iter(new)))) :])

    # -- the ensemble --------------------------------------------------------------------------------------------------

    def fit(self, clock: Clock) -> dict[str, Tensor | float]:
        """Fits every member to rows of its own choice, until its error on the others has not fallen for a while."""
        cfg, count, rng, device = self.cfg.dynamics, int(self.rows_seen), self.ctx.rng, self.ctx.device
        x, change = self.inputs[:count], self.changes[:count]
        self.ensemble.measure(x, change)
        target = self.ensemble.normalized(change)
        num_held_out = max(1, int(len(x) * cfg.valid_share))
        order = torch.stack([torch.randperm(len(x), generator=rng, device=device) for _ in range(cfg.members)])
        held_out, train = order[:, :num_held_out], order[:, num_held_out:]  # row numbers [M, ...]
        patience = Patience(cfg.members, cfg.patience)
        kept = [parameter.detach().clone() for parameter in self.ensemble.parameters()]
        error, epochs = torch.zeros(cfg.members), 0
        for epoch in range(cfg.max_epochs):
            shuffle = torch.argsort(torch.rand(train.shape, generator=rng, device=device), 1)
            mixed, going = train.gather(1, shuffle), patience.going.to(device)
            for rows in mixed.split(cfg.batch_size, 1):
                each = (self.ensemble(x[rows]) - target[rows]).square().mean((1, 2))  # [M]
                self.model_optimizer.step((each * going).sum(), clock)
            with torch.no_grad():
                error = (self.ensemble(x[held_out]) - target[held_out]).square().mean((1, 2))
            last = epoch == cfg.max_epochs - 1
            stopped = patience.hear(error) | (patience.going if last else torch.zeros_like(patience.going))
            for saved, parameter in zip(kept, self.ensemble.parameters(), strict=True):
                saved[stopped.to(device)] = parameter.detach()[stopped.to(device)]
            epochs = epoch + 1
            if last or not patience.going.any():
                break
        with torch.no_grad():
            for saved, parameter in zip(kept, self.ensemble.parameters(), strict=True):
                parameter.copy_(saved)  # momentum moves members on that have stopped
            error = (self.ensemble(x[held_out]) - target[held_out]).square().mean((1, 2))
        return {"model_loss": error.mean(), "model_epochs": float(epochs)}

    @torch.no_grad()
    def prediction_errors(self, batch: Batch) -> dict[str, Tensor]:
        """The mean squared error of all members so many rows ahead, relative to the variance of observations, from
        row 0 of a batch with the actions that were taken."""
        true, live = batch.obs.observation.float(), batch.valid
        variance = true[:-1][live].flatten(1).var(0, unbiased=False).clamp(min=1e-8)
        predicted = true[0].flatten(1).expand(self.ensemble.members, -1, -1)
        found = {}
        for row in range(min(max(AHEAD), len(live))):
            x = torch.stack([self.ensemble.inputs_of(one.view(true[0].shape), batch.action[row]) for one in predicted])
            predicted = self.ensemble.next(predicted, x)
            alive_so_far = live[: row + 1].all(0)
            if row + 1 in AHEAD and alive_so_far.any():
                error = (predicted - true[row + 1].flatten(1)).square() / variance
                found[f"model_error_{row + 1}"] = error[:, alive_so_far].mean()
        return found

    # -- imagination ---------------------------------------------------------------------------------------------------

    def world(self) -> TaskEnv:
        """The environment of imagined rows."""
        world = LearntEnv(self.ensemble, self.reward, self.cfg.num_tasks * self.cfg.envs_per_task, self.ctx.rng)
        world.starts = self.starts[: int(self.starts_seen)]
        tasks = world.sample_tasks(self.cfg.num_tasks, 0)
        world.set_tasks([task for task in tasks for _ in range(self.cfg.envs_per_task)])
        return world

    def imagined_rounds(self, world: TaskEnv) -> Batch:
        """The rounds of one update of MAML, side by side [T(+1), B, ...]."""
        rounds: list[Batch] = []
        self.adapt(None)
        for number in range(self.cfg.inner_steps + 1):
            rounds.append(self.imagine(world, number))
            if number < self.cfg.inner_steps:
                self.adapt(rounds[-1])
        return stacked(rounds, 1)

    def adapt_to(self, world: TaskEnv) -> None:
        """Adapts every task's policy to the ensemble, for real rows."""
        self.adapt(None)
        for number in range(self.cfg.inner_steps):
            self.adapt(self.imagine(world, number))

    @torch.no_grad()
    def imagine(self, world: TaskEnv, number: int) -> Batch:
        """Plays a round with the policies of all tasks: imagined_length rows [T(+1), B, ...]."""
        rows: list[Batch] = []
        first = torch.ones(1, world.count, dtype=torch.bool, device=self.ctx.device)
        obs, dead = self.seen_rows(world.reset(number)), ~first[0]
        for _ in range(self.cfg.imagined_length):
            each = by_task(obs.map(lambda x: x.unsqueeze(0)), self.width), by_task(first, self.width)
            outputs = together(self.policy.outputs_of(self.policy.adapted, *each))
            dist = outputs.dist[0]
            action = dist.sample(self.ctx.rng)
            step = world.step(action.cpu().numpy())
            rows.append(
                Batch(
                    obs=obs,
                    is_first=first[0],
                    action=action,
                    reward=torch.from_numpy(step.reward).to(action.device),
                    **{
                        name: torch.from_numpy(getattr(step, name)).to(action.device)
                        for name in ("terminated", "truncated", "valid")
                    },
                    log_prob=dist.log_prob(action),
                    dist=dist.record(),
                    value=outputs.value[0],
                )
            )
            obs = self.seen_rows(step.obs)
            first = torch.from_numpy(step.is_first).to(action.device).unsqueeze(0)
        made = stacked([row.map(lambda x: x.unsqueeze(0)) for row in rows], 0)
        return made.replace(
            obs=stacked([made.obs, obs.map(lambda x: x.unsqueeze(0))], 0),
            is_first=torch.cat([made.is_first, dead.unsqueeze(0)]),
        )

    def seen_rows(self, obs: Any) -> Batch:
        return Batch({name: torch.from_numpy(part).to(self.ctx.device) for name, part in obs.items()})


def stacked(batches: list[Batch], axis: int) -> Batch:
    """Batches with the same fields, one behind the other along this axis."""
    return Batch(
        {
            name: stacked([one[name] for one in batches], axis)  # type: ignore[misc]
            if isinstance(value, Batch)
            else torch.cat([one[name] for one in batches], axis)  # type: ignore[misc]
            for name, value in batches[0].items()
        }
    )
