"""RefCOCO, RefCOCO+ and RefCOCOg: python eval/refcoco.py predict | score (--help explains each)."""

from rexseek import RexSeekPredictor
from rexseek.evaluation.options import CandidateFile, Files, Names, Required, new_app, run
from rexseek.evaluation.predict import predict_humanref
from rexseek.evaluation.refcoco import score_refcoco, show

app = new_app(__doc__)


@app.command()
def predict(checkpoint: Required, annotations: Required, images: Required, output: Required) -> None:
    """Let a checkpoint choose among the annotations' candidates; continues what an earlier call began."""
    predict_humanref(RexSeekPredictor.from_pretrained(checkpoint), checkpoint, annotations, images, output)


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
