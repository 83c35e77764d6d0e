"""Every page of the docs runs, in its smoke form: few steps and members, stored weights."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import feasibly

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "pages"
SOURCES = sorted(p for p in PAGES.glob("[!_]*.py") if p.name != "small.py")
FIRST = ("quickstart", "model", "constraint", "trust", "report")
RUN = """
import pathlib, runpy, sys, time, warnings
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
for page in map(pathlib.Path, sys.argv[1:]):
    start = time.perf_counter()
    runpy.run_path(str(page))
    plt.close("all")
    print(f"PASSED {page.name} {time.perf_counter() - start:.1f} s", flush=True)
"""


def code(page: str) -> str:
    """Returns the code of a page, as it is printed."""
    _, *cells = re.split(r"^# %%(.*)\n", (PAGES / f"{page}.py").read_text(), flags=re.M)
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return "\n".join(text for kind, text in pairs if "markdown" not in kind)


@pytest.mark.slow  # and `.ci/run` builds the site of them
@pytest.mark.timeout(600)
def test_pages_run(tmp_path):
    """In one process that is not this one: torch is imported once, and pages change settings."""
    environment = os.environ | {
        "FEASIBLY_SMOKE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(PAGES), str(ROOT))),
        "PYTHONWARNINGS": "ignore",
    }
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, SOURCES)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert [f"PASSED {page.name} " in ran.stdout for page in SOURCES] == [True] * len(SOURCES)


def test_the_quick_start_runs_as_printed_in_a_new_folder(tmp_path):
    """Pasted by someone who has the package and nothing else: no file of the docs."""
    (tmp_path / "pasted.py").write_text(code("quickstart"))
    environment = {k: v for k, v in os.environ.items() if k != "FEASIBLY_SMOKE"} | {
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(feasibly.__file__).parents[1]),
    }
    ran = subprocess.run(
        [sys.executable, "pasted.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "256 of 256 members feasible" in ran.stdout
    model, post_hoc, default = map(float, re.findall(r"[\d.]+(?=%)", ran.stdout)[-3:])
    assert post_hoc < 85 < 97 < min(model, default)  # what the page says of them
    assert (tmp_path / "samples.safetensors").exists()


@pytest.mark.parametrize("page", FIRST)
def test_the_first_pages_need_no_file_of_the_docs(page):
    """So that they can be pasted, and come as notebooks."""
    for word in ("small", "docs", "experiments", "FEASIBLY_SMOKE"):
        assert not re.search(rf"\b{word}\b", code(page)), word


def test_every_page_is_on_the_site():
    index = (ROOT / "docs" / "index.md").read_text()
    for page in [*SOURCES, *PAGES.glob("*.md")]:
        assert f"pages/{page.stem}\n" in index, page
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in index, page


@pytest.mark.parametrize("page", SOURCES, ids=lambda p: p.stem)
def test_links_of_the_pages_lead_somewhere(page):
    text = "\n".join(line for line in page.read_text().splitlines() if line.startswith("#"))
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_stored_weights_are_small():
    for path in (ROOT / "docs" / "weights").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 2e6, path
