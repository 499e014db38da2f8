"""Ref-Adv: python eval/refadv.py predict | score | compare (--help explains each)."""

from rexseek import RexSeekPredictor
from rexseek.evaluation import commands
from rexseek.evaluation.options import Required, new_app, run
from rexseek.evaluation.predict_refadv import predict_refadv

app = new_app(__doc__)


@app.command()
def predict(checkpoint: Required, annotations: Required, images: Required, output: Required) -> None:
    """Let a checkpoint choose among the annotations' candidates; continues what an earlier call began."""
    predict_refadv(RexSeekPredictor.from_pretrained(checkpoint), checkpoint, annotations, images, output)


app.command("score")(commands.refadv_score)
app.command("compare")(commands.refadv_compare)


if __name__ == "__main__":
    run(app)
