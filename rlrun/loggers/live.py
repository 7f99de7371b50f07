"""rich's live display, which also survives a change of the terminal's width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment


class RedrawnView(Live):
    """A display that is drawn anew in its place, twice a second by default.

    Where a terminal becomes narrower, it breaks the rows that are on it, and so the last picture takes more rows than
    it had. rich goes up by as many rows as it drew, which leaves the upper ones behind as residue. This display also
    erases the rows that the break has added."""

    def __init__(self, picture: Callable[[], Any], refreshes: float = 2, transient: bool = False):
        """picture: returns what is shown at this moment. transient: whether it disappears at the end."""
        self.widths: list[int] = []  # of the rows of the last picture
        super().__init__(
            console=Console(),
            get_renderable=lambda: _Measured(picture(), self.widths),
            refresh_per_second=refreshes,
            transient=transient,
        )

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        columns = max(1, self.console.width)
        broken = sum(max(0, -(-width // columns) - 1) for width in self.widths)
        if not broken:
            return super().process_renderables(renderables)
        self.widths.clear()  # they are erased once; what is drawn next has widths of its own
        up = (ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)
        return super().process_renderables([Control(*(up * broken)), *renderables])


class _Measured:
    """Draws a picture without blanks at the ends of its rows, and notes how wide the rows are."""

    def __init__(self, picture: Any, widths: list[int]):
        self.picture, self.widths = picture, widths

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [_stripped(row) for row in console.render_lines(self.picture, options, pad=False)]
        self.widths[:] = [Segment.get_line_length(row) for row in rows]
        yield from _joined(rows)


def _stripped(row: list[Segment]) -> list[Segment]:
    """The row without blanks at its end."""
    row = list(row)
    while row and not row[-1].control:
        text = row[-1].text.rstrip()
        if text:
            row[-1] = Segment(text, row[-1].style)
            break
        row.pop()
    return row


def _joined(rows: list[list[Segment]]) -> Iterator[Segment]:
    for number, row in enumerate(rows):
        if number:
            yield Segment.line()
        yield from row
