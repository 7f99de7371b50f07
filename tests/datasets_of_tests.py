"""Random trajectories whose rows can be told apart."""

from dataclasses import replace

import numpy as np
import torch

from rlrun.core.batch import Field
from rlrun.core.specs import Box, Discrete, EnvSpec, MultiDiscrete, Nested
from rlrun.datasets.trajectories import DataFacts, Trajectory

VECTOR = EnvSpec(
    name="vectors",
    obs={"observation": Box(shape=(2,), dtype="float32", low=(-np.inf,), high=(np.inf,))},
    action=Discrete(n=3),
)
FRAMES = EnvSpec(
    name="frames",
    obs={"observation": Box(shape=(3, 2, 2), dtype="uint8", low=(0.0,), high=(255.0,), stacked=True)},
    action=Box(shape=(2,), dtype="float32", low=(-1.0, -2.0), high=(1.0, 2.0)),
    stack=3,
    max_episode_steps=40,
)
PARTS = EnvSpec(
    name="parts",
    obs={
        "observation": Nested(
            spaces=(("a", Discrete(n=4)), ("b", Box(shape=(2, 2), dtype="float64", low=(-1.0,), high=(1.0,)))),
            ordered=False,
        )
    },
    action=Nested(
        spaces=(("0", MultiDiscrete(sizes=(2, 3), starts=(0, 1), shape=(2,))), ("1", Discrete(n=2))), ordered=True
    ),
    reward_row=Field((2,), torch.float32),
)
LOG_PROB = {"log_prob": Field((), torch.float32)}


def facts(spec: EnvSpec = VECTOR, **more) -> DataFacts:
    return DataFacts(spec=spec, record=LOG_PROB, policies=("tests",), **more)


def rows_of(field, count: int, rng: np.random.Generator):
    if isinstance(field, dict):
        return {name: rows_of(part, count, rng) for name, part in field.items()}
    kind = torch.empty((), dtype=field.dtype).numpy().dtype
    shape = (count, *field.shape)
    return (
        rng.integers(0, 2 if kind == np.int64 else 200, shape).astype(kind)
        if kind.kind in "iu"
        else rng.normal(size=shape).astype(kind)
    )


def episode(number: int, steps: int, spec: EnvSpec = VECTOR, terminated: bool = True, life: bool = False) -> Trajectory:
    """An episode of this many decisions. Observations of VECTOR are [episode, row]; life: one is lost in the middle."""
    rng, count = np.random.default_rng([7, number]), steps + 1 + life
    obs_rows = dict(spec.obs_rows)
    if spec.stack > 1:
        obs_rows["observation"] = Field(obs_rows["observation"].shape[1:], obs_rows["observation"].dtype)
    obs = rows_of(obs_rows, count, rng)
    if spec is VECTOR:
        obs["observation"] = np.stack((np.full(count, number), np.arange(count)), 1).astype(np.float32)
    valid = np.ones(count, dtype=bool)
    ends, cuts = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
    valid[-1] = False
    (ends if terminated else cuts)[-2] = True
    if life:
        valid[steps // 2], ends[steps // 2 - 1] = False, True
    reward = rng.normal(size=(count, *spec.reward_row.shape)).astype(np.float32)
    reward[~valid] = 0
    return Trajectory(
        obs, rows_of(spec.action_row, count, rng), reward, ends, cuts, valid, {"log_prob": -np.abs(rng.normal(size=count)).astype(np.float32)}
    )  # fmt: skip


def data_of(env: str, folder):
    """Writes ten random episodes of a Gymnasium environment, whose actions are legal, and returns their folder."""
    from conftest import compose

    from rlrun.config.run import type_config
    from rlrun.datasets.parquet_writer import Writer
    from rlrun.envs.registry import make_spec

    spec = make_spec(type_config(compose("algo=bc", f"env={env}", f"data.path={folder}")).env, False, False)
    writer = Writer(folder, DataFacts(spec=spec, record=LOG_PROB, policies=("tests",)))
    for number in range(10):
        made = episode(number, 20 + number, spec)
        legal = made.action % 2 if isinstance(spec.action, Discrete) else np.tanh(made.action)
        writer.write(replace(made, action=legal))
    writer.close()
    return folder


def same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return one.dtype == other.dtype and np.array_equal(one, other)


class Listed:
    """A data set in memory, a few trajectories a piece."""

    def __init__(self, trajectories, facts_, each: int = 3):
        self.trajectories, self.facts, self.each, self.name = trajectories, facts_, each, "listed"
        self.most_rows, self.identity = None, [f"{self.pieces()} pieces"]

    def pieces(self) -> int:
        return -(-len(self.trajectories) // self.each)

    def read(self, piece: int):
        yield from self.trajectories[piece * self.each : (piece + 1) * self.each]
