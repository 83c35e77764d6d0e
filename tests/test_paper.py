"""Every target of PAPER.md exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TARGETS = re.findall(r"`([\w/]+\.py)::([\w.]+)`", (ROOT / "PAPER.md").read_text())


def test_the_page_has_targets():
    assert len(TARGETS) > 20


@pytest.mark.parametrize(("path", "name"), TARGETS, ids=lambda v: v)
def test_target_exists(path: str, name: str):
    node: ast.AST = ast.parse((ROOT / path).read_text())
    for part in name.split("."):
        children = {}
        for child in node.body:
            for target in getattr(child, "targets", [child]):
                children[getattr(target, "name", getattr(target, "id", None))] = child
        assert part in children, f"{path} has no {name}"
        node = children[part]
