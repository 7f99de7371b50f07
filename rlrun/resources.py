"""conf/resources -> what this run uses of this machine, and why."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from rlrun.core.algorithm import Needs
from rlrun.core.env import EnvFactory
from rlrun.core.errors import EnvError, UserError
from rlrun.core.specs import random_actions

MAX_ENVS = 64  # of one run chosen by `auto`: more would leave games unfinished in short runs
MAX_COLUMNS = 16  # of one sampler's fragment chosen by `auto`: beyond that inference gains nothing on a CPU
FAST_BF16 = {"avx512_bf16", "amx_bf16"}  # CPU flags
GROUPS = {"serial": 1, "local": 1, "batched": 2}  # producers of fragments per sampler
CHEAP_STEP_SEC = 30e-6  # per env and step: below this, handing fragments between processes costs more than it gains


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig:
    inference: Literal["auto", "serial", "local", "batched"]
    num_samplers: Literal["auto"] | int
    envs_per_sampler: Literal["auto"] | int
    device: str
    precision: Literal["auto", "fp32", "bf16"]
    learner_threads: int
    exact: bool

    def __post_init__(self):
        for name in ("num_samplers", "envs_per_sampler"):
            value = getattr(self, name)
            if value != "auto" and value < 1:
                raise ValueError(f"{name} must be auto or at least 1")
        if self.learner_threads < 1:
            raise ValueError("learner_threads must be at least 1")
        if self.exact and self.inference != "serial":
            raise ValueError("exact (bit-reproducible) runs need inference=serial")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Decided. `why` says each decision in a sentence."""

    inference: Literal["serial", "local", "batched"]
    num_samplers: int
    envs_per_sampler: int
    device: torch.device
    precision: Literal["fp32", "bf16"]  # of the learner
    acting_precision: Literal["fp32", "bf16"]
    learner_threads: int
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


def cpu_flags() -> set[str]:
    try:
        for line in open("/proc/cpuinfo"):
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


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


def decide(cfg: ResourcesConfig, needs: Needs, make_env: EnvFactory, image: bool, synchronous: bool) -> Resources:
    """Fills in every `auto`. `synchronous`: samplers and learner take turns, and samplers together hold exactly one train batch. Raises UserError
    for a device that is not there or numbers that do not fit the batch."""
    why: list[str] = []
    available = cores()
    _device(cfg.device, [])  # a mistyped one is said first
    inference = cfg.inference
    if inference == "auto":
        inference = _inference(cfg, needs, make_env, image, available, why)
    if inference == "serial" and cfg.device not in ("auto", "cpu"):
        raise UserError(f"resources.device={cfg.device}: serial inference acts with the learner's policy on the CPU; use inference=local or batched")
    device = _device("cpu" if inference == "serial" else cfg.device, why)
    precision = _precision(cfg.precision, device, image, why)
    acting_precision = precision
    if inference == "local" and device.type != "cpu" and cfg.precision == "auto" and not cpu_flags() & FAST_BF16:
        acting_precision = "fp32"  # samplers act on the CPU
    groups = GROUPS[inference]
    samplers = cfg.num_samplers
    if samplers == "auto":
        samplers = _samplers(inference, needs.columns, groups, available, synchronous)
        if inference != "serial":
            why.append(f"num_samplers={samplers}: {available} cores" + (f", {needs.columns} columns of a train batch" if synchronous else ""))
    share = needs.columns // (samplers * groups) if synchronous else needs.columns
    if synchronous and needs.columns % (samplers * groups):
        raise UserError(f"resources.num_samplers={samplers} must divide the {needs.columns} columns of a train batch (algo.batch_size / algo.fragment_length)"
                        + (f" into {groups} groups each" if groups > 1 else ""))  # fmt: skip
    if cfg.envs_per_sampler != "auto":
        columns = cfg.envs_per_sampler
    else:
        limit = max(1, MAX_ENVS // (samplers * groups))
        limit = needs.columns if inference == "serial" else limit if synchronous else min(MAX_COLUMNS, limit)
        columns = max(c for c in range(1, share + 1) if share % c == 0 and c <= limit)
        why.append(f"envs_per_sampler={columns}: divides the batch's {needs.columns} columns, {columns * samplers * groups} envs in all")
    if share % columns:
        whose = f"{share} of each sampler's columns" if synchronous else f"{needs.columns} columns"
        raise UserError(f"resources.envs_per_sampler={columns} must divide the {whose} of a train batch (algo.batch_size / algo.fragment_length)")
    return Resources(
        inference=inference, num_samplers=samplers, envs_per_sampler=columns, device=device, precision=precision, acting_precision=acting_precision,
        learner_threads=cfg.learner_threads, exact=cfg.exact, why=tuple(why),
    )  # fmt: skip


def _samplers(inference: str, columns: int, groups: int, available: int, synchronous: bool) -> int:
    """How many sampler processes `auto` takes. On few cores samplers and learner take turns by back-pressure; on many the learner gets a core of its
    own. Samplers that must wait for the learner take all cores, as far as the columns of a train batch can be shared out evenly."""
    if inference == "serial":
        return 1
    if not synchronous:
        return available if available <= 2 else available - 1
    return max((n for n in range(1, available + 1) if columns % (n * groups) == 0), default=1)


def _inference(cfg: ResourcesConfig, needs: Needs, make_env: EnvFactory, image: bool, available: int, why: list[str]) -> Literal["serial", "local", "batched"]:
    if image and cfg.device != "cpu" and torch.cuda.is_available():
        why.append("inference=batched: one thread acts for all samplers on the GPU")
        return "batched"
    if cfg.num_samplers != "auto" and cfg.num_samplers > 1:
        why.append("inference=local: several samplers were asked for")
        return "local"
    if available == 1:
        why.append("inference=serial: there is one core")
        return "serial"
    try:
        seconds = env_step_sec(make_env, min(needs.columns, 16))
    except EnvError as error:
        raise UserError(f"the environment fails when it is tried: {error}") from None
    cheap = seconds < CHEAP_STEP_SEC
    reason = "too little to pay for handing rows between processes" if cheap else f"worth {available} cores"
    why.append(f"inference={'serial' if cheap else 'local'}: an env step takes {seconds * 1e6:.0f} us, {reason}")
    return "serial" if cheap else "local"


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
