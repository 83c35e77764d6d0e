"""`python -m feasibly {demo, sample, resume, report, check, methods, score}`."""

import sys

import tyro
from rich.console import Console
from rich.markup import escape

from .cli.check import check
from .cli.demo import demo
from .cli.ensemble import report, resume
from .cli.methods import methods
from .cli.sample import sample
from .cli.score import score
from .errors import SamplingError


def main() -> None:
    """Runs the command line."""
    commands = {
        "demo": demo,
        "sample": sample,
        "resume": resume,
        "report": report,
        "check": check,
        "methods": methods,
        "score": score,
    }
    try:
        status: int = tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="feasibly",
            description=__doc__,
        )
    except (ValueError, SamplingError) as error:
        # errors for people: one sentence, no traceback
        message = f"[bold red]error:[/] {escape(words(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt as error:
        message = f"[bold red]stopped:[/] {escape(words(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(130)
    sys.exit(status)


def words(error: BaseException) -> str:
    """What an error says, and what was noted on its way."""
    return "\n".join(filter(None, [str(error), *getattr(error, "__notes__", [])]))


if __name__ == "__main__":
    main()
