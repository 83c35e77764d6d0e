"""Sample pretrained diffusion and flow models under hard constraints."""

import inspect
import sys
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb, format_exception
from typing import Annotated, Any

import tyro
from rich.text import Text

from . import __version__
from .cli.audit import audit
from .cli.check import check
from .cli.demo import demo
from .cli.ensemble import report, resume
from .cli.methods import methods
from .cli.sample import sample
from .cli.score import score
from .cli.words import Screen
from .errors import SamplingError

COMMANDS: dict[str, Callable[..., int]] = {
    "demo": demo,
    "sample": sample,
    "resume": resume,
    "report": report,
    "check": check,
    "audit": audit,
    "methods": methods,
    "score": score,
}

Traceback = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.arg(help="Print the full traceback of an error, in place of a sentence."),
]


def main() -> None:
    """Runs the command line."""
    if sys.argv[1:] == ["--version"]:
        print(f"feasibly {__version__}")
        return
    warnings.showwarning = warned  # ty: ignore[invalid-assignment]
    try:
        status: int = tyro.extras.subcommand_cli_from_dict(
            {name: traceable(command) for name, command in COMMANDS.items()},
            prog="feasibly",
            description=__doc__,
        )
    except (ValueError, SamplingError, OSError, MemoryError) as error:
        # errors for people: a sentence, and the place in the user's module, not a traceback
        said = "\n".join(filter(None, [words(error) or type(error).__name__, place(error)]))
        complain("error:", said)
        sys.exit(2)
    except KeyboardInterrupt as error:
        complain("stopped:", words(error) or "nothing is kept")
        sys.exit(130)
    sys.exit(status)


def traceable(command: Callable[..., int]) -> Callable[..., int]:
    """Returns a command with one more option, `--traceback`, and the same exit statuses."""

    def run(*args: Any, traceback: bool = False, **options: Any) -> int:
        try:
            return command(*args, **options)
        except (ValueError, SamplingError, OSError, MemoryError) as error:
            if not traceback:
                raise
            Screen(stderr=True).say("".join(format_exception(error)).rstrip())
            return 2

    option = inspect.Parameter(
        "traceback", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Traceback
    )
    # not functools.wraps, through which tyro would see the command, without the option
    run.__doc__ = command.__doc__
    signature = inspect.signature(command)
    parameters = [*signature.parameters.values(), option]
    run.__signature__ = signature.replace(parameters=parameters)  # ty: ignore
    run.__annotations__ = {**command.__annotations__, "traceback": Traceback}
    return run


def warned(message: Warning | str, *_: Any, **__: Any) -> None:
    """Prints a warning, without the line of the package that gave it."""
    Screen(stderr=True).say(f"warning: {message}")


def complain(what: str, said: str) -> None:
    """Prints what went wrong."""
    Screen(stderr=True).print(Text(what, style="bold red"), said, soft_wrap=True)


def words(error: BaseException) -> str:
    """What an error says, and what was noted on its way."""
    said = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        said = f"{error.filename}: {error.strerror}."
    return "\n".join(filter(None, [said, *getattr(error, "__notes__", [])]))


def place(error: BaseException) -> str:
    """Says which line of a user's module was the last to run, when the error or the one behind it
    arose; empty if none was running."""
    found = ""
    cause: BaseException | None = error
    while cause is not None:
        for frame in extract_tb(cause.__traceback__):
            if is_users(frame.filename):
                found = f"  at {frame.filename}, line {frame.lineno}, in {frame.name}"
        cause = cause.__cause__
    return found


def is_users(file: str) -> bool:
    """Whether a file is neither part of this package, nor installed, nor made on the fly."""
    path = Path(file).resolve()
    paths = sysconfig.get_paths()
    known = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    roots = [Path(__file__).parent, *map(Path, known)]
    return path.is_file() and not any(path.is_relative_to(root.resolve()) for root in roots)


if __name__ == "__main__":
    main()
