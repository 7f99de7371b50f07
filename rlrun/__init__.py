"""rlrun: reinforcement learning from one command, or from Python.

train(), resume(), evaluate() and sweep() do what the commands of their names do (docs/python.md), and load(RUN_DIR)
returns a trained policy. Callback and EnvCallback are the base classes of what callbacks=[...] names,
ActionDistribution is that of model.action_distribution, Exploration that of algo.exploration.kind, and Evaluation that
of eval.function. UserError is raised if something is asked for that cannot be, and RunFailed if a run fails.

Names are looked up when they are first used, because most of them take PyTorch with them."""

from typing import TYPE_CHECKING, Any

from rlrun.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from rlrun.api import evaluate, resume, sweep, train
    from rlrun.core.callbacks import Callback, EnvCallback
    from rlrun.core.errors import EnvError, RunFailed, UserError
    from rlrun.core.evaluation import Evaluation
    from rlrun.ops.distributions import ActionDistribution
    from rlrun.policies.exploration import Chosen, Exploration
    from rlrun.runtime.trained import Trained, load

_PLACES = {
    "train": "rlrun.api",
    "resume": "rlrun.api",
    "evaluate": "rlrun.api",
    "sweep": "rlrun.api",
    "load": "rlrun.runtime.trained",
    "Trained": "rlrun.runtime.trained",
    "Callback": "rlrun.core.callbacks",
    "EnvCallback": "rlrun.core.callbacks",
    "ActionDistribution": "rlrun.ops.distributions",
    "Exploration": "rlrun.policies.exploration",
    "Chosen": "rlrun.policies.exploration",
    "Evaluation": "rlrun.core.evaluation",
    "UserError": "rlrun.core.errors",
    "RunFailed": "rlrun.core.errors",
    "EnvError": "rlrun.core.errors",
}
__all__ = [
    "ActionDistribution",
    "Callback",
    "Chosen",
    "EnvCallback",
    "EnvError",
    "Evaluation",
    "Exploration",
    "RunFailed",
    "Trained",
    "UserError",
    "evaluate",
    "load",
    "resume",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
