"""Who may import whom: downward only, and siblings not at all."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "feasibly"

# Floors, from the ground up. A module imports from lower floors; on its own floor only where
# `INSIDE` says so.
FLOORS = [
    ["errors", "schedules", "linalg", "metrics", "randomness", "members"],
    ["nn", "constraints", "denoisers", "network"],
    ["minimizers", "oracles", "validation", "result", "priors", "blankets", "adapters"],
    ["samplers", "progress", "figures", "report"],
    ["problems", "diagnosis", "ensemble"],
    ["cli"],
    ["__init__", "__main__"],
]
ROOMS = [room for rooms in FLOORS for room in rooms]
HEAVY = {
    "matplotlib",
    "scipy",
    "sklearn",
    "azula",
    "xarray",
    "zarr",
    "diffusers",
    "torchvision",
    "appa",
}


def floor(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> list[tuple[str, bool]]:
    """The absolute names that a module imports, and whether at its top level."""
    tree = ast.parse(path.read_text())
    package = ["feasibly", *path.relative_to(PACKAGE).parent.parts]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [".".join([*base, *([node.module] if node.module else [])])]
            if not node.module:
                names = [f"{names[0]}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(name, node in tree.body) for name in names]
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_import_downward_only(path: Path):
    here = room(path)
    for name, _ in imports(path):
        parts = name.split(".")
        assert parts[0] != "experiments", f"{path} imports the experiments"
        if parts[0] != "feasibly" or len(parts) < 2 or parts[1] == here:
            continue
        there = parts[1] if parts[1] in ROOMS else "__init__"
        assert floor(there) < floor(here), f"{here} must not import {there}"


def test_every_room_stands_on_a_floor():
    assert {room(path) for path in modules()} == set(ROOMS)


@pytest.mark.parametrize("family", ["samplers", "constraints", "adapters"])
def test_siblings_do_not_import_one_another(family: str):
    # what methods share, and what others are variants of: PostHoc is Ancestral with an end of its
    # own, DPS-PC and MMPS are predictor-correctors, ReSample is HDC in stages,
    # CalibratedPPR ends as PPR does;
    # Appa's files are read apart from what is made of them, and all that reads or writes weather
    # names its variables alike
    variants = {"ancestral", "predictor_corrector", "hdc", "ppr"}
    shared = {"base", "run", "acceptance", "guidance", "moments", "projection"} | variants
    shared |= {
        "predictions",
        "readings",
        "tables",
        "appa_files",
        "appa_fields",
        "era5",
        "operators",
    }
    for path in (PACKAGE / family).glob("*.py"):
        if path.stem in ("__init__", "wrap"):  # which gather them
            continue
        for name, _ in imports(path):
            parts = name.split(".")
            if parts[:2] == ["feasibly", family] and len(parts) > 2:
                assert parts[2] in shared, f"{path.stem} imports its sibling {parts[2]}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_imports_wait_until_they_are_needed(path: Path):
    for name, top in imports(path):
        assert not (top and name.split(".")[0] in HEAVY), f"{path} imports {name} at once"


def test_algorithm_2_is_found_in_one_place():
    hits = [p.name for p in modules() if "Algorithm 2" in p.read_text().splitlines()[0]]
    assert hits == ["ppr.py"]
