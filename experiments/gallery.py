"""Runs the examples of the gallery in full, and stores what they print and draw.

`python -m experiments gallery [NAME ...]` runs `docs/gallery/NAME.py` from the root of the
repository. It writes the notebook `NAME.ipynb`, with outputs, and the last picture `NAME.png`. The
site shows these and runs nothing, so that no picture comes from a run with few steps. If only
prose has changed since the last run, the outputs are kept.
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


def code(book: Any) -> list[str]:
    """Returns the code of a notebook's cells."""
    return [cell.source for cell in cells(book)]


def execute(name: str) -> None:
    """Runs an example, and writes its notebook and its picture.

    Raises:
        ModuleNotFoundError: If the extra `docs` is not installed.
        nbclient.exceptions.CellExecutionError: If a cell of the example fails.
        ValueError: If the example draws nothing, or the home page does not describe its picture.
    """
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    stored = FOLDER / f"{name}.ipynb"
    book = jupytext.read(FOLDER / f"{name}.py", fmt="py:percent")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book.metadata = nbformat.from_dict({"kernelspec": kernel, "made_with": versions()})
    old = nbformat.read(stored, as_version=4) if stored.exists() else None
    if old is not None and code(old) == code(book):
        book.metadata = old.metadata
        for cell, known in zip(cells(book), cells(old), strict=True):
            cell.update(outputs=known.outputs, execution_count=known.execution_count)
    else:
        paths = [str(ROOT), str(ROOT / "docs" / "pages"), os.environ.get("PYTHONPATH", "")]
        settings = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CI": "true"}
        settings["PYTHONWARNINGS"] = "ignore:IProgress not found"  # no widgets are needed
        place = {"metadata": {"path": str(ROOT)}}
        client = NotebookClient(book, timeout=None, resources=place, record_timing=False)
        client.execute(env=settings)
    pictures = []
    for i, cell in enumerate(book.cells):
        cell["id"] = f"{name}-{i}"
        if "outputs" in cell:  # what a cell's last line returns is no picture of it
            cell["outputs"] = [o for o in cell.outputs if o.output_type != "execute_result"]
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                pictures.append(picture)
            if "text" in output:  # a warning begins with a file of the kernel
                output["text"] = re.sub(r"(?m)^.*ipykernel_\d+/\d+\.py:\d+: ", "", output["text"])
    if not pictures:
        raise ValueError(f"{name} draws nothing.")
    described = re.search(rf"!\[(.*)\]\(gallery/{name}\.png\)", HOME.read_text())
    if described is None:
        raise ValueError(f"{HOME} does not show {name}.png.")
    cells(book)[-1].metadata["mystnb"] = {"image": {"alt": described[1]}}
    (FOLDER / f"{name}.png").write_bytes(base64.b64decode(pictures[-1]))
    nbformat.write(book, stored)
