"""Every algorithm whose file bounds rewards learns from the bounded ones, in all places where it reads a reward."""

from pathlib import Path

import pytest
import torch
from families import fits
from test_all import CASES, batches, start

import rlrun.algos
from rlrun.core.optimizer import Optimizer
from rlrun.core.schedule import Clock

FILES = sorted(Path(rlrun.algos.__file__).parent.glob("*.py"))
# An update of maml takes too long for this.
BOUNDING = [path.stem for path in FILES if "clip_reward(" in path.read_text() and path.stem != "maml"]


@pytest.mark.parametrize("algo", BOUNDING)
def test_what_is_learnt_from_is_the_bounded_reward(typed, algo, monkeypatch):
    (case, *_) = (case for case in CASES if fits(algo, case))
    wiring, made, sampler = start(typed, algo, *CASES[case], "algo.reward_clip=0.5")
    (batch,) = batches(wiring, sampler, 1)
    reward = 3 * torch.randn(batch.reward.shape, generator=torch.Generator().manual_seed(0))
    reward[..., 1:] *= reward.ndim == 2  # of a team one agent is paid, because some bound the sum
    saved = {name: value.clone() for name, value in made.state_dict().items()}
    generators = {made.ctx.rng, *(one for one in vars(made).values() if isinstance(one, torch.Generator))}
    drawn, losses = {one: one.get_state() for one in generators}, []

    def differentiate(self, loss):
        losses.extend(float(one.detach()) for one in ([loss] if isinstance(loss, torch.Tensor) else loss))
        self.whole.grad.zero_()  # so that nothing is learnt

    monkeypatch.setattr(Optimizer, "differentiate", differentiate)

    def learnt(reward):
        """The losses of an update with these rewards."""
        made.load_state_dict(saved)
        for generator, state in drawn.items():
            generator.set_state(state)
        losses.clear()
        made.update(batch.replace(reward=reward), Clock())
        return list(losses)

    raw, bounded, other = (learnt(x) for x in (reward, reward.clamp(-0.5, 0.5), reward.clamp(-0.4, 0.4)))
    assert raw == bounded != other
