"""Numbers in words."""

__all__ = ["size"]


def size(count: float) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1e3:
            return f"{count:.3g} {unit}"
        count /= 1e3
    return f"{count:.3g} GB"
