"""The `rexseek` command.

Exit codes: 0 done; 1 problems found in data, or some of several images not answered; 2 wrong input; 3
anything else that cannot be done (memory, disk, a missing extra). Errors end in one line; --debug shows where
they come from.
"""

from typing import Annotated

import typer

from rexseek import __version__
from rexseek.cli_data import data_app
from rexseek.commands.demo import demo
from rexseek.commands.detect import detect_boxes
from rexseek.commands.info import info
from rexseek.commands.refer import refer
from rexseek.terminal import OneLineErrors

app = typer.Typer(
    name="rexseek",
    cls=OneLineErrors,
    help="RexSeek: choose, among candidate boxes, the ones an expression refers to: several, one or none.",
    epilog="Exit codes: 0 done; 1 problems found in data, or some of several images not answered; 2 wrong "
    "input; 3 anything else that cannot be done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(refer)
app.command("detect")(detect_boxes)
app.command()(demo)
app.command()(info)
app.add_typer(data_app, name="data")


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Options of all commands; `OneLineErrors` reads them."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"rexseek {__version__}")
