"""Who may import whom: downward only, and siblings not at all."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "feasibly"

# Floors, from the ground up. A module imports from lower floors, and from its own room.
FLOORS = [
    ["errors", "arguments", "machine"],
    ["files", "progress"],
    [
        *("schedules", "linalg", "derivatives", "metrics", "randomness", "members"),
        "calibration",
    ],
    ["nn", "constraints", "denoisers", "network"],
    ["minimizers", "oracles", "result", "priors", "wrappers", "weather"],
    ["checks"],
    ["problem"],
    ["models", "samplers", "figures", "report"],
    ["messages"],
    ["survey"],
    ["monitor", "remarks"],
    ["policy", "run"],
    ["api", "ensemble"],
    ["problems", "audits", "fitness", "adapters"],
    ["cli"],
    ["__init__"],
    ["__main__"],
]
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# What siblings may import of one another: what they share, and what others are variants of.
# PostHoc is Ancestral with an end of its own, DPS-PC is DPS and a predictor-corrector, ReSample
# is HDC in stages, CalibratedPPR ends as PPR does, TruncatedPPR and Rejection begin as their
# parents do not. A statement through truths is of the parts of a composite, and observations have
# errors. Appa's files are read apart from what is made of them, all that reads or writes weather
# names its variables alike, and stations are of a table and of an interpolation.
SHARED = {
    "samplers": {"base", "guidance", "moments", "normals", "principal", "projection", "slopes"}
    | {"answers", "weights", "levels", "population", "twist", "settings", "tuned"}
    | {"ancestral", "predictor_corrector", "dps", "hdc", "ppr", "truncated", "calibrated"},
    "constraints": {"base", "operators", "composite", "inequality", "noise"},
    "models": {"tables"},
    "weather": {"era5", "appa_files", "appa_fields", "bilinear", "tables"},
    "wrappers": set(),
    "adapters": set(),
}
GATHER = {"__init__", "wrap"}  # these bring siblings together

HEAVY = {
    "matplotlib",
    "scipy",
    "sklearn",
    "azula",
    "pandas",
    "xarray",
    "zarr",
    "deepinv",
    "earth2studio",
    "sbi",
    "arviz_base",
    "diffusers",
    "torchvision",
    "appa",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
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


def all_imports() -> Iterator[tuple[Path, str, bool]]:
    """Every import: the module's path in the package, the name, and whether at its top level."""
    for path in modules():
        for name, top in imports(path):
            yield path.relative_to(PACKAGE), name, top


def room(path: Path) -> str:
    return path.with_suffix("").parts[0]


def test_every_room_stands_on_a_floor():
    assert {room(path.relative_to(PACKAGE)) for path in modules()} == set(ROOMS)


def test_modules_import_downward_only():
    upward = []
    for path, name, _ in all_imports():
        parts = name.split(".")
        if parts[0] != "feasibly" or parts[1:2] == [room(path)]:
            continue
        there = parts[1] if len(parts) > 1 and parts[1] in ROOMS else "__init__"
        if ROOMS[there] >= ROOMS[room(path)]:
            upward.append(f"{path} imports {name}")
    assert upward == []


def test_the_package_does_not_import_the_experiments():
    assert [str(p) for p, name, _ in all_imports() if name.split(".")[0] == "experiments"] == []


def test_siblings_do_not_import_one_another():
    wrong = []
    for path, name, _ in all_imports():
        family, parts = room(path), name.split(".")
        if family not in SHARED or path.stem in GATHER:
            continue
        if parts[:2] == ["feasibly", family] and parts[2:] and parts[2] not in SHARED[family]:
            wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_heavy_imports_wait_until_they_are_needed():
    heavy = [(path, name) for path, name, top in all_imports() if top and room(path) != "adapters"]
    assert [f"{p} imports {name}" for p, name in heavy if name.split(".")[0] in HEAVY] == []


def test_only_a_user_imports_an_adapter():
    """Each imports its library at its top level."""
    names = [(path, name) for path, name, _ in all_imports() if room(path) != "adapters"]
    assert [f"{p} imports {name}" for p, name in names if "feasibly.adapters" in name] == []


def test_commands_for_any_problem_know_none():
    """The demo is of the problems, and `load` knows the numbers of Data2D's constraints."""
    wrong = [
        f"{path} imports {name}"
        for path, name, _ in all_imports()
        if room(path) == "cli" and not path.stem.startswith(("demo", "load"))
        if name.startswith("feasibly.problems.") and name != "feasibly.problems.layout"
    ]
    assert wrong == []


def test_algorithm_2_is_found_in_one_place():
    hits = [p.name for p in modules() if "Algorithm 2" in p.read_text().splitlines()[0]]
    assert hits == ["ppr.py"]


def test_nothing_that_is_read_from_a_file_runs():
    """Only an executor's tasks are unpickled, which come from a process of the user's own."""
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name, given = ast.unparse(node.func), {k.arg: k.value for k in node.keywords}
                safe = name != "torch.load" or ast.unparse(given["weights_only"]) == "True"
                unsafe = {"eval", "exec", "pickle.load", "pickle.loads", "yaml.load"}
                if name in unsafe or not safe or "trust_remote_code" in given:
                    found.append(f"{path.relative_to(PACKAGE)}: {name}")
    assert found == ["ensemble/worker.py: pickle.loads"]
