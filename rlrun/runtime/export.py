"""Writes a trained policy (runtime/exported_policy.py) to files, and compares these with the run's own policy.

policy.json beside the files, and README.md for people, tell the names, shapes and meanings of what goes in and out.
"""

from __future__ import annotations

import json
import os
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.core.errors import RunFailed, UserError
from rlrun.core.policy import Policy
from rlrun.core.specs import Discrete, described, leaves
from rlrun.envs.agents import AgentsSpec
from rlrun.envs.joint import ALIVE
from rlrun.policies.planning import SearchPolicy
from rlrun.runtime.export_files import (
    FORMATS,
    fingerprint,
    from_before,
    opening,
    recipe,
    require,
    staged,
    strangers,
    sums_of,
    undisturbed,
    writing,
)
from rlrun.runtime.exported_game import Game, observed, rows_of
from rlrun.runtime.exported_policy import (
    EXAMPLES,
    Exported,
    Part,
    Tensors,
    example,
    parts_of,
    program,
    starts_of,
    without_chance,
)
from rlrun.runtime.trained import Trained

STEPS = 40  # of the game in which exported policies are compared
TOLERANCE = 1e-5
MEANINGS = {
    "action_mask": "1 for legal actions, else 0; agent by agent if a row holds several",
    ALIVE: "1 for agents that take part, else 0; an agent that does not is shown 0, or a choice's first number",
    "prev_reward": "the last reward, unclipped; 0 where an episode begins",
}


LAST_ACTION = (
    "the last action as it was executed; 0 where an episode begins. Choices count from 0. Bounded numbers lie in"
    " [-1, 1], in which a whole one is the middle of its equal part. Others are in the environment's units"
)
AS_ROWS = (
    "not yet as the environment takes them, because these agents have unlike action spaces (action_spaces). Choices"
    " count from 0. Bounded numbers lie in [-1, 1], which is to be stretched over the agent's own bounds; where numbers"
    " are whole, each of them gets an equal part. Others are to be clipped to the bounds that exist. Of an agent with a"
    " shorter vector the first numbers count"
)
TAKEN = "greedy, as the environment takes"


def facts_of(trained: Trained) -> dict[str, Any]:
    """What is true of all files of a run."""
    return {
        "run_dir": str(trained.run_dir),
        "algo": trained.config.algo.name,
        "env": trained.spec.name,
        "env_steps": trained.clock.env_steps,
        "torch": torch.__version__,
    }


def meanings_of(trained: Trained) -> dict[str, str]:
    """What is said of inputs whose numbers could be taken for something else."""
    told = dict(MEANINGS)
    told |= {".".join(("prev_action", *path)): LAST_ACTION for path, _ in leaves(trained.spec.action)}
    stacked = ", which also stands for what was before an episode's first observation" if trained.spec.stack > 1 else ""
    for name, start in starts_of(trained.spec.observation).items():
        told[name] = f"choices as the environment numbers them, from {start.tolist()} on{stacked}"
    spaces = {agent: own.obs["observation"] for agent, own in trained.agents.items()}
    first = {agent: space.start for agent, space in spaces.items() if isinstance(space, Discrete)}
    if len(set(spaces.values())) > 1 and any(first.values()):  # rows of unlike agents count from 0
        listed = ", ".join(f"{agent} from {start}" for agent, start in first.items())
        told["observation"] = f"choices count from 0, while the environment counts those of {listed}"
    if isinstance(trained.spec, AgentsSpec) and trained.spec.agent_id:
        said = f"its last {len(spaces)} numbers say which agent it is: 1 for one of {', '.join(spaces)}, in this order"
        told["observation"] = "; ".join(filter(None, [told.get("observation", ""), said]))
    return told


def describe(part: Part, formats: tuple[str, ...]) -> dict[str, Any]:
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
    for name, meaning in meanings_of(trained).items():
        if name in inputs:
            inputs[name]["meaning"] = meaning
    told: dict[str, Any] = {}
    if part.agents:
        told["agents"] = part.agents
        told["rows"] = (
            "a row is an environment, with an axis over the agents in this order"
            if trained.spec.joint
            else "a row is one of these agents; a call takes any number of them, such as those that are in the game"
        )
    if isinstance(trained.policy, SearchPolicy):
        told["searches"] = (
            "not here: these files play the network's first guess, as algo.search.simulations=0 does, while the run's"
            " own policy searches and plays better"
        )
    if part.fixed is not None:
        told["fixed"] = f"it did not learn; its weights are those of {part.fixed}"
    if not part.as_taken:
        told["actions"] = AS_ROWS
        told["action_spaces"] = dict(zip(part.agents, map(described, part.own), strict=True))
    if trained.spec.notes:
        told["notes"] = list(trained.spec.notes)
    return {
        **told,
        "obs": inputs,
        "is_first": "bool [batch]: true where an episode begins, which forgets the state",
        "state": of(state),
        "action": of(action),
        "action_space": str(trained.spec.action),
        **({"use": use(part, obs, state)} if "pt2" in formats else {}),
        **(
            {"safetensors": f"weights = safetensors.torch.load_file('{part.file}.safetensors')"}
            if "safetensors" in formats
            else {}
        ),
        **({"onnx": described_onnx(part, obs, state, action)} if "onnx" in formats else {}),
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
        return [*lines, f"env.step(action['action'][0].numpy())  # {TAKEN} it"]
    taken = "action['action'][0]" if joint else "action['action']"
    return [*lines, f"actions = dict(zip({part.agents}, {taken}.numpy()))  # {form_of(part)}"]


def form_of(part: Part) -> str:
    """What is said of the actions of several agents."""
    return f"{TAKEN} them" if part.as_taken else "greedy; `actions` in policy.json says what becomes of them"


def described_onnx(part: Part, obs: Tensors, state: Tensors, action: Tensors) -> dict[str, Any]:
    """The names of the .onnx file's inputs and outputs, and lines of Python that act with it. An input that the policy
    ignores is not in the file."""
    joint = part.trained.spec.joint
    count = len(part.agents) if part.agents and not joint else 1
    rows = ", ".join(f'"{onnx_name("obs", name)}": {name.replace(".", "_")}' for name in obs)
    first = ", ".join(
        f'"{onnx_name("state", name)}": np.zeros(({", ".join(map(str, (count, *value.shape[1:])))}), '
        f'"{str(value.dtype).removeprefix("torch.")}")'
        for name, value in state.items()
    )
    begins = ", ".join(["True"] * count)
    states = ", ".join(f'"{onnx_name("state", name)}": out["{onnx_name("next_state", name)}"]' for name in state)
    lines = [
        f"session = onnxruntime.InferenceSession('{part.file}.onnx')",
        f"state = {{{first}}}  # what the last call gave, later on",
        (
            f'given = {{{rows}, "is_first": np.array([{begins}]), **state}}  # arrays of [{count}, ...]; True where an'
            " episode begins"
        ),
        "taken = {one.name: given[one.name] for one in session.get_inputs()}  # without what the policy ignores",
        "out = dict(zip([one.name for one in session.get_outputs()], session.run(None, taken)))",
        f"state = {{{states}}}",
    ]
    if not part.agents:
        lines.append(f"env.step(out['action'][0])  # {TAKEN} it")
    else:
        each = "out['action'][0]" if joint else "out['action']"
        lines.append(f"actions = dict(zip({part.agents}, {each}))  # {form_of(part)}")
    return {
        "inputs": onnx_inputs(obs, state),
        "outputs": onnx_outputs(action, state),
        "use": lines,
    }


def onnx_name(kind: str, name: str) -> str:
    """The name of an input or an output in an .onnx file: obs_observation, state_h, next_state_h, action_left."""
    return f"{kind}_{name}".replace(".", "_")


def onnx_inputs(obs: Tensors, state: Tensors) -> list[str]:
    """The names of a file's inputs, in the order in which they are traced."""
    return [*(onnx_name("obs", name) for name in obs), "is_first", *(onnx_name("state", name) for name in state)]


def onnx_outputs(action: Tensors, state: Tensors) -> list[str]:
    """The names of a file's outputs: action, or action_<part> for each part, and the state for the next call."""
    return [*(name.replace(".", "_") for name in action), *(onnx_name("next_state", name) for name in state)]


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
            if made[name].shape != value.shape:
                raise RunFailed(
                    f"the exported policy does not act as the run's own does: its actions have the shape"
                    f" {list(made[name].shape)} and not {list(value.shape)}"
                )
            gap = float((made[name].double() - value.double()).abs().max() / (1.0 + value.double().abs().max()))
            worst = max(worst, gap)
    if worst > TOLERANCE:
        raise RunFailed(f"the exported policy does not act as the run's own does: actions differ by up to {worst:g}")
    return worst


def write(trained: Trained, folder: Path, formats: tuple[str, ...]) -> list[tuple[Path, str]]:
    """Writes policy.<format>, or policy.<name>.<format> for each of several policies, policy.json and README.md, and
    returns the files, each with a note on what was checked. policy.json and README.md also describe the files of other
    formats that an earlier export of the same policy left in the folder, and name those that are of another policy.

    A file appears in the folder only after its check. If a format fails, the folder gets those that passed before it.
    Raises RunFailed where a file does not act as the policy does or cannot be made, and UserError where a package is
    missing, a policy has no greedy() or the folder cannot be written.
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
    without_chance(trained.policy)
    writers = {"pt2": write_pt2, "safetensors": write_safetensors, "onnx": write_onnx}
    notes, passed = [], []
    with staged(folder) as making:
        try:
            game = observed(trained, STEPS) if set(formats) & {"pt2", "onnx"} else []
            for name in formats:
                (making / name).mkdir()
                for part in parts:
                    path = making / name / f"{part.file}.{name}"
                    notes.append((folder / path.name, writers[name](part, path, rows_of(part, game))))
                passed.append(name)
        finally:  # what passed is kept if a later format fails
            if passed:
                keep(trained, folder, making, passed, parts, left_out)
    return [*notes, (folder / "policy.json", ""), (folder / "README.md", "")]


def keep(
    trained: Trained, folder: Path, making: Path, passed: list[str], parts: list[Part], left_out: dict[str, str]
) -> None:
    """Moves the files of the formats that passed their checks from making/<format> to the folder, and then writes
    README.md and policy.json, which describe them."""
    weights = fingerprint(parts)
    before = from_before(folder, parts, weights)
    files = {name: sorted((making / name).iterdir()) for name in passed}
    there = {**before, **{name: sums_of(made) for name, made in files.items()}}
    with writing(folder):
        for file in chain(*files.values()):
            os.replace(file, folder / file.name)
    known = tuple(name for name in FORMATS if name in there)
    others = strangers(folder, parts, known)
    sums = {file: value for name in known for file, value in there[name].items()}
    facts = {**facts_of(trained), "weights": weights, "formats": list(known), "sha256": sums}
    if others:
        facts["of_other_policies"] = others
    if len(parts) == 1 and parts[0].name is None:
        told = [facts]
        facts |= describe(parts[0], known)
    else:
        told = [{"files": [f"{part.file}.{name}" for name in known], **describe(part, known)} for part in parts]
        facts["policies"] = {part.name: one for part, one in zip(parts, told, strict=True)}
        facts["not_exported"] = left_out
    recipes = [recipe(part, one) for part, one in zip(parts, told, strict=True)]
    with writing(folder):
        for name, text in {
            "README.md": "\n".join([opening(trained, others), *recipes]),
            "policy.json": json.dumps(facts, indent=1) + "\n",
        }.items():
            (making / name).write_text(text)
            os.replace(making / name, folder / name)


def write_pt2(part: Part, path: Path, game: Game) -> str:
    with warnings.catch_warnings():
        # PyTorch warns of weights that are parts of one vector; what it saved is compared below.
        warnings.filterwarnings("ignore", message="No complete tensor found in the group", category=UserWarning)
        torch.export.save(program(part.trained), path)
    return checked(part, torch.export.load(path).module(), game)


def checked(part: Part, call: Any, game: Game) -> str:
    """Compares a file that acts with the run's own policy, and says so."""
    without = " without its search" if isinstance(part.trained.policy, SearchPolicy) else ""
    gap = parity(part.trained, call, game=game)
    return f"acts as the run's own policy{without} (largest difference {gap:g})"


def write_safetensors(part: Part, path: Path, game: Game) -> str:
    from safetensors.torch import load_file, save_file

    trained = part.trained
    weights = {name: value.contiguous().clone() for name, value in trained.policy.state_dict().items()}
    told = {"algo": trained.config.algo.name, "env": trained.spec.name}
    told |= {} if part.name is None else {"policy": part.name}
    save_file(weights, path, metadata={"rlrun": json.dumps(told)})
    back = load_file(path)
    if set(back) != set(weights) or any(not torch.equal(back[name], value) for name, value in weights.items()):
        raise RunFailed(f"{path.name} does not hold what was written to it")
    return f"{len(weights)} tensors, {sum(value.numel() for value in weights.values()):,} numbers"


def write_onnx(part: Part, path: Path, game: Game) -> str:
    import onnxruntime

    trained = part.trained
    obs, first, state = example(trained)
    action = Exported(trained)(obs, first, state)[0]
    inputs, outputs = onnx_inputs(obs, state), onnx_outputs(action, state)
    traced = program(trained)
    with undisturbed():
        try:
            made = torch.onnx.export(traced, dynamo=True, verbose=False, input_names=inputs, output_names=outputs)
        except torch.onnx.errors.OnnxExporterError as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunFailed(f"torch.onnx cannot write this policy: {said}; --formats names the others") from None
    assert made is not None
    made.model.metadata_props["rlrun"] = json.dumps({**facts_of(trained), "inputs": inputs, "outputs": outputs})
    made.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    # Inputs that a policy ignores are not in the file.
    taken, given = [one.name for one in session.get_inputs()], [one.name for one in session.get_outputs()]
    if not set(taken) <= set(inputs) or given != outputs:
        raise RunFailed(
            f"{path.name} has the inputs {', '.join(taken)} and the outputs {', '.join(given)}, which are not those"
            f" that policy.json names: {', '.join(inputs)}, and {', '.join(outputs)}"
        )

    def call(obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensors, Tensors]:
        named = dict(zip(inputs, [*obs.values(), is_first, *state.values()], strict=True))
        results = session.run(outputs, {name: named[name].numpy() for name in taken})
        made = [torch.from_numpy(np.asarray(value)) for value in results]
        return dict(zip(action, made)), dict(zip(state, made[len(action) :]))

    return checked(part, call, game)
