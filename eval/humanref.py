"""HumanRef: python eval/humanref.py predict | baseline | score | compare | shorten (--help explains each)."""

from rexseek.evaluation import commands
from rexseek.evaluation.analysis_commands import shorten_command
from rexseek.evaluation.options import Required, new_app, run
from rexseek.evaluation.predict import predict_humanref, write_baseline
from rexseek.evaluation.predict_command import predict_command

app = new_app(__doc__)

app.command("predict")(predict_command(predict_humanref))
app.command("shorten")(shorten_command("id", "referring"))


@app.command()
def baseline(annotations: Required, output: Required) -> None:
    """The paper's baseline: predict every candidate box."""
    write_baseline(annotations, output)


app.command("score")(commands.humanref_score)
app.command("compare")(commands.humanref_compare)


if __name__ == "__main__":
    run(app)
