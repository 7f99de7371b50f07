"""What a person is told about an error: a sentence with a line of the user's, and the traceback only if it was asked for."""

import sys
import types

import numpy as np
import pytest
import torch

from rlrun import cli
from rlrun.core.errors import UserError, explained, told, without_memory
from rlrun.core.restarts import Restarts


def users(source, name="/home/me/parts.py"):
    """A module of the user's."""
    module = types.ModuleType("parts")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_users_line_is_named_although_a_library_or_rlrun_raises_below_it():
    in_torch = users("import torch\n\ndef f():\n    return torch.nn.Linear(3, 2)(torch.zeros(1, 4))")
    assert told(raised(in_torch.f)) == (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x4 and 3x2) (/home/me/parts.py, line 4)"
    )
    in_rlrun = users("from rlrun.core.errors import check_name\ndef f():\n    check_name('/', 'it')")
    assert told(raised(in_rlrun.f)).endswith("(/home/me/parts.py, line 3)")


def test_the_line_that_reads_a_wrong_text_as_python_is_named(tmp_path):
    """Of a file that cannot be imported, Python's own sentence names the line."""
    reads = users("def f():\n    return eval('1 +')")
    assert told(raised(reads.f)) == "SyntaxError: invalid syntax (<string>, line 1) (/home/me/parts.py, line 2)"
    (tmp_path / "wrong.py").write_text("x = 1 +\n")
    imports = users(f"import runpy\ndef f():\n    runpy.run_path({str(tmp_path / 'wrong.py')!r})")
    assert told(raised(imports.f)) == "SyntaxError: invalid syntax (wrong.py, line 1)"


def test_rlruns_own_line_is_named_where_no_other_is_known(monkeypatch):
    error = raised(lambda: Restarts(1, 1.0).load([1]))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # without this file
    assert "rlrun/core/restarts.py, line " in told(error)


def failing(words):
    raise KeyError("x") if words else UserError("say more")


@pytest.mark.parametrize("flag", [[], ["--traceback"]])
def test_a_traceback_is_shown_only_if_it_was_asked_for(monkeypatch, capsys, flag):
    monkeypatch.setattr(cli, "_dispatch", failing)
    monkeypatch.setattr(cli, "leave_the_current_folder", lambda: None)
    monkeypatch.setenv("RLRUN_TRACEBACK", "0")
    monkeypatch.setattr(sys, "argv", ["rlrun", "train", *flag])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err
    assert end.value.code == 1 and f"KeyError: 'x' ({__file__}, line " in said
    assert ("Traceback (most recent" in said) == bool(flag)
    assert (said.count("\n") == 1 and said.endswith("; --traceback shows where it came from\n")) == (not flag)
    monkeypatch.setattr(sys, "argv", ["rlrun", *flag])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2 and capsys.readouterr().err.startswith("rlrun: say more\n")


def test_a_traceback_shows_what_a_sentence_was_made_from(monkeypatch):
    monkeypatch.setenv("RLRUN_TRACEBACK", "1")

    def hide():
        try:
            failing("x")
        except KeyError:
            raise UserError("it does not fit") from None

    said = explained(raised(hide))
    assert said.startswith("it does not fit\nTraceback") and "KeyError: 'x'" in said


@pytest.mark.parametrize(
    "ask, said",
    [
        (lambda: torch.zeros(2**50), "the machine has not enough memory for the 4,194,304 GiB that were asked for"),
        (lambda: np.empty(2**54), "the machine has not enough memory for the 134,217,728 GiB that were asked for"),
    ],
)
def test_memory_that_there_is_not_is_a_sentence(ask, said):
    error = raised(ask)
    assert without_memory(error) is not None and f"{said}: make the networks" in explained(error)


def test_a_gpus_memory_is_named():
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of 79 GiB.")
    assert explained(error).startswith("the GPU has not enough memory for the 20 GiB that were asked for: make")
    assert without_memory(RuntimeError("CUDA error: device-side assert triggered")) is None


def test_a_refused_thread_says_which_limit_it_is():
    said = explained(RuntimeError("can't start new thread"))
    assert said.startswith("no more threads and processes are allowed here: raise the limit (ulimit -u")
    assert "allowed here" not in explained(RuntimeError("another"))
