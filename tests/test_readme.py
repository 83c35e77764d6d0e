"""What the README says is so."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
HOME = (ROOT / "docs" / "index.md").read_text()
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("[!_]*/*.md")),
]


@pytest.mark.parametrize("page", [README, HOME], ids=["readme", "home"])
def test_the_first_code_runs_as_printed_and_prints_what_it_says(
    page, monkeypatch, tmp_path, capsys
):
    """But for the numbers of violations, evaluations and seconds, which rounding changes."""
    monkeypatch.chdir(tmp_path)
    ((code, said),) = re.findall(r"```python\n(.*?)```\n\n```\w*\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {})
    printed = capsys.readouterr().out
    numbers = re.compile(r"\d[\d.e+-]*")
    assert numbers.sub("#", printed) == numbers.sub("#", said)
    assert printed.splitlines()[1:4:2] == said.splitlines()[1:4:2]
    assert (tmp_path / "samples.safetensors").exists()


def test_the_readme_is_short_and_its_tables_are_narrow():
    words = [word for word in README.split() if any(c.isalnum() for c in word)]
    assert len(words) <= 700
    for page in PAGES:
        most = 6 if page.name == "README.md" else 7
        for line in page.read_text().splitlines():
            if line.startswith("|") and "---" in line:
                assert line.count("|") - 1 <= most + 1, (page.name, line)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_of_the_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    for link in links:
        assert link.startswith("https://") or (page.parent / link).exists(), link
