"""A small terminal: what a person sees of a command that writes to a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time

# A control sequence, a change of the size (resize() of a program that is shown), another command, or another escape.
ESCAPE = re.compile(r"\x1b\[([?]?)([\d;]*)([A-Za-z])|\x1b\]columns=(\d+)\x07|\x1b\][^\x07]*\x07|\x1b[=>78]")
# What a program that is shown runs to make its terminal narrower or wider, at a known place in its output.
RESIZE = """
def resize(columns):
    import fcntl, os, struct, termios
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    os.write(1, f"\\x1b]columns={columns}\\x07".encode())
"""


class Screen:
    """The rows of a terminal. It knows the control sequences that rich uses; others raise ValueError."""

    def __init__(self, columns: int, lines: int):
        self.columns, self.lines = columns, lines
        self.rows = [[" "] * columns for _ in range(lines)]
        self.y = self.x = 0

    def feed(self, text: str) -> None:
        place = 0
        while place < len(text):
            found = ESCAPE.match(text, place)
            if found:
                if found[4]:
                    self.resize(int(found[4]))
                else:
                    self._control(*found.groups(default="")[:3])
                place = found.end()
                continue
            character = text[place]
            if character == "\r":
                self.x = 0
            elif character == "\n":
                self._down()
            elif character == "\b":
                self.x = max(0, self.x - 1)
            elif character >= " ":
                if self.x == self.columns:  # a row is full, and the next character goes to the next one
                    self.x = 0
                    self._down()
                self.rows[self.y][self.x] = character
                self.x += 1
            elif character != "\x07":
                raise ValueError(f"{character!r} is not known")
            place += 1

    def resize(self, columns: int) -> None:
        """Gives the terminal another width. Rows that do not fit are broken, as most terminals do. The cursor, which is
        behind the last character, stays there."""
        rows: list[list[str]] = []
        for row in self.rows[: self.y + 1]:
            text = "".join(row).rstrip()
            parts = [text[start : start + columns] for start in range(0, max(1, len(text)), columns)]
            rows += [list(part.ljust(columns)) for part in parts]
        self.x = len(parts[-1])
        self.columns, self.y = columns, len(rows) - 1
        rows += [[" "] * columns for _ in range(self.lines - len(rows))]
        self.rows, self.y = rows[-self.lines :], min(self.y, self.lines - 1)

    def _down(self) -> None:
        if self.y + 1 < self.lines:
            self.y += 1
        else:
            self.rows = [*self.rows[1:], [" "] * self.columns]

    def _control(self, private: str, numbers: str, kind: str) -> None:
        if private or kind in ("m", ""):  # modes such as the cursor's visibility, and colours
            return
        count = int(numbers or (0 if kind in "KJ" else 1))
        if kind == "A":
            self.y = max(0, self.y - count)
        elif kind == "K" and count in (0, 2):
            first = 0 if count == 2 else self.x
            self.rows[self.y][first:] = [" "] * (self.columns - first)
        else:
            raise ValueError(f"the control sequence {numbers}{kind} is not known")

    def __str__(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.rows).rstrip()


def shown(command: list[str], columns: int, lines: int = 40, timeout: float = 60.0, **environment: str) -> Screen:
    """The screen at the end of a command that runs in a terminal of this size."""
    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env={**inherited, "TERM": "xterm", **environment}
    )
    os.close(child)
    said, deadline = b"", time.monotonic() + timeout
    try:
        while time.monotonic() < deadline:
            try:
                part = os.read(main, 65536)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not part:
                break
            said += part
    finally:
        process.kill()
        process.wait()
        os.close(main)
    screen = Screen(columns, lines)
    screen.feed(said.decode())
    return screen
