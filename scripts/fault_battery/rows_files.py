"""Rows about disks, memory that is shared, files and run directories."""

from __future__ import annotations

import resource
import shutil
import signal
from pathlib import Path

from fault_battery.harness import (
    FOR_EVER,
    LOCAL,
    SERIAL,
    TINY_PPO,
    NotHere,
    Run,
    Trial,
    may_unshare,
    row,
    small_disk,
    wrappers,
)

SAVES_OFTEN = ["checkpoint.every=256", "checkpoint.keep=1"]


def fill(folder: Path) -> Path:
    """Leaves no byte free on the disk of a folder. Returns the file that takes the space."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


@row("disk-full", "the disk is full while it trains, at its end, and at a resume (a tmpfs of 8 MB)")
def disk_full(trial: Trial) -> None:
    with small_disk(trial.folder / "disk", 8) as disk:
        words = [*TINY_PPO, *(SERIAL if trial.quick else LOCAL), *SAVES_OFTEN]
        # It is full from some moment on. The run gives up, keeps what it has and says why.
        run = trial.train("filled", *words, FOR_EVER, path=disk / "run")
        run.until(lambda: run.saved and run.steps, "a checkpoint")
        ballast = fill(disk)
        trial.tries += 1
        run.ends(1, says="[Nn]o space|could not be written")
        ballast.unlink()
        trial.expect(run.saved, "filled: no checkpoint is left")
        trial.expect(run.summary, "filled: summary.json is gone or empty")
        ballast = fill(disk)
        again = run.resume()
        trial.tries += 1
        again.ends(1, 2, says="[Nn]o space|could not be written|the disk is full", within=240)
        ballast.unlink()
        trial.expect(run.summary, "filled: summary.json is gone or empty after the resume")
        more = run.resume(f"env_steps={run.saved[-1] + 1500}")
        more.ends(0, status="COMPLETED", within=240)
        trial.ended += 2
        trial.lost.append("what was learnt since the last checkpoint that had space")
    if trial.quick:
        return
    with small_disk(trial.folder / "other disk", 8) as disk:
        # It is full for a while only.
        run = trial.train("freed", *TINY_PPO, *LOCAL, "checkpoint.every_sec=4", "checkpoint.every=null", FOR_EVER, path=disk / "run")
        run.until(lambda: run.saved and run.steps, "a checkpoint")
        ballast, last = fill(disk), run.saved[-1]
        run.until(lambda: "left out" in run.said, "a save that failed")
        ballast.unlink()
        run.until(lambda: run.saved[-1] > last, "a save that worked")
        run.signal(signal.SIGTERM)
        trial.tries += 1
        run.ends(143, status="INTERRUPTED", says="left out")
        trial.survived += 1


@row("disk-quota", "files may not grow beyond a size (RLIMIT_FSIZE)")
def disk_quota(trial: Trial) -> None:
    """A limit that no checkpoint fits into: three saves fail, and the run says so."""
    words = [*TINY_PPO, *SERIAL, *SAVES_OFTEN, FOR_EVER, "model.hidden=[256,256]"]
    run = trial.train("quota", *words, limits={resource.RLIMIT_FSIZE: 40_000})
    trial.tries += 1
    run.ends(1, says="too large|could not be written", within=240)
    trial.ended += 1
    trial.lost.append("the run")


@row("checkpoint-damaged", "every file of a checkpoint is truncated, has a bit flipped, or is emptied")
def checkpoint_damaged(trial: Trial) -> None:
    run = trial.train("whole", *TINY_PPO, *SERIAL, "env_steps=2000", "checkpoint.every=500")
    run.ends(0, status="COMPLETED", within=240)
    names = sorted(one.name for one in (run.path / "checkpoints").glob("[0-9]*"))
    files = sorted(one.name for one in (run.path / "checkpoints" / names[-1]).iterdir())
    damages = [(file, kind) for file in files for kind in ("truncated", "flipped", "emptied")]
    if trial.quick:
        damages = [("algorithm.pt", "flipped"), ("manifest.json", "emptied")]
    for number, (file, kind) in enumerate(damages):
        path = trial.folder / f"damaged {number}"
        shutil.copytree(run.path, path)
        victim = path / "checkpoints" / names[-1] / file
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes({"truncated": data[: len(data) // 2], "flipped": data, "emptied": b""}[kind])
        again = Run(trial, f"{file} {kind}", path, ["resume", str(path), "env_steps=2500"])
        trial.tries += 1
        again.ends(2, says=f"{names[-1]} is damaged.*{file}")
        if number in (0, len(damages) - 1):  # the one before is intact
            other = again.resume("env_steps=2500", f"checkpoint={int(names[-2])}")
            other.ends(0, status="COMPLETED", within=240)
        shutil.rmtree(path)
        trial.ended += 1
    trial.lost.append("the damaged checkpoint")


@row("tensorboard-unwritable", "the run directory, which TensorBoard's files are in too, is on a disk that may only be read")
def tensorboard_unwritable(trial: Trial) -> None:
    """A disk that may only be read, because the superuser may write where modes forbid it."""
    import subprocess

    words = [*TINY_PPO, *SERIAL, "logger=[console,tensorboard]", "env_steps=500"]
    with small_disk(trial.folder / "disk", 8) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        run = trial.train("read only", *words, path=disk / "run")
        trial.tries += 1
        run.ends(2, says="cannot be made|not writable", within=240)
        trial.ended += 1


@row("shm-small", "/dev/shm is small (1 MB), as in containers")
def shm_small(trial: Trial) -> None:
    """What does not fit is said before anything starts, with the size that is needed and the size that is there."""
    if not may_unshare():
        raise NotHere("this machine lets no process have mounts of its own (unshare -m)")
    before = ["unshare", "-m", "bash", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm; exec "$@"', "-"]
    large = ["algo=ppo", "env=CartPole-v1", "logger=[console]", *LOCAL, "algo.fragment_length=8192", "algo.batch_size=65536"]
    kinds = {"samplers": large}
    if not trial.quick:
        kinds["a3c"] = ["algo=a3c", "env=CartPole-v1", "logger=[console]", "resources.num_learners=2", "model.hidden=[512,512]"]
        kinds["apex"] = ["tuned=apex/cartpole", "logger=[console]", "resources.num_samplers=2", "model.hidden=[512,512]"]
    for name, words in kinds.items():
        run = trial.train(name, *words, "env_steps=200000", before=before)
        trial.tries += 1
        run.ends(2, says=r"shared memory.*MB.*MB", within=240)
        trial.ended += 1
    if not trial.quick:  # what fits works
        run = trial.train("fits", *TINY_PPO, *LOCAL, "env_steps=1500", before=before)
        trial.tries += 1
        run.ends(0, status="COMPLETED", within=240)
        trial.survived += 1


@row("too-many-files", "a process may open few files (ulimit -n)")
def too_many_files(trial: Trial) -> None:
    for most in (16,) if trial.quick else (10, 12, 16, 20, 24, 32, 48, 64):
        limits = {resource.RLIMIT_NOFILE: most}
        run = trial.train(f"{most} files", *TINY_PPO, "resources.inference=local", "resources.num_samplers=2",
                          "env_steps=1500", "checkpoint.every=256", limits=limits)  # fmt: skip
        trial.tries += 1
        code = run.ends(0, 1, 2, says="COMPLETED|open files|[Tt]oo many files", within=240)
        trial.survived += code == 0
        trial.ended += code in (1, 2)
    trial.lost.append("the run")


@row("two-in-one-directory", "two runs in one directory")
def two_in_one_directory(trial: Trial) -> None:
    first = trial.train("first", *TINY_PPO, *SERIAL, FOR_EVER)
    first.until_learning()
    for number in range(1 if trial.quick else 3):
        second = Run(trial, f"second {number}", first.path, ["train", *TINY_PPO, *SERIAL, f"run_dir={first.path}"])
        code = second.process.wait(240)
        trial.tries += 1
        trial.expect(code == 2 and "in use by process" in second.err, f"second: {code}, {second.words()}")
        resumed = first.resume()
        code = resumed.process.wait(240)
        trial.tries += 1
        trial.expect(code == 2 and "in use by process" in resumed.err, f"resumed: {code}, {resumed.words()}")
        trial.ended += 2
    steps = first.steps
    first.until_learning(steps + 1)
    first.signal(signal.SIGTERM)
    first.ends(143, status="INTERRUPTED", saved=True)
    if trial.quick:
        return
    # Five at the same moment: one of them gets the directory.
    path = trial.folder / "race"
    runs = [Run(trial, f"race {i}", path, ["train", *TINY_PPO, *SERIAL, f"run_dir={path}", "env_steps=1000"]) for i in range(5)]
    codes = sorted(run.process.wait(300) for run in runs)
    trial.tries += 5
    trial.expect(codes == [0, 2, 2, 2, 2], f"race: exit statuses {codes}")
    trial.ended += 4
    trial.survived += 1


@row("resume-changed", "resume with other options, fewer samplers, another device")
def resume_changed(trial: Trial) -> None:
    run = trial.train("run", *TINY_PPO, *LOCAL, wrappers(), "env_steps=1000")
    run.ends(0, status="COMPLETED", within=240)
    for word, said in (
        ("algo.lr=1", "cannot change on resume"),
        ("resources.device=cuda", "cuda|CUDA|GPU"),
        ("resources.num_samplers=64", "num_samplers"),
    )[: 2 if trial.quick else 3]:
        refused = run.resume(word, "env_steps=2000")
        trial.tries += 1
        refused.ends(2, says=said, status="COMPLETED", within=240)
        trial.ended += 1
    for word in ("resources.num_samplers=1",) if trial.quick else ("resources.num_samplers=1", "resources.inference=serial"):
        again = run.resume(word, f"env_steps={run.steps + 1000}")
        trial.tries += 1
        again.ends(0, status="COMPLETED", within=240)
        trial.survived += 1
    run.counts_are_right(4000)
