"""Ref-Adv: python eval/refadv.py predict | score (--help explains each)."""

from rexseek import RexSeekPredictor
from rexseek.evaluation.options import Files, Names, Protocol, Required, Rows, new_app, run
from rexseek.evaluation.predict_refadv import predict_refadv
from rexseek.evaluation.refadv import score_refadv, show

app = new_app(__doc__)


@app.command()
def predict(checkpoint: Required, annotations: Required, images: Required, output: Required) -> None:
    """Let a checkpoint choose among the annotations' candidates; continues what an earlier call began."""
    predict_refadv(RexSeekPredictor.from_pretrained(checkpoint), checkpoint, annotations, images, output)


@app.command()
def score(predictions: Files, output: Required, name: Names, protocol: Protocol, rows: Rows = None) -> None:
    """Write metrics.json and table.md (the columns of the released report.py, hits, splits) and show them."""
    show(score_refadv(predictions, output, names=name, protocol=protocol, expected_rows=rows))


if __name__ == "__main__":
    run(app)
