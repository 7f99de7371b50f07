"""Makes self-contained HTML pages. They load no script, font or picture, so that a file can be mailed and still opens
in ten years."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

from rlrun.config.paths import package


def escape(text: object) -> str:
    return html.escape(str(text), quote=True)


def page(title: str, lead: str, body: Sequence[str], foot: str) -> str:
    """A whole HTML document. `body` is HTML already; the other arguments are plain text and are escaped."""
    style = (package() / "data" / "page.css").read_text()
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="lead">{escape(lead)}</p>',
            *body,
            f"<footer>{escape(foot)}</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    classes: Sequence[Sequence[str]] | None = None,
    left: Sequence[int] = (),
) -> str:
    """An HTML table of escaped cells. `classes` has a CSS class for each cell; `left` lists left-aligned columns."""
    side = [' class="left"' if index in left else "" for index in range(len(headings))]
    head = "".join(f"<th{where}>{escape(name)}</th>" for name, where in zip(headings, side))
    lines = []
    for number, row in enumerate(rows):
        cells = []
        for index, cell in enumerate(row):
            names = " ".join(
                name for name in ("left" if index in left else "", classes[number][index] if classes else "") if name
            )
            cells.append(f'<td class="{names}">{escape(cell)}</td>' if names else f"<td>{escape(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def cards(facts: Sequence[tuple[str, object]]) -> str:
    """Cards for the few most important numbers, given as (label, value)."""
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b></div>' for name, value in facts)
        + "</div>"
    )


def picture(svg: str) -> str:
    return f"<figure>{svg}</figure>"


def image(kind: str, data: bytes, text: str) -> str:
    """A picture of this kind (png or gif), which the page contains. text: what it shows."""
    source = f"data:image/{escape(kind)};base64,{base64.b64encode(data).decode()}"
    return f'<figure><img src="{source}" alt="{escape(text)}" style="max-width:100%"></figure>'


def video(kind: str, data: bytes, text: str) -> str:
    """A video of this kind (mp4), which the page contains. text: what it shows."""
    source = f"data:video/{escape(kind)};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure><video src="{source}" aria-label="{escape(text)}" style="max-width:100%" controls loop muted></video>'
        "</figure>"
    )


def details(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
