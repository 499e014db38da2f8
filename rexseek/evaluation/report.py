"""Tables of HumanRef results in the layout of the paper's Table 4; several models are several rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rexseek.evaluation.ablations import ablation_text
from rexseek.evaluation.files import markdown_table

DOMAINS = ("attribute", "position", "interaction", "reasoning", "celebrity")
COLUMNS = (*DOMAINS, "average")
ANSWER_COUNTS = ("1", "2", "3+")
BOX_COUNTS = ("1", "2-5", "6-10", ">10")  # the released script's
FIGURES = {"R": "recall", "P": "precision", "DF1": "density_f1"}
ABSENT = "-"

Result = Mapping[str, Any]


def markdown_report(results: Mapping[str, Result]) -> str:
    """All tables as Markdown: by domain, by held-out combinations where annotated, by number of answers.

    Args:
        results: by model name, the content of its `metrics.json`.
    """
    parts = ["# HumanRef", _origin(results), markdown_table(*domain_table(results)), _sizes(results)]
    held_out = {name: result for name, result in results.items() if "held_out" in result}
    if held_out:
        parts += ["## Held-out combinations", markdown_table(*domain_table(split_held_out(held_out)))]
        parts.append(_sizes(split_held_out(held_out)))
    parts += ["## By number of answers", markdown_table(*answer_table(results))]
    parts.append(markdown_table(*answer_table(results, "box_count", BOX_COUNTS)))
    parts += ["## Confidence", "95 % bootstrap intervals.", markdown_table(*interval_table(results))]
    masks = {name: result for name, result in results.items() if "masks" in result}
    if masks:
        parts += ["## Masks", markdown_table(*mask_table(masks))]
    return "\n\n".join(parts) + "\n"


def show(results: Mapping[str, Result]) -> None:
    """Print the same tables on the terminal."""
    Console().print(*console_tables(results), sep="\n")


def console_tables(results: Mapping[str, Result]) -> list[Table]:
    """The same tables for the terminal, narrow: a row for each domain and model."""
    protocols = " and ".join(sorted({result["protocol"] for result in results.values()}))
    tables = [_console_domains(f"HumanRef, {protocols} protocol, in percent", results)]
    held_out = {name: result for name, result in results.items() if "held_out" in result}
    if held_out:
        tables.append(_console_domains("Held-out combinations", split_held_out(held_out)))
    by_count = _console("By number of answers", "Answers")
    for count in ANSWER_COUNTS:
        _add_rows(
            by_count, count, {name: result["answer_count"].get(count) for name, result in results.items()}
        )
    return [*tables, by_count]


def domain_table(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: recall, precision and DensityF1 per domain and on average, then rejection; in percent.

    For boxes the figures are means over IoU 0.50:0.05:0.95, for points the single ones.
    """
    header = ["Method"]
    for column in COLUMNS:
        header += [f"{column.capitalize()} R", "P", "DF1"]
    rows = [
        [
            _label(name, result),
            *(cell for column in COLUMNS for cell in _cells(_block(result, column))),
            _rejection(result),
        ]
        for name, result in results.items()
    ]
    return [*header, "Rejection"], rows


def answer_table(
    results: Mapping[str, Result], blocks: str = "answer_count", bins: Sequence[str] = ANSWER_COUNTS
) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the same figures for expressions with 1, 2, and 3 or more answers, and their n; or,
    from other blocks, for other numbers of answers."""
    header = ["Method"]
    for count in bins:
        header += [f"{count} answer{'s' if count != '1' else ''} R", "P", "DF1", "n"]
    rows = []
    for name, result in results.items():
        row = [_label(name, result)]
        for count in bins:
            block = result[blocks].get(count)
            row += [*_cells(block), str(block["count"] if block else 0)]
        rows.append(row)
    return header, rows


def interval_table(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the average figures and the rate of rejections with their intervals."""
    rows = []
    for name, result in results.items():
        average, intervals = result["average"], result["intervals"]
        cells = [ABSENT] * len(FIGURES)
        if average is not None:
            suffix = "" if average["is_point"] else "_mean"
            keys = [figure + suffix for figure in FIGURES.values()]
            cells = [_with_interval(_percent(average[key]), intervals["average"][key]) for key in keys]
        rejection = _with_interval(_rejection(result), intervals["rejection"])
        rows.append([_label(name, result), *cells, rejection])
    return ["Method", *(f"Average {short}" for short in FIGURES), "Rejection"], rows


def _with_interval(value: str, interval: Sequence[float] | None) -> str:
    return value if interval is None else f"{value} [{_percent(interval[0])}, {_percent(interval[1])}]"


def mask_table(results: Mapping[str, Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: gIoU (mean over items) and cIoU (over all pixels) of predicted masks, on average."""
    blocks = {name: result["masks"]["average"] for name, result in results.items()}
    rows = [
        [name, _percent(block["giou"]), _percent(block["ciou"]), str(block["count"])]
        for name, block in blocks.items()
    ]
    return ["Method", "gIoU", "cIoU", "n"], rows


def split_held_out(results: Mapping[str, Result]) -> dict[str, Result]:
    """Two results for each model, of the held-out items and of the others."""
    return {
        f"{name}, {label}": result["held_out"][flag]
        for name, result in results.items()
        for label, flag in (("held out", "true"), ("the others", "false"))
    }


def _block(result: Result, column: str) -> Mapping[str, Any] | None:
    return result["average"] if column == "average" else result["domain"].get(column)


def _cells(block: Mapping[str, Any] | None) -> list[str]:
    if block is None:
        return [ABSENT] * len(FIGURES)
    suffix = "" if block["is_point"] else "_mean"
    return [_percent(block[figure + suffix]) for figure in FIGURES.values()]


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


def _rejection(result: Result) -> str:
    total = result["rejection_total"]
    return _percent(result["rejection_score"] / total) if total else ABSENT


def _label(name: str, result: Result) -> str:
    average = result["average"]
    return f"{name} (points)" if average and average["is_point"] else name


def _origin(results: Mapping[str, Result]) -> str:
    """What the numbers stand on: protocol, candidates, and lines that were not as they should be."""
    lines = [
        "In percent; R, P, DF1: recall, precision, DensityF1 (boxes: means over IoU 0.50:0.05:0.95).",
        "",
    ]
    for name, result in results.items():
        counts = ", ".join(
            f"{kind} {result['counts'][kind]}" for kind in ("missing", "duplicate", "malformed", "unknown")
        )
        origin = f"protocol `{result['protocol']}`, candidates: {result['candidates']}"
        if result.get("ablation"):
            origin += f", {ablation_text(result['ablation'])}"
        lines.append(f"- {name}: {origin}; predictions {result['counts']['predictions']} ({counts})")
    return "\n".join(lines)


def _sizes(results: Mapping[str, Result]) -> str:
    lines = []
    for name, result in results.items():
        domains = [*DOMAINS, *(domain for domain in result["domain"] if domain not in DOMAINS)]
        counts = [
            f"{domain} {result['domain'][domain]['count']}"
            for domain in domains
            if domain in result["domain"]
        ]
        average = result["average"]["count"] if result["average"] else 0
        rejection = f"rejection {result['rejection_score']} of {result['rejection_total']} right"
        lines.append(f"- n, {name}: {', '.join([*counts, f'average {average}', rejection])}")
    return "\n".join(lines)


def _console(title: str, first: str) -> Table:
    table = Table(first, "Method", title=title)
    for heading in (*FIGURES, "n"):
        table.add_column(heading, justify="right")
    return table


def _console_domains(title: str, results: Mapping[str, Result]) -> Table:
    table = _console(title, "Domain")
    for column in COLUMNS:
        blocks = {_label(name, result): _block(result, column) for name, result in results.items()}
        _add_rows(table, column.capitalize(), blocks)
    for number, (name, result) in enumerate(results.items()):
        right = _rejection(result)
        table.add_row(
            "" if number else "Rejection", escape(name), right, "", "", str(result["rejection_total"])
        )
    return table


def _add_rows(table: Table, first: str, blocks: Mapping[str, Mapping[str, Any] | None]) -> None:
    for number, (name, block) in enumerate(blocks.items()):
        size = str(block["count"] if block else 0)
        table.add_row("" if number else first, escape(name), *_cells(block), size)
    table.add_section()
