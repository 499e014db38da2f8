"""HumanRef: python eval/humanref.py predict | baseline | score | compare (--help explains each)."""

from rexseek import RexSeekPredictor
from rexseek.evaluation import commands
from rexseek.evaluation.options import Required, new_app, run
from rexseek.evaluation.predict import predict_humanref, write_baseline

app = new_app(__doc__)


@app.command()
def predict(checkpoint: Required, annotations: Required, images: Required, output: Required) -> None:
    """Let a checkpoint choose among the annotated candidates; continues what an earlier call began."""
    predict_humanref(RexSeekPredictor.from_pretrained(checkpoint), checkpoint, annotations, images, output)


@app.command()
def baseline(annotations: Required, output: Required) -> None:
    """The paper's baseline: predict every candidate box."""
    write_baseline(annotations, output)


app.command("score")(commands.humanref_score)
app.command("compare")(commands.humanref_compare)


if __name__ == "__main__":
    run(app)
