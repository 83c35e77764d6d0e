import errno
import json
import os
import re
import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feasibly.ensemble import Config, Coordinate, Layout, Record, Store
from feasibly.ensemble import store as stores
from feasibly.ensemble.manifest import sealed
from feasibly.errors import StoreError

CONFIG = Config("PPR", "", 1e-6, seed=0, members=4, shape=(2, 3), dtype="float32")
LAYOUT = Layout(
    (Coordinate("time", [0.0, 0.5], "h"), Coordinate("x", long_name="place")),
    name="u",
    units="m s-1",
    long_name="wind",
)


PRIVATE = ("members", "warnings")


def record(member, state="finished", **changes):
    violation = None if state == "failed" else 1e-8
    made = Record(member, state, violation, state == "finished", 0, 4.0, 2.0, 0.5, "abc")
    return replace(made, **changes)


def sample(member, config=CONFIG):
    rng = np.random.default_rng(member)
    return rng.normal(size=config.shape).astype(config.dtype)


@pytest.fixture
def store(path):
    return Store.create(path, CONFIG, LAYOUT)


def test_a_store_is_a_dataset_with_names_units_and_coordinates(store):
    xarray = pytest.importorskip("xarray")
    store.put(record(2), sample(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = xarray.open_zarr(store.path)
        loaded = dataset.load()
    assert loaded["u"].dims == ("member", "time", "x")
    assert loaded["u"].dtype == np.float32
    assert loaded["u"].attrs == {"units": "m s-1", "long_name": "wind"}
    assert loaded["time"].attrs["units"] == "h"
    assert loaded["time"].values.tolist() == [0.0, 0.5]
    assert loaded["x"].attrs == {"units": "1", "long_name": "place"}
    assert loaded["x"].values.tolist() == [0, 1, 2]
    assert loaded["member"].values.tolist() == [0, 1, 2, 3]
    assert not loaded["finished"].any()
    np.testing.assert_array_equal(loaded["u"][2], sample(2))
    assert np.isnan(loaded["u"][[0, 1, 3]]).all()
    assert json.loads(loaded.attrs["config"])["seed"] == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_member_is_read_back_as_it_was_put(path, dtype):
    config = replace(CONFIG, dtype=dtype)
    store = Store.create(path, config)
    store.put(record(1), sample(1, config))
    assert store.get(1).dtype == dtype
    np.testing.assert_array_equal(store.get(1), sample(1, config))
    assert store.missing() == [0, 2, 3]
    assert store.record(1) == record(1, checksum=store.record(1).checksum)


def test_a_dropped_or_failed_member_leaves_no_values(store):
    store.put(record(0, "dropped"), sample(0))
    store.put(record(1, "failed"), sample(1))
    assert os.listdir(store.array / "c") == []
    assert store.missing() == [2, 3]
    with pytest.raises(StoreError, match=r"^Sample 0 of .* is missing"):
        store.get(0)
    assert store.repair() == [1]


def test_a_store_is_opened_again_by_the_same_run_only(store):
    assert Store.create(store.path, CONFIG).config == CONFIG
    with pytest.raises(StoreError, match="seed: 0 in the store, now 1"):
        Store.create(store.path, replace(CONFIG, seed=1))
    assert sorted(p.name for p in store.path.parent.iterdir()) == [store.path.name]


def test_of_two_processes_one_makes_the_store(path, monkeypatch):
    rename = os.rename

    def late(draft, to):
        monkeypatch.setattr(os, "rename", rename)
        Store.create(path, CONFIG, LAYOUT).put(record(0), sample(0))
        rename(draft, to)

    monkeypatch.setattr(os, "rename", late)
    assert Store.create(path, CONFIG, LAYOUT).missing() == [1, 2, 3]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_is_no_store_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(StoreError, match="holds no ensemble"):
            Store(path)
    with pytest.raises(StoreError, match="holds no ensemble"):
        Store.create(tmp_path, CONFIG)
    assert (tmp_path / "file").read_text() == "precious"


def damage_truncate(store):
    os.truncate(store.chunk(1), 7)


def damage_flip(store):
    content = bytearray(store.chunk(1).read_bytes())
    content[5] ^= 1
    store.chunk(1).write_bytes(bytes(content))


def damage_record(store):
    os.truncate(store.records / "1.json", 20)


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_record])
def test_a_damaged_member_is_forgotten_and_no_other(store, damage):
    for member in range(3):
        store.put(record(member), sample(member))
    damage(store)
    with pytest.raises(StoreError):
        store.get(1)
    assert store.repair() == [1]
    assert store.missing() == [1, 3]
    assert store.repair() == []
    np.testing.assert_array_equal(store.get(2), sample(2))


@pytest.mark.parametrize("inner", ["u", "u/c", *(f".feasibly/{n}" for n in PRIVATE)])
def test_a_folder_that_leads_out_of_the_store_is_refused(store, tmp_path, inner):
    (store.path / inner).rename(tmp_path / "outside")
    (store.path / inner).symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="the store is damaged"):
        Store(store.path)


def test_warnings_are_kept_once_whatever_their_numbers_and_forged_ones_are_passed_over(store):
    for sentence in ("Of 4 members 3 were lost.", "Of 8 members 1.5e-3 were lost.", "True."):
        store.warn(sentence)
    for n, content in enumerate(['"\\u001b[2J"', "3", "{", '"' + "x" * 10_001 + '"']):
        (store.notes / f"{n}.json").write_text(content)
    (store.notes / "5.json").write_bytes(sealed({"sentence": "\x1b[2J"}))
    (store.notes / "4.json.abc.draft").write_text('"Half."')
    assert sorted(store.warnings()) == ["Of 4 members 3 were lost.", "True."]


def test_a_store_that_is_reached_by_a_link_is_as_good(store, tmp_path):
    (tmp_path / "link.zarr").symlink_to(store.path)
    linked = Store(tmp_path / "link.zarr")
    linked.put(record(1), sample(1))
    assert store.missing() == [0, 2, 3]


def test_a_store_that_was_begun_with_another_version_is_told_of(store, monkeypatch):
    others = stores.versions() | {"torch": "1.0"}
    monkeypatch.setattr(stores, "versions", lambda: others)
    with pytest.warns(UserWarning, match=r"started with torch \S+, now 1\.0"):
        Store.create(store.path, CONFIG, LAYOUT)


def test_a_store_that_cannot_be_made_says_why(tmp_path, store):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be created .*where this user may write"):
        Store.create(tmp_path / "file" / "run.zarr", store.config)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_member_is_not_written_through_a_link(store, tmp_path, depth):
    (tmp_path / "outside").mkdir()
    link = store.array.joinpath("c", *["1", "0"][:depth])
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="leads out of the store"):
        store.put(record(1), sample(1))
    assert store.missing() == [0, 1, 2, 3]
    assert not [p for p in (tmp_path / "outside").rglob("*") if p.is_file()]


STATIC = ("zarr.json", "u/zarr.json", "violation/zarr.json", "time/c/0")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(bytes(content))


def delete(path):
    path.unlink()


def turn_into_a_folder(path):
    path.unlink()
    path.mkdir()


def turn_into_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [flip, delete, turn_into_a_folder, turn_into_a_pipe])
@pytest.mark.parametrize("name", STATIC)
def test_what_zarr_reads_is_made_anew_from_the_manifest(store, name, damage):
    xarray = pytest.importorskip("xarray")
    store.put(record(2), sample(2))
    before = (store.path / name).read_bytes()
    damage(store.path / name)
    again = Store(store.path)  # which our own readers open in any case
    np.testing.assert_array_equal(again.get(2), sample(2))
    assert again.rebuild()
    assert (store.path / name).read_bytes() == before
    assert not again.rebuild()
    loaded = xarray.open_zarr(store.path).load()
    np.testing.assert_array_equal(loaded["u"][2], sample(2))
    assert loaded["time"].values.tolist() == [0.0, 0.5]


def test_no_bit_of_a_record_changes_unseen(store):
    store.put(record(1, path=(0.5, None, 1e-8), oddness=0.25), sample(1))
    file = store.records / "1.json"
    content, whole = file.read_bytes(), store.record(1)
    for place in range(0, 8 * len(content), 3):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        file.write_bytes(bytes(changed))
        assert store.all_records() in ([], [whole]), place  # 1e-8 may be written 1E-8
    file.write_bytes(content)
    assert [r.member for r in store.all_records()] == [1]


@pytest.mark.parametrize("damage", [turn_into_a_folder, turn_into_a_pipe])
def test_a_record_that_is_no_file_is_forgotten(store, damage):
    store.put(record(1), sample(1))
    damage(store.records / "1.json")
    assert store.all_records() == []
    assert store.repair() == [1]
    store.put(record(1), sample(1))
    assert [r.member for r in store.all_records()] == [1]


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES |= st.sampled_from([10**400, "finished", "dropped", "failed", [], {}])


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(list(asdict(record(1)))), value=VALUES)
def test_a_forged_record_is_valid_or_refused(store: Store, name, value):
    found = asdict(record(1)) | {name: value}
    try:
        content = sealed(found)
    except ValueError:  # of numbers that JSON does not know
        content = json.dumps(found).encode()
    (store.records / "1.json").write_bytes(content)
    try:
        made = store.record(1)
    except StoreError as error:
        made, words = None, str(error)
    if made is None:
        assert "1.json" in words
        assert store.all_records() == []
    else:
        assert made.state in ("finished", "dropped", "failed")
        assert made.violation is None or 0 <= made.violation < np.inf
        assert store.all_records() == [made]


def test_a_member_has_one_name(store):
    store.put(record(1), sample(1))
    for name in ("01.json", "١.json", "9.json", "-1.json", "x.json", "1", "1.json.x.draft", "²."):
        (store.records / name).write_bytes((store.records / "1.json").read_bytes())
    assert [r.member for r in store.all_records()] == [1]


@pytest.mark.parametrize(
    ("depth", "where"), [(1, "outside"), (2, "another member"), (3, "another member")]
)
def test_a_member_is_not_read_through_a_link(store, tmp_path, depth, where):
    store.put(record(1), sample(1))
    link = store.array.joinpath("c", *["1", "0", "0"][:depth])
    target = tmp_path / "outside" if where == "outside" else store.array / "c" / "2"
    link.rename(target)
    link.symlink_to(target)
    assert not store.is_whole(store.record(1))
    with pytest.raises(StoreError, match=r"^Sample 1 of .* is missing"):
        store.get(1)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    stores.write(tmp_path / "a", b"one")
    monkeypatch.setattr(stores.os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        stores.write(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_and_its_name_are_on_disk_before_a_write_returns(tmp_path, monkeypatch):
    done = []

    def note(number):
        done.append(os.readlink(f"/proc/self/fd/{number}").removeprefix(str(tmp_path)))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs Linux")
    monkeypatch.setattr(stores.os, "fsync", note)
    stores.make_folder(tmp_path / "a" / "b")
    assert done == ["", "/a"]
    stores.write(tmp_path / "a" / "b" / "c", b"one")
    assert [re.sub(r"\.\w{8}\.", ".", name) for name in done[2:]] == ["/a/b/c.draft", "/a/b"]


def test_a_file_system_that_cannot_sync_folders_is_used_as_it_is(tmp_path, monkeypatch):
    def cannot(code):
        def fail(number):
            raise OSError(code, "no")

        monkeypatch.setattr(stores.os, "fsync", fail)
        stores.sync(tmp_path)

    cannot(errno.EINVAL)
    with pytest.raises(OSError, match="no"):
        cannot(errno.EIO)


@pytest.mark.parametrize("once", [True, False])
def test_a_draft_that_another_process_removes_is_written_again(tmp_path, monkeypatch, once):
    name = "link" if once else "replace"
    original, clashes = getattr(os, name), []

    def clash(draft, path):
        if len(clashes) < 2:
            clashes.append(draft)
            os.unlink(draft)  # as the repair of a store does
        original(draft, path)

    monkeypatch.setattr(stores.os, name, clash)
    stores.write(tmp_path / "a", b"one", once=once)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("links", [True, False])
def test_of_two_processes_the_first_keeps_a_member(store, monkeypatch, links):
    """Their values differ by rounding, or by a resampling that rounding decides: the record is of
    the values that are there, even if the second one comes between the first one's two files."""
    if not links:

        def cannot(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(stores.os, "link", cannot)
    other, original = replace(record(1), worker="other"), stores.write

    def between(path, content, once=False):
        written = original(path, content, once)
        if once:
            monkeypatch.setattr(stores, "write", original)
            store.put(other, sample(2))
        return written

    monkeypatch.setattr(stores, "write", between)
    store.put(record(1), sample(1))
    store.put(other, sample(2))
    np.testing.assert_array_equal(store.get(1), sample(1))
    assert store.record(1).worker == "abc"


def test_a_member_whose_process_was_killed_between_its_files_is_sampled_again(store):
    store.put(record(1), sample(1))
    store.chunk(1).unlink()
    assert not store.is_whole(store.record(1))
    assert store.repair() == [1]
    store.put(record(1), sample(1))
    np.testing.assert_array_equal(store.get(1), sample(1))
