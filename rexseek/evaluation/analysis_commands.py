"""The commands of Ref-Adv's own analyses, for the scripts in eval/."""

from collections.abc import Callable
from typing import Annotated

import typer

from rexseek.evaluation import curves as curves_module
from rexseek.evaluation.options import Files, Names, Protocol, Required
from rexseek.evaluation.shortening import shorten_expressions

Url = Annotated[str, typer.Option(help="OpenAI-compatible, such as http://127.0.0.1:8000/v1.")]
Model = Annotated[str, typer.Option(help="The language model's name on the server.")]
Workers = Annotated[int, typer.Option(min=1, help="Requests at a time.")]


def curves(predictions: Files, output: Required, name: Names, protocol: Protocol) -> None:
    """Write accuracy against the expression's length and the number of distractors: a table and a picture."""
    curves_module.show(curves_module.refadv_curves(predictions, output, names=name, protocol=protocol))


def shorten_command(id_key: str, text_key: str) -> Callable[..., None]:
    """The command `shorten` for annotations with these keys."""

    def command(
        annotations: Required, output: Required, server: Url, model: Model, workers: Workers = 8
    ) -> None:
        """Delete one descriptor of each expression with a language model, for `predict --rewrites`."""
        keys = {"id_key": id_key, "text_key": text_key}
        shorten_expressions(annotations, output, server, model, **keys, workers=workers)

    return command
