"""rlrun: reinforcement learning from one command.

`rlrun.load(RUN_DIR)` returns a trained policy, and `rlrun.Callback` is the base class of what callbacks=[...] names.
Everything else is done on the command line.
"""

__version__ = "0.1.0"


def __getattr__(name: str):
    if name == "load":  # the import is here because it takes torch with it, and completion must be quick
        from rlrun.runtime.trained import load

        return load
    if name == "Callback":
        from rlrun.core.callbacks import Callback

        return Callback
    raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
