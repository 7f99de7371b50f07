"""rlrun doctor [runs_root=runs] [--clean] [--fix]
rlrun doctor --cluster [address=HOST:6379] [simulate=N]

Shows versions, cores, GPU, shared memory, optional packages and their licences, whether MuJoCo can draw, and what
killed runs have left: runs that are marked RUNNING without a process, locks, half-written saves, unfinished files of
recordings, folders in /dev/shm, and MLflow runs. --clean removes what is left and marks such runs FAILED in
summary.json and in MLflow. It touches nothing that belongs to another user or to a process that lives. --fix only marks
the MLflow runs, as KILLED.
--cluster asks and measures the machines of a Ray cluster instead (docs/cluster.md).
The exit code is 1 when something that rlrun needs is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.types import parse_assignments, typed
from rlrun.core.errors import UserError
from rlrun.core.installing import install_line


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    runs_root: str


OPTIONAL = (
    ("ale_py", "ale-py", "atari", "Atari games", "GPL-2.0-only; rlrun imports it only for Atari and ships none of it"),
    ("imageio_ffmpeg", "imageio-ffmpeg", "video", "rlrun watch", "BSD-2-Clause, with an ffmpeg binary under LGPL/GPL"),
    ("mujoco", "mujoco", "mujoco", "MuJoCo tasks", "Apache-2.0"),
    ("dm_control", "dm-control", "dmc", "tasks of dm-control", "Apache-2.0"),
    ("crafter", "crafter", "crafter", "Crafter", "MIT"),
    ("Box2D", "box2d", "box2d", "Box2D tasks", "zlib"),
    ("minigrid", "minigrid", "minigrid", "MiniGrid and BabyAI", "MIT"),
    ("pettingzoo", "PettingZoo", "multi-agent", "games of several agents", "MIT"),
    ("mpe2", "mpe2", "multi-agent", "simple_spread and its relatives", "MIT"),
    ("lbforaging", "lbforaging", "multi-agent", "level-based foraging", "MIT"),
    ("rware", "rware", "multi-agent", "the warehouse", "MIT"),
    ("ray", "ray", "ray", "runs and sweeps on several machines", "Apache-2.0"),
    ("submitit", "submitit", "slurm", "sweeps on SLURM", "MIT"),
    ("optuna", "optuna", "search", "TPE searches", "MIT"),
    ("minari", "minari", "minari", "Minari's data sets", "MIT"),
    ("lz4", "lz4", "lz4", "replays that are compressed in memory", "BSD-3-Clause"),
    ("safetensors", "safetensors", "export", "policies as .safetensors", "Apache-2.0"),
    ("onnx", "onnx", "onnx", "policies as .onnx", "Apache-2.0"),
    ("onnxscript", "onnxscript", "onnx", "policies as .onnx", "MIT"),
    ("onnxruntime", "onnxruntime", "onnx", "policies as .onnx", "MIT"),
    ("mlflow", "mlflow", "", "MLflow logger", "Apache-2.0"),
    ("pynvml", "nvidia-ml-py", "gpu-metrics", "GPU load in the live view", "BSD-3-Clause"),
)


def main(words: list[str]) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(__doc__)
        return 0
    if "--cluster" in words:
        from rlrun.commands.doctor_cluster import main as cluster

        return cluster([word for word in words if word != "--cluster"])
    fix, clean = ("--fix" in words, "--clean" in words)
    given = parse_assignments([word for word in words if word not in ("--fix", "--clean")])
    options = typed(DoctorOptions, {"runs_root": "runs"} | given)
    runs_root = Path(options.runs_root)
    if "runs_root" in given and not runs_root.is_dir():
        raise UserError(f"runs_root={options.runs_root}: there is no such folder")
    print("rlrun doctor", flush=True)
    from rlrun.envs import drawing
    from rlrun.runtime.rundir import versions

    print("versions    " + ", ".join(f"{name} {version}" for name, version in versions().items()))
    show_processors()
    problems = show_shared_memory()
    print("optional")
    for module, name, extra, what, licence in OPTIONAL:
        found = importlib.util.find_spec(module) is not None
        hint = "" if found else f" ({install_line(extra) if extra else f'pip install {name}'})"
        print(f"  {'yes' if found else 'no ':<4}{name:<16}{what}: {licence}{hint}")
    print(f"drawing     {drawn(drawing.lacks())}")
    for line in leftovers(runs_root, clean):
        print(line)
    if runs_root.is_dir():
        show_stale(runs_root, fix, clean)
    for problem in problems:
        print(f"problem     {problem}", file=sys.stderr)
    return 1 if problems else 0


def show_processors() -> None:
    """Prints what computes here: the CPU, what it is fast at, and GPUs."""
    import torch

    from rlrun.machine.machine import cores
    from rlrun.machine.processor import cpu_flags
    from rlrun.machine.products import pays
    from rlrun.runtime.rundir import hardware

    fast = cpu_flags() & {"avx512_bf16", "amx_bf16", "avx512f", "avx2"}
    print(
        f"cpu         {hardware()['cpu']}, {cores()} cores for this process ({os.cpu_count()} in the machine),"
        f" {', '.join(sorted(fast)) or 'no AVX2'}"
    )
    print(
        "bf16        "
        + ("fast on this CPU" if fast & {"avx512_bf16", "amx_bf16"} else "would be slow on this CPU: auto uses fp32")
    )
    print(
        "products    large float32 matrix products are computed by "
        + ("oneDNN, which uses this CPU's AVX-512" if pays() else "MKL")
    )
    if not torch.cuda.is_available():
        built = f"with CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        print(f"gpu         none visible (torch {torch.__version__}, built {built})")
        return
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        try:
            free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
            print(f"gpu {index}       {name}, {free:.1f} of {total:.1f} GiB free")
        except RuntimeError as error:  # it is full, or another process has it for itself
            print(f"gpu {index}       {name}, does not answer: {str(error).splitlines()[0]}")


def show_shared_memory(shm: Path = Path("/dev/shm")) -> list[str]:
    """Prints how full /dev/shm is, and returns what is wrong with it."""
    if not shm.is_dir():
        missing = (
            "there is no /dev/shm, so that only runs in one process work: start the container with --shm-size=2g, or"
            " mount it with mount -t tmpfs tmpfs /dev/shm"
        )
        return [missing] if sys.platform == "linux" else []
    if not os.access(shm, os.W_OK | os.X_OK):
        return [
            f"this user may not write to {shm}, so that only runs in one process work:"
            f" mount -o remount,rw,mode=1777 {shm}"
        ]
    usage = shutil.disk_usage(shm)
    print(f"/dev/shm    {usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free")
    if left := [path.name for path in shm.iterdir() if path.name.startswith("torch_")]:
        named = " ".join(left[:3])
        print(f"            torch has {len(left)} entries there, in use or left by killed programs: {named}")
    short = usage.free < 512 * 2**20
    return ["/dev/shm has less than 512 MiB: start the container with --shm-size=2g"] if short else []


def show_stale(runs_root: Path, fix: bool, clean: bool) -> None:
    """Prints which of MLflow's runs have lost their process, and marks them if it was asked for."""
    from rlrun.loggers.mlflow import stale_runs

    mark = "FAILED" if clean else "KILLED"
    if stale := stale_runs(runs_root, fix=fix or clean, status=mark):
        done = f"; marked {mark}" if fix or clean else " (--clean)"
        names = ", ".join(stale[:5])
        print(f"mlflow      {len(stale)} runs are marked RUNNING, but their process is gone: {names}{done}")
    elif importlib.util.find_spec("mlflow") is not None:
        print(f"mlflow      no stale runs in {runs_root / 'mlflow.db'}")


def drawn(lacks: str | None) -> str:
    """What MuJoCo can draw here. lacks: what its pictures need and this machine has not; None: nothing."""
    there = importlib.util.find_spec("mujoco") is not None
    if lacks is None:
        return "MuJoCo can draw pixels" if there else "MuJoCo is not installed; this machine has what its pictures need"
    cannot = "MuJoCo cannot draw" if there else "MuJoCo is not installed, and could not draw"
    return f"{cannot}, so that dm-control shows no pixels: {lacks}"


def leftovers(root: Path, clean: bool) -> list[str]:
    """Lines about what killed runs have left below root and in shared memory. clean: whether it is removed."""
    from rlrun.runtime import leftovers as found

    lines, elsewhere = [], []
    for run_dir in found.run_dirs(root):
        left = found.left_by(run_dir)
        if not left:
            if (process := found.unseen(run_dir)) is not None:
                elsewhere.append(
                    f"run         {run_dir} is marked RUNNING; its lock names {process}, which this machine cannot see:"
                    f" if it is gone, remove {run_dir / 'run.lock'}"
                )
            continue
        said = ["is marked RUNNING, but no process holds it"] * left.running
        said += ["has a lock without a process"] * (left.locked and not left.running)
        said += [f"has half-written saves: {', '.join(path.name for path in left.saves)}"] * bool(left.saves)
        what = ""
        if clean:
            done = "cleaned" + (" and marked FAILED" if left.running else "")
            what = f"; {done}" if found.clean(left) else "; left alone, because a process has it now"
        lines.append(f"run         {run_dir} {' and '.join(said)}{what}")
    for folder, files in found.recordings(root).items():
        size = sum(file.stat().st_size for file in files) / 1e6
        many = f"{len(files)} unfinished file{'s' * (len(files) > 1)} ({size:,.1f} MB)"
        what = ""
        if clean:
            what = "; removed" if found.remove_recordings(folder) else "; they cannot all be removed"
        lines.append(f"data        {folder} has {many} of recordings that were killed{what}")
    for path in found.shared_memory():
        if clean:
            found.remove(path)
        lines.append(f"/dev/shm    {path} is left by a process that is gone{'; removed' if clean else ''}")
    if lines and not clean:
        lines.append("            rlrun doctor --clean removes this and marks such runs FAILED")
    lines += elsewhere
    if not root.is_dir():
        return [*lines, f"runs        there is no folder {root} here; runs_root=DIR names another one"]
    return lines or [f"runs        nothing is left of killed runs in {root}"]
