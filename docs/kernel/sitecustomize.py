"""How warnings look on pages: a sentence, without the path of a notebook's cell.

Python imports this module when it starts, where its folder is in PYTHONPATH.
"""

import warnings
from typing import Any


def formatwarning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> str:
    """Returns a warning as one sentence."""
    return f"{category.__name__}: {message}\n"


warnings.formatwarning = formatwarning
