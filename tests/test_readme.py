"""What the README says is so."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from feasibly.schedules import VP

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("[!_]*/*.md")),
]


def test_python_of_the_readme_runs(monkeypatch, tmp_path):
    """With the exact network of standard normal data in place of the reader's."""

    def network(x_t, t):
        alpha, sigma = (scale[:, None, None] for scale in VP()(t))
        return sigma * x_t / (alpha**2 + sigma**2)

    project = ModuleType("my_project")
    project.network = network
    monkeypatch.setitem(sys.modules, "my_project", project)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict = {}
    exec(code, names)
    result = names["result"]
    assert result.feasible.all()
    assert result.samples.shape == (64, 32, 32)
    torch.testing.assert_close(
        result.samples.mean(dim=(1, 2)), torch.full((64,), 0.3), rtol=0, atol=1e-4
    )
    assert (tmp_path / "samples.safetensors").exists()
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 13


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_of_the_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    for link in links:
        assert link.startswith("https://") or (page.parent / link).exists(), link
