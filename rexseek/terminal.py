"""What the commands share: wrong input in one line, and users' texts in tables."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def wrong_input_in_one_line() -> Iterator[None]:
    """End the program with exit code 2 and one line where a ValueError says what is wrong."""
    try:
        yield
    except ValueError as error:
        message = " ".join(str(error).split())
        typer.echo(f"rexseek: error: {message}", err=True)
        raise typer.Exit(2) from error


def plain(text: str) -> str:
    """Keep rich from reading square brackets in a user's text as markup."""
    return text.replace("[", r"\[")
