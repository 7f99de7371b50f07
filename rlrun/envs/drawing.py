"""How environments draw on machines without a screen.

MuJoCo draws with OpenGL, for pixels of dm-control and for films of all environments that use it. Its packages read
MUJOCO_GL once, while they are imported. prepare() therefore comes before their first import."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

from rlrun.core.errors import UserError

VARIABLE = "MUJOCO_GL"
INSTALL = "apt install libegl1"  # Debian and Ubuntu; it brings Mesa, which draws on the CPU
OFF = ("off", "disable", "disabled", "false", "0")  # values of MUJOCO_GL for no drawing at all
PLATFORM_DEVICE = 0x313F  # EGL_PLATFORM_DEVICE_EXT


def prepare() -> None:
    """Sets MUJOCO_GL, unless the user did: to egl, or else to osmesa, where one of them works. Where neither does and
    there is no screen either, nothing can be drawn, and MuJoCo's packages would not even be imported without being told
    so."""
    if VARIABLE in os.environ or not sys.platform.startswith("linux"):
        return
    if egl_lacks() is None:
        os.environ[VARIABLE] = "egl"
    elif _library("libOSMesa.so.8") is not None:
        os.environ[VARIABLE] = "osmesa"
    elif not os.environ.get("DISPLAY"):
        os.environ[VARIABLE] = "disabled"


def without_screen() -> None:
    """Tells SDL, with which pygame draws CartPole and its like, not to look for a screen where there is none."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def lacks() -> str | None:
    """Why MuJoCo cannot draw here and what to install, as the end of a sentence; None if nothing is known to be
    missing."""
    prepare()
    chosen = os.environ.get(VARIABLE, "").lower()
    if chosen not in ("egl", *OFF):
        return None
    missing = egl_lacks()
    if missing is not None:
        return missing
    return f"{VARIABLE}={os.environ[VARIABLE]} says so: unset it, or set it to egl" if chosen in OFF else None


def check(name: str) -> None:
    """Raises UserError if MuJoCo cannot draw the environment `name`."""
    why = lacks()
    if why is not None:
        raise UserError(f"env={name} cannot be drawn: {why}")


@cache
def egl_lacks() -> str | None:
    """What EGL needs and this machine has not, and how Debian installs it; None if EGL works."""
    egl = _library("libEGL.so.1")
    if egl is None:
        return f"libEGL.so.1 is not installed: {INSTALL}"
    devices, found = (ctypes.c_void_p * 16)(), ctypes.c_int(0)
    query = _function(egl, "eglQueryDevicesEXT", ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    display = _function(
        egl, "eglGetPlatformDisplayEXT", ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p
    )
    if query is not None and display is not None and query(len(devices), devices, ctypes.byref(found)):
        egl.eglInitialize.argtypes = [ctypes.c_void_p] * 3
        for device in devices[: found.value]:
            shown = display(PLATFORM_DEVICE, device, None)
            if shown and egl.eglInitialize(shown, None, None):
                return None
    return f"EGL finds nothing that draws, neither a GPU's driver nor Mesa's: {INSTALL} libegl-mesa0"


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _function(egl: ctypes.CDLL, name: str, result: type, *arguments: type) -> ctypes._FuncPointer | None:
    """A function of an EGL extension, or None if there is none."""
    egl.eglGetProcAddress.restype, egl.eglGetProcAddress.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    place = egl.eglGetProcAddress(name.encode())
    return ctypes.CFUNCTYPE(result, *arguments)(place) if place else None
