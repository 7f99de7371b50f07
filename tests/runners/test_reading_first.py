"""runner=offline: what is heard while a set that is larger than memory is read for the observation filter."""

import json
import os
import signal

import pytest
import torch
from datasets_of_tests import episode

from rlrun.cli import _dispatch
from rlrun.datasets.shelf import Shelf
from rlrun.runtime.rundir import checkpoints_of


@pytest.mark.parametrize("learners", (1, 2))
def test_a_signal_is_heard_while_the_observation_filter_reads_its_rows(learners, written, tmp_path, monkeypatch, capfd):
    """The run ends at once, and a resumed one reads all of them again. Another learner stops with the first."""
    data = written((episode(n, 20 + n % 50) for n in range(400)), group_rows=300)
    words = ["algo=bc", f"data.path={data}", "data.buffer=2500", "model.observation_filter=mean_std", "logger=[]", "env_steps=2000",
             "model.hidden=[4]", "algo.batch_size=100", "resources.device=cpu", f"resources.num_learners={learners}"]  # fmt: skip
    whole, cut, read_rows, taken = tmp_path / "whole", tmp_path / "cut", Shelf._all_rows, []

    def interrupted(shelf):
        for rows in read_rows(shelf):
            taken.append(rows)
            if len(taken) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            yield rows

    assert _dispatch(["train", *words, f"run_dir={whole}"]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(Shelf, "_all_rows", interrupted)
        assert _dispatch(["train", *words, f"run_dir={cut}"]) == 143
    assert len(taken) == 3
    summary = json.loads((cut / "summary.json").read_text())
    assert (summary["status"], summary["env_steps"]) == ("INTERRUPTED", 0)
    assert capfd.readouterr().out.count(f"the observation filter reads all rows of {data} first") == 2
    assert _dispatch(["resume", str(cut)]) == 0
    one, other = (checkpoints_of(path).load(None, parts=("policy",))[0]["policy"] for path in (whole, cut))
    names = [name for name in one if "filter" in name or learners == 1]  # other learners' draws begin anew
    assert "filter" in "".join(names) and all(torch.equal(one[name], other[name]) for name in names)
