import os

import pytest

from feasibly.ensemble import queue
from feasibly.ensemble.queue import Claims


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed for those who wait."""
    now = [0.0]
    monkeypatch.setattr(queue.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def elsewhere(folder):
    """Claims of a process on another machine, which cannot be asked whether it lives."""
    other = Claims(folder)
    other.host = "another"
    return other


def test_a_member_is_claimed_by_one_process_only(folder):
    one, other = Claims(folder), Claims(folder)
    assert one.take(range(5), 2) == [0, 1]
    assert other.take(range(5), 2) == [2, 3]
    assert one.take(range(5), 2) == [4]
    assert other.take(range(5), 2) == []
    assert one.owns(0)
    assert not other.owns(0)
    one.release([0, 2])
    assert other.take(range(5), 5) == [0]
    assert other.owns(2)


def test_claims_are_given_back_at_the_end(folder):
    with Claims(folder) as mine:
        assert mine.take(range(3), 3) == [0, 1, 2]
    assert os.listdir(folder) == []
    mine.pulse.join()


def test_the_claim_of_a_dead_process_is_taken_over_at_once(folder, start):
    process = start(lambda: Claims(folder).take(range(2), 2))
    process.join()
    assert Claims(folder).take(range(3), 3) == [0, 1, 2]


def test_a_process_that_has_a_dead_one_s_number_is_told_from_it(folder, monkeypatch):
    monkeypatch.setattr(queue, "_born", lambda pid: "100")
    Claims(folder).take([0], 1)
    assert Claims(folder).take([0], 1) == []
    monkeypatch.setattr(queue, "_born", lambda pid: "200")
    assert Claims(folder).take([0], 1) == [0]


def test_a_claim_that_is_not_touched_becomes_stale(folder, clock, elsewhere):
    elsewhere.take([0], 1)
    here = Claims(folder, patience=60)
    assert here.take([0], 1) == []
    clock[0] = 59
    assert here.take([0], 1) == []
    clock[0] = 61
    assert here.take([0], 1) == [0]
    assert not elsewhere.owns(0)
    elsewhere.release([0])
    assert here.owns(0)


def test_what_one_process_held_together_is_taken_over_together(folder, clock, elsewhere):
    """Also if it touched some later than others, and what another holds stays."""
    here, third = Claims(folder, patience=60), Claims(folder)
    third.host = "another still"
    elsewhere.take(range(3), 3)
    third.take([3], 1)
    assert here.take_together([0, 1, 2, 3]) == []
    clock[0] = 30
    assert here.take([1], 1) == []
    clock[0] = 61
    assert here.take_together([0, 1, 2, 3, 4]) == [0, 1, 2, 4]
    assert third.owns(3)


def test_the_claims_of_the_dead_are_cleared_and_no_others(folder, start, elsewhere):
    start(lambda: Claims(folder).take(range(2), 2)).join()
    elsewhere.take([2], 1)
    here = Claims(folder)
    here.take([3], 1)
    (folder / "²").touch()
    here.clear()
    assert sorted(os.listdir(folder)) == ["2", "3", "²"]


@pytest.mark.parametrize("moment", [0, 10**10], ids=["back", "ahead"])
def test_a_claim_that_is_touched_is_alive_whatever_its_clock_says(
    folder, clock, elsewhere, moment
):
    elsewhere.take([0], 1)
    here = Claims(folder, patience=60)
    for k in range(5):
        os.utime(folder / "0", (moment, moment - k))
        assert here.take([0], 1) == []
        clock[0] += 59


def test_claims_are_touched_while_their_process_lives(folder):
    with Claims(folder, beat=0.01) as mine:
        mine.take([0], 1)
        for _ in range(3):
            os.utime(folder / "0", (0, 0))
            while (folder / "0").stat().st_mtime == 0:
                mine.stop.wait(0.01)


@pytest.mark.parametrize("content", ["", "[]", '{"pid": "x", "host": 3}', '{"pid": -1}'])
def test_a_damaged_claim_is_somebody_s_until_it_is_stale(folder, clock, content):
    (folder / "0").write_text(content)
    here = Claims(folder, patience=60)
    assert here.take([0], 1) == []
    clock[0] = 61
    assert here.take([0], 1) == [0]


def test_a_claim_that_cannot_be_written_is_not_left_behind(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(queue.json, "dump", full)
        mine = Claims(folder)
        with pytest.raises(OSError, match="No space left"):
            mine.take([0], 1)
    assert os.listdir(folder) == []
    assert not mine.held


def test_the_number_of_a_process_means_nothing_in_another_container(folder, start, monkeypatch):
    def elsewhere():
        queue._host = lambda: "a container"
        Claims(folder).take([0], 1)

    start(elsewhere).join()
    assert Claims(folder).take([0], 1) == []
