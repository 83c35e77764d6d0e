import io
import re

import pytest
from rich.console import Console

from feasibly.progress import LiveProgress
from feasibly.result import Snapshot


def snapshot(step, steps=32, attempt=0, failed=0):
    return Snapshot(
        attempt=attempt,
        members=64,
        step=step,
        steps=steps,
        sigma=0.316,
        forward=28,
        backward=12,
        median=0.00012,
        worst=0.74,
        feasible=0.421875,
        failed=failed,
        seconds=0.5 * step,
    )


def plain(*snapshots):
    file = io.StringIO()
    with LiveProgress("title", Console(file=file, width=40)) as progress:
        for s in snapshots:
            progress(s)
    return file.getvalue().splitlines()


def test_a_plain_line_says_where_the_run_is():
    (line,) = plain(snapshot(16))
    assert line.startswith("title:")
    for words in ("16/32", "sigma 0.316", "28, 12", "0.00012, 0.74", "42.2%", "left 8 s"):
        assert words in line
    assert "evaluations" in line
    assert "violation" in line
    assert "feasible" in line


def test_failed_members_are_said_only_where_there_are_some():
    assert "failed 3" in plain(snapshot(16, failed=3))[0]
    assert "failed" not in plain(snapshot(16))[0]


def test_plain_output_has_a_line_for_every_quarter():
    steps = 64
    lines = plain(*(snapshot(k, steps) for k in range(1, steps + 1)))
    found = [int(re.search(r"step (\d+)/", line)[1]) for line in lines]
    assert found == [steps // 4, steps // 2, 3 * steps // 4, steps]


def test_plain_output_is_short_for_any_number_of_steps():
    for steps in (1, 2, 3, 5, 7, 9, 199):
        lines = plain(*(snapshot(k, steps) for k in range(1, steps + 1)))
        assert len(lines) < 8
        assert f"step {steps}/{steps}" in lines[-1]


def test_every_later_attempt_has_one_plain_line():
    lines = plain(*(snapshot(k, attempt=a) for a in (1, 2, 3) for k in range(1, 33)))
    assert [re.search(r"attempt (\d)", line)[1] for line in lines] == ["2", "3", "4"]
    assert all("64 members" in line for line in lines)


def test_plain_output_has_no_control_codes():
    assert not any("\x1b" in line for line in plain(*(snapshot(k) for k in range(1, 33))))


@pytest.fixture
def terminal(monkeypatch):
    # a terminal that can move its cursor, wherever the tests run
    monkeypatch.setenv("TERM", "xterm-256color")
    return Console(force_terminal=True, file=io.StringIO(), width=200)


def test_a_terminal_shows_a_table_of_the_latest_snapshot(terminal):
    with LiveProgress("title", terminal) as progress:
        progress(snapshot(15))
        progress(snapshot(16))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.file.getvalue())
    assert "title" in text
    for head in ("attempt", "step", "sigma", "evaluations", "violation", "feasible", "left"):
        assert head in text
    for cell in ("16/32", "0.316", "28, 12", "0.00012, 0.74", "42.2%", "8 s"):
        assert cell in text


def test_a_terminal_is_released_when_a_run_fails(terminal):
    progress = LiveProgress("title", terminal)

    def fail():
        with progress:
            progress(snapshot(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not progress.live.is_started
