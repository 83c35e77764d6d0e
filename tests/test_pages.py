"""The README and the pages of the docs: their code runs, and their links lead somewhere.

Pages run in their smoke form: few steps and members, stored weights.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "pages"
SOURCES = sorted(p for p in PAGES.glob("[!_]*.py") if p.name != "small.py")
TEXTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("[!_]*/*.md")),
]
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
        "PYTHONPATH": os.pathsep.join(map(str, (PAGES, ROOT, ROOT / "src"))),
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


@pytest.mark.filterwarnings("ignore::feasibly.errors.CalibrationWarning")
def test_the_quick_start_runs_as_printed_in_a_new_folder(tmp_path, monkeypatch, capsys):
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    exec(code("quickstart"), {})
    printed = capsys.readouterr().out
    assert "256 of 256 samples feasible" in printed
    model, post_hoc, default = map(float, re.findall(r"[\d.]+(?=%)", printed)[-3:])
    assert post_hoc < 85 < 97 < min(model, default)  # what the page says of them
    assert (tmp_path / "samples.safetensors").exists()


def test_the_first_code_runs_as_printed_and_prints_what_it_says(monkeypatch, tmp_path, capsys):
    """But for the numbers of violations, evaluations and seconds, which rounding changes."""
    monkeypatch.chdir(tmp_path)
    first = r"```python\n(.*?)```\n\n```\w*\n(.*?)```"
    ((code, said),), ((same, again),) = (
        re.findall(first, (ROOT / name).read_text(), flags=re.DOTALL)
        for name in ("README.md", "docs/index.md")
    )
    assert code == same
    exec(code, {})
    printed = capsys.readouterr().out
    numbers = re.compile(r"\d[\d.e+-]*")
    for page in (said, again):
        assert numbers.sub("#", printed) == numbers.sub("#", page)
        assert printed.splitlines()[1:4:2] == page.splitlines()[1:4:2]
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


@pytest.mark.parametrize("page", TEXTS + SOURCES, ids=lambda p: p.name)
def test_links_of_the_pages_lead_somewhere(page):
    text = page.read_text()
    if page.suffix == ".py":
        text = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_the_readme_is_short_tables_are_narrow_and_stored_weights_small():
    words = [word for word in TEXTS[0].read_text().split() if any(c.isalnum() for c in word)]
    assert len(words) <= 600
    for page in TEXTS:
        most = 6 if page.name == "README.md" else 7
        for line in page.read_text().splitlines():
            if line.startswith("|") and "---" in line:
                assert line.count("|") - 1 <= most + 1, (page.name, line)
    for path in (ROOT / "docs" / "weights").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 2e6, path
