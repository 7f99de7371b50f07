"""What is said and kept where the system has little room: shared memory, open files, disks; and runs without a process."""

import errno
import json
import multiprocessing
import os
import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest
from conftest import compose
from wired import Wired, checked

from rlrun.cli import _dispatch
from rlrun.commands.doctor import show_shared_memory
from rlrun.config.run import type_config
from rlrun.core.errors import UserError, refused
from rlrun.core.schedule import Clock
from rlrun.dataflow.shared import SharedLearner
from rlrun.dataflow.weights import WeightBus
from rlrun.loggers.jsonl import Jsonl, Moment, read
from rlrun.machine.machine import free_shared, measured
from rlrun.runtime.plan import plan
from rlrun.runtime.preflight import preflight
from rlrun.runtime.room import REST, allow_files, check_processes, check_shared, shared_parts
from rlrun.runtime.rundir import SILENT, RunDir

LOCAL = ["algo=ppo", "env=CartPole-v1", "resources.inference=local", "resources.num_samplers=2", "logger=[]"]


def planned(*words):
    return checked(type_config(compose(*words)))


def test_shared_memory_is_counted_as_samplers_take_it():
    """To the byte, for the slots and the bus of real samplers, and for the bus of processes that evaluate. A bus holds
    the buffers of the policy too, such as the statistics of its filter."""
    words = ["algo.fragment_length=32", "algo.batch_size=128", "algo.minibatch_size=64", "eval.every=1000", "eval.workers=1"]
    wiring = Wired(type_config(compose(*LOCAL, *words, "model.observation_filter=mean_std")))
    sampler, evaluating = wiring.sampler(0), WeightBus(wiring.plan.evaluation().make_policy())
    assert any(True for _ in wiring.algorithm().policy.buffers())
    try:
        made = {"fragments": sampler.slots.memory.numel(), "weights": sampler.bus.data.nbytes,
                "weights for evaluation": evaluating.data.nbytes}  # fmt: skip
        assert shared_parts(wiring.plan) == made
        needed = sum(made.values()) + REST
        check_shared(wiring.plan, needed)
        with pytest.raises(UserError, match=r"needs .* MB of shared memory \(.* for fragments, .* for weights, .* for weights for evaluation\), and .* MB"):
            check_shared(wiring.plan, needed - 1)
    finally:
        sampler.close()


def test_a_learner_that_processes_share_is_counted_with_its_critics_and_targets():
    words = ["algo=ddpg", "env=Pendulum-v1", "runner=async_gradients", "resources.num_learners=2", "replay.capacity=5000", "logger=[]"]
    wiring = Wired(type_config(compose(*words)))
    algorithm = wiring.algorithm()
    shared = SharedLearner(algorithm, Clock())
    statistics = [tensor for state in shared.optimizers.values() for tensor in state.statistics.values()]
    storages = [tensor.untyped_storage() for tensor in (*algorithm.parameters(), *algorithm.buffers(), *statistics)]
    assert statistics and all(storage.is_shared() for storage in storages)
    taken = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    preflight(wiring.plan, replace(measured(), free_shared=taken + REST))
    with pytest.raises(UserError, match=r"MB of shared memory \(.* for the learner\)"):
        preflight(wiring.plan, replace(measured(), free_shared=taken + REST - 1))


def test_a_run_in_one_process_needs_no_shared_memory(tmp_path, monkeypatch):
    """Where there is no /dev/shm, or a full one, it runs to its end. One with samplers gets a sentence."""
    check_shared(planned("algo=ppo", "env=CartPole-v1", "resources.inference=serial", "logger=[]"), 0)

    def no_shared_memory(tensor):
        raise RuntimeError("unable to open shared memory object </torch_1> in read-write mode")

    def no_folder(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr("torch.Tensor.share_memory_", no_shared_memory)
    monkeypatch.setattr("rlrun.machine.machine.os.statvfs", no_folder)
    words = ["train", "algo=pg", "env=CartPole-v1", "model.hidden=[8]", "logger=[]", "env_steps=100"]
    assert _dispatch([*words, "resources=debug", f"run_dir={tmp_path / 'one'}"]) == 0
    with pytest.raises(UserError, match=r"this run needs .* and 0\.0 MB of /dev/shm are free: start the container with --shm-size"):
        _dispatch([*words, "resources.inference=local", f"run_dir={tmp_path / 'two'}"])
    assert not (tmp_path / "two").exists()


def test_a_missing_dev_shm_is_a_problem(tmp_path):
    (problem,) = show_shared_memory(tmp_path / "shm")
    assert problem.startswith("there is no /dev/shm, so that only runs in one process work")
    assert show_shared_memory() != [problem], "this machine has one"


def test_a_dev_shm_that_may_only_be_read_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) not in ("/dev/shm", str(tmp_path)))
    (problem,) = show_shared_memory(tmp_path)
    assert problem.startswith(f"this user may not write to {tmp_path}") and free_shared() == 0
    with pytest.raises(UserError, match="may not write to /dev/shm: make it writable"):
        check_shared(planned(*LOCAL), free_shared())


def test_a_process_that_may_start_none_is_told_so(monkeypatch):
    """Python would raise an AssertionError when the first sampler starts, after the run directory has been made."""
    monkeypatch.setattr(type(multiprocessing.current_process()), "daemon", True)
    with pytest.raises(UserError, match=r"in a process of multiprocessing\.Pool: use concurrent\.futures"):
        check_processes(planned(*LOCAL), 2)
    check_processes(planned(*LOCAL, "resources.inference=serial", "resources.num_samplers=auto"), 2)


CROWDS = {
    "samplers": ("algo=impala", "resources.num_samplers=100"),
    "samplers and shards": ("algo=apex", "resources.num_samplers=24", "algo.inner.num_envs=24", "runner.num_shards=20"),
    "players": ("algo=es", "resources.num_samplers=60"),
    "processes that evaluate": ("algo=ppo", "resources.inference=serial", "eval.every=1000", "eval.episodes=64", "eval.workers=64"),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_many_more_processes_than_cores_are_refused_until_it_is_forced(crowd):
    """The sentence names the options that ask for them and the one that forces them, which then does."""
    machine = replace(measured(), cores=2)
    words = [*CROWDS[crowd], "env=CartPole-v1", "resources.device=cpu", "logger=[]"]
    made = plan(type_config(compose(*words)), machine)
    with pytest.raises(UserError, match=r"this run would start .* processes, and at most 32 are started on 2 cores") as caught:
        check_processes(made, 2)
    asking = [word for word in words if word.split("=")[0] in ("resources.num_samplers", "runner.num_shards", "eval.workers")]
    assert asking and all(word in str(caught.value) for word in asking)
    forced = plan(type_config(compose(*words, str(caught.value).split()[-1])), machine)
    check_processes(forced, 2)
    check_processes(made, 50)


@contextmanager
def limited(kind, soft, hard=None):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1] if hard is None else hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_the_limit_of_open_files_is_raised_where_it_may_be():
    made = planned(*LOCAL)
    with limited(resource.RLIMIT_NOFILE, 20):
        allow_files(made)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 24
    with limited(resource.RLIMIT_NOFILE, 4096):
        allow_files(made)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 4096, "it is never lowered"


def test_rows_wait_for_space_and_are_never_torn(tmp_path, capsys):
    """A real limit of the file's size stands for a full disk."""
    path, rows = tmp_path / "progress.jsonl", [{"env_steps": n, "x" * 90: 1.0} for n in range(40)]
    log = Jsonl(path, None)
    with limited(resource.RLIMIT_FSIZE, 1050):
        for row in rows[:30]:
            log.log(row)
        found = read(path)
        assert path.read_text().endswith("}\n") and found == rows[: len(found)] and 0 < len(found) < 10
    log.log(rows[30])
    assert read(path) == rows[:31]
    log.close("COMPLETED", {})
    assert capsys.readouterr().err.count("rows wait for space") == 1


def test_rows_wait_for_a_drive_that_does_not_answer(tmp_path, capsys):
    """A network drive was away, tore a row, and does not know the open file any more."""
    path, rows = tmp_path / "progress.jsonl", [{"env_steps": n} for n in range(5)]
    log = Jsonl(path, None)
    log.log(rows[0])

    class Away:
        def __init__(self, file):
            self.file = file

        def write(self, line):
            self.file.write(line[:5])
            raise OSError(errno.EIO, "Input/output error")

        def close(self):
            raise OSError(errno.ESTALE, "Stale file handle")

    for row in rows[1:]:
        log.file = Away(log.file) if row["env_steps"] in (1, 4) else log.file
        log.log(row)
    assert read(path) == rows[:4] and path.read_text().endswith("}\n"), "the torn row is gone, and waits"
    log.close("COMPLETED", {})
    assert read(path) == rows and path.read_text().count("\n") == len(rows)
    assert capsys.readouterr().err.count("rows wait until they can be written") == 1


def test_a_resume_without_space_keeps_the_rows(tmp_path):
    path = tmp_path / "progress.jsonl"
    text = "".join(json.dumps({"env_steps": n}) + "\n" for n in range(100))
    path.write_text(text)
    with limited(resource.RLIMIT_FSIZE, 100), pytest.raises(OSError) as caught:
        Jsonl(path, Moment(50, 5, 1.0))
    assert path.read_text() == text and "larger than is allowed" in refused(caught.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_whose_process_is_gone_has_failed(tmp_path):
    """It is RUNNING as long as somebody holds it, and its next session knows better than its summary too."""
    run = RunDir.create(tmp_path / "run")
    run.summary(status="RUNNING", seed=3)
    (other := RunDir(run.path)).path.joinpath("config.yaml").touch()
    assert other.known == {"status": "RUNNING", "seed": 3}
    run.lock.file.close()  # as the system does when a process dies
    assert other.known == {"status": "FAILED", "seed": 3, "reason": SILENT}
    other.acquire()
    assert other.known["status"] == "FAILED"
    other.release()
    assert not (run.path / "run.lock").exists()


def test_a_summary_is_written_over_the_old_one_where_nothing_new_can_be(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    run.summary(status="RUNNING", text="x" * 50)

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rlrun.runtime.rundir.write_atomically", full)  # the battery fills a real disk
    run.summary(status="FAILED")
    assert run.known == {"status": "FAILED"}
