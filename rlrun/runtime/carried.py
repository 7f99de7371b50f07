"""What the processes of a run must know of the Python program that has called it: where rlrun is, and which
environments the program has registered. They import its script again, which is why a call of rlrun must be guarded."""

from __future__ import annotations

import ast
import contextlib
import functools
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlrun.core.errors import UserError
from rlrun.core.variables import variables

OWN_PACKAGES = ("gymnasium", "rlrun", "ale_py", "shimmy")  # their ids are known in every process


def rlrun_is_found() -> contextlib.AbstractContextManager[None]:
    """Lets processes that start meanwhile import rlrun from where this one has it."""
    package = str(Path(__file__).resolve().parent.parent.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return variables({"PYTHONPATH": os.pathsep.join(dict.fromkeys([*known, package]))})


def named(kind: type) -> str:
    """The name of an environment's class. Raises UserError if no other process can import it."""
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise UserError(
            f"env={kind.__qualname__} is a class that other processes cannot import: write it to a file, such as"
            f' my_envs.py, and name it env="my_envs:{kind.__name__}"'
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def registered_here(name: str) -> Any:
    """Gymnasium's spec of an id that this program has registered itself; None for all other names."""
    gymnasium = sys.modules.get("gymnasium")
    spec = gymnasium.registry.get(name) if gymnasium is not None else None
    if spec is None:
        return None
    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return None if str(module).split(".")[0] in OWN_PACKAGES else spec


def to_carry(env: str | None) -> list[Callable[[], None]]:
    """What new processes call to know the environment, if this program has registered it. Raises UserError if they
    cannot know it."""
    spec = None if env is None else registered_here(env)
    if spec is None:
        return []
    from rlrun.dataflow.workers import main_script

    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)
    if module == "__main__" and main_script() is None:
        raise UserError(
            f"env={env} is made by {getattr(entry, '__qualname__', entry)}, which is defined in this notebook or"
            " on standard input, where other processes cannot find it: write it to a file, such as my_envs.py, and use"
            ' env="my_envs:MyEnv"'
        )
    if not isinstance(entry, str) and "<" in getattr(entry, "__qualname__", "<"):
        raise UserError(
            f"env={env} is made by {entry!r}, which other processes cannot import: register a class or a function that"
            " stands at the top of a module"
        )
    return [functools.partial(register_again, spec)]


def register_again(spec: Any) -> None:
    """Registers an environment of the first process in this one, unless its script has done so here."""
    import gymnasium

    gymnasium.registry.setdefault(spec.id, spec)


def refuse_unguarded(name: str) -> None:
    """Raises UserError if a script calls rlrun.<name>() where its processes, which import the script again, would call
    it too."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    importing = getattr(multiprocessing.current_process(), "_inheriting", False)
    unguarded = importing or (main is not None and file is not None and _reaches(vars(main), str(file)))
    if unguarded:
        text = (
            f"a run starts processes, which import {Path(str(file or 'your script')).name} again: put the call of"
            f' rlrun.{name}() under `if __name__ == "__main__":`'
        )
        if importing:
            raise SystemExit(f"rlrun: {text}")
        raise UserError(text)


def _reaches(main: dict[str, Any], file: str) -> bool:
    """Whether the present call comes from a statement that runs when the main script is imported."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        # The code of eval() and exec() is called <module> too, and the file in which it is called comes after it.
        if frame.f_globals is main and code.co_name == "<module>" and not code.co_filename.startswith("<"):
            return not guarded(file, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return False


def guarded(file: str, line: int) -> bool:
    """Whether a line of a script stands under an `if` that looks at __name__."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return True  # it is no script that could be imported again
    return any(
        node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and "__name__" in {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
    )
