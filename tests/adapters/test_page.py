"""The code of the page on adapters runs as printed, where its library is installed."""

import importlib.util
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
NEEDS = {"arviz": "arviz_base", "distributions": "torch"}


def libraries(code):
    """What the code and its adapter import."""
    own = adapter(code)
    return {NEEDS.get(own, own), *re.findall(r"^(?:import|from) (\w+)", code, flags=re.MULTILINE)}


def adapter(code):
    return re.search(r"feasibly\.adapters\.(\w+)", code).group(1)


@pytest.mark.parametrize(
    "code",
    [pytest.param(code, marks=[pytest.mark.slow] * ("run_sbc" in code)) for code in BLOCKS],
    ids=adapter,
)
@pytest.mark.filterwarnings("ignore")
def test_the_code_runs_as_printed(code, tmp_path, monkeypatch):
    for library in libraries(code):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)  # sbi writes its logs
    exec(code, {"__name__": "page"})


def test_every_adapter_is_on_the_page():
    found = importlib.util.find_spec("feasibly.adapters")
    modules = {p.stem for p in Path(found.origin).parent.glob("*.py")} - {"__init__"}
    shown = set(re.findall(r"`feasibly\.adapters\.(\w+)`", PAGE))
    assert modules == shown == set(re.findall(r"from feasibly\.adapters\.(\w+)", PAGE))
    for module, lines in re.findall(r"`feasibly\.adapters\.(\w+)` \| (\d+) \|", PAGE):
        source = Path(found.origin).with_name(f"{module}.py").read_text()
        assert abs(len(source.splitlines()) - int(lines)) <= 20, module
