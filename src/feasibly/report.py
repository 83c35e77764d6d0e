"""One self-contained HTML page about a run."""

__all__ = ["Report"]

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1d2329; background: #fff; }
h1, h2 { line-height: 1.2; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #d6dbe0; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
pre { background: #f3f5f7; padding: .8rem; overflow-x: auto; white-space: pre-wrap; }
"""


class Report:
    """Collects text, tables and figures, and writes them as one file without links.

    Arguments:
        title: The page's title.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str) -> None:
        """Adds a heading."""
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Adds a paragraph."""
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        """Adds preformatted text."""
        self.parts.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds a table, whose columns are the keys of the first row."""
        head = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row.values()) + "</tr>"
            for row in rows
        )
        self.parts.append(f"<table><tr>{head}</tr>{body}</table>")

    def figure(self, figure: "Figure", caption: str) -> None:
        """Adds a figure, embedded as a PNG."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        data = base64.b64encode(buffer.getvalue()).decode()
        alt = html.escape(caption)
        self.parts.append(
            f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
            f"<figcaption>{alt}</figcaption></figure>"
        )

    def write(self, path: Path) -> None:
        """Writes the page."""
        title = html.escape(self.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head><body><h1>{title}</h1>{''.join(self.parts)}"
            "</body></html>",
            encoding="utf-8",
        )
