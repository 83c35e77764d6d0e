"""Files that are there whole or not at all, and files that are not trusted."""

__all__ = ["folder", "read_json", "shown", "sync", "write"]

import errno
import json
import os
import reprlib
import uuid
from pathlib import Path
from typing import Any

from ..errors import StoreError

LARGEST = 2**20
"""The size of the largest JSON file of a store, in bytes."""

ATTEMPTS = 5
"""How often a file is written that another process keeps writing too."""


def write(path: Path, content: bytes, alone: bool = False) -> None:
    """Writes a file, on disk when this returns; whoever reads meanwhile finds the old or the new.

    Arguments:
        path: The file.
        content: What to write.
        alone: Whether no other process writes this file, so that the draft of one that was killed
            is overwritten; else drafts have names of their own.

    Raises:
        OSError: If it cannot be written; nothing is left of it then.
    """
    for attempt in range(ATTEMPTS):
        try:
            return _write(path, content, alone)
        except (FileExistsError, FileNotFoundError):
            # another process writes the same: one of two that both took a member for theirs
            if attempt == ATTEMPTS - 1:
                raise


def _write(path: Path, content: bytes, alone: bool) -> None:
    own = "" if alone else f".{uuid.uuid4().hex[:8]}"
    draft = path.with_name(f"{path.name}{own}.draft")
    try:
        if alone:
            draft.unlink(missing_ok=True)  # and a link is not followed
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def folder(path: Path) -> None:
    """Makes a folder and those above it, on disk when this returns, if they are not there."""
    if not path.is_dir():
        folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Has a file, or the names in a folder, on disk when this returns: a name that is moved into
    place may be lost with the power, even if the file's content is not."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot
            raise
    finally:
        os.close(number)


def read_json(path: Path) -> Any:
    """Reads a JSON file that anybody may have written.

    Raises:
        StoreError: If it is too long, no JSON, or holds numbers that JSON does not know.
        OSError: If it cannot be read.
    """
    if path.is_symlink():
        raise StoreError(f"{path} is a link; a store's files must lie within it.")
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise StoreError(f"{path} is longer than {LARGEST} bytes, which no run writes.")
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({type(error).__name__}: {error}).") from error


def shown(value: Any) -> str:
    """An untrusted value for an error message: short, and without characters that a terminal
    obeys."""
    brief = reprlib.Repr()
    brief.maxlevel = 2
    return brief.repr(value)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
