"""What the commands share: exit codes, errors in one line, and users' texts in tables."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

PROBLEMS, WRONG_INPUT, CANNOT = 1, 2, 3  # exit codes


class OneLineErrors(typer.core.TyperGroup):
    """A command whose errors end in one line and a documented exit code, unless it is run with --debug."""

    def invoke(self, ctx: typer.Context) -> object:
        """Run the subcommand; wrong input exits with 2, what else cannot be done with 3."""
        with one_line_errors(ctx.params.get("debug", False)):
            return super().invoke(ctx)


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Turn errors into one line on the error stream and an exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort):  # of subcommands; they are RuntimeErrors
        raise
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if debug:
            raise
        message = " ".join(str(error).split())
        if isinstance(error, ImportError):
            message += " (a package of an extra: pip install 'rexseek[demo,eval,train]')"
        typer.echo(f"rexseek: error: {message}", err=True)
        raise typer.Exit(WRONG_INPUT if isinstance(error, ValueError) else CANNOT) from error


def plain(text: str) -> str:
    """Keep rich from reading square brackets in a user's text as markup."""
    return text.replace("[", r"\[")
