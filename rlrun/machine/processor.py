"""Reads the processor's properties from Linux."""

from __future__ import annotations

import functools

PLACE = "/proc/cpuinfo"


@functools.cache
def processor() -> dict[str, str]:
    """Returns properties of the first core, such as {"vendor_id": "AuthenticAMD", "flags": "fpu ..."}.

    Without /proc/cpuinfo, the result is empty."""
    try:
        with open(PLACE) as file:
            lines = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, value in (line.split(":", 1) for line in lines if ":" in line)}


def cpu_flags() -> set[str]:
    """Returns names of the processor's instruction sets and features, such as "avx2" and "avx512_bf16"."""
    return set(processor().get("flags", "").split())
