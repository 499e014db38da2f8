"""Predicting at scale: shares of processes, kills, other numbers of processes, ablated expressions."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from rexseek.data.jsonl import read_jsonl
from rexseek.data.toy.language import SUB_DOMAINS, Narrator
from rexseek.data.toy.write import clear_scene
from rexseek.evaluation.ablations import Ablation, bag_of_words
from rexseek.evaluation.predict import predict_humanref
from rexseek.evaluation.prediction_files import join_parts, open_run, part_path, part_paths
from rexseek.evaluation.questions import Question, Run, answer_share, by_image, load_predictor
from rexseek.evaluation.score import score_humanref
from tests.drawn_data import write_lines

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "assets/tiny/stage4"
BOXES = [[0, 0, 20, 10], [30, 0, 50, 10]]


class Stub:
    """Chooses the first candidate and quotes the expression; remembers the sizes of batches; may die."""

    def __init__(self, killed_at: int | None = None) -> None:
        self.batches: list[int] = []
        self.killed_at = killed_at

    def refer_batch(self, questions: list[tuple[Path, list[list[float]], list[str]]]) -> list[Any]:
        if len(self.batches) == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.batches.append(len(questions))
        more = {"status": "found", "indices": (0,), "scores": (0.5,), "rejection_probability": 0.0}
        return [[SimpleNamespace(text=text, **more) for text in texts] for _, _, texts in questions]


def questions(images: int, each: int = 1) -> list[Question]:
    return [
        Question(number, f"line {number}", Path(f"{number // each}.png"), "a b c", BOXES, 0, [], {})
        for number in range(images * each)
    ]


def run_into(folder: Path, batch_size: int = 8) -> Run:
    def to_line(question: Question, referral: Any) -> dict[str, Any]:
        return {"id": question.id, "text": referral.text}

    return Run(folder / "p.jsonl", {"candidates": "annotations"}, "id", to_line, batch_size)


def ids(path: Path) -> list[int]:
    return [row["id"] for _, row in read_jsonl(path)]


@pytest.mark.parametrize(("images", "count"), [(5, 2), (9, 8), (1, 3), (16, 4)])
def test_every_question_goes_to_one_process(images: int, count: int, tmp_path: Path) -> None:
    asked, run = questions(images, 2), run_into(tmp_path)
    groups = by_image(asked)
    for index in range(count):
        assert answer_share(Stub(), groups, run, index, count)["found"] == len(
            ids(part_path(run.output, index, count))
        )
    join_parts(run.output, [question.id for question in asked], "id")
    assert ids(run.output) == list(range(2 * images))
    assert not part_paths(run.output)


def test_images_are_asked_in_batches(tmp_path: Path) -> None:
    stub = Stub()
    answer_share(stub, by_image(questions(7, 3)), run_into(tmp_path, 3), 0, 1)
    assert stub.batches == [3, 3, 1]
    with pytest.raises(ValueError, match="batch size: expected at least 1, got 0"):
        run_into(tmp_path, 0)


def test_another_number_of_processes_continues(tmp_path: Path) -> None:
    """Three processes are killed, one in the middle of a line; what they wrote is kept, once."""
    asked, run = questions(9), run_into(tmp_path)
    order = [question.id for question in asked]
    open_run(run.output, {"seed": 1}, order, "id")
    for index in range(3):
        answer_share(Stub(), by_image(asked)[:5], run, index, 3)
    torn = part_path(run.output, 1, 3)
    torn.write_bytes(torn.read_bytes()[:-4])
    with pytest.raises(ValueError, match="belongs to another run \\(seed was 1, is 2\\)"):
        open_run(run.output, {"seed": 2}, order, "id")
    open_run(run.output, {"seed": 1}, order, "id")
    assert ids(run.output) == [0, 1, 2, 3]  # 4 was torn
    assert not part_paths(run.output)


def test_a_part_left_behind_is_not_joined_twice(tmp_path: Path) -> None:
    run, part = run_into(tmp_path), part_path(tmp_path / "p.jsonl", 0, 1)
    write_lines(run.output, [{"id": 0}, {"id": 1}])
    write_lines(part, [{"id": 1}, {"id": 2}])
    join_parts(run.output, [0, 1, 2], "id")
    assert ids(run.output) == [0, 1, 2]
    write_lines(part, [{"id": 3}])
    with pytest.raises(ValueError, match=r"part-1-of-1, line 1: id 3 is repeated or not in the annotations"):
        join_parts(run.output, [0, 1, 2], "id")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Five drawn scenes with expressions, as HumanRef annotations."""
    (tmp_path / "images").mkdir()
    rng, rows = random.Random(3), []
    for number in range(5):
        scene, picture, _ = clear_scene(rng, hold_out=True)
        picture.save(tmp_path / f"images/{number}.png")
        boxes = [list(map(float, box)) for box in scene.boxes[: len(scene.persons)]]
        narrator = Narrator(scene, rng, hold_out=True)
        for sub_domain in list(SUB_DOMAINS)[:3]:
            for expression in narrator.expressions(sub_domain, 1):
                rows.append(annotation(len(rows), f"{number}.png", expression.text, boxes))
    write_lines(tmp_path / "a.jsonl", rows)
    return tmp_path


def annotation(id_: int, image: str, expression: str, boxes: list[list[float]]) -> dict[str, Any]:
    row = {"id": id_, "image_name": image, "referring": expression, "domain": "attribute"}
    return {**row, "sub_domain": "attribute", "candidate_boxes": boxes, "answer_boxes": boxes[:1]}


def predict(place: Path, predictor: Any, output: str, **options: Any) -> Path:
    predict_humanref(predictor, CHECKPOINT, place / "a.jsonl", place / "images", place / output, **options)
    return place / output


def test_killed_and_continued_equals_uninterrupted(place: Path) -> None:
    """SIGKILL before the third batch; the other answers are not asked again."""
    child = multiprocessing.get_context("fork").Process(
        target=predict, args=(place, Stub(killed_at=2), "killed.jsonl"), kwargs={"batch_size": 1}
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (place / "killed.jsonl").exists() and len(part_paths(place / "killed.jsonl")) == 1
    stub = Stub()
    killed = predict(place, stub, "killed.jsonl", batch_size=1)
    assert stub.batches == [1, 1, 1]
    assert killed.read_bytes() == predict(place, Stub(), "whole.jsonl").read_bytes()


def test_two_processes_answer_as_one(place: Path) -> None:
    one = predict(place, load_predictor(CHECKPOINT), "one.jsonl")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    arguments = ["--checkpoint", CHECKPOINT, "--annotations", place / "a.jsonl", "--images", place / "images"]
    script = [ROOT / "eval/humanref.py", "predict", *arguments, "--output", place / "two.jsonl"]
    done = subprocess.run(
        [*launch, "--main_process_port", "0", *script, "--batch-size", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "images/s" in done.stdout and "process 1 of 2" in done.stdout
    both = [{row["id"]: row for _, row in read_jsonl(place / f"{name}.jsonl")} for name in ("one", "two")]
    assert ids(one) == ids(place / "two.jsonl") == list(range(len(ids(place / "a.jsonl"))))
    for id_, row in both[0].items():
        for key in ("scores", "rejection_probability"):
            assert both[1][id_].pop(key) == pytest.approx(row.pop(key), abs=5e-5)
    assert both[0] == both[1]


def test_bag_of_words() -> None:
    expression = "the second man from the left in a red hat"
    shuffled = bag_of_words(expression, 0)
    assert sorted(shuffled.split()) == sorted(expression.split()) and shuffled != expression
    assert bag_of_words(expression, 0) == shuffled != bag_of_words(expression, 1)


def test_ablated_predictions(place: Path) -> None:
    bag = predict(place, Stub(), "bag.jsonl", ablation=Ablation("bag-of-words", 7))
    texts = [row["referring"] for _, row in read_jsonl(place / "a.jsonl")]
    rows = [row for _, row in read_jsonl(bag)]
    assert [row["text"] for row in rows] == [row["expression"] for row in rows]
    assert [row["expression"] for row in rows] == [bag_of_words(text, 7) for text in texts]
    assert {row["ablation"] for row in rows} == {"bag-of-words"}
    with pytest.raises(ValueError, match=r"belongs to another run \(ablation was .*'seed': 7.*, is None"):
        predict(place, Stub(), "bag.jsonl")
    result = score_humanref(place / "a.jsonl", [bag], place / "out", protocol="strict")["bag"]
    assert result["ablation"] == {"kind": "bag-of-words", "seed": 7}
    assert "ablation: bag-of-words (seed 7)" in (place / "out/table.md").read_text()


def test_rewrites(place: Path) -> None:
    Image.new("RGB", (60, 20)).save(place / "images/x.png")
    write_lines(place / "a.jsonl", [annotation(id_, "x.png", "the red one", BOXES) for id_ in (3, "3")])
    rewrites = write_lines(place / "r.jsonl", [{"id": 3, "rewrite": "one"}, {"id": "3", "rewrite": "red"}])
    ablation = Ablation.from_options(None, 0, rewrites)
    path = predict(place, Stub(), "rewritten.jsonl", ablation=ablation)
    assert [row["text"] for _, row in read_jsonl(path)] == ["one", "red"]
    write_lines(rewrites, [{"id": 3, "rewrite": "one"}])
    with pytest.raises(ValueError, match=r"line 2: id '3': the rewrites hold no line for it"):
        predict(place, Stub(), "other.jsonl", ablation=Ablation.from_options(None, 0, rewrites))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"id": 1}, "line 2: expected the keys id and rewrite, got id"),
        ({"id": 0, "rewrite": "a"}, "line 2: id 0, expected a number or text that did not occur before"),
        ({"id": 1, "rewrite": "<image>"}, "line 2: rewrite"),
        ({"id": 1, "rewrite": ""}, "line 2: rewrite"),
    ],
)
def test_wrong_rewrites(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", [{"id": 0, "rewrite": "a"}, line])
    with pytest.raises(ValueError, match=message):
        Ablation.from_options(None, 0, path)


def test_wrong_ablations(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", [{"id": 0, "rewrite": "a"}])
    with pytest.raises(ValueError, match="expected the-one or bag-of-words, got 'shuffle'"):
        Ablation.from_options("shuffle", 0, None)
    with pytest.raises(ValueError, match="one of ablate and rewrites"):
        Ablation.from_options("the-one", 0, path)
    assert json.dumps(Ablation.from_options("the-one", 0, None).record()) == '{"kind": "the-one"}'
