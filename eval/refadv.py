"""Ref-Adv: python eval/refadv.py predict | score | curves | shorten (--help explains each)."""

from rexseek.evaluation.analysis_commands import curves, shorten_command
from rexseek.evaluation.options import Files, Names, Protocol, Required, Rows, new_app, run
from rexseek.evaluation.predict_command import predict_command
from rexseek.evaluation.predict_refadv import predict_refadv
from rexseek.evaluation.refadv import score_refadv, show

app = new_app(__doc__)

app.command("predict")(predict_command(predict_refadv))
app.command("shorten")(shorten_command("row_idx", "normal_caption"))
app.command("curves")(curves)


@app.command()
def score(predictions: Files, output: Required, name: Names, protocol: Protocol, rows: Rows = None) -> None:
    """Write metrics.json and table.md (the columns of the released report.py, hits, splits) and show them."""
    show(score_refadv(predictions, output, names=name, protocol=protocol, expected_rows=rows))


if __name__ == "__main__":
    run(app)
