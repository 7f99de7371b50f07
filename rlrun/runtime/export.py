"""Exports a trained policy so that it acts greedily without rlrun, on the environment's observations and in batches.

The module's forward(obs, is_first, state) -> (action, state) takes and returns dictionaries of tensors. obs is
{"observation": [B, ...]}, with nested parts by their path ("observation.camera"), and an "action_mask" where the policy
has one. is_first is [B] bool. state is zeros for the first call and then what the last call returned; it is empty
without memory. Actions are in the form that the environment takes. Nothing is random: noisy layers use their means, and
eval_epsilon is 0. Filters and the division of pixels by 255 are included. Earlier preprocessing is not: an
observation with env.stack is the stack of frames, whose newest one is last.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.policy import Policy
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Discrete, MultiBinary, MultiDiscrete, Nested, Space
from rlrun.envs.registry import Factory
from rlrun.models.noisy import draw_noise
from rlrun.policies import QPolicy
from rlrun.runtime.trained import Trained

Tensors = dict[str, Tensor]
FORMATS = ("pt2", "safetensors", "onnx")
EXAMPLES = 3  # rows in the example inputs; torch.export would treat 0 or 1 as constants
TOLERANCE = 1e-5


def flat(values: Batch, prefix: str = "") -> Tensors:
    """Flattens nested parts into a dictionary by dotted path."""
    made: Tensors = {}
    for name, value in values.items():
        made |= flat(value, f"{prefix}{name}.") if isinstance(value, Batch) else {f"{prefix}{name}": value}
    return made


def nested(values: Mapping[str, Tensor]) -> Batch:
    """The inverse of flat."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *groups, last = path.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value

    def batch(node: dict[str, Any]) -> Batch:
        return Batch({name: batch(part) if isinstance(part, dict) else part for name, part in node.items()})

    return batch(tree)


def to_env(space: Space, action: Tensor | Batch, name: str = "action") -> Tensors:
    """Converts actions from the form of rows to the environment's, using tensors (core.specs does it for arrays)."""
    if isinstance(space, Nested):
        assert isinstance(action, Batch)
        made: Tensors = {}
        for part, inner in space.spaces:
            made |= to_env(inner, action[part], f"{name}.{part}")
        return made
    assert isinstance(action, Tensor)
    if isinstance(space, Discrete):
        return {name: action + space.start}
    if isinstance(space, MultiDiscrete):
        return {name: action + torch.tensor(space.starts, dtype=torch.int64).reshape(space.shape)}
    if isinstance(space, MultiBinary):
        return {name: action.to(torch.int8)}
    assert isinstance(space, Box)
    kind = getattr(torch, space.dtype)
    if not space.bounded:
        return {name: action.to(kind)}
    low, high = (torch.tensor(bound, dtype=torch.float64).reshape(space.shape) for bound in (space.low, space.high))
    return {name: (low + (action.double().clamp(-1.0, 1.0) + 1.0) * 0.5 * (high - low)).to(kind)}


class Exported(nn.Module):
    """The greedy policy as a module that takes and returns tensors."""

    def __init__(self, trained: Trained):
        super().__init__()
        self.policy, self.action = trained.policy, trained.spec.action
        draw_noise(self.policy, None)
        if isinstance(self.policy, QPolicy):
            self.policy.explore = replace(self.policy.explore, eval_epsilon=0.0)

    def forward(self, obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
        """Described at the top of this file."""
        action, after = self.policy.greedy(nested(obs), is_first, nested(state))
        return to_env(self.action, action), flat(after)


def example(trained: Trained, rows: int = EXAMPLES) -> tuple[Tensors, Tensor, Tensors]:
    """Returns (obs, is_first, state) with the right shapes: zeros, all actions legal, at the beginning of episodes."""
    obs = flat(Batch({name: zeros(spec, rows) for name, spec in trained.spec.obs_rows.items()}))
    if "action_mask" in obs:
        obs["action_mask"] = torch.ones_like(obs["action_mask"])
    state = trained.policy.initial_state(rows)
    return (
        obs,
        torch.ones(rows, dtype=torch.bool),
        {name: value for name, value in flat(state).items() if name in core_names(trained)},
    )


def core_names(trained: Trained) -> set[str]:
    return set(trained.policy.core_spec())


def zeros(spec: Any, rows: int) -> Any:
    if isinstance(spec, dict):
        return Batch({name: zeros(part, rows) for name, part in spec.items()})
    return torch.zeros(rows, *spec.shape, dtype=spec.dtype)


def program(trained: Trained) -> torch.export.ExportedProgram:
    """Traces the policy with torch.export, for any number of rows. Raises RunFailed where PyTorch cannot trace it."""
    inputs = example(trained)
    batch = torch.export.Dim("batch", min=1)
    dynamic = tuple({name: {0: batch} for name in part} if isinstance(part, dict) else {0: batch} for part in inputs)
    with torch.no_grad(), warnings.catch_warnings():
        # PyTorch warns of the list in which its own LSTM keeps its weights, which changes nothing here.
        warnings.filterwarnings("ignore", message="The tensor attributes? .*_flat_weights", category=UserWarning)
        try:
            return torch.export.export(Exported(trained).eval(), inputs, dynamic_shapes=dynamic)
        except Exception as error:  # PyTorch raises many kinds of exceptions here
            raise RunFailed(
                f"torch.export cannot trace this policy: {(str(error).splitlines() or [type(error).__name__])[0]}"
            ) from None


def describe(trained: Trained) -> dict[str, Any]:
    """Returns what a user of the files must know, the contents of policy.json."""
    obs, _, state = example(trained)

    def of(values: Tensors) -> dict[str, Any]:
        return {
            name: {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}
            for name, value in values.items()
        }

    action, _ = Exported(trained)(obs, torch.ones(EXAMPLES, dtype=torch.bool), state)
    return {
        "run_dir": str(trained.run_dir),
        "algo": trained.config.algo.name,
        "env": trained.spec.name,
        "env_steps": trained.clock.env_steps,
        "obs": of(obs),
        "is_first": "bool [batch]: true where an episode begins, which forgets the state",
        "state": of(state),
        "action": of(action),
        "action_space": str(trained.spec.action),
        "torch": torch.__version__,
        "use": use(obs, state),
    }


def use(obs: Tensors, state: Tensors) -> list[str]:
    """Returns lines of Python that show how to act with policy.pt2."""
    rows = ", ".join(f'"{name}": {name.replace(".", "_")}' for name in obs)
    first = ", ".join(
        f'"{name}": torch.zeros(1, {", ".join(map(str, value.shape[1:]))})' for name, value in state.items()
    )
    return [
        "policy = torch.export.load('policy.pt2').module()",
        f"state = {{{first}}}  # what the last call gave, later on",
        (
            f"action, state = policy({{{rows}}}, torch.tensor([True]), state)  # tensors of [1, ...]; True where an"
            " episode begins"
        ),
        "env.step(action['action'][0].numpy())  # greedy, as the environment takes it",
    ]


def observed(trained: Trained, steps: int) -> list[tuple[Tensors, Tensors]]:
    """Plays the first `steps` steps of a game with the run's own policy.

    Returns (observation [1, ...], action as the environment took it) of every step.
    """
    if trained.agents:
        return observed_together(trained, steps)
    env = trained.make_env(seed=0)
    trained.reset()
    made: list[tuple[Tensors, Tensors]] = []
    kept: list[Tensors] = []
    own = trained.policy_action

    def watched(rows: Any, *args: Any, **options: Any) -> Any:
        from rlrun.samplers.evaluator import to_torch

        kept.append(
            flat(trained._told(to_torch(rows).clone(), 1, options.get("reward", args[1] if len(args) > 1 else None)))
        )
        return own(rows, *args, **options)

    try:
        obs, _ = env.reset()
        reward = None
        trained.policy_action = watched  # type: ignore[method-assign]
        for _ in range(steps):
            action = trained.act(obs, reward=reward)
            made.append((kept[-1], flat_action(trained.spec.action, action)))
            obs, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    finally:
        trained.policy_action = own  # type: ignore[method-assign]
        trained.reset()
        env.close()
    return made


def observed_together(trained: Trained, steps: int) -> list[tuple[Tensors, Tensors]]:
    """The same for an environment with N agents: observations and actions are [N, ...]."""
    from rlrun.samplers.evaluator import to_torch

    seeds = Seeds(0)
    factory = Factory(cfg=trained.config.env, spec=trained.spec, seeds=seeds, stream="user", learning=False)
    env = factory(0, 1)
    made: list[tuple[Tensors, Tensors]] = []
    trained.reset()
    obs, reward, first = env.reset(0), np.zeros(env.count), np.ones(env.count, dtype=bool)
    for _ in range(steps):
        if made and first.any():
            break  # what follows would need the places where episodes begin
        rows = trained._told(to_torch(obs).clone(), env.count, reward)
        action = trained.policy_action(obs, reward=reward)
        taken = trained.spec.action.to_env(action)
        made.append((flat(rows), flat_actions(trained.spec.action, taken)))
        step = env.step(action)
        obs, reward, first = step.obs, step.reward, step.is_first
    trained.reset()
    env.close()
    return made


def flat_actions(space: Space, action: Any, name: str = "action") -> Tensors:
    """Actions [B, ...], as the environment takes them, by path."""
    if isinstance(space, Nested):
        made: Tensors = {}
        for index, (part, inner) in enumerate(space.spaces):
            made |= flat_actions(inner, action[index] if space.ordered else action[part], f"{name}.{part}")
        return made
    return {name: torch.as_tensor(np.asarray(action))}


def flat_action(space: Space, action: Any, name: str = "action") -> Tensors:
    """Converts one action, as the environment takes it, to tensors [1, ...] by path."""
    if isinstance(space, Nested):
        made: Tensors = {}
        for index, (part, inner) in enumerate(space.spaces):
            made |= flat_action(inner, action[index] if space.ordered else action[part], f"{name}.{part}")
        return made
    return {name: torch.as_tensor(np.asarray(action))[None]}


def parity(trained: Trained, call: Any, steps: int = 40) -> float:
    """Returns the largest difference between the actions of call(obs, is_first, state) and the run's own during a game.

    Differences are relative to the action's size. Raises RunFailed if one is above TOLERANCE.
    """
    rows = trained.spec.columns_per_env
    _, _, state = example(trained, rows)
    worst = 0.0
    for number, (obs, action) in enumerate(observed(trained, steps)):
        made, state = call(obs, torch.tensor([number == 0] * rows), state)
        for name, value in action.items():
            gap = float((made[name].double() - value.double()).abs().max() / (1.0 + value.double().abs().max()))
            worst = max(worst, gap)
    if worst > TOLERANCE:
        raise RunFailed(f"the exported policy does not act as the run's own does: actions differ by up to {worst:g}")
    return worst


def write(trained: Trained, folder: Path, formats: tuple[str, ...]) -> list[tuple[Path, str]]:
    """Writes policy.<format> and policy.json, and returns the files, each with a note on what was checked.

    Raises UserError where a package is missing, the policy has no greedy() or the folder cannot be written.
    """
    for name in formats:
        require(name)
    if type(trained.policy).greedy is Policy.greedy:
        raise UserError(
            f"{type(trained.policy).__name__} has no greedy(obs, is_first, state), which is what is exported (see"
            " rlrun.core.policy.Policy)"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.json").write_text(json.dumps(describe(trained), indent=1) + "\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    writers = {"pt2": write_pt2, "safetensors": write_safetensors, "onnx": write_onnx}
    return [
        *((folder / f"policy.{name}", writers[name](trained, folder / f"policy.{name}")) for name in formats),
        (folder / "policy.json", ""),
    ]


def require(name: str) -> None:
    import importlib.util

    needed = {"safetensors": ("safetensors",), "onnx": ("onnx", "onnxscript", "onnxruntime")}.get(name, ())
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        extra = {"safetensors": "export", "onnx": "onnx"}[name]
        raise UserError(f"{name} needs {', '.join(missing)}: pip install 'rlrun[{extra}]', or choose --formats pt2")


def write_pt2(trained: Trained, path: Path) -> str:
    torch.export.save(program(trained), path)
    gap = parity(trained, torch.export.load(path).module())
    return f"acts as the run's own policy (largest difference {gap:g})"


def write_safetensors(trained: Trained, path: Path) -> str:
    from safetensors.torch import load_file, save_file

    weights = {name: value.contiguous().clone() for name, value in trained.policy.state_dict().items()}
    save_file(
        weights, path, metadata={"rlrun": json.dumps({"algo": trained.config.algo.name, "env": trained.spec.name})}
    )
    back = load_file(path)
    if set(back) != set(weights) or any(not torch.equal(back[name], value) for name, value in weights.items()):
        raise RunFailed(f"{path} does not hold what was written to it")
    return f"{len(weights)} tensors, {sum(value.numel() for value in weights.values()):,} numbers"


def write_onnx(trained: Trained, path: Path) -> str:
    import onnxruntime

    made = torch.onnx.export(program(trained), dynamo=True, verbose=False)
    assert made is not None
    made.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = [one.name for one in session.get_inputs()], [one.name for one in session.get_outputs()]
    obs, first, state = example(trained, 1)
    actions = list(Exported(trained)(obs, first, state)[0])

    def call(obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
        # The inputs are in the order in which they were traced. Those that a policy ignores are not among `inputs`.
        given = [*obs.values(), is_first, *state.values()]
        named = dict(zip(ordered_inputs(obs, state), given, strict=True))
        results = session.run(outputs, {name: named[name].numpy() for name in inputs})
        made = [torch.from_numpy(np.asarray(value)) for value in results]
        return dict(zip(actions, made)), dict(zip(state, made[len(actions) :]))

    return f"acts as the run's own policy (largest difference {parity(trained, call):g})"


def ordered_inputs(obs: Tensors, state: Tensors) -> list[str]:
    """Returns the names that torch.onnx gives to the inputs, in their order."""
    return [
        *(f"obs_{name}".replace(".", "_") for name in obs),
        "is_first",
        *(f"state_{name}".replace(".", "_") for name in state),
    ]
