"""Open-loop predictions: what a world model that sees a few observations predicts from the actions alone, and how far
that is from what was true."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.core.batch import Batch

CONTEXT = 5  # observations that the model sees (Hafner et al. 2020, arXiv:1912.01603, figure 4)
FOLDER = "imagined"  # of a run directory, which holds its pictures
STEPS = (1, 5, 15, 30)  # steps behind the last of them at which errors are measured


class OpenLoop(NamedTuple):
    """What a world model says of the T + 1 observations of a batch. It sees the first `context` of them and predicts
    the others from the actions alone. Numbers have the environment's units, choices are one-hot or probabilities, and
    images are numbers from 0 to 1."""

    context: int
    true: dict[str, Tensor]  # entries of the observations by name, [T + 1, B, D] or images [T + 1, B, C, H, W]
    said: dict[str, Tensor]  # the same as the model says
    reward: Tensor  # [T, B] that the model says to come with the observation behind each row
    came: Tensor  # [T, B] the true one, as the model learns it
    go_on: Tensor  # [T, B], the probability that the episode does not terminate there
    rec: Tensor  # [T + 1, B], the model's own loss of the observation


class Excerpt(NamedTuple):
    """One column of an open-loop prediction, N rows long."""

    seen: np.ndarray  # [N] whether the model saw the observation
    true: dict[str, np.ndarray]  # [N, ...] as in OpenLoop
    said: dict[str, np.ndarray]
    # The reward and the probability of going on that come with each observation, true and said [N, 2]; NaN where an
    # episode or the excerpt begins.
    reward: np.ndarray
    go_on: np.ndarray


def comparable(batch: Batch, context: int) -> Tensor:
    """Which of the T + 1 observations of a batch belong to a prediction [T + 1, B]: those of its context, and from
    there on those that no break of the column comes before."""
    valid, first = batch.valid, batch.is_first
    real = torch.cat((torch.ones_like(valid[:1]), valid)) | first
    behind = valid[context - 1 :].cumprod(0).bool() & real[context - 1]
    return torch.cat((real[:context], behind))


def errors(made: OpenLoop, batch: Batch) -> dict[str, Tensor]:
    """Mean errors at STEPS steps behind the context, where there are so many: open_loop_rec_<steps>, the loss of an
    observation as in learn/rec, and open_loop_reward_<steps>, the absolute error of a reward."""
    rows, found = comparable(batch, made.context), {}
    for steps in STEPS:
        row = made.context - 1 + steps
        if row < len(rows) and bool(rows[row].any()):
            here = rows[row]
            found[f"open_loop_rec_{steps}"] = made.rec[row][here].mean()
            found[f"open_loop_reward_{steps}"] = (made.reward[row - 1] - made.came[row - 1])[here].abs().mean()
    return found


def excerpt(made: OpenLoop, batch: Batch, column: int, count: int | None = None) -> Excerpt:
    """The rows of a column up to the first one that does not belong to the prediction, at most `count`."""
    known = comparable(batch, made.context)[:, column].cpu().numpy()
    length = len(known) if known.all() else int(known.argmin())
    length = min(length, count or length)

    def cut(values: Tensor) -> np.ndarray:
        return values[:length, column].float().cpu().numpy()

    def came(true: Tensor, said: Tensor) -> np.ndarray:
        both = np.stack([cut(true.float()), cut(said)], 1)[: length - 1]
        first = np.full((1, 2), np.nan, dtype=np.float32)
        both[batch.is_first[1:length, column].cpu().numpy()] = np.nan
        return np.concatenate((first, both))

    return Excerpt(
        np.arange(length) < made.context,
        {name: cut(values) for name, values in made.true.items()},
        {name: cut(values) for name, values in made.said.items()},
        came(made.came, made.reward),
        came(~batch.terminated, made.go_on),
    )


def joined(excerpts: list[Excerpt]) -> Excerpt:
    """Excerpts that follow each other, as one."""

    def together(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return Excerpt(
        np.concatenate([one.seen for one in excerpts]),
        together([one.true for one in excerpts]),
        together([one.said for one in excerpts]),
        np.concatenate([one.reward for one in excerpts]),
        np.concatenate([one.go_on for one in excerpts]),
    )
