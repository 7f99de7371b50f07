"""Gives an algorithm the weights of other runs, as init= and algo.fixed ask."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlrun.algos.multi import Config as MultiConfig
from rlrun.algos.multi import Multi, frozen
from rlrun.config.algorithms import algorithm_class
from rlrun.config.run import Typed
from rlrun.config.saved import read_config
from rlrun.config.signature import guarded
from rlrun.config.types import load_yaml
from rlrun.config.unused import flattened
from rlrun.core.algorithm import Algorithm
from rlrun.core.errors import UserError
from rlrun.core.plugins import allow
from rlrun.core.policy import Policy
from rlrun.runtime.rundir import checkpoints_of

# Options that change what weights compute and not their shapes, besides those of _computes().
FUNCTIONS = {
    "algo.ranked.enabled",  # values within [-1, 1]
    *(f"model.{name}" for name in ("temperature", "action_distribution", "mean_scale", "init_std", "action_min_std")),
    *(f"model.{name}" for name in ("min_std", "max_std", "unimix", "symlog")),
}
FUNCTIONS_OF_ANY = {"v_min", "v_max"}  # of algorithms, which may be inside of others


def _found(path: Path, otherwise: str) -> tuple[Path, str | None]:
    """The run directory of a path, and the checkpoint that it names, if it names one. Raises UserError(otherwise)."""
    run_dir, checkpoint = (path.parent.parent, path.name) if path.parent.name == "checkpoints" else (path, None)
    if not (run_dir / "config.yaml").is_file():
        raise UserError(otherwise)
    return run_dir, checkpoint


def _misfit(error: RuntimeError, run_dir: Path) -> str:
    """The first of the misfits that PyTorch lists below a heading, and what would mend it if it is a filter."""
    said = str(error).splitlines()
    first = said[1].strip() if len(said) > 1 else said[0]
    if "filter.filters." not in first or not first.startswith(("Missing key", "Unexpected key")):
        return first
    theirs = load_yaml(run_dir / "config.yaml").get("model", {}).get("observation_filter", "none")
    return f"that run has model.observation_filter={theirs}; set it here, too"


def begin_with(algorithm: Algorithm, path: Path, name: str) -> None:
    """Gives an algorithm the weights and filters of another run.

    If the other run has the same algorithm, or a variant of it that has all that this one has (as cql has all of sac),
    all weights are taken, otherwise only the policy's. Counters, optimisers, schedules and adaptive coefficients begin
    anew, and so do the ranked returns of alphazero, the policies that maml and mbmpo adapted, and the snapshots of
    self_play, of which the first is of the weights that are taken. The temperature of sac and its kin does so where
    algo.initial_alpha is another than in the other run. path: a checkpoint, or a run directory, of which the last
    checkpoint is taken."""
    run_dir, checkpoint = _found(path, f"init={path} is neither a run directory nor one of its checkpoints")
    tensors, _ = checkpoints_of(run_dir).load(checkpoint, parts=("policy", "algorithm"))
    found = read_config(run_dir)
    other = found.values["algo"]
    if found.own:  # a run of this user's own may name modules of the user's own
        allow(other, here=found.in_place)
    saved, anew = tensors["algorithm"]["module"], algorithm.state_dict()
    own = {
        f"{prefix}.{key}".lstrip(".")
        for prefix, module in algorithm.named_modules()
        if isinstance(module, Algorithm)
        for key, _ in module.named_buffers(recurse=False)
    }
    modules = algorithm.named_modules(remove_duplicate=False)
    policies = [(prefix, module) for prefix, module in modules if isinstance(module, Policy)]
    kept = [f"{prefix}.{name}".lstrip(".") for prefix, module in policies for name in module.own_state]
    own |= {key for key in anew.keys() | saved.keys() for name in kept if f"{key}.".startswith(f"{name}.")}
    temperatures = {value for key, value in flattened(other).items() if key.split(".")[-1] == "initial_alpha"}
    own |= {
        f"{prefix}.log_alpha".lstrip(".")
        for prefix, module in algorithm.named_modules()
        if isinstance(module, Algorithm) and getattr(module.cfg, "initial_alpha", None) not in (None, *temperatures)
    }
    # The scale of rewards is missing where a run does not scale them.
    own |= {key for key in anew.keys() ^ saved.keys() if "reward_scale." in key}
    try:
        has_all = anew.keys() - own <= saved.keys()
        if other["name"] == name or (has_all and variants(_class_of(other, found.own), type(algorithm))):
            if other["name"] != name:
                own |= saved.keys() - anew.keys()
            algorithm.load_state_dict(
                {key: value for key, value in saved.items() if key not in own}
                | {key: anew[key] for key in own & anew.keys()}
            )
        else:
            theirs = {key: value for key, value in tensors["policy"].items() if f"policy.{key}" not in own}
            ours = {key: value for key, value in algorithm.policy.state_dict().items() if f"policy.{key}" in own}
            algorithm.policy.load_state_dict(theirs | ours)
            for part in [m for m in algorithm.modules() if isinstance(m, Algorithm)]:
                part.renew_targets()
    except RuntimeError as error:
        said = _misfit(error, run_dir)
        cfg = flattened({"algo": json.loads(json.dumps(asdict(algorithm.cfg), default=str))})
        others = flattened({"algo": other})
        differ = [key for key in cfg if key in others and others[key] != cfg[key]] if other["name"] == name else []
        more = f"; options of algo that differ there: {', '.join(differ)}" if differ else ""
        raise UserError(f"init={path}: its weights do not fit this run's env, model and algo: {said}{more}") from None
    for _, policy in policies:
        policy.weights_taken()


def given_weights(config: Typed) -> dict[str, Path]:
    """The runs or checkpoints whose weights a run begins with, by the option that names them."""
    init = {} if config.run.init is None else {"init": Path(config.run.init)}
    fixed = frozen(config.algo) if isinstance(config.algo, MultiConfig) else {}
    return init | {f"algo.fixed.{name}": path for name, path in fixed.items()}


def other_functions(values: dict[str, Any], path: Path, option: str = "init") -> str | None:
    """Returns a note if networks with the weights of another run compute something else than they did there, although
    all shapes are the same. values: this run's plain config. path: as in begin_with. option: what names the path."""
    run_dir, _ = _found(path, f"{option}={path} is neither a run directory nor one of its checkpoints")
    theirs = flattened(load_yaml(run_dir / "config.yaml"))
    for key, value in flattened({group: values[group] for group in ("model", "algo")}).items():
        other = theirs.get(key, value)
        if other != value and "auto" not in (other, value) and _computes(key, values["model"]):
            return f"{key} is {value}, and {other} in {path}, so the same weights compute something else"
    return None


def _computes(key: str, model: dict[str, Any]) -> bool:
    """Whether an option changes what weights compute and not their shapes. model: this run's options of its model."""
    if key == "model.observation_clip":
        return model.get("observation_filter") != "none"
    if key == "model.log_std":  # a free deviation is a weight itself, and this option only its first value
        return model["action_distribution"] != "gaussian" or not model.get("free_log_std", False)
    return key in FUNCTIONS or key.split(".")[-1] in FUNCTIONS_OF_ANY or key.endswith("activation")


def _class_of(algo: dict[str, Any], own: bool) -> type[Algorithm]:
    """The class of a saved run's algorithm. Raises UserError where a run from elsewhere names a module that no
    installed package contains, as it may lie in the run directory."""
    with guarded(own):
        return algorithm_class(algo)


def variants(one: type[Algorithm], other: type[Algorithm]) -> bool:
    """Tells whether one of two algorithms derives from the other."""
    return issubclass(one, other) or issubclass(other, one)


def give_weights(algorithm: Multi) -> None:
    """Gives the policies that do not learn the weights of the runs that algo.fixed names."""
    for name, path in frozen(algorithm.cfg).items():
        run_dir, checkpoint = _found(
            path,
            f"algo.fixed.{name}={path} is neither a run directory nor one of its checkpoints, nor random or a class"
            " named package.module:Name",
        )
        tensors, _ = checkpoints_of(run_dir).load(checkpoint, parts=("policy",))
        weights, prefix = tensors["policy"], f"policies.{name}."
        if any(key.startswith("policies.") for key in weights):  # that run had several policies too
            weights = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
            if not weights:
                known = dict.fromkeys(key.split(".")[1] for key in tensors["policy"])
                raise UserError(
                    f"algo.fixed.{name}={path}: that run has no policy {name}; its policies with weights are"
                    f" {', '.join(known)}"
                )
        elif "present" in weights and any(key.startswith("snapshots.") for key in weights):  # self-play
            weights = {key.removeprefix("main."): value for key, value in weights.items() if key.startswith("main.")}
        try:
            algorithm.policy.policy(name).load_state_dict(weights)
        except RuntimeError as error:
            what = "its weights do not fit this run's env, model and algorithm"
            raise UserError(f"algo.fixed.{name}={path}: {what}: {_misfit(error, run_dir)}") from None
