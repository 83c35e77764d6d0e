"""Every target of PAPER.md exists."""

import ast
import math
import re
from pathlib import Path

from feasibly import PPR, Equality
from feasibly.minimizers import LBFGS
from tests.helpers import on

ROOT = Path(__file__).parent.parent
TARGETS = re.findall(r"`([\w/]+\.py)::([\w.]+)`", (ROOT / "PAPER.md").read_text())


def test_every_target_exists():
    assert len(TARGETS) > 20
    trees = {path: ast.parse((ROOT / path).read_text()) for path in {path for path, _ in TARGETS}}
    assert [target for target in TARGETS if not exists(trees[target[0]], target[1])] == []


def exists(node: ast.AST, name: str) -> bool:
    for part in name.split("."):
        children = {}
        for child in node.body:
            for target in getattr(child, "targets", [child]):
                children[getattr(target, "name", getattr(target, "id", None))] = child
        if part not in children:
            return False
        node = children[part]
    return True


def test_ppr_without_options_is_the_papers(gaussian):
    """Table 5: 64 steps, 2 kernels, 8 iterations of L-BFGS, at every noise level, once."""
    line = Equality(lambda x: x[:, :1] - 0.2, tolerance=1e-6)
    ppr = on(PPR(), gaussian, line)
    assert (ppr.steps, ppr.repeats, ppr.eta) == (64, 2, 1.0)
    assert ppr.minimize == LBFGS(steps=8, max_step=None)
    assert (ppr.sigma_max, ppr.last) == (math.inf, None)
    assert ppr.output == "projected"
