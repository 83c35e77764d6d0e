"""Who samples which member: a queue for several processes that share a folder and nothing else.

A process *claims* a member by making a file that nobody else can make again, and touches it while
it lives. The claim of a process that is dead, or does not touch its file any more, is taken over.
Two processes that sample the same member find the same values, so that claims only save work.
"""

__all__ = ["Claims"]

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import StoreError
from .manifest import read_json


class Claims:
    """The claims of one process; use it as a context manager, which gives them back.

    Arguments:
        folder: The folder of the claims.
        beat: The seconds between two touches of a claim.
        patience: The seconds after which a claim that is not touched is stale, by the clock of the
            process that waits.
    """

    def __init__(self, folder: Path, beat: float = 5.0, patience: float = 60.0) -> None:
        self.folder = folder
        self.beat, self.patience = beat, patience
        self.worker = uuid.uuid4().hex[:12]
        self.host = _host()
        self.held: set[int] = set()
        self.seen: dict[int, tuple[object, float]] = {}
        self.stop = threading.Event()
        self.pulse = threading.Thread(target=self._pulse, daemon=True)

    def __enter__(self) -> "Claims":
        self.pulse.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop.set()
        self.release(list(self.held))

    def take(self, wanted: Iterable[int], count: int, dead: str | None = None) -> list[int]:
        """Claims the first `count` of the wanted members that are free, or of the worker
        `dead`."""
        taken = []
        for member in wanted:
            if len(taken) == count:
                break
            if self._make(member) or (self._is_stale(member, dead) and self._take_over(member)):
                taken.append(member)
        return taken

    def take_together(self, wanted: Sequence[int]) -> list[int]:
        """Claims members that are sampled together, if the first of them is free. Of a dead
        process, all of its claims on them are taken over at once."""
        before = self._owner(wanted[0]).get("worker")
        found = self.take(wanted[:1], 1)
        return found and [*found, *self.take(wanted[1:], len(wanted), before)]

    def release(self, members: Iterable[int]) -> None:
        """Gives claims back, of members that are finished or not."""
        for member in members:
            if self.owns(member):
                self._path(member).unlink(missing_ok=True)
            self.held.discard(member)

    def clear(self) -> None:
        """Removes stale claims, such as those of a process that was killed just after it finished
        members."""
        for name in os.listdir(self.folder):
            if name.isascii() and name.isdecimal() and self._is_stale(int(name)):
                self._path(int(name)).unlink(missing_ok=True)

    def owns(self, member: int) -> bool:
        """Whether a claim is still this process's: another may have found it stale."""
        return self._owner(member).get("worker") == self.worker

    def _make(self, member: int) -> bool:
        owner = {"worker": self.worker, "host": self.host, "pid": os.getpid()}
        owner["born"] = _born(os.getpid())
        try:
            # added first: an interrupt between the two lines must not leave it behind
            self.held.add(member)
            with open(self._path(member), "x") as file:
                json.dump(owner, file)
        except FileExistsError:
            self.held.discard(member)
            return False
        except OSError:  # a full disk; nobody could tell whose the empty file is
            self.held.discard(member)
            self._path(member).unlink(missing_ok=True)
            raise
        self.seen.pop(member, None)
        return True

    def _is_stale(self, member: int, dead: str | None = None) -> bool:
        owner = self._owner(member)
        if dead is not None and owner.get("worker") == dead:
            return True
        pid = owner.get("pid")
        if owner.get("host") == self.host and type(pid) is int and 0 < pid < 2**31:
            born = _born(pid)
            if born == "" or (owner.get("born") and born != owner["born"]):
                return True
        try:
            stamp = (self._path(member).stat().st_mtime_ns, owner.get("worker"))
        except FileNotFoundError:
            return False
        now = time.monotonic()
        latest, since = self.seen.get(member, (None, now))
        if stamp != latest:
            self.seen[member] = stamp, now
            return False
        return now - since > self.patience

    def _take_over(self, member: int) -> bool:
        self._path(member).unlink(missing_ok=True)
        return self._make(member)

    def _owner(self, member: int) -> dict:
        try:
            found = read_json(self._path(member))
        except (OSError, StoreError):  # gone, or being written
            return {}
        return found if isinstance(found, dict) else {}

    def _pulse(self) -> None:
        while not self.stop.wait(self.beat):
            for member in list(self.held):
                try:
                    os.utime(self._path(member))
                except OSError:  # taken over; `owns` will say so
                    continue

    def _path(self, member: int) -> Path:
        return self.folder / str(member)


def _host() -> str:
    """Returns the name of this machine and of its container, within which numbers of processes are
    valid."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _born(pid: int) -> str:
    """Returns when a process of this machine started; empty if it is dead, `?` if that is
    unknown."""
    if os.name != "posix":  # elsewhere there is no harmless signal
        return "?"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    try:
        # the command, in brackets, may hold spaces and brackets; the state follows it
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "?"
    return "" if state in "ZX" else rest[18]
