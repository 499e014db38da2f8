"""What users' files hold: values of wrong types, images of every mode, broken ones, texts of every kind."""

import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rexseek.data.collate import PackedCollator
from rexseek.data.readers import READERS
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.statistics import Statistics
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import IGNORE_INDEX
from tests.datasets.test_published_formats import WRITERS, options, refs
from tests.drawn_data import BOXES, referring_row, write_instances, write_lines

WRONG = (None, 7, "x", [], {"a": 1})


def places(value: Any, place: tuple = ()) -> Iterator[tuple]:
    """The way to every value of a JSON document; of lists to the first two items."""
    yield place
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, inner in items:
        yield from places(inner, (*place, key))


def changed(value: Any, place: tuple, new: Any) -> Any:
    if not place:
        return new
    value = copy.copy(value)
    value[place[0]] = changed(value[place[0]], place[1:], new)
    return value


def document(path: Path) -> tuple[Any, Callable[[Any], object]]:
    """The first row or the whole of an annotation file, and a function that writes another one."""
    if path.suffix == ".p":
        return refs(), lambda content: path.write_bytes(pickle.dumps(content))
    if path.suffix == ".tsv":
        offset, _, row = path.read_text().splitlines()[0].partition("\t")
        return json.loads(row), lambda content: path.write_text(f"{offset}\t{json.dumps(content)}\n")
    if path.suffix == ".jsonl":
        row = json.loads(path.read_text().splitlines()[0])
        return row, lambda content: path.write_text(json.dumps(content) + "\n")
    return json.loads(path.read_text()), lambda content: path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_value_of_a_wrong_type_is_a_value_error_or_counted(name: str, tmp_path: Path, images: Path) -> None:
    """Never another error; what is read can be described; lenient reading and counting agree with strict."""
    path = WRITERS[name](tmp_path)
    content, write = document(path)
    refused = 0
    for place in places(content):
        for value in WRONG:
            write(changed(content, place, value))
            try:
                samples, report = READERS[name](path, images, lenient=True, **options(name, tmp_path))
            except ValueError:
                refused += 1
                continue
            found = Statistics()
            for sample in samples:
                found.add(sample)
            json.dumps([found.as_dict(), report.as_dict()])
            if report.skipped["unusable"]:
                refused += 1
                with pytest.raises(ValueError, match=re.escape(path.name)):
                    READERS[name](path, images, **options(name, tmp_path))
    assert refused > len(WRONG)


def write_images(folder: Path) -> dict[str, tuple[int, int]]:
    """A picture of every mode; returns the upright size of each."""
    plain = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))
    for mode, ending in [("L", "png"), ("LA", "png"), ("RGBA", "png"), ("1", "png"), ("CMYK", "jpg")]:
        plain.convert(mode).save(folder / f"{mode}.{ending}")
    plain.quantize(8).save(folder / "P.png", transparency=1)
    Image.fromarray(np.full((40, 60), 40000, dtype=np.uint16)).save(folder / "16.png")
    for ending in ("gif", "webp"):
        frames = [plain.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
        plain.save(folder / f"moving.{ending}", save_all=True, append_images=frames, duration=50)
    plain.resize((1, 4000)).save(folder / "strip.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    plain.save(folder / "turned.jpg", exif=exif)
    sizes = dict.fromkeys((file.name for file in folder.iterdir()), (60, 40))
    return {**sizes, "strip.png": (1, 4000), "turned.jpg": (40, 60)}


def test_images_of_every_mode_are_learnt_from(tmp_path: Path, tiny_processor: RexSeekProcessor) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    sizes = write_images(folder)
    boxes = {name: [[0, 0, *size]] for name, size in sizes.items()}
    rows = [
        referring_row(n, "x", [], image_name=name, candidate_boxes=box, answer_boxes=box, domain="attribute")
        for n, (name, box) in enumerate(boxes.items())
    ]
    samples, report = read_humanref(write_lines(tmp_path / "a.jsonl", rows), folder, verify_images=True)
    assert {s.image.name: (s.width, s.height) for s in samples} == sizes and not report.skipped
    batch = PackedCollator(tiny_processor, 4096)(samples)
    assert len(batch["pixel_values"]) == len(sizes) == 11
    assert batch["pixel_values_aux"].isfinite().all()
    middle = batch["pixel_values_aux"][:, 0, 128, 128]
    assert middle[[s.image.name for s in samples].index("16.png")] == pytest.approx(
        (156 / 255 - 0.481) / 0.269, abs=0.02
    )


@pytest.mark.parametrize("kind", ["truncated", "empty", "missing", "no picture"])
def test_broken_images_end_strict_reading_and_are_counted_in_lenient(
    kind: str, tmp_path: Path, images: Path
) -> None:
    whole = (images / "b.jpg").read_bytes()
    if kind == "missing":
        (images / "b.jpg").unlink()
    else:
        content = {"truncated": whole[: len(whole) // 2], "empty": b"", "no picture": b"text"}[kind]
        (images / "b.jpg").write_bytes(content)
    rows = [referring_row(0, "x", [0]), referring_row(1, "y", [0], image_name="b.jpg")]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match=r"b\.jpg: "):
        read_humanref(path, images, verify_images=True)
    samples, report = read_humanref(path, images, verify_images=True, lenient=True)
    assert [sample.image.name for sample in samples] == ["a.jpg"] and report.skipped.total() == 1
    assert "b.jpg" in report.problems[0] and (report.samples, report.turns) == (1, 1)
    if kind == "truncated":  # the header is sound: only decoding finds it
        assert len(read_humanref(path, images)[0]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "x" * 2000,
        "左边的人",
        "the family \U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u05d4\u05d0\u05d9\u05e9 \u05de\u05e9\u05de\u05d0\u05dc",
        "first line\nsecond line",
        '"quoted" \\ and <b>, {braces} [brackets]',
    ],
)
def test_texts_of_every_kind_are_learnt_unchanged(
    text: str, tmp_path: Path, images: Path, tiny_processor: RexSeekProcessor
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [referring_row(0, text, [1])])
    samples, _ = read_humanref(path, images)
    labels = PackedCollator(tiny_processor, 8192)(samples)["labels"][0]
    learnt = tiny_processor.tokenizer.decode(labels[labels != IGNORE_INDEX])
    assert learnt == f"<ground>{text}</ground><objects><obj1></objects><|im_end|>"


@pytest.mark.parametrize("text", ["", " \n", "the <objfeat>", "<image>", "<obj3> there", "a<|im_end|>b"])
def test_texts_that_inject_tokens_or_are_blank_are_refused(text: str, tmp_path: Path, images: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [referring_row(0, text, [1])])
    with pytest.raises(ValueError, match=r"a\.jsonl:1: referring: (expected some text|the special token)"):
        read_humanref(path, images)


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ([100, 100, 50, 15], "inverted"),
        ([0.1, 0.2, 0.5, 0.6], "normalised"),
        ([120, 50, 999, 1000], "0..1000"),
        ([10, 10, 10, 50], "no area"),
        ([300, 10, 350, 60], "outside"),
        ([10, 10, float("nan"), 50], "not finite"),
        ([10, 10, float("inf"), 50], "not finite"),
    ],
)
@pytest.mark.parametrize("key", ["candidate_boxes", "answer_boxes"])
def test_boxes_of_other_formats_are_refused_by_line(
    key: str, box: list[float], reason: str, tmp_path: Path, images: Path
) -> None:
    row = referring_row(0, "x", [0])
    path = write_lines(tmp_path / "a.jsonl", [row | {key: [BOXES[0], box]}])
    with pytest.raises(ValueError, match=rf"a\.jsonl:1: {key}: box 1: .*{reason}"):
        read_humanref(path, images)


def test_strict_reading_names_all_problems_up_to_a_limit(tmp_path: Path, images: Path) -> None:
    rows = [referring_row(n, " ", [0]) for n in range(30)]
    with pytest.raises(ValueError) as caught:
        read_humanref(write_lines(tmp_path / "a.jsonl", rows), images)
    lines = str(caught.value).splitlines()
    assert len(lines) == 21 and all(f"a.jsonl:{n + 1}: " in line for n, line in enumerate(lines[:20]))
    assert "stopped after 20 problems" in lines[20]


def test_a_kept_answer_is_never_changed_by_leniency(tmp_path: Path, images: Path) -> None:
    """An annotation that is skipped takes its box along; nobody else's answer moves to another box."""
    path = write_instances(tmp_path)
    content = json.loads(path.read_text())
    content["annotations"][0]["bbox"] = [10, 20, 0, 90]
    path.write_text(json.dumps(content))
    (sample,), report = READERS["coco"](path, images, lenient=True)
    answers = {
        phrase: sample.boxes_xyxy_px[list(indices)].tolist()
        for turn in sample.turns
        for phrase, indices in turn.blocks
        if indices
    }
    assert answers == {"person": [BOXES[2]], "dog": [BOXES[1]]} and report.skipped["unusable"] == 1
