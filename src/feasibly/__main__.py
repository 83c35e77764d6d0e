"""`python -m feasibly {demo, sample, check, methods, score}`."""

import sys

import tyro
from rich.console import Console
from rich.markup import escape

from .cli.check import check
from .cli.demo import demo
from .cli.methods import methods
from .cli.sample import sample
from .cli.score import score
from .errors import SamplingError


def main() -> None:
    """Runs the command line."""
    commands = {
        "demo": demo,
        "sample": sample,
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
        message = f"[bold red]error:[/] {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
    sys.exit(status)


if __name__ == "__main__":
    main()
