"""The gallery shows outputs of the code that it prints, and all of its samples are feasible."""

import json
import re

import pytest

from experiments.gallery import FOLDER, names


def cells_of(name: str) -> list[str]:
    """The code of an example's cells."""
    text = (FOLDER / f"{name}.py").read_text()
    _, *cells = re.split(r"^# %%(.*)\n", text, flags=re.M)
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return [code.strip() for kind, code in pairs if "markdown" not in kind]


@pytest.mark.parametrize("name", names())
def test_outputs_are_of_this_code(name):
    book = json.loads((FOLDER / f"{name}.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in cells] == cells_of(name)
    printed = "".join(
        "".join(output.get("text", [])) for cell in cells for output in cell["outputs"]
    )
    counts = re.findall(r"(\d+) of (\d+) samples (?:feasible|finite)", printed)
    assert counts
    assert all(good == total for good, total in counts)
    assert "image/png" in str(cells[-1]["outputs"])


def test_the_home_page_shows_all():
    shown = re.findall(r"\(gallery/(\w+)\.ipynb\) \[", (FOLDER.parent / "index.md").read_text())
    listed = re.findall(r"\(gallery/(\w+)\.png\)", (FOLDER.parent / "index.md").read_text())
    assert sorted(listed) == sorted(shown) == names()
