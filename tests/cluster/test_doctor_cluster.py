"""rlrun doctor --cluster: what it measures and what it calls wrong."""

import dataclasses

import pytest
from together import Together

from rlrun.cli import _dispatch
from rlrun.commands.doctor_cluster import Checked, check, wrong
from rlrun.config.types import parse_assignments
from rlrun.core.errors import UserError
from rlrun.experiments.ray_queue import RayQueue, cluster_config
from rlrun.machine.nodes import Node


class Apart(Together):
    """An engine whose machines have clocks of their own. One of them hangs."""

    def start(self, kind, name, node, brief, spare=False):
        host = super().start(kind, name, node, brief, spare)
        host.made.sampler = None
        if node == "b":
            host.made.clock = lambda ask=host.made.clock: ask() + 5.0
        return host

    def wait(self, answers, timeout):
        return [] if self.calls[answers[0]][0].node == "c" else super().wait(answers, timeout)


def test_machines_are_measured(capsys):
    cfg = cluster_config({"join_sec": 0.1})
    engine = Apart(cfg, [Node(name, 2) for name in ("a", "b", "c")])
    assert check(engine, cfg) == 1 and engine.closed and not engine.hosts
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["machine", "a", "b"]
    assert "+5000." in out.splitlines()[2] and "MB/s" in out
    said = err.splitlines()
    assert said[0] == "problem     c does not answer: it was silent for 0.1 s"
    assert any(line.startswith("problem     the clock of b is +5.0 s from this one's") for line in said)


def test_each_thing_that_is_wrong_is_a_sentence():
    facts = {"rlrun": "1", "Python": "3.11", "PyTorch": "2", "ale-py": True, "lz4": True, "shared": 2**40}
    good = Checked("a", facts, 1e-3, 1e9, 1e9, 0.5, 0.01)
    assert wrong([good, good._replace(name="b")]) == []
    for other, said in (
        ({"facts": facts | {"PyTorch": "3"}}, "b has PyTorch 3, and a has 2: all machines need the same"),
        ({"facts": facts | {"ale-py": False}}, "b has no ale-py, which other machines have: it cannot step Atari games"),
        ({"facts": facts | {"shared": 64e6}}, "b has less than 512 MiB in /dev/shm: start its container with --shm-size=2g"),
        ({"call_sec": 0.5}, "a call to b takes 500 ms: the machine is busy or far away"),
        ({"back": 1e7}, "only 10 MB/s go from b: rows or weights may wait for the network"),
        ({"offset": -3.0}, "the clock of b is -3.0 s from this one's: times in its logs mislead"),
    ):
        assert wrong([good, good._replace(name="b", **other)]) == [said]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["adress=here"], "There is no option adress. Did you mean address"),
        (["lost=end"], "There is no option lost. There are address, simulate, store_mb, join_sec, allow_open."),
        (["address=here", "store_mb=200"], "store_mb=200 does nothing here: it is used only where address=null, and address is here"),
        (["allow_open=true"], "allow_open=true does nothing here: it is used only where address is set (not null, false or 0), and address is null"),
    ],
)  # fmt: skip
def test_options_that_do_nothing_are_refused(words, said, tmp_path):
    """Those of --queue too."""
    with pytest.raises(UserError) as caught:
        _dispatch(["doctor", "--cluster", *words])
    assert said in str(caught.value)
    if "no option" not in said:
        with pytest.raises(UserError) as caught:
            RayQueue(dict(parse_assignments(words)), str(tmp_path), Apart)
        assert f"--queue {said}" in str(caught.value)


def test_what_is_not_given_is_as_in_a_run():
    assert dataclasses.asdict(cluster_config({}))["store_mb"] == 500
