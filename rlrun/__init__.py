"""rlrun: reinforcement learning from one command.

`rlrun.load(RUN_DIR)` returns a trained policy. `rlrun.Callback` and `rlrun.EnvCallback` are the base classes of what
callbacks=[...] names, `rlrun.ActionDistribution` is that of model.action_distribution, `rlrun.Exploration` that of
algo.exploration.kind, and `rlrun.Evaluation` that of eval.function. Everything else is done on the command line.
"""

__version__ = "0.1.0"


def __getattr__(name: str):
    if name == "load":  # the import is here because it takes torch with it, and completion must be quick
        from rlrun.runtime.trained import load

        return load
    if name in ("Callback", "EnvCallback"):
        from rlrun.core import callbacks

        return getattr(callbacks, name)
    if name == "ActionDistribution":
        from rlrun.ops.distributions import ActionDistribution

        return ActionDistribution
    if name in ("Exploration", "Chosen"):
        from rlrun.policies import exploration

        return getattr(exploration, name)
    if name == "Evaluation":
        from rlrun.core.evaluation import Evaluation

        return Evaluation
    raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
