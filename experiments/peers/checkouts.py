"""Where other authors' code is, and how to import it."""

__all__ = ["PEERS", "Missing", "Peer", "commit", "load", "optional"]

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, ParamSpec

from ..records import Record

ROOT = Path(__file__).parents[2] / "peers"


P = ParamSpec("P")


class Peer(NamedTuple):
    """A repository.

    Attributes:
        address: Where to clone it from.
        package: The folder of its modules.
        needs: What else must be installed.
        note: What else to do; empty for nothing.
        licence: Its licence.
    """

    address: str
    package: str
    needs: str
    licence: str
    note: str = ""


PEERS = {
    "PCFM": Peer("https://github.com/cpfpengfei/PCFM", "pcfm", "torchdiffeq tqdm", "MIT"),
    "azula": Peer(
        "https://github.com/probabilists/azula",
        "azula",
        "einops tqdm, and take its pull request 32",
        "MIT",
    ),
    "ECI-sampling": Peer(
        "https://github.com/amazon-science/ECI-sampling",
        "models",
        "torchdiffeq tqdm gpytorch",
        "Apache-2.0",
    ),
}
"""The repositories that can be run, by the names of their folders."""


class Missing(Exception):
    """A checkout is not there, or what it needs is not installed."""


def load(name: str, module: str) -> ModuleType:
    """Imports a module of a checkout.

    What its package does when imported is left out, since it may need more than the module.

    Arguments:
        name: One of :data:`PEERS`.
        module: The name of the module in the peer's package.

    Raises:
        Missing: If there is no checkout, or something that it needs is not installed.
    """
    peer = PEERS[name]
    folder = place(name) / peer.package
    if not folder.is_dir():
        raise Missing(
            f"There is no checkout of {name}; run: git clone {peer.address} {place(name)}"
        )
    alias = f"peer_{name}".replace("-", "_")
    if alias not in sys.modules:
        package = ModuleType(alias)
        package.__path__ = [str(folder)]
        sys.modules[alias] = package
    try:
        return importlib.import_module(f"{alias}.{module}")
    except ModuleNotFoundError as error:
        also = f", and {peer.note}" if peer.note else ""
        raise Missing(
            f"{name} lacks a module ({error}); run: pip install {peer.needs}{also}"
        ) from error


def optional(measure: Callable[P, list[Record]]) -> Callable[P, list[Record]]:
    """Returns a study's `measure` that returns nothing, and says so, where a checkout is missing.

    Its first argument is the setting.
    """

    @wraps(measure)
    def measured(*args: P.args, **kwargs: P.kwargs) -> list[Record]:
        try:
            return measure(*args, **kwargs)
        except Missing as error:
            setting: Any = args[0]
            print(f"{setting.get('label') or setting} is left out. {error}")
            return []

    return measured


def commit(name: str) -> str:
    """Returns the commit of a checkout; empty if it is unknown."""
    found = subprocess.run(
        ["git", "-C", str(place(name)), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def place(name: str) -> Path:
    """Returns the folder of a checkout, whether it is there or not."""
    return Path(os.environ.get("FEASIBLY_PEERS", ROOT)) / name
