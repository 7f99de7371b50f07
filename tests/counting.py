"""A policy that carries the count and an algorithm that asserts it: proves order, resets and recurrent state through every process at once."""

from __future__ import annotations

import torch

from rlrun.core.algorithm import Algorithm, Needs, Update
from rlrun.core.batch import Batch, Field
from rlrun.core.policy import Act, Policy

LENGTH = 7  # of Counting-v0's episodes


class CountingPolicy(Policy):
    """Its state counts the rows since is_first; its record is that count, its action the count mod 5."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def core_spec(self):
        return {"count": Field((), torch.float32)}

    def record_spec(self, names):
        return {name: {"log_prob": Field((), torch.float32)}[name] for name in names}

    def initial_state(self, columns, place=None):
        return Batch(count=torch.zeros(columns))

    def act(self, obs, is_first, state, clock, mode, rng, record=()):
        count = torch.where(is_first, 0.0, state.count)
        return Act((count % 5).long(), Batch(count=count + 1), Batch(dict.fromkeys(record, count)))


class CountingAlgorithm(Algorithm):
    """Asserts every row that it is given; `rows` counts the live ones."""

    @classmethod
    def needs(cls, cfg):
        return Needs(
            rows=cfg.fragment_length,
            columns=cfg.batch_size // cfg.fragment_length,
            record=("log_prob",),
            core_every=cfg.fragment_length,
        )

    @classmethod
    def make_policy(cls, spec, model, cfg):
        return CountingPolicy()

    def __init__(self, policy, spec, cfg, ctx):
        super().__init__(policy, spec, cfg, ctx)
        self.rows = self.updates = 0

    def update(self, batch, clock):
        check_rows(batch)
        assert batch.reward.shape == (
            self.cfg.fragment_length,
            self.cfg.batch_size // self.cfg.fragment_length // self.ctx.ranks.world,
        )
        self.rows += int(batch.valid.sum())
        self.updates += 1
        assert clock.updates == self.updates - 1
        with torch.no_grad():
            self.policy.weight.fill_(self.updates)
        assert clock.env_steps == int(self.ctx.ranks.sum(torch.tensor(self.rows))) or self.ctx.ranks.world == 1
        return Update({"rows": float(self.rows), "clock": float(clock.env_steps)})


def check_rows(batch: Batch) -> None:
    """Every row of every column is what Counting-v0 and CountingPolicy must have produced."""
    episode, step, tag = batch.obs.observation.unbind(-1)  # [T+1, B]
    rows, columns = batch.reward.shape
    assert torch.equal(batch.is_first, step == 0)
    assert torch.equal(batch.core.count[0], torch.where(step[0] == 0, batch.core.count[0], batch.log_prob[0]))
    for t in range(rows):
        for b in range(columns):
            now, following = (int(episode[t, b]), int(step[t, b])), (int(episode[t + 1, b]), int(step[t + 1, b]))
            assert batch.log_prob[t, b] == now[1], "the policy's count is the env's step"
            if not batch.valid[t, b]:
                assert now[1] == LENGTH and following == (now[0] + 1, 0)
                assert batch.reward[t, b] == 0 and not batch.terminated[t, b] and not batch.truncated[t, b]
                continue
            assert following == (now[0], now[1] + 1) and tag[t, b] == tag[t + 1, b]
            assert batch.reward[t, b] == following[1]
            assert batch.action[t, b] == now[1] % 5
            over = following[1] == LENGTH
            assert bool(batch.terminated[t, b]) == (over and now[0] % 2 == 0)
            assert bool(batch.truncated[t, b]) == (over and now[0] % 2 == 1)
