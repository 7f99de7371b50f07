"""Whether spaces are ones that rlrun can learn with, and whether values are in their spaces."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.core.errors import UserError
from rlrun.core.specs import any_legal
from rlrun.envs.check_report import Findings, shown
from rlrun.envs.gym_spaces import MASK, observation_spaces, to_space
from rlrun.envs.infos import is_number
from rlrun.envs.misfits import first_of, index_text

BOUNDLESS = 1e30  # larger bounds, such as the largest float32, bound nothing


def check_space(report: Findings, space: Any, what: str, action: bool, owner: str) -> bool:
    """Reports what is wrong with a space. Returns whether the checks of values can go on.

    what: observation_space or action_space, perhaps of an agent. owner: how the class sets it, for the advice."""
    check = "action-space" if action else "observation-space"
    if space is None:
        report.error(check, f"{what} is None", f"set {owner} to a space of gymnasium.spaces in __init__")
        return False
    if not isinstance(space, gymnasium.Space):
        module = type(space).__module__
        if module.split(".")[0] == "gym":
            mend = "import gymnasium instead of gym; their spaces have the same names"
        else:
            mend = "make it a space of gymnasium.spaces, such as Box or Discrete"
        report.error(check, f"{what} is {shown(space)}, which is no Gymnasium space but a {type(space).__name__}", mend)
        return False
    for path, part in parts_of(space):
        where = what + path
        if isinstance(part, spaces.Box):
            _check_box(report, part, where, action, owner)
        elif isinstance(part, spaces.Discrete) and action and part.n == 1:
            report.warning(check, f"{where} has one action, so that there is nothing to learn", "offer at least two")
    return True


def check_supported(report: Findings, obs: Any, action: Any, name: str) -> None:
    """Reports spaces that rlrun has no networks for, and masks that do not fit the actions."""
    try:
        taken = to_space(action, "action", name)
        seen = obs
        if isinstance(obs, spaces.Dict):  # text is left out of Dict observations in training
            kept = {key: part for key, part in obs.spaces.items() if not isinstance(part, spaces.Text)}
            seen = spaces.Dict(kept) if kept else obs
        observation_spaces(seen, taken, name)
    except UserError as error:
        report.error(
            "supported-space",
            str(error),
            "a wrapper of env.wrappers can translate it, for example gymnasium.wrappers.FlattenObservation",
        )


def parts_of(space: gymnasium.Space, path: str = "") -> list[tuple[str, gymnasium.Space]]:
    """The spaces inside of a space, each with the index that leads to it, such as ['camera'][0]."""
    if isinstance(space, spaces.Dict):
        return [one for key, part in space.spaces.items() for one in parts_of(part, f"{path}[{key!r}]")]
    if isinstance(space, spaces.Tuple):
        return [one for number, part in enumerate(space.spaces) for one in parts_of(part, f"{path}[{number}]")]
    return [(path, space)]


def _check_box(report: Findings, box: spaces.Box, where: str, action: bool, owner: str) -> None:
    low, high = box.low, box.high
    check = "action-bounds" if action else "observation-bounds"
    if not low.size:
        report.error(check, f"{where} has the shape {box.shape}, which holds no numbers", "give it at least one number")
        return
    floating = np.issubdtype(box.dtype, np.floating)
    if floating and (np.isnan(low).any() or np.isnan(high).any()):
        report.error(check, f"{where} has a bound that is NaN", "use -np.inf and np.inf where nothing bounds a number")
        return
    over = low > high
    if over.any():
        at = first_of(over)
        report.error(
            check,
            f"{where} has the lowest value {low[at]} above the highest, {high[at]}{index_text(at)}",
            f"exchange low and high in {owner}",
        )
        return
    flat = low == high
    if action and flat.any():
        report.error(
            check,
            f"{where} has the lowest value {low[first_of(flat)]} as its highest{index_text(first_of(flat))}",
            "leave out a number that has one value, or widen its bounds",
        )
    elif flat.all():
        report.warning(
            check,
            f"{where} has its lowest value, {low.flat[0]}, as its highest: every observation would be the same",
            "give the bounds that observations have; -np.inf and np.inf are fine",
        )
    if action and floating:
        free = (np.abs(low.astype(np.float64)) > BOUNDLESS) | (np.abs(high.astype(np.float64)) > BOUNDLESS)
        if free.any():
            report.warning(
                "infinite-action",
                f"{where} is not bounded{index_text(first_of(free))}, so that rlrun cannot scale its actions, and SAC,"
                " TD3 and DDPG refuse it",
                "give the largest values that make sense, for example Box(-1, 1, shape), and scale them in step()",
            )
    if action and box.dtype.kind in "iu" and box.dtype.itemsize >= 4:
        limits = np.iinfo(str(box.dtype))
        free = (high == limits.max) | ((low == limits.min) & (low < 0))
        if free.any():
            report.warning(
                "infinite-action",
                f"{where} has no bound but that of {box.dtype}{index_text(first_of(free))}, and rlrun stretches what a"
                " policy chooses over all of its numbers",
                "give the smallest and largest values that make sense, for example Box(0, 10, shape, np.int64)",
            )
    if not action and box.dtype == np.uint8 and len(box.shape) == 3 and (low.min() != 0 or high.max() != 255):
        report.warning(
            check,
            f"{where} has the bounds {low.min()} to {high.max()}, and pictures of uint8 are divided by 255",
            "use low=0 and high=255",
        )


# -- masks and actions -------------------------------------------------------------------------------------------------


def mask_of(obs: Any, info: Any = None) -> np.ndarray | None:
    """The action mask of an observation, or of its info; None without one."""
    for place in (obs, info):
        if isinstance(place, dict) and MASK in place:
            try:
                return np.asarray(place[MASK])
            except Exception:  # lists of unlike lengths
                return np.asarray(None)
    return None


def check_mask(report: Findings, mask: np.ndarray, action: gymnasium.Space, over: bool, where: str) -> bool:
    """Reports what is wrong with a mask of legal actions. Returns whether one can be chosen by it."""
    mend = "let it be an array of 0 and 1 (or bools), one for each action"
    if mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
        report.error("action-mask", f"the action_mask is {shown(mask)}, and it may hold 0 and 1 alone", mend, where)
        return False
    if not isinstance(action, spaces.Discrete | spaces.MultiDiscrete):
        return False
    wanted = int(action.n) if isinstance(action, spaces.Discrete) else int(np.sum(action.nvec))
    if mask.size != wanted:
        report.error("action-mask", f"the action_mask has {mask.size} numbers for {wanted} actions", mend, where)
        return False
    legal = bool(any_legal(to_space(action, "action", where), mask.ravel()))
    if not over and not legal:
        choice = "action" if isinstance(action, spaces.Discrete) else "value of one of its choices"
        what = f"the action_mask leaves no legal {choice}, although the episode goes on"
        report.error("action-mask", what, f"leave one {choice} legal, or end the episode", where)
    return legal


def draw(space: gymnasium.Space, mask: np.ndarray | list[np.ndarray | None] | None, rng: np.random.Generator) -> Any:
    """A random action. Where a mask fits, it is a legal one; of a tuple, there may be one for each part."""
    if isinstance(space, spaces.Discrete) and isinstance(mask, np.ndarray) and mask.size == space.n and mask.any():
        return int(space.start + rng.choice(np.flatnonzero(mask.ravel())))
    if isinstance(space, spaces.Box):
        low = np.maximum(space.low.astype(np.float64), -1.0 if not np.isfinite(space.low).all() else -BOUNDLESS)
        high = np.minimum(space.high.astype(np.float64), 1.0 if not np.isfinite(space.high).all() else BOUNDLESS)
        high = np.maximum(low, high)
        made = rng.uniform(low, high)
        whole = space.dtype is not None and space.dtype.kind in "iu"
        return np.asarray(np.rint(made) if whole else made, dtype=space.dtype)  # without axes, made is a float
    if (
        isinstance(space, spaces.MultiDiscrete)
        and isinstance(mask, np.ndarray)
        and mask.size == int(np.sum(space.nvec))
    ):
        ends = np.cumsum(space.nvec.ravel())[:-1]
        chosen = [int(rng.choice(np.flatnonzero(m))) if m.any() else 0 for m in np.split(mask.ravel(), ends)]
        return (np.asarray(chosen).reshape(space.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: draw(part, None, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        each = mask if isinstance(mask, list) else [None] * len(space.spaces)
        return tuple(draw(part, one, rng) for part, one in zip(space.spaces, each, strict=True))
    # A copy, because the environment may draw from this space itself, and nothing seeds that in training.
    space = copy.deepcopy(space)
    space.seed(int(rng.integers(2**31)))
    return space.sample()


# -- rewards, ends and infos -------------------------------------------------------------------------------------------


def check_reward(
    report: Findings, reward: Any, where: str, agents: int | None = None, whose: str = "the reward"
) -> None:
    """Reports a reward that is no finite number. agents: how many may share a sequence of rewards; None: none may."""
    if agents is not None and isinstance(reward, list | tuple | np.ndarray) and np.shape(reward) == (agents,):
        for one in reward:
            check_reward(report, one, where)
        return
    mend = "return a float"
    if reward is None:
        report.error("reward", f"{whose} is None", f"{mend}; 0.0 where nothing is paid", where)
        return
    if isinstance(reward, bool | int | float | np.number | np.bool_):
        number = reward
    else:
        array = np.asarray(reward)
        if array.dtype.kind not in "biuf" or array.shape != ():
            kind = f"{type(reward).__name__} of the shape {array.shape}" if array.shape else type(reward).__name__
            what = f"{whose} is {shown(reward)} ({kind}), which is no number"
            report.error("reward", what, f"{mend}, such as float(reward) or reward.item()", where)
            return
        number = array.item()
    if not np.isfinite(number):
        what = f"{whose} is {number}"
        report.error("reward-finite", what, "find where it comes from, such as a division by 0 or a log of 0", where)


def check_end(report: Findings, name: str, value: Any, where: str) -> None:
    """Reports a terminated or truncated that is no bool."""
    if isinstance(value, bool | np.bool_) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool
    ):
        return
    what = f"{name} is {shown(value)} ({type(value).__name__}), which is no bool"
    number = isinstance(value, int | float | np.number) and value in (0, 1)
    report_it = report.warning if number else report.error
    report_it(f"{name}-type", what, "return True where the episode ends, and False where it goes on", where)


class Infos:
    """Looks at all infos of an environment, whose numbers are logged."""

    def __init__(self, report: Findings):
        self.report = report
        self.numbers: dict[str, bool] = {}  # whether the first value of an entry was a number

    def check(self, info: Any, where: str) -> None:
        report = self.report
        if not isinstance(info, dict):
            what = f"info is {shown(info)} ({type(info).__name__}), which is no dict"
            report.error("info", what, "return {} where there is nothing to tell", where)
            return
        for key, value in info.items():
            if not isinstance(key, str):
                what = f"info has the key {shown(key)}, which is no text and names no metric"
                report.error("info-key", what, "use texts as keys", where)
                continue
            if value is None or key == MASK:
                continue
            if self.numbers.setdefault(key, is_number(value)) != is_number(value):
                what = f"info[{key!r}] is {shown(value)} here and was {'no' if is_number(value) else 'a'} number before"
                mend = f"give it numbers alone; sample/info/{key} is the mean over the steps that tell a number"
                report.note("info-kind", what, mend, where)
            if isinstance(value, float | np.floating) and not np.isfinite(value):
                what = f"info[{key!r}] is {value}, which its mean, sample/info/{key}, leaves out"
                report.warning("info-finite", what, "leave the entry out where there is no number", where)
