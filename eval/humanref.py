"""HumanRef: python eval/humanref.py predict | baseline | score | shorten (--help explains each)."""

from rexseek.evaluation.analysis_commands import shorten_command
from rexseek.evaluation.options import Files, Names, Protocol, Required, Source, new_app, run
from rexseek.evaluation.predict import predict_humanref, write_baseline
from rexseek.evaluation.predict_command import predict_command
from rexseek.evaluation.report import show
from rexseek.evaluation.score import score_humanref

app = new_app(__doc__)

app.command("predict")(predict_command(predict_humanref))
app.command("shorten")(shorten_command("id", "referring"))


@app.command()
def baseline(annotations: Required, output: Required) -> None:
    """The paper's baseline: predict every candidate box."""
    write_baseline(annotations, output)


@app.command()
def score(
    annotations: Required,
    predictions: Files,
    output: Required,
    name: Names,
    protocol: Protocol,
    source: Source,
) -> None:
    """Write metrics.json and table.md (the layout of the paper's Table 4) and show the tables."""
    show(score_humanref(annotations, predictions, output, names=name, protocol=protocol, candidates=source))


if __name__ == "__main__":
    run(app)
