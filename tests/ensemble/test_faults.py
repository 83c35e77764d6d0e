"""After every fault: no finished member is lost, none unfinished is counted, and going on ends
with the members of an undisturbed run."""

import contextlib
import errno
import os
import signal
import stat
from types import SimpleNamespace

import pytest
import torch

from feasibly import Ancestral
from feasibly.constraints import Inequality
from feasibly.ensemble import Store, Summary
from feasibly.ensemble import store as stores
from feasibly.errors import SamplingError
from tests.ensemble.conftest import MEMBERS, PLAIN, Disturbed, draw, values
from tests.helpers import on, sampled


def finished(path):
    """The finished members and the bytes of their values; nothing before there is a store."""
    if not path.exists():
        return {}
    store = Store(path)
    return {r.member: store.get(r.member).tobytes() for r in Summary.read(store).records}


def check_and_go_on(path, undisturbed):
    """The claims of the module's first line, for a run that has been stopped."""
    kept = finished(path)
    expected = undisturbed.numpy()
    for member, content in kept.items():
        found = torch.frombuffer(bytearray(content), dtype=torch.float32)
        torch.testing.assert_close(found, torch.from_numpy(expected[member]), rtol=1e-5, atol=1e-6)
    drawn = []
    summary = draw(path, fault=lambda call, rows: drawn.extend(rows))
    assert not set(drawn) & set(kept)
    assert set(drawn) | set(kept) == set(range(MEMBERS))
    assert summary.counted == MEMBERS
    assert {m: finished(path)[m] for m in kept} == kept
    torch.testing.assert_close(values(path), undisturbed, rtol=1e-5, atol=1e-6)
    assert not list(path.rglob("*.draft"))
    return kept


def suicide(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_killed_while_it_samples(path, undisturbed, start):
    process = start(draw, path, fault=lambda call, rows: call == 25 and suicide())
    process.join()
    assert process.exitcode == -signal.SIGKILL
    kept = check_and_go_on(path, undisturbed)
    assert 0 < len(kept) < MEMBERS
    assert len(kept) % 2 == 0


@pytest.mark.parametrize(
    ("call", "moment"),
    [*(("replace", n) for n in (1, 2, 3)), ("link", 1), ("link", 2), ("fsync", 40)],
)
def test_a_process_killed_while_it_writes(path, undisturbed, start, call, moment):
    class Deadly:
        """The module os for the module store, and not for zarr, which writes before it."""

        count = 0

        def __getattr__(self, name):
            if name == call:
                Deadly.count += 1
                if Deadly.count == moment:
                    suicide()
            return getattr(os, name)

    def work():
        stores.os = Deadly()
        draw(path)

    process = start(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    kept = len(check_and_go_on(path, undisturbed))
    if call == "link":  # by which a record is written
        assert kept == moment - 1
    elif call == "replace":  # the first is the manifest's, and the others are of values
        assert kept == max(0, moment - 2)


def test_of_two_processes_one_is_killed_and_the_other_does_its_part(path, undisturbed, start):
    faults = (None, lambda call, rows: suicide())
    crew = [start(draw, path, fault=faults[k], rank=k, workers=2) for k in range(2)]
    for process in crew:
        process.join()
    assert [process.exitcode for process in crew] == [0, -signal.SIGKILL]
    assert len(check_and_go_on(path, undisturbed)) == MEMBERS


def test_a_full_disk(path, undisturbed, monkeypatch):
    fsync, link, count = os.fsync, os.link, [0]

    def full(file):
        if path.exists() and stat.S_ISREG(os.fstat(file).st_mode) and count[0] >= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(file)

    def linked(draft, to):
        count[0] += 1
        link(draft, to)

    with monkeypatch.context() as patch:
        patch.setattr(stores.os, "fsync", full)
        patch.setattr(stores.os, "link", linked)
        with pytest.raises(SamplingError, match=r"No space left on device.*make room") as error:
            draw(path)
    assert "1 of 8 samples are finished and kept" in error.value.__notes__[0]
    assert "repeat the same call to resume" in error.value.__notes__[0]
    assert not list(path.rglob("*.draft"))
    assert len(check_and_go_on(path, undisturbed)) == 1


def test_a_store_cut_short_on_disk(path, undisturbed):
    draw(path)
    store = Store(path)
    os.truncate(store.chunk(3), 5)
    store.chunk(4).unlink()
    os.truncate(store.records / "6.json", 9)
    os.truncate(path / "violation" / "c" / "0", 1)
    assert sorted(finished(path)) == [0, 1, 2, 5, 7]
    assert len(check_and_go_on(path, undisturbed)) == 5


def nan(rows):
    """Spoils the first row."""
    return torch.tensor([[torch.nan]] + [[0.0]] * (len(rows) - 1))


def test_numbers_that_are_none_at_one_step(path, undisturbed):
    spoilt = []

    def once(call, rows):
        # a chunk's first call; later, a search takes it for a bad step, and takes another
        if rows[0] == 4 and not spoilt:
            spoilt.append(call)
            return nan(rows)
        return None

    summary = draw(path, fault=once)
    assert spoilt
    assert summary.counted == MEMBERS
    torch.testing.assert_close(values(path), undisturbed, rtol=1e-5, atol=1e-6)


def test_numbers_that_are_none_until_the_restart(path, undisturbed):
    summary = draw(path, fault=lambda call, rows: nan(rows) if rows[0] == 4 else None)
    assert summary.state("failed") == [4]
    assert summary.is_short
    assert "1 (4) became non-finite" in str(summary)
    assert not Store(path).chunk(4).exists()
    assert Store(path).repair() == [4]
    assert len(check_and_go_on(path, undisturbed)) == MEMBERS - 1


def test_a_chunk_that_does_not_fit_into_memory_is_halved(path, undisturbed):
    sizes = []

    def lack(call, rows):
        sizes.append(len(rows))
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    assert draw(path, fault=lack, batch_size=8).counted == MEMBERS
    assert sizes[:2] == [8, 4]
    assert max(sizes[2:]) == 2
    torch.testing.assert_close(values(path), undisturbed, rtol=1e-5, atol=1e-6)


def test_a_member_that_does_not_fit_into_memory_alone_stops_the_run(path, undisturbed):
    def lack(call, rows):
        if 5 in rows:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(SamplingError, match="Sample 5 alone does not fit into memory"):
        draw(path, fault=lack, batch_size=8)
    assert len(check_and_go_on(path, undisturbed)) >= 4


def test_ctrl_c_says_which_members_are_lost(path, undisturbed):
    def interrupt(call, rows):
        if call == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        draw(path, fault=interrupt)
    kept = sorted(finished(path))
    assert kept
    a, b = len(kept), len(kept) + 1
    (note,) = error.value.__notes__
    assert note.startswith(
        f"Lost before they were finished: 2 ({a}, {b}). {a} of 8 samples are finished"
    )
    assert len(check_and_go_on(path, undisturbed)) == a


def test_a_stop_keeps_all_of_a_chunk_that_is_finished(path, undisturbed, monkeypatch):
    put, written = Store.put, []

    def interrupted(store, record, sample):
        written.append(record.member)
        if len(written) == 3:
            raise KeyboardInterrupt
        put(store, record, sample)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            draw(path, batch_size=6)
    assert sorted(check_and_go_on(path, undisturbed)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_a_stop_keeps_what_no_later_attempt_would_change(path, stop):
    # half of the members are feasible at once, and the others are resampled
    options = {"steps": 4, "order": 1, "spacing": "time"}

    def kernel(fault=None):
        return on(Ancestral(**options), Disturbed(fault, PLAIN), half())

    expected = sampled(kernel(), MEMBERS, (2,), seed=3, attempts=3)
    first = sampled(kernel(), MEMBERS, (2,), seed=3).feasible
    assert 1 < first.sum() < MEMBERS - 1
    seen = []

    def interrupt(call, rows):
        seen.append(rows)
        if call == 7:  # the second step of the second attempt
            raise stop("no more")

    if stop is MemoryError:
        draw(path, kernel=kernel(interrupt), attempts=3, batch_size=MEMBERS)
        assert len(seen[7]) == len(seen[6]) // 2
        assert set(seen[7]) < set(seen[6])
    else:
        with pytest.raises((KeyboardInterrupt, SamplingError)):
            draw(path, kernel=kernel(interrupt), attempts=3, batch_size=MEMBERS)
        assert sorted(finished(path)) == first.nonzero().flatten().tolist()
        assert [r.feasible for r in Store(path).all_records()] == [True] * int(first.sum())
        draw(path, kernel=kernel(), attempts=3, batch_size=MEMBERS)
    torch.testing.assert_close(values(path), expected.samples, rtol=1e-5, atol=1e-6)


def test_a_stop_keeps_nothing_that_follows_on_a_failure(path):
    # members that are feasible at the second attempt, after a first one that another run repeats
    def kernel(fault=None):
        options = {"steps": 4, "order": 1, "spacing": "time"}
        return on(Ancestral(**options), Disturbed(fault, PLAIN), half())

    expected = sampled(kernel(), MEMBERS, (2,), seed=3, attempts=3)
    seen = []

    def spoil(call, rows):
        seen.append(set(rows))
        if call == 1:
            return torch.where(torch.tensor(rows)[:, None] > 0, torch.nan, 0.0)
        if call == 12:  # the second step of the third attempt
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        draw(path, kernel=kernel(spoil), attempts=3, batch_size=MEMBERS)
    assert seen[5] > seen[11]
    assert finished(path) == {}
    draw(path, kernel=kernel(), attempts=3)
    torch.testing.assert_close(values(path), expected.samples, rtol=1e-5, atol=1e-6)


def half():
    return Inequality(lambda x: x[:, :1], 1e-6)


def test_a_step_that_fails_stops_the_run_and_keeps_what_there_is(path, undisturbed):
    def fail(call, rows):
        if 4 in rows:
            raise ValueError("no such member")

    with pytest.raises(SamplingError, match="no such member") as error:
        draw(path, fault=fail)
    assert "Lost before they were finished: 2 (4, 5)" in error.value.__notes__[0]
    assert sorted(check_and_go_on(path, undisturbed)) == [0, 1, 2, 3]


class OnTheLeft:
    """A monitor to which only members on the left are plausible."""

    cost = 0

    def __init__(self):
        self.calls = 0

    def assess(self, x, members, batch_size=None):
        self.calls += 1
        return SimpleNamespace(statistic=torch.where(x[:, 0] < 0, 0.5, 2.0))


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_an_implausible_member_is_sampled_again_after_a_stop_as_without_one(path, error):
    expected = values(draw(path.with_name("whole.zarr"), monitor=OnTheLeft()).store.path)
    monitor, raised = OnTheLeft(), []

    def fault(call, rows):
        if monitor.calls == 1 and not raised:  # in the second attempt of the first chunk
            raised.append(call)
            raise error("out of memory" if error is torch.OutOfMemoryError else "gone")

    with contextlib.suppress(KeyboardInterrupt, SamplingError):
        draw(path, fault=fault, batch_size=MEMBERS, monitor=monitor)
    kept = values(path).isfinite().all(dim=1)
    assert raised
    if error is not torch.OutOfMemoryError:  # after which repeat the same call to resume
        assert 0 < kept.sum() < MEMBERS
    draw(path, monitor=OnTheLeft())
    torch.testing.assert_close(values(path), expected, rtol=1e-5, atol=1e-6)
