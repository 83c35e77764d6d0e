"""What a result must say of where it came from."""

__all__ = ["versions"]

import platform
import subprocess
from pathlib import Path

import torch

import feasibly


def versions() -> dict[str, str]:
    """Returns the versions of the code and the kind of machine, without its name."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "feasibly": feasibly.__version__,
        "commit": git.stdout.strip() or "unknown",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }
