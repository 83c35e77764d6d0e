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
       color: #1d2329; background: #fff; color-scheme: light dark; overflow-wrap: break-word; }
h1, h2 { line-height: 1.2; }
.table { margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #8884; text-align: right;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.long { white-space: normal; min-width: 16rem; text-align: left; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
label:not([hidden]) { display: block; }
input { width: min(20rem, 100%); vertical-align: middle; }
pre { background: #8882; padding: .8rem; white-space: pre-wrap; }
@media (prefers-color-scheme: dark) { body { color: #d6dbe0; background: #16191d; } }
"""

LONG = 40
"""The most characters of a table's cell on one line: numbers never wrap."""

SCRIPT = """
for (const label of document.querySelectorAll("figure > label")) {
  const [input, output] = label.children;
  const images = label.parentNode.querySelectorAll("img");
  label.hidden = false;
  input.oninput = () => {
    images.forEach((image, k) => { image.hidden = k != input.value; });
    output.value = images[input.value].title;
  };
}
"""
"""Shows the figure that a slider is at. Without it there is no slider, and the last figure."""


class Report:
    """Collects text, tables and figures, and writes them as one file without links.

    Arguments:
        title: The page's title.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self.script = ""

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
            "<tr>" + "".join(map(_cell, map(str, row.values()))) + "</tr>" for row in rows
        )
        self.parts.append(f'<div class="table"><table><tr>{head}</tr>{body}</table></div>')

    def figure(self, figure: "Figure", caption: str) -> None:
        """Adds a figure, embedded as a PNG."""
        alt = html.escape(caption)
        self.parts.append(
            f'<figure><img alt="{alt}" src="{_png(figure)}">'
            f"<figcaption>{alt}</figcaption></figure>"
        )

    def slider(self, figures: "Mapping[str, Figure]", caption: str) -> None:
        """Adds figures of which one is seen, with a slider that goes from the first to the last.

        Arguments:
            figures: The figures, each with what is written next to the slider.
            caption: Their common caption.
        """
        last, text = len(figures) - 1, html.escape(caption)
        names = [html.escape(name) for name in figures]
        images = "".join(
            f'<img alt="{text} At {name}." title="{name}" src="{_png(figure)}"'
            f"{' hidden' if k < last else ''}>"
            for k, (name, figure) in enumerate(zip(names, figures.values(), strict=True))
        )
        self.parts.append(
            f'<figure>{images}<label hidden><input type="range" max="{last}" value="{last}" '
            f'aria-label="step"> <output>{names[-1]}</output></label>'
            f"<figcaption>{text}</figcaption></figure>"
        )
        self.script = f"<script>{SCRIPT}</script>"

    def write(self, path: Path) -> None:
        """Writes the page."""
        title = html.escape(self.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
            f"<style>{STYLE}</style></head><body><h1>{title}</h1>{''.join(self.parts)}"
            f"{self.script}</body></html>",
            encoding="utf-8",
        )


def _cell(text: str) -> str:
    start = '<td class="long">' if len(text) > LONG else "<td>"
    return f"{start}{html.escape(text)}</td>"


def _png(figure: "Figure") -> str:
    """Returns the address of a figure in the page itself."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
