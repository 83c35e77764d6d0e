"""Runs the examples of the gallery in full, and stores what they print and draw.

`python -m experiments gallery [NAME ...]` runs `docs/gallery/NAME.py` from the root of the
repository. It writes the notebook `NAME.ipynb`, with outputs, and the last picture `NAME.png`. The
site shows these and runs nothing, so that no picture comes from a run with few steps.
"""

import base64
import os
import re
from typing import Any

from .records import ROOT, versions

FOLDER = ROOT / "docs" / "gallery"
HOME = FOLDER.parent / "index.md"
"""The page that describes the pictures."""


def names() -> list[str]:
    """Returns the names of all examples."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def cells(book: Any) -> list[Any]:
    """Returns the cells of a notebook that hold code."""
    return [cell for cell in book.cells if cell.cell_type == "code"]


def execute(name: str, prose: bool = False) -> None:
    """Runs an example, and writes its notebook and its picture.

    Arguments:
        name: The example.
        prose: Whether its prose alone has changed, so that the stored outputs are kept.

    Raises:
        ModuleNotFoundError: If the extra `docs` is not installed.
        nbclient.exceptions.CellExecutionError: If a cell of the example fails.
        ValueError: If the home page does not describe the picture, if the example draws none, or
            if its code has changed although only its prose should have.
    """
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    described = re.search(rf"!\[(.*)\]\(gallery/{name}\.png\)", HOME.read_text())
    if described is None:
        raise ValueError(f"{HOME} does not show {name}.png.")
    stored = FOLDER / f"{name}.ipynb"
    book = jupytext.read(FOLDER / f"{name}.py", fmt="py:percent")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book.metadata = nbformat.from_dict({"kernelspec": kernel, "made_with": versions()})
    if prose:
        old = nbformat.read(stored, as_version=4)
        if [cell.source for cell in cells(old)] != [cell.source for cell in cells(book)]:
            raise ValueError(f"The code of {name} has changed; run it without --prose.")
        book.metadata = old.metadata
        for cell, known in zip(cells(book), cells(old), strict=True):
            cell.update(outputs=known.outputs, execution_count=known.execution_count)
    else:
        paths = [str(ROOT), str(ROOT / "docs" / "pages"), os.environ.get("PYTHONPATH", "")]
        settings = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CI": "true"}
        place = {"metadata": {"path": str(ROOT)}}
        client = NotebookClient(book, timeout=None, resources=place, record_timing=False)
        client.execute(env=settings)
    pictures = []
    for i, cell in enumerate(book.cells):
        cell["id"] = f"{name}-{i}"
    for cell in cells(book):
        # a result prints its warnings itself, and what a last line returns is no picture of it
        cell.outputs = [
            o
            for o in cell.outputs
            if o.output_type != "execute_result" and o.get("name") != "stderr"
        ]
        pictures += [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
    if not pictures:
        raise ValueError(f"{name} draws nothing.")
    cells(book)[-1].metadata["mystnb"] = {"image": {"alt": described[1]}}
    (FOLDER / f"{name}.png").write_bytes(base64.b64decode(pictures[-1]))
    nbformat.write(book, stored)
