"""conf/resources -> what this run uses of this machine, and why."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import psutil
import torch

from rlrun.core.algorithm import Needs
from rlrun.core.env import EnvFactory
from rlrun.core.errors import EnvError, UserError
from rlrun.core.evolution import FromPopulation
from rlrun.core.ranges import Count
from rlrun.core.specs import random_actions
from rlrun.machine.processor import cpu_flags

MAX_ENVS = 64  # of one run chosen by `auto`: more would leave games unfinished in short runs
MAX_GPU_ENVS = 256  # with inference on a GPU, where a message for every few environments would cost more than acting
MAX_THREADS = 8  # of a learner chosen by `auto`
MAX_COLUMNS = 16  # of one sampler's fragment chosen by `auto`: beyond that inference gains nothing on a CPU
FAST_BF16 = {"avx512_bf16", "amx_bf16"}  # CPU flags
GROUPS = {"serial": 1, "local": 1, "batched": 2}  # producers of fragments per sampler
THREADED_ROWS = 128  # of an update of vectors, from which on threads may pay
UPDATE_SEC = 2e-3  # that small nets take; large ones take more
MINOR_SHARE = 0.25  # of learning: env steps that take less are not worth a process of their own
GPU_COLUMNS = 4  # of a group whose rows go to a replay and which a GPU acts for: handing over fewer costs more than stepping them
CHEAP_STEP_SEC = 30e-6  # per env and step: below this, handing fragments between processes costs more than it gains


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig:
    inference: Literal["auto", "serial", "local", "batched"]
    num_learners: Literal["auto"] | Annotated[int, Count]
    num_samplers: Literal["auto"] | Annotated[int, Count]
    envs_per_sampler: Literal["auto"] | Annotated[int, Count]
    device: str
    precision: Literal["auto", "fp32", "bf16"]
    learner_threads: Literal["auto"] | Annotated[int, Count]
    cuda_graphs: bool
    compile: bool
    exact: bool

    def __post_init__(self):
        if self.exact and self.inference != "serial":
            raise ValueError("exact (bit-reproducible) runs need inference=serial")
        if self.exact and self.num_learners not in ("auto", 1):
            raise ValueError("exact (bit-reproducible) runs have one learner: set num_learners=1")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Decided. `why` says each decision in a sentence."""

    inference: Literal["serial", "local", "batched"]
    num_learners: int
    num_samplers: int  # of each learner
    envs_per_sampler: int
    device: torch.device  # of the first learner
    precision: Literal["fp32", "bf16"]  # of the learner
    acting_precision: Literal["fp32", "bf16"]
    learner_threads: tuple[int, ...]  # of which the quickest is found out while the run goes on
    cuda_graphs: bool
    compile: bool
    exact: bool
    why: tuple[str, ...]


def cores() -> int:
    """Cores this process may use (cgroup quota and affinity included)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = open("/sys/fs/cgroup/cpu.max").read().split()
        if quota != "max":
            count = min(count, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return count


def free_memory() -> int:
    """Bytes that this process may still take (cgroup limit included)."""
    free = psutil.virtual_memory().available
    try:
        limit, used = (open(f"/sys/fs/cgroup/memory.{name}").read().strip() for name in ("max", "current"))
        if limit != "max":
            stat = dict(line.split() for line in open("/sys/fs/cgroup/memory.stat"))
            free = min(free, int(limit) - int(used) + int(stat["inactive_file"]))  # files' pages give way
    except (OSError, ValueError, KeyError):
        pass
    return max(0, free)


def free_shared() -> int:
    """Bytes of shared memory that are free (containers often have 64 MB of it)."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return free_memory()
    return stat.f_bavail * stat.f_frsize


def env_step_sec(make_env: EnvFactory, count: int, budget_sec: float = 0.2) -> float:
    """Measured seconds per env and step with random actions."""
    env = make_env(0, count)
    try:
        obs = env.reset(0)
        rng = np.random.default_rng(0)

        def step() -> None:
            nonlocal obs
            obs = env.step(random_actions(env.spec, obs, count, rng)).obs

        step()
        best, begun = float("inf"), time.perf_counter()
        while time.perf_counter() - begun < budget_sec:  # the best of several stretches: a busy machine must not decide this
            started = time.perf_counter()
            steps = 0
            while steps < 20 and time.perf_counter() - begun < budget_sec:
                step()
                steps += 1
            best = min(best, (time.perf_counter() - started) / (max(steps, 1) * count))
        return best
    finally:
        env.close()


def decide(cfg: ResourcesConfig, needs: Needs, make_env: EnvFactory, image: bool, synchronous: bool, lockstep: bool = True,
           apart: bool = False) -> Resources:  # fmt: skip
    """Fills in every `auto`. `synchronous`: samplers and learner take turns, and samplers together hold exactly one train batch. `lockstep`: several
    learners share one train batch; else each has its own, and they share the CPU's memory. `apart`: samplers are processes of their own. Raises UserError
    for a device that is not there or numbers that do not fit the batch."""
    why: list[str] = []
    if not lockstep and cfg.device not in ("auto", "cpu"):
        raise UserError(f"resources.device={cfg.device}: workers that share weights without waiting learn on the CPU")
    _device(cfg.device, [])  # a mistyped one is said first
    if not lockstep:
        needs = replace(needs, every_process_learns=True)
    if needs.every_process_learns and cfg.inference in ("auto", "serial") and cfg.num_samplers not in ("auto", 1):
        raise UserError(f"resources.num_samplers={cfg.num_samplers}: every process samples and learns; say how many with resources.num_learners")
    if needs.population is not None:
        return _of_a_population(cfg, needs.population, make_env, image, why)
    learners = _learners(cfg, needs, image, synchronous, lockstep, apart, why)
    shared = synchronous or needs.replay is not None  # samplers together have `total` columns; else each has as many as a train batch
    total = needs.columns  # of a train batch, or of all samplers
    if needs.replay is not None:
        total = -(-needs.replay.num_envs // learners) * learners
        if total > needs.replay.num_envs:
            why.append(f"num_envs={total} in place of {needs.replay.num_envs}: every learner has environments of its own")
    columns = total // learners if lockstep else total  # of one learner's part
    available = max(1, cores() // learners)
    inference = cfg.inference
    if apart and (inference == "serial" or cfg.exact):
        raise UserError("resources.inference=serial: this runner has samplers in processes of their own (local or batched); runner=replay has one process")
    if inference == "auto" and apart and not (image and cfg.device != "cpu" and torch.cuda.is_available()):
        inference = "local"
        why.append("inference=local: samplers are processes of their own")
    if inference == "auto":
        inference = _inference(cfg, needs, learners, columns, make_env, image, why)
    if not lockstep and inference != "serial":
        raise UserError(f"resources.inference={inference}: workers that share weights without waiting have their environments in their own process (serial)")
    if inference == "serial" and cfg.device not in ("auto", "cpu") and not needs.every_process_learns:
        raise UserError(f"resources.device={cfg.device}: serial inference acts with the learner's policy on the CPU; use inference=local or batched")
    device = _device("cpu" if not lockstep or (inference == "serial" and not needs.every_process_learns) else cfg.device, why)
    precision = _precision(cfg.precision, device, image, why)
    acting_precision = precision
    if inference == "local" and device.type != "cpu" and cfg.precision == "auto" and not cpu_flags() & FAST_BF16:
        acting_precision = "fp32"  # samplers act on the CPU
    groups = GROUPS[inference]
    samplers = cfg.num_samplers
    if samplers == "auto":
        on_gpu = inference == "batched" and device.type == "cuda"
        least = GPU_COLUMNS if on_gpu and needs.replay is not None else 1
        samplers = _samplers(inference, columns, groups, max(1, available - (on_gpu and shared)), shared, least)
        if inference != "serial":
            each = " for each learner" if learners > 1 else ""
            what = f", {columns} columns of its batch" if needs.replay is None else f", algo.num_envs={total}"
            why.append(f"num_samplers={samplers * learners}: {available} core{'s' * (available > 1)}{each}" + (what if shared else ""))
    elif samplers % learners:
        raise UserError(f"resources.num_samplers={samplers} must be a multiple of num_learners={learners}")
    else:
        samplers //= learners
    batch = f"{total} columns of a train batch (algo.batch_size / algo.fragment_length)" + (f" over {learners} learners" if learners > 1 else "")
    if needs.replay is not None:
        batch = f"{total} environments (algo.num_envs)"
    share = columns // (samplers * groups) if shared else columns
    if shared and columns % (samplers * groups):
        raise UserError(f"resources.num_samplers={samplers * learners} must divide the {batch}" + (f" into {groups} groups each" if groups > 1 else ""))
    if cfg.envs_per_sampler != "auto":
        envs = cfg.envs_per_sampler
    else:
        limit = max(1, (MAX_GPU_ENVS if device.type == "cuda" and inference == "batched" else MAX_ENVS) // (samplers * groups * learners))
        limit = columns if inference == "serial" or needs.replay is not None else limit if synchronous else min(MAX_COLUMNS, limit)
        envs = max(c for c in range(1, share + 1) if share % c == 0 and c <= limit)
        whose = f"divides the batch's {total} columns, " if needs.replay is None else ""
        why.append(f"envs_per_sampler={envs}: {whose}{envs * samplers * groups * learners} envs in all")
    if share % envs:
        raise UserError(f"resources.envs_per_sampler={envs} must divide {share}, each sampler's part of the {batch}" if shared else
                        f"resources.envs_per_sampler={envs} must divide the {batch}")  # fmt: skip
    return Resources(
        inference=inference, num_learners=learners, num_samplers=samplers, envs_per_sampler=envs, device=device, precision=precision,
        acting_precision=acting_precision, learner_threads=_threads(cfg, needs, image, inference, device, learners, why, synchronous),
        cuda_graphs=_graphs(cfg, device, learners, why), compile=cfg.compile, exact=cfg.exact, why=tuple(why),
    )  # fmt: skip


def _of_a_population(cfg: ResourcesConfig, asked: FromPopulation, make_env: EnvFactory, image: bool, why: list[str]) -> Resources:
    """Samplers that play whole episodes, as many at a time as they have columns; the learner waits for them."""
    if cfg.num_learners not in ("auto", 1):
        raise UserError(f"resources.num_learners={cfg.num_learners}: evolution has one learner, whose work is small; its samplers take the cores")
    if cfg.inference == "batched":
        raise UserError("resources.inference=batched: every episode of evolution has weights of its own, which samplers act with themselves (local or serial)")
    if cfg.device not in ("auto", "cpu"):
        raise UserError(f"resources.device={cfg.device}: evolution learns on the CPU; an update is one weighted sum of noise")
    available = cores()
    inference: Literal["serial", "local"] = "serial" if cfg.exact or cfg.inference == "serial" or (cfg.inference == "auto" and available == 1) else "local"
    if cfg.inference == "auto":
        why.append(f"inference={inference}: {available} core{'s' * (available > 1)}")
    samplers = 1 if inference == "serial" else available if cfg.num_samplers == "auto" else cfg.num_samplers
    if inference == "serial" and cfg.num_samplers not in ("auto", 1):
        raise UserError(f"resources.num_samplers={cfg.num_samplers}: serial inference has one")
    if cfg.num_samplers == "auto" and inference == "local":
        why.append(f"num_samplers={samplers}: {available} cores")
    envs = 0 if cfg.envs_per_sampler == "auto" else cfg.envs_per_sampler
    if not envs:
        envs = max(1, min(MAX_COLUMNS, -(-2 * asked.pairs // samplers)))
        why.append(f"envs_per_sampler={envs}: {2 * asked.pairs} episodes an update over {samplers} sampler{'s' * (samplers > 1)}")
    precision = _precision(cfg.precision if cfg.precision != "auto" else "fp32", torch.device("cpu"), image, why)
    return Resources(inference=inference, num_learners=1, num_samplers=samplers, envs_per_sampler=envs, device=torch.device("cpu"), precision=precision,
                     acting_precision=precision, learner_threads=(1,), cuda_graphs=False, compile=cfg.compile, exact=cfg.exact,
                     why=tuple(why))  # fmt: skip


def _learners(cfg: ResourcesConfig, needs: Needs, image: bool, synchronous: bool, lockstep: bool, apart: bool, why: list[str]) -> int:
    """How many learners. UserError where there are more than devices, or than columns to share out evenly."""
    on_gpus = lockstep and cfg.device != "cpu" and torch.cuda.is_available() and (needs.every_process_learns or cfg.inference != "serial")
    devices = torch.cuda.device_count() if on_gpus else cores()
    if on_gpus and cfg.device != "auto" and torch.device(cfg.device).index is not None:
        devices = 1  # the one that was named
    there = f"{devices} {'GPU' if on_gpus else 'core'}{'s' * (devices > 1)}"
    fitting = [n for n in range(1, devices + 1) if not lockstep or needs.columns % n == 0]
    if apart:
        if cfg.num_learners not in ("auto", 1):
            raise UserError(f"resources.num_learners={cfg.num_learners}: runner=distributed_replay has one learner; runner=replay can have several")
        return 1
    if needs.replay is not None and cfg.num_learners == "auto":
        return 1  # small batches: two learners of 16 rows each were slower than one with 32
    if cfg.num_learners == "auto":
        if needs.every_process_learns and not cfg.exact:
            best = max(n for n in fitting if not lockstep or all(count % n == 0 for count in needs.shared))
            why.append(f"num_learners={best}: every process samples and learns; {there}" + (f", {needs.columns} columns of a train batch" if lockstep else ""))
            return best
        return 1
    if cfg.num_learners > devices:
        raise UserError(f"resources.num_learners={cfg.num_learners}: there {'is' if devices == 1 else 'are'} {there}; {_either(fitting)} would fit")
    if cfg.num_learners not in fitting:
        of = "columns of a train batch (algo.batch_size / algo.fragment_length)" if needs.replay is None else "fragments of a train batch (algo.batch_size)"
        raise UserError(f"resources.num_learners={cfg.num_learners} must divide the {needs.columns} {of}; {_either(fitting)} would fit")
    return cfg.num_learners


def _threads(cfg: ResourcesConfig, needs: Needs, image: bool, inference: str, device: torch.device, learners: int, why: list[str],
             synchronous: bool = False) -> tuple[int, ...]:  # fmt: skip
    """A learner that has cores to itself, at least while samplers wait for it, takes threads where its updates are large."""
    if cfg.learner_threads != "auto":
        return (cfg.learner_threads,)
    free = cores() if inference == "serial" or synchronous or cores() == 2 else cores() - 1
    large = (image or _rows(needs) >= THREADED_ROWS) if needs.replay is not None else image and synchronous and not needs.every_process_learns
    if not large or device.type != "cpu" or learners > 1 or cfg.exact or free < 2:
        return (1,)
    choices = tuple(2**power for power in range(min(free, MAX_THREADS).bit_length()))
    why.append(f"learner_threads={' or '.join(map(str, choices))}: whichever is quickest, tried again all the time")
    return choices


def _graphs(cfg: ResourcesConfig, device: torch.device, learners: int, why: list[str]) -> bool:
    """Whether what a GPU does is recorded (machine/graphs.py)."""
    if device.type == "cuda" and cfg.cuda_graphs:
        why.append("cuda_graphs=true: " + ("acting; " if learners > 1 else "updates and acting; ") + "each is launched as one")
    return device.type == "cuda" and cfg.cuda_graphs


def _rows(needs: Needs) -> int:
    """That one update learns from."""
    return needs.columns * (needs.replay.rows_learnt if needs.replay is not None else needs.rows)


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def _samplers(inference: str, columns: int, groups: int, available: int, shared: bool, least: int) -> int:
    """How many sampler processes `auto` takes. On few cores samplers and learner take turns by back-pressure; on many the learner gets a core of its
    own. Samplers that share columns, because they wait for the learner or feed one replay, take all cores, as far as columns can be shared out evenly,
    `least` for each group."""
    if inference == "serial":
        return 1
    if not shared:
        return available if available <= 2 else available - 1
    fitting = [n for n in range(1, available + 1) if columns % (n * groups) == 0]
    return max((n for n in fitting if columns // (n * groups) >= least), default=min(fitting, default=1))


def _inference(
    cfg: ResourcesConfig, needs: Needs, learners: int, columns: int, make_env: EnvFactory, image: bool, why: list[str]
) -> Literal["serial", "local", "batched"]:  # fmt: skip
    if needs.every_process_learns:
        why.append("inference=serial: every process samples and learns")
        return "serial"
    if image and cfg.device != "cpu" and torch.cuda.is_available():
        if needs.replay is not None and columns % GROUPS["batched"]:
            why.append(f"inference=local: {columns} environment{'s' * (columns > 1)} cannot take turns on the GPU (algo.num_envs)")
            return "local"
        why.append("inference=batched: one thread acts for all samplers on the GPU")
        return "batched"
    if cfg.num_samplers != "auto" and cfg.num_samplers > 1:
        why.append("inference=local: several samplers were asked for")
        return "local"
    if needs.replay is not None and learners == cores() > 1:
        why.append("inference=serial: every core samples and learns")
        return "serial"
    if cfg.device not in ("auto", "cpu"):
        why.append(f"inference=local: device={cfg.device} is for learning")
        return "local"
    if cores() == 1:
        why.append("inference=serial: there is one core")
        return "serial"
    if image and needs.replay is not None and cores() == 2 and cfg.learner_threads == cfg.num_samplers == "auto":
        why.append("inference=serial: learning is most of the work, and gets both cores")
        return "serial"
    try:
        seconds = env_step_sec(make_env, min(columns, 16))
    except EnvError as error:
        raise UserError(f"the environment fails when it is tried: {error}") from None
    learning = UPDATE_SEC * needs.replay.ratio / _rows(needs) if needs.replay is not None else 0.0  # of one env step
    cpu = torch.device("cpu")
    on_cpu = cfg.device == "cpu" or not torch.cuda.is_available()
    chosen: Literal["serial", "local"] = "local"
    reason = "worth more than one process"
    if seconds < CHEAP_STEP_SEC:
        reason, chosen = "too little to pay for handing rows between processes", "serial"
    elif on_cpu and seconds < MINOR_SHARE * learning and len(_threads(cfg, needs, image, "serial", cpu, learners, [])) > 1:
        reason, chosen = f"little beside the {learning * 1e3:.1g} ms and more of learning, which gets all cores", "serial"
    repeat = f"; measured, so a busier machine may decide otherwise: resources.inference={chosen} repeats this run's random streams"
    why.append(f"inference={chosen}: an env step takes {seconds * 1e6:.0f} us, {reason}{repeat}")
    return chosen


def _device(wanted: str, why: list[str]) -> torch.device:
    if wanted == "auto":
        found = torch.cuda.is_available()
        why.append("device=cuda: " + torch.cuda.get_device_name() if found else "device=cpu: no CUDA GPU is visible")
        return torch.device("cuda", 0) if found else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"resources.device={wanted} is not a device; auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"resources.device={wanted}: {torch.cuda.device_count()} CUDA devices are visible")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"resources.device={wanted}: rlrun runs on cpu and cuda")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _precision(wanted: str, device: torch.device, image: bool, why: list[str]) -> Literal["fp32", "bf16"]:
    if wanted != "auto":
        return "bf16" if wanted == "bf16" else "fp32"
    if not image:
        return "fp32"  # only convolutional encoders use it
    if device.type == "cuda":
        why.append("precision=bf16: convolutions on a GPU")
        return "bf16"
    fast = cpu_flags() & FAST_BF16
    why.append(f"precision={'bf16' if fast else 'fp32'}: the CPU has {'/'.join(sorted(fast)) if fast else 'neither AVX512-BF16 nor AMX'}")
    return "bf16" if fast else "fp32"
