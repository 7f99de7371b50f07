"""rlrun: reinforcement learning from one command. `rlrun.load(RUN_DIR)` gives a trained policy, `rlrun.Callback` is what callbacks=[...] are made of;
everything else is the command line."""

__version__ = "0.1.0"


def __getattr__(name: str):
    if name == "load":  # torch is imported only when it is needed: completion must be quick
        from rlrun.runtime.trained import load

        return load
    if name == "Callback":
        from rlrun.core.callbacks import Callback

        return Callback
    raise AttributeError(f"module 'rlrun' has no attribute {name!r}")
