"""Ref-Adv: python eval/refadv.py predict | score | compare | curves | shorten (--help explains each)."""

from rexseek.evaluation import commands
from rexseek.evaluation.analysis_commands import curves, shorten_command
from rexseek.evaluation.options import new_app, run
from rexseek.evaluation.predict_command import predict_command
from rexseek.evaluation.predict_refadv import predict_refadv

app = new_app(__doc__)

app.command("predict")(predict_command(predict_refadv))
app.command("shorten")(shorten_command("row_idx", "normal_caption"))
app.command("curves")(curves)
app.command("score")(commands.refadv_score)
app.command("compare")(commands.refadv_compare)


if __name__ == "__main__":
    run(app)
