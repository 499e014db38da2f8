"""Error page, plots, Weights & Biases and side-by-side tables, through the commands of eval/."""

import json
import runpy
import struct
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rexseek.evaluation import extras
from rexseek.evaluation.compare import compare
from rexseek.evaluation.gallery import choose
from rexseek.metrics.errors import Outcome

ROOT = Path(__file__).resolve().parents[2]
BOXES = [[0, 0, 20, 40], [10, 0, 30, 40], [60, 0, 80, 40]]
SCRIPT = "<script>alert(1)</script>"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str | int | None]:
    """Run a script of eval/ in this process and an empty folder; what it exits with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))  # where pictures of tables go

    def call(script: str, line: str) -> str | int | None:
        monkeypatch.setattr(sys, "argv", [script, *line.split()])
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(ROOT / "eval" / script), run_name="__main__")
        return exit_.value.code

    return call


def annotations() -> list[dict[str, Any]]:
    answers = {"attribute": BOXES[:1], "position": BOXES[:2], "rejection": []}
    return [
        {
            "id": number,
            "image_name": f"{number % 2}.png",
            "referring": f"who {number} {SCRIPT}",
            "domain": domain,
            "sub_domain": domain,
            "candidate_boxes": BOXES,
            "answer_boxes": answers[domain],
        }
        for number, domain in enumerate(list(answers) * 4)
    ]


def predictions() -> list[dict[str, Any]]:
    """Of each domain: one right answer, all persons, none, and one that is malformed."""
    rows = []
    for number, row in enumerate(annotations()):
        kind = number // 3
        boxes = [row["answer_boxes"], BOXES, [], []][kind]
        status = "malformed" if kind == 3 else "found" if boxes else "rejected"
        line = {"id": number, "extracted_predictions": boxes, "status": status, "text": f"said {number} <b>"}
        rows.append(line | {"scores": [0.25 * (1 + i) for i in range(len(boxes))]})
        rows[-1]["rejection_probability"] = 0.9 if status == "rejected" else 0.2
    return rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A.jsonl, P.jsonl and images I of 100x80 pixels."""
    write(tmp_path / "A.jsonl", annotations())
    write(tmp_path / "P.jsonl", predictions())
    (tmp_path / "I").mkdir()
    for number in (0, 1):
        Image.new("RGB", (100, 80), (40, 90 * number, 200)).save(tmp_path / "I" / f"{number}.png")
    return tmp_path


class Page(HTMLParser):
    """What a browser would see: start tags with attributes, and the text outside scripts."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


SCORE = "score --annotations A.jsonl --predictions P.jsonl --output out --protocol strict"


def test_page_of_pictures(data: Path, run: Callable) -> None:
    assert run("humanref.py", f"{SCORE} --html --images I") == 0
    page = Page(data / "out/gallery/index.html")
    cards = page.all("article")
    assert len(cards) == len(annotations())
    shown = {(card["data-domain"], card["data-errors"]) for card in cards}
    assert shown == {
        *((domain, "right") for domain in ("attribute", "position", "rejection")),
        ("attribute", "extra instance|hard distractor"),
        ("position", "extra instance"),
        ("rejection", "false acceptance"),
        *((domain, "false rejection") for domain in ("attribute", "position")),
        *((domain, "malformed") for domain in ("attribute", "position", "rejection")),
    }
    links = {(link["data-key"], link["data-value"]) for link in page.all("a") if "data-key" in link}
    assert {("error", "hard distractor"), ("error", "all"), ("domain", "position")} <= links
    pictures = {image["src"] for image in page.all("img")}
    assert pictures == {"images/00000.jpg", "images/00001.jpg"}  # one for each image, not for each row
    assert all((data / "out/gallery" / str(name)).is_file() for name in pictures)
    assert len(page.all("script")) == 1 and page.text.count(SCRIPT) == len(cards)  # data are no markup
    assert "said 3 <b>" in page.text and "http" not in (data / "out/gallery/index.html").read_text()
    kinds = [box["class"] for box in page.all("rect")]
    assert kinds.count("candidate") == 3 * len(cards)
    assert kinds.count("answer") == 6 and kinds.count("answer missed") == 6
    assert kinds.count("prediction right") == 6 and kinds.count("prediction distractor") == 1
    report = json.loads((data / "out/report.json").read_text())
    assert report["errors"]["all"]["malformed"] == 3
    assert report["expressions"][3]["errors"] == ["extra instance", "hard distractor"]
    assert "| P | 12 | 4 | 0 | 2 | 1 | 2 | 1 | 3 | 0 |" in (data / "out/table.md").read_text()


def test_limit_keeps_every_kind() -> None:
    def outcome(number: int, domain: str, *errors: str) -> Outcome:
        return Outcome(number, domain, number, (), {}, (), (), (), errors)

    many = [outcome(number, "attribute") for number in range(50)]
    few = [outcome(50, "attribute", "missed instance"), outcome(51, "position", "malformed")]
    assert choose([*many, *few], 4) == [0, 1, 50, 51]
    assert choose([*many, *few], 99) == list(range(52))


def test_limit_copies_only_shown_images(data: Path, run: Callable) -> None:
    assert run("humanref.py", f"{SCORE} --html --images I --limit 1") == 0
    assert len(list((data / "out/gallery/images").iterdir())) == 1
    assert len(Page(data / "out/gallery/index.html").all("article")) == 1


def is_drawn(file: Path) -> bool:
    pixels = np.asarray(Image.open(file).convert("RGB"))
    return min(pixels.shape[:2]) > 300 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def test_plots(data: Path, run: Callable) -> None:
    write(data / "Q.jsonl", [{k: v for k, v in row.items() if k != "scores"} for row in predictions()])
    assert run("humanref.py", f"{SCORE} --predictions Q.jsonl --plots") == 0
    for name in ("recall_precision_by_answers", "reliability"):
        assert is_drawn(data / f"out/plots/{name}.png")
    table = (data / "out/table.md").read_text()
    assert "![reliability](plots/reliability.png)" in table
    assert (
        "Reliability of scores of predicted boxes, Q: left out, no prediction line carries `scores`." in table
    )
    report = json.loads((data / "out/P/report.json").read_text())
    assert report["reliability"]["scores"]["count"] == 3 + 9 and not report["left_out"]
    rejection = {
        round(entry["mean"], 3): entry["right"]
        for entry in report["reliability"]["rejection_probability"]["bins"]
    }
    assert rejection == {0.2: pytest.approx(2 / 8), 0.9: pytest.approx(2 / 4)}


def test_no_probabilities_no_diagram(data: Path, run: Callable) -> None:
    bare = [{k: row[k] for k in ("id", "extracted_predictions")} for row in predictions()]
    write(data / "P.jsonl", bare)
    assert run("humanref.py", f"{SCORE} --plots") == 0
    assert sorted(path.name for path in (data / "out/plots").iterdir()) == ["recall_precision_by_answers.png"]
    assert set(json.loads((data / "out/report.json").read_text())["left_out"]) == {
        "scores",
        "rejection_probability",
    }


def refadv_rows() -> list[dict[str, Any]]:
    rows = []
    for number, box in enumerate(([0, 0, 20, 40], [60, 0, 80, 40], [], [], [0, 0, 20, 40])):
        row = {"row_idx": number, "file_name": "0.png", "normal_caption": f"cup {number}"}
        row |= {"gt_bbox_xyxy": [0, 0, 20, 40], "pred_box_xyxy_first": box, "score": 0.7 if box else None}
        row |= {"first_iou": float(box == [0, 0, 20, 40]), "distractor_count": 2 + 2 * number}
        rows.append(row | {"parse_error": "no_bbox_found" if number == 3 else "", "prompt_id": "cot"})
    return rows


def test_refadv_page_and_plots(data: Path, run: Callable) -> None:
    write(data / "R.jsonl", refadv_rows())
    assert run("refadv.py", "score --predictions R.jsonl --output out --plots --html --images I") == 0
    cards = Page(data / "out/gallery/index.html").all("article")
    assert [card["data-errors"] for card in cards] == [
        "right",
        "missed instance|extra instance",
        "false rejection",
        "malformed",
        "right",
    ]
    assert [card["data-domain"] for card in cards[::4]] == ["2-3 distractors", ">=7 distractors"]
    assert is_drawn(data / "out/plots/accuracy_by_distractors.png")
    table = (data / "out/table.md").read_text()
    assert "| R | yes | 40.0 | 40.0 | 40.0 | 40.0 | 100.0 | +60.0 | 0.0 | -40.0 | 50.0 | +10.0 |" in table
    assert "Reliability of rejection probability of expressions, R: left out" in table


def test_several_models_side_by_side(data: Path, run: Callable) -> None:
    other = "score --annotations A.jsonl --predictions P.jsonl --protocol strict --source detector"
    assert run("humanref.py", f"{SCORE} --source detector") == 0
    assert run("humanref.py", f"{other} --output other") == 0
    both = "compare --metrics out/metrics.json --metrics other/metrics.json --output both"
    assert run("humanref.py", f"{both} --plots") == 0
    table = (data / "both/table.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith(("| out |", "| other |"))]
    assert rows[0].removeprefix("| out") == rows[1].removeprefix("| other")
    assert "Attribute R | P | DF1" in table and "Not comparable" not in table
    assert is_drawn(data / "both/plots/recall_precision_by_answers.png")


def test_what_differs_is_said_in_every_table(data: Path, run: Callable) -> None:
    assert run("humanref.py", f"{SCORE} --source annotations") == 0
    write(data / "B.jsonl", annotations()[:-1])
    other = "score --annotations B.jsonl --predictions P.jsonl --output other --source annotations"
    assert run("humanref.py", other) == 0
    results = compare("HumanRef", [data / "out/metrics.json", data / "other/metrics.json"], data / "both")
    names = list(results)
    assert names[0].startswith("out (protocol strict, annotations A.jsonl ")
    assert (
        names[1].startswith("other (protocol official, annotations B.jsonl ") and "candidates" not in names[1]
    )
    table = (data / "both/table.md").read_text()
    assert "**Not comparable as they stand.** They differ in protocol (official; strict), and in ann" in table
    headers = [line for line in table.splitlines() if line.startswith("| Method |")]
    assert len(headers) == 4 and table.count("| out (protocol strict") == 4
    assert "| out |" not in table


def test_refadv_side_by_side(data: Path, run: Callable) -> None:
    rows = refadv_rows()
    for name, part in (("a", rows), ("b", rows[:4])):
        write(data / f"{name}.jsonl", part)
        assert run("refadv.py", f"score --predictions {name}.jsonl --output {name}") == 0
    assert (
        run(
            "refadv.py",
            "compare --metrics a/metrics.json --metrics a/metrics.json --name x --name y --output s",
        )
        == 0
    )
    table = (data / "s/table.md").read_text()
    assert "Not comparable" not in table and "| x | yes | 40.0 |" in table and "| y | yes | 40.0 |" in table
    assert (
        run("refadv.py", "compare --metrics a/metrics.json --metrics b/metrics.json --output d --plots") == 0
    )
    table = (data / "d/table.md").read_text()
    assert "They differ in rows (" in table and "| b (rows " in table


def test_compare_refuses_other_files(data: Path, run: Callable) -> None:
    write(data / "R.jsonl", refadv_rows())
    assert run("refadv.py", "score --predictions R.jsonl --output r") == 0
    code = run("humanref.py", "compare --metrics r/metrics.json --output both")
    assert str(code).startswith(
        "error: r/metrics.json: no metrics.json of HumanRef: expected 'rejection_total'"
    )
    (data / "r/metrics.json").write_text("{")
    assert "r/metrics.json: not valid JSON" in str(
        run("refadv.py", "compare --metrics r/metrics.json --output d")
    )


def test_wandb_offline(data: Path, run: Callable) -> None:
    """The real package: a run that can be synced later, with summary, configuration, table and pictures."""
    assert run("humanref.py", f"{SCORE} --wandb rexseek-test --images I --limit 5") == 0
    (folder,) = (data / "out/wandb").glob("offline-run-*")
    (log,) = folder.glob("run-*.wandb")
    records = finished_records(log)
    summary = {
        item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
        for record in records
        for item in record.summary.update
    }
    metrics = json.loads((data / "out/metrics.json").read_text())
    for domain in ("attribute", "position"):
        assert summary[f"{domain}/recall"] == metrics["domain"][domain]["recall_mean"]
        assert summary[f"{domain}/density_f1"] == metrics["domain"][domain]["density_f1_mean"]
    assert summary["average/precision"] == metrics["average"]["precision_mean"]
    assert summary["rejection/rate"] == 0.5 and summary["errors/malformed"] == 3
    (table,) = folder.rglob("*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"][:3] == ["id", "picture", "expression"] and len(content["data"]) == 5
    assert {row[1] for row in content["data"]} == {"Image"}
    staged = [path.read_bytes() for path in (data / "wandb-data").rglob("*") if path.is_file()]
    assert sum(content.startswith(b"\x89PNG") for content in staged) == 5
    (rows,) = {content for content in staged if content.startswith(b'{"_type": "table"')}
    first = json.loads(rows)["data"][0][1]["boxes"]  # a right answer of one box
    corners = {"minX": 0, "minY": 0, "maxX": 0.2, "maxY": 0.5}  # shares of 100x80 pixels
    assert first == {
        "ground_truth": [{"position": corners, "class_id": 1, "box_caption": "answer"}],
        "prediction": [{"position": corners, "class_id": 2, "box_caption": "prediction"}],
    }


def finished_records(log: Path) -> list[Any]:
    """The records once the run's end is among them: wandb's own process writes them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        records = read_records(log)
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{log}: the run did not end within a minute")


def read_records(log: Path) -> list[Any]:
    """The records of a run's log: LevelDB's log format behind a header of 7 bytes, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, position, body, records = log.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        if position + 7 + length > len(data):
            break  # not all of it is written yet
        body += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the end of one
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(body)
            body = b""
    return records


def test_what_is_lacking_is_said_before_scoring(
    data: Path, run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        run("humanref.py", f"{SCORE} --html")
        == "error: --html needs --images, the folder of the data set's images"
    )

    def absent(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(extras, "find_spec", absent)
    for option, package in (
        ("--wandb x", "wandb"),
        ("--plots", "matplotlib"),
        ("--html --images I", "jinja2"),
    ):
        code = run("humanref.py", f"{SCORE} {option}")
        assert code == f"error: {option.split()[0]} needs the package {package}, which is not installed"
    assert not (data / "out").exists()


def test_a_missing_image_is_named(data: Path, run: Callable) -> None:
    (data / "I/1.png").unlink()
    code = run("humanref.py", f"{SCORE} --html --images I")
    assert code == "error: id 1: image I/1.png: no such file"
