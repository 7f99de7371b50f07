"""Limits of memory and of cores that Linux sets to this process by control groups, of version 2 or 1.

Containers, Slurm and systemd set them. A process is in one group of each hierarchy, and every group above it limits it
too. See cgroups(7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_left(mount: Path = MOUNT, of_process: Path = OF_PROCESS) -> int | None:
    """Returns the bytes that this process may still take, or None where no group limits them. Pages of files give way,
    so they count as free."""
    left = []
    for version, group in _groups("memory", mount, of_process):
        names = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
        try:
            limit, used = ((group / f"memory.{name}").read_text().strip() for name in names)
            if limit == "max" or int(limit) >= 2**62:  # version 1 writes a huge number where there is no limit
                continue
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            files = int(stat["inactive_file" if version == 2 else "total_inactive_file"])
            left.append(max(0, int(limit) - int(used) + files))
        except (OSError, ValueError, KeyError):
            continue
    return min(left, default=None)


def cores_allowed(mount: Path = MOUNT, of_process: Path = OF_PROCESS) -> float | None:
    """Returns how many cores' time this process may use, or None where no group limits it."""
    allowed = []
    for version, group in _groups("cpu", mount, of_process):
        try:
            if version == 2:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            if quota not in ("max", "-1"):
                allowed.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(allowed, default=None)


def _groups(controller: str, mount: Path, of_process: Path) -> Iterator[tuple[int, Path]]:
    """Yields the version and the folder of this process's group and of all groups above it, as far as they are visible.

    In a container, the file of the process may name a folder of the host, and the mounted root is the container's."""
    try:
        lines = of_process.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, root = 2, mount
        elif controller in controllers.split(","):
            version, root = 1, mount / controllers
            root = root if root.is_dir() else mount / controller
        else:
            continue
        inside = Path(path.lstrip("/"))
        for group in dict.fromkeys([root / inside, *(root / above for above in inside.parents), root]):
            if group.is_dir():
                yield version, group
