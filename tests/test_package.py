"""What the package says of itself agrees."""

import re
import tomllib
from pathlib import Path

import feasibly

ROOT = Path(__file__).parent.parent


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {feasibly.__version__, project["version"]}
    said |= set(re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.M))
    said |= set(re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[:1])
    assert said == {feasibly.__version__}
    (priors,) = project["optional-dependencies"]["priors"]
    shipped = tomllib.loads((ROOT / "priors" / "pyproject.toml").read_text())["project"]["version"]
    assert priors == f"feasibly-priors=={shipped.rpartition('.')[0]}.*"


def test_every_weight_has_a_card_with_a_licence():
    cards = [
        *(ROOT / "priors").rglob("*.safetensors"),
        *(ROOT / "experiments").rglob("*.safetensors"),
    ]
    assert cards
    for weights in cards:
        assert "\n| licence |" in weights.with_suffix(".md").read_text(), weights
