import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feasibly.checks.probe import PARTS
from feasibly.ensemble import Config, Coordinate, Layout, Manifest, manifest
from feasibly.ensemble.manifest import FORMAT, fingerprint, read_json, shown
from feasibly.errors import StoreError

CONFIG = Config(
    method="PPR(steps=4) with Sphere",
    weights="0badcafe",
    tolerance=1e-6,
    seed=3,
    members=8,
    shape=(4, 5),
    dtype="float32",
    infeasible="drop",
    source={"denoiser": "banana", "constraint": "3", "method": "ppr", "options": ("steps=4",)},
)
WHOLE = json.loads(json.dumps(asdict(Manifest.new(CONFIG)) | {"format": FORMAT}))
LAYOUT = Layout((Coordinate("time", [0.0, 0.5, 1, 2], "h"), Coordinate("x")), name="u")

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["float32", "keep", "../..", "/etc/passwd", "\x1b[2J"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
PLACES = [(key,) for key in WHOLE] + [("config", key) for key in WHOLE["config"]]
PLACES += [("layout", key) for key in WHOLE["layout"]]
PLACES += [("config", "source", key) for key in WHOLE["config"]["source"]]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "manifest.json"


def read_or_refuse(path, content):
    """Reads a manifest; whatever is in it, it is a valid one or a StoreError that names it."""
    path.write_bytes(content)
    try:
        found = Manifest.load(path)
    except StoreError as error:
        found, words = None, str(error)
    else:
        replace(found.config)  # which tests its values
        return found
    assert str(path) in words
    assert words.isprintable()
    assert len(words) < 1000
    return None


def test_a_manifest_is_read_back_as_it_was_written(file):
    seen = {"Linear(3 values with noise)": 3}
    made = Manifest.new(CONFIG, LAYOUT, dict.fromkeys(PARTS, (0.5, None)), 4, seen)
    file.write_bytes(made.encode())
    assert Manifest.load(file) == made
    assert made.versions["torch"] == torch.__version__
    assert re.fullmatch(r"([0-9a-f]{40}(-dirty)?)?", made.commit)


def test_a_manifest_of_an_earlier_version_says_so(file):
    file.write_text(json.dumps(WHOLE | {"format": 3}))
    with pytest.raises(StoreError, match=r"earlier version.*start a new store"):
        Manifest.load(file)


def test_no_change_of_a_bit_goes_unseen(file):
    made = Manifest.new(CONFIG, LAYOUT)
    content = made.encode()
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        for damaged in (bytes(changed), content[:place]):
            assert read_or_refuse(file, damaged) is None


FUZZ = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("value", [[], {}, "a", 3, None], ids=str)
def test_json_that_is_no_manifest_is_refused(file, value):
    assert read_or_refuse(file, json.dumps(value).encode()) is None


@FUZZ
@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_value_in_any_place_is_valid_or_refused(file: Path, place, value):
    forged = json.loads(json.dumps(WHOLE))
    inner = forged
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    # a forger may write numbers that JSON does not know, which `sealed` refuses
    read_or_refuse(file, json.dumps({**forged, "seal": manifest._checksum(forged)}).encode())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), 1),
        (("probe",), []),
        (("probe",), {"schedule": [1.0]}),
        (("probe",), {name: ["x"] for name in PARTS}),
        (("probe",), {name: [0.0] * 5000 for name in PARTS}),
        (("layout", "name"), "../../samples"),
        (("layout", "name"), "violation"),
        (("layout", "axes"), []),
        (("layout", "axes"), [{"name": "x"}]),
        (("layout",), "\x1b[2J"),
        (("observations",), ["Linear"]),
        (("observations",), {"Linear": 0}),
        (("observations",), {"\x1b[2J": 1}),
        (("observations",), dict.fromkeys(map(str, range(101)), 1)),
        (("chunk",), 0),
        (("chunk",), "auto"),
        (("config", "members"), 2**62),
        (("config", "members"), True),
        (("config", "shape"), [2**40, 2**40]),
        (("config", "shape"), []),
        (("config", "shape"), [2, -1]),
        (("config", "seed"), -1),
        (("config", "dtype"), "object"),
        (("config", "tolerance"), -1.0),
        (("config", "method"), "\x1b[2J"),
        (("config", "infeasible"), "forget"),
        (("config", "source"), {"denoiser": "x"}),
        (("config", "source", "options"), "steps=4"),
    ],
    ids=str,
)
def test_a_forged_value_is_refused(file, place, value):
    test_any_value_in_any_place_is_valid_or_refused.hypothesis.inner_test(file, place, value)
    with pytest.raises(StoreError):
        Manifest.load(file)


def test_configurations_differ_in_words():
    other = replace(CONFIG, seed=4, shape=(5, 4))
    assert CONFIG.differences(other) == [
        "seed: 3 in the store, now 4",
        "shape: (4, 5) in the store, now (5, 4)",
    ]
    assert CONFIG.differences(CONFIG) == []
    assert CONFIG.differences(replace(CONFIG, source={})) == []
    moved = dict(CONFIG.source) | {"denoiser": "checkerboard"}
    assert "banana" in CONFIG.differences(replace(CONFIG, source=moved))[0]


def test_a_fingerprint_tells_weights_apart():
    torch.manual_seed(0)
    one, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    assert fingerprint(one) == fingerprint(other) != ""
    other.running_mean[1] += 1e-6
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one.bfloat16()) != fingerprint(other)
    assert fingerprint(lambda x_t, t: x_t) == ""


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b"1" * 5000, b" " * (2**20 + 1)],
    ids=["empty", "cut", "no text", "no number", "deep", "long number", "long file"],
)
def test_json_that_no_run_writes_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(StoreError, match="not a regular file"):
        read_json(tmp_path / "a.json")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "a.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(StoreError, match="is a link"):
        read_json(tmp_path / "a.json")


def test_an_untrusted_value_is_shown_short_and_harmless():
    assert len(shown("x" * 10_000)) < 100
    assert "\x1b" not in shown("\x1b[2J")
    assert len(shown([[[["deep"] * 50] * 50] * 50] * 50)) < 1000


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout((Coordinate("time"),)), "names 1 axes"),
        (Layout((Coordinate("x"), Coordinate("x"))), "must be different"),
        (Layout((Coordinate("x"), Coordinate("../x"))), "must be different"),
        (Layout((Coordinate("x"), Coordinate("member"))), "must be different"),
        (Layout((Coordinate("x"), Coordinate("y")), name="violation"), "none of"),
        (Layout((Coordinate("x", units="hours since start"), Coordinate("y"))), "no date"),
        (Layout((Coordinate("x", [0.0, 1.0]), Coordinate("y"))), "2 coordinates for 3 points"),
        (Layout((Coordinate("x", [0.0, 1.0, float("nan")]), Coordinate("y"))), "not finite"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout, words):
    with pytest.raises(ValueError, match=words):
        layout.check((3, 4))
