"""Writes Minari's data sets, which is Minari's own work. minari.py reads them without it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rlrun.core.env import map_rows
from rlrun.core.errors import UserError
from rlrun.core.specs import (
    Box,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    Nested,
)
from rlrun.core.variables import variables
from rlrun.datasets.minari import INSTALL, MASK, PREFIX
from rlrun.datasets.trajectories import Source, Trajectory

BUFFERED = 20_000  # rows that are handed to Minari at once


def write_minari(
    source: Source,
    target: str | Path,
    *,
    env: str | None = None,
    data_format: str = "hdf5",
    author: str = "",
    description: str = "",
) -> Path:
    """Writes a data set as a Minari set and returns its folder.

    target: an id such as pendulum/mine-v0, which is kept under MINARI_DATASETS_PATH, or the path of a folder whose name
    ends in a version, such as ./out/mine-v0. env: a Gymnasium id that Minari keeps with the set; it makes this
    environment once.

    Every trajectory becomes an episode. One with dead rows in its middle becomes several, because Minari has none. A
    trajectory that nothing ended is marked as truncated, since Minari's episodes have an end. Log probabilities go to
    infos/log_prob, and are NaN where the environment executed another action than the one that was drawn. Raises
    UserError if the set has several agents, or if Minari is missing or refuses it."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        raise UserError(f"writing a Minari set needs Minari: {INSTALL}") from None
    spec = source.facts.spec
    if spec.agents is not None:
        raise UserError(f"{source.name} has several agents, and a Minari set holds one")
    if data_format not in ("hdf5", "arrow", "parquet"):
        raise UserError(f"a Minari set is stored as hdf5, arrow or parquet, not {data_format!r}")
    text = str(target)
    path = Path(text).expanduser() if isinstance(target, Path) or text.startswith((".", "/", "~")) else None
    name = path.name if path is not None else text.removeprefix(PREFIX)
    action, obs = _gym(spec.action, "action"), _gym_observation(spec)
    facts = source.facts
    dataset: Any = None
    for rows in _buffers(source):
        buffers = [EpisodeBuffer(**one) for one in rows]
        if dataset is not None:
            dataset.update_dataset_from_buffer(buffers)
            continue
        with _root(path), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Minari asks for an author and links
            try:
                dataset = minari.create_dataset_from_buffers(
                    name,
                    buffers,
                    env=env,
                    action_space=action,
                    observation_space=obs,
                    algorithm_name=", ".join(facts.policies) or None,
                    author=author or None,
                    description=description or facts.made_by or None,
                    data_format=data_format,
                    jpeg_encoding=False,
                )
            except (ValueError, gymnasium.error.Error) as error:
                raise UserError(f"Minari does not write {target}: {' '.join(str(error).split())}") from None
    if dataset is None:
        raise UserError(f"{source.name} has no steps that could be written")
    # Minari itself leaves references out where it does not know the environment.
    scores = {"ref_min_score": facts.random_return, "ref_max_score": facts.expert_return}
    dataset.storage.update_metadata({key: value for key, value in scores.items() if value is not None})
    return Path(dataset.storage.data_path).parent


def _root(path: Path | None) -> contextlib.AbstractContextManager[None]:
    """Lets Minari write a folder instead of a set under its own root."""
    return variables({} if path is None else {"MINARI_DATASETS_PATH": str(path.parent.absolute())})


def _buffers(source: Source) -> Iterator[list[dict[str, Any]]]:
    """Yields episodes as Minari takes them, in lists that fit into memory."""
    waiting: list[dict[str, Any]] = []
    rows = 0
    for piece in range(source.pieces()):
        for one in source.read(piece):
            for episode in _episodes(one, source.facts.spec):
                waiting.append(episode)
                rows += len(episode["rewards"])
                if rows >= BUFFERED:
                    yield waiting
                    waiting, rows = [], 0
    if waiting:
        yield waiting


def _episodes(one: Trajectory, spec: EnvSpec) -> Iterator[dict[str, Any]]:
    """Cuts a trajectory at its dead rows."""
    start = 0
    for end in np.flatnonzero(~one.valid).tolist():
        live, seen = slice(start, end), slice(start, end + 1)
        start = end + 1
        if live.start == live.stop:
            continue
        obs = _to_env(spec.observation, _cut(one.obs["observation"], seen))
        if MASK in one.obs:
            obs = {**obs, MASK: one.obs[MASK][seen].astype(np.int8)}
        truncated = one.truncated[live].copy()
        truncated[-1] |= not one.terminated[live][-1]
        action, log_prob = _cut(one.action, live), one.record.get("log_prob")
        known = None if log_prob is None else np.where(_changed(spec.action, action), np.nan, log_prob[live])
        yield {
            "observations": obs,
            "actions": spec.action.to_env(action),
            "rewards": one.reward[live].astype(np.float64).tolist(),
            "terminations": one.terminated[live].tolist(),
            "truncations": truncated.tolist(),
            "infos": None if known is None else {"log_prob": [*known.tolist(), 0.0]},
        }


def _changed(space: Any, action: Any) -> np.ndarray:
    """Where a space's to_env() makes others of actions of rows [n], by clipping or rounding: their probabilities are
    unknown then."""
    if isinstance(space, Nested):
        return np.any([_changed(part, action[name]) for name, part in space.spaces], 0)
    if not isinstance(space, Box):
        return np.zeros(len(action), dtype=bool)
    if space.whole:
        differs = space.from_env(space.to_env(action)) != action
    else:  # going there and back rounds numbers a little
        low, high = (-1.0, 1.0) if space.bounded else (np.reshape(end, space.shape) for end in (space.low, space.high))
        differs = (action < low) | (action > high)
    return differs.reshape(len(action), -1).any(1)


def _cut(rows: Any, piece: slice) -> Any:
    return map_rows(rows, lambda part: part[piece])


def _to_env(space: Any, values: Any) -> Any:
    """Observations of rows in the form of the environment."""
    if isinstance(space, Nested):
        made = {name: _to_env(part, values[name]) for name, part in space.spaces}
        return tuple(made.values()) if space.ordered else made
    return values if isinstance(space, Box) else space.to_env(values)


def _gym_observation(spec: EnvSpec) -> gymnasium.Space:
    space = spec.observation
    if spec.stack > 1:
        if not isinstance(space, Box):
            raise UserError(f"{spec.name} stacks {space}, which Minari cannot hold frame by frame")
        space = Box(shape=space.shape[1:], dtype=space.dtype, low=space.low, high=space.high)
    made = _gym(space, "observation")
    if MASK in spec.obs:
        mask = gymnasium.spaces.MultiBinary(spec.obs[MASK].shape[0])
        made = gymnasium.spaces.Dict({**made.spaces, MASK: mask})  # type: ignore[attr-defined]
    return made


def _gym(space: Any, what: str) -> gymnasium.Space:
    spaces = gymnasium.spaces
    if isinstance(space, Nested):
        parts = {name: _gym(part, what) for name, part in space.spaces}
        return spaces.Tuple(tuple(parts.values())) if space.ordered else spaces.Dict(parts)
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n, start=space.start)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(np.reshape(space.sizes, space.shape), start=np.reshape(space.starts, space.shape))
    if isinstance(space, MultiBinary):
        return spaces.MultiBinary(space.shape if len(space.shape) > 1 else space.shape[0])
    dtype: Any = np.dtype(space.dtype)
    low, high = (np.asarray(bound, dtype=np.float64).astype(dtype) for bound in (space.low, space.high))
    if what == "observation":
        return spaces.Box(low[0], high[0], shape=space.shape, dtype=dtype.type)
    return spaces.Box(low.reshape(space.shape), high.reshape(space.shape), dtype=dtype.type)
