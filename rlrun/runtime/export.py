"""Exports a trained policy so that it acts greedily without rlrun, on the environment's observations and in batches.

The module's forward(obs, is_first, state) -> (action, state) takes and returns dictionaries of tensors. obs is
{"observation": [B, ...]}, with nested parts by their path ("observation.camera"), and an "action_mask" where the policy
has one. is_first is [B] bool. state is zeros for the first call and then what the last call returned; it is empty
without memory. Actions are in the form that the environment takes. Nothing is random: noisy layers use their means, and
eval_epsilon is 0. Filters and the division of pixels by 255 are included. Earlier preprocessing is not: an
observation with env.stack is the stack of frames, whose newest one is last.

Of a run with several policies (algo=multi), each is exported by itself, and takes rows of its own agents. Of a run of
self-play it is the newest weights, without the snapshots. A policy that learns all agents together (qmix, vdn, iql,
maddpg) takes a row for an environment, [B, N, ...]; each agent's action depends on that agent's part of the row alone.
The state of the whole environment, which only the learner needs, is no input.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algos.multi import spec_of
from rlrun.algos.self_play import of_main
from rlrun.core.batch import Batch
from rlrun.core.errors import RunFailed, UserError
from rlrun.core.installing import install_line
from rlrun.core.plugins import is_path
from rlrun.core.policy import Policy
from rlrun.core.seeding import Seeds
from rlrun.core.specs import Box, Discrete, MultiBinary, MultiDiscrete, Nested, Space
from rlrun.envs.joint import ALIVE, STATE
from rlrun.envs.recorded import RecordedConfig
from rlrun.envs.registry import Factory
from rlrun.models.model import Model
from rlrun.models.noisy import draw_noise
from rlrun.policies import QPolicy
from rlrun.policies.joint import JointQPolicy
from rlrun.policies.league import LeaguePolicy
from rlrun.policies.several import SeveralPolicies
from rlrun.runtime.trained import Trained

Tensors = dict[str, Tensor]
FORMATS = ("pt2", "safetensors", "onnx")
EXAMPLES = 3  # rows in the example inputs; torch.export would treat 0 or 1 as constants
STEPS = 40  # of the game in which exported policies are compared
TOLERANCE = 1e-5
Game = list[tuple[Tensors, Tensors]]  # observation [B, ...] and action of every step, as the environment took it
MEANINGS = {
    "action_mask": "1 for legal actions, else 0; agent by agent if a row holds several",
    ALIVE: "1 for agents that take part, else 0; the observation of an agent that does not is 0",
    "prev_action": "the last action; choices count from 0, bounded numbers lie in [-1, 1]; 0 where an episode begins",
    "prev_reward": "the last reward, unclipped; 0 where an episode begins",
}


class Part(NamedTuple):
    """A policy that is exported by itself."""

    trained: Trained  # the run, with this policy in place of its own
    name: str | None = None  # among several
    numbers: tuple[int, ...] | None = None  # of the agents that it plays; None: all
    fixed: str | None = None  # the run that its weights come from, if it did not learn

    @property
    def file(self) -> str:
        """The name of its files, without the format."""
        # Names of agents may hold characters that no file name can.
        return (
            "policy"
            if self.name is None
            else f"policy.{''.join(c if c.isalnum() or c in '-_' else '_' for c in self.name)}"
        )

    @property
    def agents(self) -> list[str]:
        """The names of the agents that it plays; none if the environment has one agent without a name."""
        spec = self.trained.spec
        if spec.agents is None:
            return []
        names = spec.agents.names if self.numbers is not None or spec.joint else tuple(self.trained.agents)
        return list(names)


def parts_of(trained: Trained) -> tuple[list[Part], dict[str, str]]:
    """The policies of a run that are exported, and for each that is not, the reason why."""
    policy, spec = trained.policy, trained.spec

    def part(own: Any, seen: Any) -> Trained:
        return Trained(trained.run_dir, trained.config, seen, own, trained.clock)

    if isinstance(policy, LeaguePolicy):
        return [Part(part(policy.main, of_main(spec, Model(trained.config.run.model))), numbers=None)], {}
    if not isinstance(policy, SeveralPolicies):
        return [Part(trained)], {}
    made, left_out = [], {}
    given = getattr(trained.config.algo, "fixed", {})
    for name, numbers in policy.members.items():
        fixed = given.get(name)
        if name in policy.policies:
            own = part(policy.policy(name), spec_of(spec, name, numbers))
            made.append(Part(own, name, numbers, fixed))
        elif fixed is not None and is_path(fixed):
            left_out[name] = f"{fixed} is a class of the user's own, which has no weights"
        else:
            left_out[name] = "it acts at random and has no weights"
    if len({one.file for one in made}) < len(made):
        raise UserError(
            f"the policies {', '.join(str(one.name) for one in made)} cannot have files of their own, because some of"
            " these names differ only in characters that file names do not have"
        )
    return made, left_out


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
        without_chance(self.policy)

    def forward(self, obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
        """Described at the top of this file."""
        action, after = self.policy.greedy(nested(obs), is_first, nested(state))
        return to_env(self.action, action), flat(after)


def without_chance(policy: nn.Module) -> None:
    """Takes everything random from greedy acting: noisy layers use their means, and no choice is random."""
    draw_noise(policy, None)
    for part in policy.modules():
        if isinstance(part, QPolicy | JointQPolicy):
            part.explore = replace(part.explore, eval_epsilon=0.0)


def example(trained: Trained, rows: int = EXAMPLES) -> tuple[Tensors, Tensor, Tensors]:
    """Returns (obs, is_first, state) with the right shapes: zeros, all actions legal, at the beginning of episodes."""
    hidden = () if trained.spec.agents is None else (STATE,)
    seen = {name: spec for name, spec in trained.spec.obs_rows.items() if name not in hidden}
    obs = flat(Batch({name: zeros(spec, rows) for name, spec in seen.items()}))
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


def facts_of(trained: Trained) -> dict[str, Any]:
    """What is true of all files of a run."""
    return {
        "run_dir": str(trained.run_dir),
        "algo": trained.config.algo.name,
        "env": trained.spec.name,
        "env_steps": trained.clock.env_steps,
        "torch": torch.__version__,
    }


def describe(part: Part) -> dict[str, Any]:
    """What a user of one policy's files must know."""
    trained = part.trained
    obs, _, state = example(trained)

    def of(values: Tensors) -> dict[str, Any]:
        return {
            name: {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype).removeprefix("torch.")}
            for name, value in values.items()
        }

    action, _ = Exported(trained)(obs, torch.ones(EXAMPLES, dtype=torch.bool), state)
    inputs = of(obs)
    for name in inputs:
        if name in MEANINGS:
            inputs[name]["meaning"] = MEANINGS[name]
    told: dict[str, Any] = {}
    if part.agents:
        told["agents"] = part.agents
        told["rows"] = (
            "a row is an environment, with an axis over the agents in this order"
            if trained.spec.joint
            else "a row is one of these agents; a call takes any number of them, such as those that are in the game"
        )
    if part.fixed is not None:
        told["fixed"] = f"it did not learn; its weights are those of {part.fixed}"
    if trained.spec.notes:
        told["notes"] = list(trained.spec.notes)
    return {
        **told,
        "obs": inputs,
        "is_first": "bool [batch]: true where an episode begins, which forgets the state",
        "state": of(state),
        "action": of(action),
        "action_space": str(trained.spec.action),
        "use": use(part, obs, state),
    }


def use(part: Part, obs: Tensors, state: Tensors) -> list[str]:
    """Returns lines of Python that show how to act with the .pt2 file."""
    joint = part.trained.spec.joint
    count = len(part.agents) if part.agents and not joint else 1
    rows = ", ".join(f'"{name}": {name.replace(".", "_")}' for name in obs)
    first = ", ".join(
        f'"{name}": torch.zeros({count}, {", ".join(map(str, value.shape[1:]))})' for name, value in state.items()
    )
    begins = ", ".join(["True"] * count)
    lines = [
        f"policy = torch.export.load('{part.file}.pt2').module()",
        f"state = {{{first}}}  # what the last call gave, later on",
        (
            f"action, state = policy({{{rows}}}, torch.tensor([{begins}]), state)  # tensors of [{count}, ...]; True"
            " where an episode begins"
        ),
    ]
    if not part.agents:
        return [*lines, "env.step(action['action'][0].numpy())  # greedy, as the environment takes it"]
    taken = "action['action'][0]" if joint else "action['action']"
    return [*lines, f"actions = dict(zip({part.agents}, {taken}.numpy()))  # greedy, as the environment takes them"]


def observed(trained: Trained, steps: int) -> Game:
    """Plays the first `steps` steps of a game with the run's own policy.

    Returns (observation [1, ...], action as the environment took it) of every step.
    """
    if isinstance(trained.config.env, RecordedConfig):
        return imagined(trained, steps)
    if trained.agents:
        return observed_together(trained, steps)
    env = trained.make_env(seed=0)
    trained.reset()
    made: Game = []
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


def observed_together(trained: Trained, steps: int) -> Game:
    """The same for an environment with N agents: observations and actions are [N, ...]."""
    from rlrun.samplers.evaluator import to_torch

    seeds = Seeds(0)
    factory = Factory(cfg=trained.config.env, spec=trained.spec, seeds=seeds, stream="user", learning=False)
    env = factory(0, 1)
    made: Game = []
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


def imagined(trained: Trained, steps: int) -> Game:
    """The same for a run that learnt from data, without an environment to play: observations are random."""
    from rlrun.samplers.evaluator import to_torch

    rng, count, told = np.random.default_rng(0), trained.spec.columns_per_env, ("prev_action", "prev_reward")
    made: Game = []
    trained.reset()
    for _ in range(steps):
        obs = {name: drawn(space, rng, count) for name, space in trained.spec.obs.items() if name not in told}
        if "action_mask" in obs:
            obs["action_mask"] = np.ones_like(obs["action_mask"])
        rows, reward = trained._told(to_torch(obs).clone(), count, np.zeros(count)), np.zeros(count)
        taken = trained.spec.action.to_env(trained.policy_action(obs, reward=reward))
        made.append((flat(rows), flat_actions(trained.spec.action, taken)))
    trained.reset()
    return made


def drawn(space: Space, rng: np.random.Generator, count: int) -> Any:
    """[count, ...] random observations in the form that rows have."""
    if isinstance(space, Nested):
        return {name: drawn(part, rng, count) for name, part in space.spaces}
    if isinstance(space, Box) and space.dtype == "uint8":
        return rng.integers(256, size=(count, *space.shape), dtype=np.uint8)
    made = space.sample(rng, count)
    return made.astype(space.dtype) if isinstance(space, Box) else made


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


def rows_of(part: Part, game: Game) -> Game:
    """What the agents of one policy saw and did in a game of all."""
    if part.numbers is None:
        return game
    numbers = list(part.numbers)
    return [({n: x[numbers] for n, x in obs.items()}, {n: x[numbers] for n, x in act.items()}) for obs, act in game]


def parity(trained: Trained, call: Any, steps: int = STEPS, game: Game | None = None) -> float:
    """Returns the largest difference between the actions of call(obs, is_first, state) and the run's own during a game.

    game: what was seen and done; None: a new game of so many steps. Differences are relative to the action's size.
    Raises RunFailed if one is above TOLERANCE.
    """
    game = observed(trained, steps) if game is None else game
    rows = len(next(iter(game[0][0].values())))
    inputs, _, state = example(trained, rows)
    worst = 0.0
    for number, (obs, action) in enumerate(game):
        made, state = call({name: obs[name] for name in inputs}, torch.tensor([number == 0] * rows), state)
        for name, value in action.items():
            gap = float((made[name].double() - value.double()).abs().max() / (1.0 + value.double().abs().max()))
            worst = max(worst, gap)
    if worst > TOLERANCE:
        raise RunFailed(f"the exported policy does not act as the run's own does: actions differ by up to {worst:g}")
    return worst


def write(trained: Trained, folder: Path, formats: tuple[str, ...]) -> list[tuple[Path, str]]:
    """Writes policy.<format>, or policy.<name>.<format> for each of several policies, and policy.json, and returns the
    files, each with a note on what was checked.

    Raises UserError where a package is missing, a policy has no greedy() or the folder cannot be written.
    """
    for name in formats:
        require(name)
    parts, left_out = parts_of(trained)
    for part in parts:
        policy = part.trained.policy
        if type(policy).greedy is Policy.greedy:
            raise UserError(
                f"{type(policy).__name__} has no greedy(obs, is_first, state), which is what is exported (see"
                " rlrun.core.policy.Policy)"
            )
    facts = facts_of(trained)
    if len(parts) == 1 and parts[0].name is None:
        facts |= describe(parts[0])
    else:
        files = {part.name: [f"{part.file}.{name}" for name in formats] for part in parts}
        facts["policies"] = {part.name: {"files": files[part.name], **describe(part)} for part in parts}
        facts["not_exported"] = left_out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.json").write_text(json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    without_chance(trained.policy)
    game = observed(trained, STEPS) if set(formats) & {"pt2", "onnx"} else []
    writers = {"pt2": write_pt2, "safetensors": write_safetensors, "onnx": write_onnx}
    made = []
    for part in parts:
        for name in formats:
            path = folder / f"{part.file}.{name}"
            made.append((path, writers[name](part, path, rows_of(part, game))))
    return [*made, (folder / "policy.json", "")]


def require(name: str) -> None:
    import importlib.util

    needed = {"safetensors": ("safetensors",), "onnx": ("onnx", "onnxscript", "onnxruntime")}.get(name, ())
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        extra = {"safetensors": "export", "onnx": "onnx"}[name]
        raise UserError(f"{name} needs {', '.join(missing)}: {install_line(extra)}, or choose --formats pt2")


def write_pt2(part: Part, path: Path, game: Game) -> str:
    torch.export.save(program(part.trained), path)
    gap = parity(part.trained, torch.export.load(path).module(), game=game)
    return f"acts as the run's own policy (largest difference {gap:g})"


def write_safetensors(part: Part, path: Path, game: Game) -> str:
    from safetensors.torch import load_file, save_file

    trained = part.trained
    weights = {name: value.contiguous().clone() for name, value in trained.policy.state_dict().items()}
    told = {"algo": trained.config.algo.name, "env": trained.spec.name}
    told |= {} if part.name is None else {"policy": part.name}
    save_file(weights, path, metadata={"rlrun": json.dumps(told)})
    back = load_file(path)
    if set(back) != set(weights) or any(not torch.equal(back[name], value) for name, value in weights.items()):
        raise RunFailed(f"{path} does not hold what was written to it")
    return f"{len(weights)} tensors, {sum(value.numel() for value in weights.values()):,} numbers"


def write_onnx(part: Part, path: Path, game: Game) -> str:
    import onnxruntime

    trained = part.trained
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

    return f"acts as the run's own policy (largest difference {parity(trained, call, game=game):g})"


def ordered_inputs(obs: Tensors, state: Tensors) -> list[str]:
    """Returns the names that torch.onnx gives to the inputs, in their order."""
    return [
        *(f"obs_{name}".replace(".", "_") for name in obs),
        "is_first",
        *(f"state_{name}".replace(".", "_") for name in state),
    ]
