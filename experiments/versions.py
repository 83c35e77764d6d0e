"""What a result must say of where it came from."""

__all__ = ["versions"]

import platform
import subprocess
from pathlib import Path

import torch

import feasibly

ROOT = Path(__file__).parent.parent
CODE = ("src", "experiments", "pyproject.toml")
"""What makes a result. Results themselves grow while a study runs."""


def versions() -> dict[str, str]:
    """Returns the versions of the code and the kind of machine, without its name.

    The commit has "-dirty" behind it where the code differs from it.
    """
    commit = _git("rev-parse", "--short", "HEAD") or "unknown"
    changed = _git("status", "--porcelain", "--", *CODE)
    return {
        "feasibly": feasibly.__version__,
        "commit": f"{commit}-dirty" if changed else commit,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


def _git(*arguments: str) -> str:
    run = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return run.stdout.strip()
