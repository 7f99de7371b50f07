"""What Linux says of the processor."""

from __future__ import annotations

import functools

PLACE = "/proc/cpuinfo"


@functools.cache
def processor() -> dict[str, str]:
    """Its words about the first core, {"vendor_id": "AuthenticAMD", "flags": "fpu ..."} and so on; {} where there is no such file."""
    try:
        with open(PLACE) as file:
            lines = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, value in (line.split(":", 1) for line in lines if ":" in line)}


def cpu_flags() -> set[str]:
    """The instructions that it has beyond the common ones: "avx2", "avx512_bf16"."""
    return set(processor().get("flags", "").split())
