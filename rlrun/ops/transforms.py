"""Transformations of rewards and values."""

from typing import Literal

from torch import Tensor

RewardClip = Literal["none", "sign"] | float


def clip_reward(reward: Tensor, clip: RewardClip) -> Tensor:
    """Returns the reward to learn from: the raw one [T, B], its sign (Mnih et al. 2015), or bounded to [-clip, clip].

    Rows keep the raw reward.
    """
    if clip == "none":
        return reward
    if clip == "sign":
        return reward.sign()
    return reward.clamp(-clip, clip)
