"""A run of more members goes on with the store of one of fewer."""

import json
import threading
from dataclasses import replace

import pytest
import torch

from feasibly import PPR, Ancestral
from feasibly.constraints import Equality
from feasibly.ensemble import Store, Summary
from feasibly.ensemble import store as stores
from feasibly.errors import StoreError
from feasibly.minimizers import GaussNewton
from tests.ensemble.conftest import MEMBERS, SEARCH, Disturbed, draw, same, values
from tests.helpers import on


def grow(path, members):
    """Says that the store is of more members, as a process that is killed then."""
    Store.create(path, replace(Store(path).config, members=members))


def test_a_store_grows_and_keeps_its_members(path, undisturbed):
    xarray = pytest.importorskip("xarray")
    first = 5
    old = draw(path, n=first)
    kept = {r.member: (r.worker, old.store.get(r.member).tobytes()) for r in old.records}
    summary = draw(path)
    assert summary.counted == summary.asked == MEMBERS
    now = {r.member: (r.worker, summary.store.get(r.member).tobytes()) for r in summary.records}
    assert {m: now[m] for m in kept} == kept
    assert not {now[m][0] for m in range(first, MEMBERS)} & {worker for worker, _ in kept.values()}
    same(values(path), undisturbed)
    for consolidated in (True, False):
        loaded = xarray.open_zarr(path, consolidated=consolidated).load()
        assert loaded["member"].values.tolist() == list(range(MEMBERS))
        assert loaded["finished"].values.tolist() == [True] * MEMBERS
        violation = [r.violation for r in summary.records]
        assert loaded["violation"].values.tolist() == violation
        assert json.loads(loaded.attrs["config"])["members"] == MEMBERS
    assert not list(path.rglob("*.draft"))
    # and as the store of a run that asked for all at first, it goes on with that run
    assert draw(path, fault=lambda call, rows: pytest.fail("sampled again")).counted == MEMBERS


def test_another_run_does_not_make_a_store_grow(path):
    draw(path, n=4)
    other = Equality(lambda x: x.square().sum(dim=1) - 4, 1e-6)
    with pytest.raises(StoreError, match="the constraint returned other values"):
        draw(path, kernel=on(PPR(minimize=GaussNewton(6), **SEARCH), Disturbed(), other))
    with pytest.raises(
        StoreError,
        match=r"another run \(seed: 3 in the store, now 4; members: 4 in the store, now 8\)",
    ):
        draw(path, seed=4)
    assert Store(path).config.members == 4


def test_the_grown_run_is_known_by_its_own_members(path):
    """What only a member that was not there before tells apart."""

    class Conditional(Disturbed):
        def __init__(self, shift):
            super().__init__(lambda call, rows: shift * (torch.tensor(rows)[:, None] == 7))
            self.calls = 1

    def kernel(shift):
        return on(Ancestral(steps=4), Conditional(shift))

    draw(path, n=4, kernel=kernel(0.0))
    draw(path, kernel=kernel(0.5))
    with pytest.raises(StoreError, match="the denoiser returned other values"):
        draw(path, kernel=kernel(1.0))


def test_several_processes_make_one_store_grow(path, undisturbed, start):
    draw(path, n=3)
    crew = [start(draw, path, rank=k, workers=4) for k in range(4)]
    for process in crew:
        process.join()
        assert process.exitcode == 0
    same(values(path), undisturbed)


def test_a_store_that_another_process_has_grown_further_is_left_as_it_is(path, monkeypatch):
    draw(path, n=3)
    alone = Store._alone

    def late(store):
        monkeypatch.setattr(Store, "_alone", alone)
        grow(path, 9)
        return alone(store)

    monkeypatch.setattr(Store, "_alone", late)
    with pytest.raises(StoreError, match="holds an ensemble of 9 samples, and cannot shrink to 8"):
        draw(path)
    assert Store(path).config.members == 9


def test_of_two_that_have_a_store_grow_one_waits_for_the_other(path, monkeypatch):
    draw(path, n=3)
    with Store(path)._alone():
        thread = threading.Thread(target=grow, args=(path, 8))
        thread.start()
        thread.join(0.2)
        assert Store(path).config.members == 3
        monkeypatch.setattr(stores, "PATIENCE", 0.01)
        with pytest.raises(StoreError, match="Remove that file"):
            grow(path, 8)
    thread.join()
    assert Store(path).config.members == 8


def test_a_store_whose_growth_was_cut_short_is_read_and_goes_on(path, undisturbed):
    draw(path, n=3)
    grow(path, MEMBERS)
    same(values(path), undisturbed[:3])  # the arrays are as they were
    assert Summary.read(Store(path)).missing == [3, 4, 5, 6, 7]
    draw(path)
    same(values(path), undisturbed)


@pytest.mark.parametrize("name", ["violation", "member"])
def test_arrays_that_were_not_all_lengthened_are_lengthened(path, undisturbed, name):
    old = {}
    draw(path, n=3)
    old = (path / name / "zarr.json").read_bytes()
    root = (path / "zarr.json").read_bytes()
    draw(path)
    # the description of the whole comes last
    (path / name / "zarr.json").write_bytes(old)
    (path / "zarr.json").write_bytes(root)
    draw(path)
    same(values(path), undisturbed)


def test_a_store_is_read_at_every_moment_of_its_growth(path, monkeypatch):
    xarray = pytest.importorskip("xarray")
    draw(path, n=3)
    grow(path, MEMBERS)
    write, lengths = stores.write, []

    def then_read(*arguments, **options):
        write(*arguments, **options)
        lengths.append(xarray.open_zarr(path).load().sizes["member"])

    monkeypatch.setattr(stores, "write", then_read)
    Summary.read(Store(path)).write()
    assert set(lengths) == {3, MEMBERS}
    assert lengths == sorted(lengths)


def test_a_process_that_began_with_fewer_members_ends_with_those(path, undisturbed, monkeypatch):
    xarray = pytest.importorskip("xarray")
    write, lengths = Store.write_variables, []

    def noted(store, arrays):
        lengths.append(store.config.members)
        write(store, arrays)

    monkeypatch.setattr(Store, "write_variables", noted)

    def fault(call, rows):
        if call == 3:
            grow(path, MEMBERS)

    summary = draw(path, n=4, fault=fault)
    assert summary.asked == summary.counted == 4
    assert lengths == [MEMBERS]  # it never makes arrays shorter
    finished = xarray.open_zarr(path)["finished"].values
    assert finished.tolist() == [True] * 4 + [False] * 4
    assert draw(path).counted == MEMBERS
    same(values(path), undisturbed)


def test_a_store_that_grows_while_variables_are_written_has_those_of_all(path, monkeypatch):
    xarray = pytest.importorskip("xarray")
    draw(path, n=3)
    write = Store.write_variables

    def late(store, arrays):
        monkeypatch.setattr(Store, "write_variables", write)
        draw(path)
        write(store, arrays)

    monkeypatch.setattr(Store, "write_variables", late)
    assert Summary.read(Store(path)).write().asked == 3
    assert xarray.open_zarr(path)["finished"].values.tolist() == [True] * MEMBERS


def test_no_link_is_followed(path, tmp_path):
    draw(path, n=3)
    grow(path, MEMBERS)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    (path / "violation" / "c").rename(tmp_path / "c")
    (path / "violation" / "c").symlink_to(tmp_path / "outside")
    summary = Summary.read(Store(path))
    with pytest.raises(StoreError, match="leads out of the store"):
        summary.write()
    assert (tmp_path / "outside" / "precious").read_text() == "precious"


def test_a_disk_on_which_a_store_cannot_grow_is_said(path, monkeypatch):
    draw(path, n=3)

    def full(store):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "_alone", full)
    with pytest.raises(StoreError, match=r"cannot grow to 8 samples \(.*No space left.*make room"):
        draw(path)
    assert Store(path).config.members == 3
