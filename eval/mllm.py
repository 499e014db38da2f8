"""Other people's models on an OpenAI-compatible server: eval/mllm.py humanref | refadv (docs/mllm.md)."""

from rexseek.evaluation.mllm.command import humanref, refadv
from rexseek.evaluation.options import new_app, run

app = new_app(__doc__)
app.command()(humanref)
app.command()(refadv)

if __name__ == "__main__":
    run(app)
