"""The gallery shows outputs of the code that it prints, and all of its samples are feasible."""

import base64
import json
import re

import pytest

from experiments.gallery import FOLDER, HOME, names


def cells_of(name: str) -> list[str]:
    """The text and the code of an example's cells."""
    text = (FOLDER / f"{name}.py").read_text()
    _, *cells = re.split(r"^# %%(.*)\n", text, flags=re.M)
    return [
        re.sub(r"^# ?", "", cell, flags=re.M).strip() if "markdown" in kind else cell.strip()
        for kind, cell in zip(cells[::2], cells[1::2], strict=True)
    ]


@pytest.mark.parametrize("name", names())
def test_outputs_are_of_this_code(name):
    book = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert ["".join(cell["source"]) for cell in book["cells"]] == cells_of(name)
    outputs = [output for cell in book["cells"] for output in cell.get("outputs", [])]
    printed = "".join("".join(output.get("text", [])) for output in outputs)
    counts = re.findall(r"(\d+) of (\d+) samples (?:feasible|finite)", printed)
    assert counts
    assert all(good == total for good, total in counts)
    assert not re.search(r"/(tmp|root|home|work|__w)/", printed)
    pictures = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert base64.b64decode("".join(pictures[-1])) == (FOLDER / f"{name}.png").read_bytes()


def test_the_home_page_shows_all():
    shown = re.findall(r"\(gallery/(\w+)\.png\)\]\(gallery/(\w+)\.ipynb\)", HOME.read_text())
    assert sorted(shown) == [(name, name) for name in names()]
