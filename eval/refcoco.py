"""RefCOCO, RefCOCO+ and RefCOCOg: python eval/refcoco.py predict | score | shorten (--help explains each)."""

from rexseek.evaluation.analysis_commands import shorten_command
from rexseek.evaluation.options import CandidateFile, Files, Names, Required, new_app, run
from rexseek.evaluation.predict import predict_humanref
from rexseek.evaluation.predict_command import predict_command
from rexseek.evaluation.refcoco import score_refcoco, show

app = new_app(__doc__)

app.command("predict")(predict_command(predict_humanref))
app.command("shorten")(shorten_command("id", "referring"))


@app.command()
def score(
    annotations: Required,
    predictions: Files,
    output: Required,
    name: Names,
    candidates: CandidateFile = None,
) -> None:
    """Write metrics.json and table.md (accuracy by split, candidate recall beside it) and show the table."""
    show(score_refcoco(annotations, predictions, output, names=name, candidates=candidates))


if __name__ == "__main__":
    run(app)
