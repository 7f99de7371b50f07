"""Exported policies give actions of every kind of Box, take parts of any name and are told the last action."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from test_export import made

from rlrun.core import specs
from rlrun.core.batch import Batch
from rlrun.core.env import map_rows
from rlrun.core.spec_json import spec_from_json, spec_to_json
from rlrun.runtime.export import LAST_ACTION, describe, observed, parity
from rlrun.runtime.exported_policy import Exported, Part, example, flat, nested, program, to_env
from rlrun.samplers.evaluator import to_torch


class HalfBounded(gymnasium.Env):
    """Some of its numbers have no bound on one side. It shows random numbers, and takes only what lies inside."""

    observation_space = Box(-9, 9, (3,))
    action_space = Box(np.array([0, -np.inf, -0.1, -np.inf], np.float32), np.array([np.inf, 0, 0.1, np.inf], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.np_random.normal(size=3).astype(np.float32), 0.0, False, False, {}


gymnasium.register("tests/HalfBounded-v0", HalfBounded)


def test_actions_are_clipped_to_the_bounds_that_exist(typed):
    trained = made(typed, "algo=ppo", "env=tests/HalfBounded-v0")
    game = observed(trained, 100)
    actions = torch.cat([action["action"] for _, action in game])
    assert (actions[:, :2] == 0).any(0).all() and (actions[:, 2].abs() == 0.1).any(), "some must have been clipped"
    assert parity(trained, program(trained).module(), game=game) <= 1e-5


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(-1, 1, "int32"), (0, 4, "uint8"), (-7, 12, "int64"), (-0.5, 2.0, "float32"),
                             (-3.6, 2.2, "float64"), (-2.7, 1.2, "float64")]
)  # fmt: skip
def test_actions_of_every_kind_of_box_are_those_of_the_environment(low, high, dtype):
    space = specs.Box(shape=(1,), dtype=dtype, low=(low,), high=(high,))
    grid = torch.linspace(-1.2, 1.2, 2401).unsqueeze(1)
    exported = to_env(space, grid)["action"]
    assert exported.dtype == getattr(torch, dtype)
    live = np.stack([space.to_env(row) for row in grid.numpy()])
    assert np.allclose(exported.numpy(), live, rtol=0.0, atol=1e-6 if dtype.startswith("float") else 0.0)
    bounds = Box(low, high, (1,), np.dtype(dtype).type)
    assert all(bounds.contains(one) for one in [*live, *exported.numpy()])


class Dotted(gymnasium.Env):
    """Names of its parts hold dots, and one is called as Python calls an instance."""

    observation_space = Dict({"a.b": Box(-1, 1, (3,)), "a": Dict({"c": Discrete(3)}), "self": Box(-1, 1, (2,))})
    action_space = Dict({"x.y": Discrete(3), "x": Box(-1, 1, (2,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 0.0, False, False, {}


gymnasium.register("tests/Dotted-v0", Dotted)


def test_parts_whose_names_hold_dots_are_exported(typed):
    trained = made(typed, "algo=ppo", "env=tests/Dotted-v0", "model.observation_filter=mean_std")
    assert parity(trained, program(trained).module(), 12) <= 1e-5


class TypedChoices(HalfBounded):
    """Its choices are of unlike dtypes, and it takes no other ones."""

    action_space = Dict(one=Discrete(3, start=2, dtype=np.int8), many=MultiDiscrete([2, 3], dtype=np.int32))


gymnasium.register("tests/TypedChoices-v0", TypedChoices)


def test_choices_have_the_dtype_of_the_environments_own_space(typed):
    """Those of act(), which plays the game, and those of its files; also after the spec has been in a data file."""
    trained = made(typed, "algo=ppo", "env=tests/TypedChoices-v0")
    expected = {"action.one": torch.int8, "action.many": torch.int32}
    game = observed(trained, 12)
    assert all({name: part.dtype for name, part in action.items()} == expected for _, action in game)
    assert parity(trained, program(trained).module(), game=game) <= 1e-5
    files, _ = Exported(trained)(*example(trained, 2))
    assert {name: part.dtype for name, part in files.items()} == expected
    described = spec_to_json(trained.spec)
    again = spec_from_json(described).action
    assert [part.dtype for _, part in specs.leaves(again)] == ["int8", "int32"]
    for _, part in described["action"]["spaces"]:
        del part["dtype"]
    older = spec_from_json(described).action
    assert older == again and {part.dtype for _, part in specs.leaves(older)} == {"int64"}
    described["action"]["spaces"][0][1]["dtype"] = "float32"
    with pytest.raises(ValueError, match="'float32' is no kind of whole number"):
        spec_from_json(described)


def test_names_of_nested_parts():
    """A name may hold a dot itself, as that of a file does."""
    values = {
        "observation.camera.left": torch.zeros(1),
        "observation.camera.left.png": torch.ones(3),
        "observation.speed": torch.ones(1),
        "action_mask": torch.ones(2),
    }
    one = specs.Field((1,), torch.float32)
    rows = {"observation": {"camera": {"left": one, "left.png": one}, "speed": one}, "action_mask": one}
    tree = nested(values, rows)
    assert flat(tree) == values and tree.observation.camera["left.png"] is values["observation.camera.left.png"]


class WholeActions(HalfBounded):
    """It takes whole numbers, each between bounds of its own."""

    action_space = Box(np.array([0, 3, -1], np.int32), np.array([5, 9, 1], np.int32), dtype=np.int32)


class WholeOrNot(HalfBounded):
    """Its actions have parts of both kinds, by name."""

    action_space = Dict(half=HalfBounded.action_space, whole=WholeActions.action_space)


gymnasium.register("tests/WholeActions-v0", WholeActions)
gymnasium.register("tests/WholeOrNot-v0", WholeOrNot)


@pytest.mark.parametrize("name", ["Pendulum-v1", "tests/HalfBounded-v0", "tests/WholeActions-v0", "tests/WholeOrNot-v0"])
def test_the_last_action_is_told_as_the_environment_took_it(name, typed):
    """A file that is fed as its README.md says has the memory of the run's own policy. Actions are random."""
    words = ["model=gru", "model.memory.size=16", "model.memory.prev_action=true", "model.log_std=1.0"]
    trained = made(typed, "algo=ppo", f"env={name}", "algo.fragment_length=16", *words)
    exported, space, env = Exported(trained), trained.spec.action, trained.make_env(seed=0)
    given, first, state = example(trained, 1)
    described = {path: part.get("meaning") for path, part in describe(Part(trained), ())["obs"].items()}
    meanings = [meaning for path, meaning in described.items() if path.split(".")[0] == "prev_action"]
    assert len(meanings) == (2 if "OrNot" in name else 1) and set(meanings) == {LAST_ACTION}
    seen, _ = env.reset()
    clipped = False
    for _ in range(8):
        taken = trained.act(seen, mode="explore")
        given["observation"] = torch.from_numpy(seen)[None]
        _, state = exported(given, first, state)
        torch.testing.assert_close(state, dict(trained.memory(1)), rtol=0.0, atol=1e-5)
        told = flat(to_torch({"prev_action": map_rows(space.from_env(taken), lambda x: x[None])}))
        clipped |= any((value - told[name]).abs().max() > 0.1 for name, value in flat(Batch(prev_action=trained._action)).items())
        given, first = {**given, **told}, ~torch.ones_like(first)
        seen, *_ = env.step(taken)
    env.close()
    assert clipped, "some must have been clipped or rounded"
