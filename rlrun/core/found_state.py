"""Finds the state of an algorithm wherever the algorithm keeps it: in attributes, lists, dicts, inner algorithms,
nested modules and helper objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from rlrun.core.optimizer import Optimizer

NOT_STATE = ("cfg", "spec", "ctx")  # attributes that hold facts and services but no state
NO_PARTS = (str, bytes, type, torch.Tensor, FunctionType, MethodType, BuiltinFunctionType, ModuleType)


class FoundState(NamedTuple):
    """The objects that were found, by their dotted paths from the algorithm."""

    optimizers: dict[str, Optimizer]
    rngs: dict[str, torch.Generator]  # all generators except the learner's own, ctx.rng
    modules: dict[str, nn.Module]  # unregistered modules, which the algorithm's state_dict() lacks


def find_state(algorithm: nn.Module) -> FoundState:
    """Finds every object once, under its shortest path. Among paths of the same length, registered modules come first,
    so that an inner algorithm's optimiser is named after that algorithm even if other objects hold it too."""
    found = FoundState({}, {}, {})
    covered = {id(module) for module in algorithm.modules()}  # modules whose tensors are in a saved state_dict
    seen, queue = {id(algorithm)}, deque([("", algorithm)])
    learners_own: set[int] = set()  # the generators ctx.rng
    while queue:
        path, holder = queue.popleft()
        context_rng = getattr(vars(holder).get("ctx"), "rng", None) if hasattr(holder, "__dict__") else None
        learners_own.add(id(context_rng))
        for name, value in _parts(holder):
            if id(value) in seen or id(value) in learners_own:
                continue
            where = f"{path}.{name}" if path else name
            if isinstance(value, Optimizer):
                _add(found.optimizers, where, value)
            elif isinstance(value, torch.Generator):
                _add(found.rngs, where, value)
            elif _has_parts(value):
                if isinstance(value, nn.Module) and id(value) not in covered:
                    _add(found.modules, where, value)
                    covered |= {id(module) for module in value.modules()}
                queue.append((where, value))
            else:
                continue
            seen.add(id(value))
    return found


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, Mapping):
        yield from ((str(key), value) for key, value in holder.items())
        return
    if isinstance(holder, list | tuple | deque):
        yield from ((str(index), value) for index, value in enumerate(holder))
        return
    internal = vars(nn.Module()).keys() if isinstance(holder, nn.Module) else ()
    if isinstance(holder, nn.Module):
        yield from holder._modules.items()
    yield from ((name, value) for name, value in vars(holder).items() if name not in NOT_STATE and name not in internal)


def _has_parts(value: Any) -> bool:
    """Whether the value may hold state. PyTorch's own objects, except modules, hold no objects of ours."""
    if isinstance(value, Mapping | list | tuple | deque | nn.Module):
        return True
    if isinstance(value, NO_PARTS) or type(value).__module__.partition(".")[0] in ("torch", "numpy"):
        return False
    return hasattr(value, "__dict__")


def _add(found: dict[str, Any], path: str, value: Any) -> None:
    if path in found:
        raise ValueError(f"two parts of an algorithm are both called {path}: checkpoints could not tell them apart")
    found[path] = value
