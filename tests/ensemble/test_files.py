import errno
import os

import pytest

from feasibly.ensemble import files
from feasibly.errors import StoreError


def test_a_file_is_replaced_whole(tmp_path):
    files.write(tmp_path / "a", b"one")
    files.write(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(28, "No space left on device")

    files.write(tmp_path / "a", b"one")
    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        files.write(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b"1" * 5000, b" " * (2**20 + 1)],
    ids=["empty", "cut", "no text", "no number", "deep", "long number", "long file"],
)
def test_json_that_no_run_writes_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.json"):
        files.read_json(tmp_path / "a.json")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (tmp_path / "a.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(StoreError, match="is a link"):
        files.read_json(tmp_path / "a.json")


def test_an_untrusted_value_is_shown_short_and_harmless():
    assert len(files.shown("x" * 10_000)) < 100
    assert "\x1b" not in files.shown("\x1b[2J")
    assert len(files.shown([[[["deep"] * 50] * 50] * 50] * 50)) < 1000


def test_a_file_and_its_name_are_on_disk_before_a_write_returns(tmp_path, monkeypatch):
    done = []

    def note(number):
        done.append(os.readlink(f"/proc/self/fd/{number}").removeprefix(str(tmp_path)))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs Linux")
    monkeypatch.setattr(files.os, "fsync", note)
    files.folder(tmp_path / "a" / "b")
    assert done == ["", "/a"]
    files.write(tmp_path / "a" / "b" / "c", b"one", alone=True)
    assert done[2:] == ["/a/b/c.draft", "/a/b"]


def test_a_file_system_that_cannot_sync_folders_is_used_as_it_is(tmp_path, monkeypatch):
    def cannot(code):
        def fail(number):
            raise OSError(code, "no")

        monkeypatch.setattr(files.os, "fsync", fail)
        files.sync(tmp_path)

    cannot(errno.EINVAL)
    with pytest.raises(OSError, match="no"):
        cannot(errno.EIO)


@pytest.mark.parametrize("call", ["open", "replace"])
def test_two_processes_that_write_the_same_file_both_succeed(tmp_path, monkeypatch, call):
    # the other one's draft is there when this one's is made, or its own is gone when it is moved
    original, clashes = {"open": open, "replace": os.replace}[call], []

    def clash(*arguments, **options):
        if len(clashes) < 2:
            clashes.append(call)
            raise FileExistsError if call == "open" else FileNotFoundError
        return original(*arguments, **options)

    if call == "open":
        monkeypatch.setattr(files, "open", clash, raising=False)
    else:
        monkeypatch.setattr(files.os, "replace", clash)
    files.write(tmp_path / "a", b"one", alone=True)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.write(tmp_path / "gone" / "a", b"one", alone=True)
