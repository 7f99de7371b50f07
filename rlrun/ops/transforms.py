"""Transformations of rewards and values."""

from typing import Literal

from torch import Tensor

RewardClip = Literal["none", "sign"] | float


def clip_reward(reward: Tensor, clip: RewardClip) -> Tensor:
    """Raw reward [T, B] -> what is learnt from: unchanged, its sign (Mnih et al. 2015), or bounded to [-clip, clip]. Rows keep the raw one."""
    if clip == "none":
        return reward
    if clip == "sign":
        return reward.sign()
    return reward.clamp(-clip, clip)
