"""The commands `score` and `compare` of the scripts in eval/."""

from rexseek.evaluation import options, refadv, report
from rexseek.evaluation.compare import compare
from rexseek.evaluation.extras import Extras, add_extras
from rexseek.evaluation.files import names_of
from rexseek.evaluation.judged import judge_humanref, judge_refadv
from rexseek.evaluation.score import score_humanref


def humanref_score(
    annotations: options.Required,
    predictions: options.Files,
    output: options.Required,
    name: options.Names,
    protocol: options.Protocol,
    source: options.Source,
    plots: options.Plots = False,
    html: options.Html = False,
    images: options.Images = None,
    limit: options.Limit = 200,
    wandb: options.Project = None,
) -> None:
    """Write metrics.json and table.md (the layout of the paper's Table 4) and show the tables."""
    extras = Extras(plots, html, images, limit, wandb)
    names = names_of(predictions, name)
    results = score_humanref(
        annotations, predictions, output, names=names, protocol=protocol, candidates=source
    )
    report.show(results)
    if extras.any:
        pairs = zip(names, predictions, strict=True)
        models = [judge_humanref(name, results[name], annotations, path) for name, path in pairs]
        add_extras(models, output, extras)


def humanref_compare(
    metrics: options.MetricsFiles, output: options.Required, name: options.Names, plots: options.Plots = False
) -> None:
    """Put several models' metrics.json into one table.md in the layout of the paper's Table 4."""
    report.show(compare("HumanRef", metrics, output, names=name, plots=plots))


def refadv_score(
    predictions: options.Files,
    output: options.Required,
    name: options.Names,
    protocol: options.Protocol,
    rows: options.Rows = None,
    plots: options.Plots = False,
    html: options.Html = False,
    images: options.Images = None,
    limit: options.Limit = 200,
    wandb: options.Project = None,
) -> None:
    """Write metrics.json and table.md (the columns of the released report.py, hits, splits) and show them."""
    extras = Extras(plots, html, images, limit, wandb)
    names = names_of(predictions, name)
    results = refadv.score_refadv(predictions, output, names=names, protocol=protocol, expected_rows=rows)
    refadv.show(results)
    if extras.any:
        pairs = zip(names, predictions, strict=True)
        models = [judge_refadv(name, results[name], path) for name, path in pairs if name in results]
        add_extras(models, output, extras)


def refadv_compare(
    metrics: options.MetricsFiles, output: options.Required, name: options.Names, plots: options.Plots = False
) -> None:
    """Put several models' metrics.json into one table.md in the layout of the paper's Tables 6 and 7."""
    refadv.show(compare("Ref-Adv", metrics, output, names=name, plots=plots))
