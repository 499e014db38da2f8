"""Readers of published formats, on tiny files in the true format; and what all readers have in common."""

import base64
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from rexseek.data.readers import READERS
from tests.drawn_data import (
    BOXES,
    conversation,
    draw,
    referring_row,
    write_conversations,
    write_instances,
    write_lines,
    write_referring,
    write_regions,
)

XYWH = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in BOXES]


def write_lvis(folder: Path) -> Path:
    """A dog; a person, who may not be the only one; a pop can is absent; of the cat nothing is known."""
    draw(folder / "images" / "train2017" / "000000000007.jpg")
    names = ["person", "dog", "pop_(soda)", "cat"]
    content = {
        "images": [
            {
                "id": 7,
                "coco_url": "http://images.cocodataset.org/train2017/000000000007.jpg",
                "width": 200,
                "height": 120,
                "neg_category_ids": [3],
                "not_exhaustive_category_ids": [1],
            }
        ],
        "categories": [{"id": i, "name": name, "frequency": "f"} for i, name in enumerate(names, 1)],
        "annotations": [
            {
                "id": i,
                "image_id": 7,
                "category_id": i,
                "bbox": XYWH[i - 1],
                "segmentation": [[0, 0, 9, 0, 9, 9]],
            }
            for i in (1, 2)
        ],
    }
    path = folder / "lvis.json"
    path.write_text(json.dumps(content))
    return path


def write_objects365(folder: Path) -> Path:
    draw(folder / "images" / "patch8" / "objects365_v1_00420917.jpg")
    name = "images/v1/patch8/objects365_v1_00420917.jpg"
    image = {"id": 420917, "file_name": name, "width": 200, "height": 120, "license": 5, "url": ""}
    flags = {"iscrowd": 0, "isfake": 0, "isreflected": 0, "area": 1.5}
    content = {
        "images": [image],
        "categories": [{"id": 1, "name": "Person"}, {"id": 13, "name": "Cabinet/shelf"}],
        "annotations": [{"id": 1, "image_id": 420917, "category_id": 1, "bbox": XYWH[0], **flags}],
    }
    path = folder / "objects365.json"
    path.write_text(json.dumps(content))
    return path


def refs() -> list[dict]:
    def ref(number: int, annotation: int, split: str, *texts: str) -> dict:
        sentences = [
            {"tokens": text.split(), "raw": text, "sent_id": 10 * number + i, "sent": text}
            for i, text in enumerate(texts)
        ]
        name = f"COCO_train2014_000000000007_{annotation}.jpg"
        keys = {"ref_id": number, "ann_id": annotation, "image_id": 7, "category_id": 1, "file_name": name}
        return {**keys, "split": split, "sentences": sentences, "sent_ids": [s["sent_id"] for s in sentences]}

    return [ref(0, 3, "train", "right person", "green one"), ref(1, 1, "testA", "person on the left")]


def write_refcoco(folder: Path) -> Path:
    write_instances(folder)
    path = folder / "refs(unc).p"
    path.write_bytes(pickle.dumps(refs(), protocol=2))
    return path


def write_detections(folder: Path, boxes: list[list[float]] = BOXES) -> str:
    path = write_lines(folder / "detections.jsonl", [{"image_name": "a.jpg", "boxes_xyxy_px": boxes}])
    return str(path)


def refadv_row(**changes: object) -> dict:
    return {
        "file_name": "a.jpg",
        "normal_caption": "the one that is not red",
        "solution": [81, 31, 130, 118],
        "width": 200,
        "height": 120,
        "distractors": "2",
        "use_negation": True,
        "human_authored": True,
        "image_source": "coco_val2017",
        **changes,
    }


def write_refadv(folder: Path) -> Path:
    write_detections(folder)
    return write_lines(folder / "refadv.jsonl", [refadv_row()])


def write_tsv(folder: Path, images: str, annotations: str, row: dict) -> Path:
    """Two lines about a.jpg, one of them written as Python writes bytes."""
    encoded = base64.b64encode((folder / "images" / "a.jpg").read_bytes())
    first = b"0\t" + encoded + b"\n"
    (folder / "images" / images).write_bytes(first + b"1\tb'" + encoded + b"'\n")
    path = folder / annotations
    path.write_text("".join(f"{offset}\t{json.dumps(row)}\n" for offset in (0, len(first))))
    return path


def write_cot(folder: Path) -> Path:
    row = {
        "gt_boxes": XYWH,
        "region_map": {"the red one": [0], "a purple one": []},
        "think": "Person 1 ...",
    }
    return write_tsv(folder, "humanref_cot.images.tsv", "humanref_cot.annotations.tsv", row)


def write_rexverse(folder: Path, kind: str = "referring.annotations", **changes: object) -> Path:
    phrases = ["a coloured one", "the blue one", "a coloured one"]
    boxes = [{"bbox": box, "phrase": phrase} for box, phrase in zip(XYWH, phrases, strict=True)]
    return write_tsv(folder, "0_9_image.tsv", f"0_9_{kind}.tsv", {"boxes": boxes, **changes})


def write_grounded(folder: Path, **changes: object) -> Path:
    phrases = [{"text": "two boxes", "boxes": [2, 0]}, {"text": "a box", "boxes": [1]}]
    row = {
        "image_name": "a.jpg",
        "boxes": BOXES,
        "caption": "Here two boxes stand beside a box.",
        "phrases": phrases,
    }
    return write_lines(folder / "grounded.jsonl", [row | changes])


WRITERS = {
    "allava": lambda folder: written(folder, [conversation("<image>\nSay.", "Three.", image="a.jpg")]),
    "coco": write_instances,
    "grounded_captions": write_grounded,
    "humanref": write_referring,
    "humanref_cot": write_cot,
    "llava": write_conversations,
    "lvis": write_lvis,
    "objects365": write_objects365,
    "refadv": write_refadv,
    "refcoco": write_refcoco,
    "regions": write_regions,
    "rexverse": write_rexverse,
}


def written(folder: Path, content: object) -> Path:
    path = folder / "content.json"
    path.write_text(json.dumps(content))
    return path


def options(name: str, folder: Path) -> dict:
    needed = {"refadv": {"candidates": str(folder / "detections.jsonl")}, "rexverse": {"task": "refer"}}
    return needed.get(name, {})


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_reader_keeps_the_contract(name: str, tmp_path: Path, images: Path) -> None:
    path = WRITERS[name](tmp_path)
    samples, report = READERS[name](path, images, **options(name, tmp_path))
    again, _ = READERS[name](path, images, **options(name, tmp_path))
    assert samples and repr(samples) == repr(again)
    assert repr(pickle.loads(pickle.dumps(samples))) == repr(samples)
    assert (report.source, report.samples) == (name, len(samples))
    assert report.turns == sum(len(sample.turns) for sample in samples)
    assert len({sample.id for sample in samples}) == len(samples)
    for sample in samples:
        boxes = sample.boxes_xyxy_px
        assert sample.source == name and boxes.dtype == np.float32 and (boxes[:, :2] < boxes[:, 2:]).all()
        if sample.image is not None:
            assert sample.load_image().size == (sample.width, sample.height)
            assert boxes.min(initial=0) >= 0 and (boxes <= [sample.width, sample.height] * 2).all()
        assert all(turn.answer_text for turn in sample.turns)


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_reader_names_a_missing_file(name: str, tmp_path: Path, images: Path) -> None:
    write_detections(tmp_path)
    missing = tmp_path / "none_referring.annotations.tsv"
    with pytest.raises(ValueError, match=r"none_referring\.annotations\.tsv: no such annotation file"):
        READERS[name](missing, images, **options(name, tmp_path))


def blocks(sample) -> dict:
    return dict(block for turn in sample.turns for block in turn.blocks)


def test_lvis_asks_what_is_known_only(tmp_path: Path, images: Path) -> None:
    samples, _ = READERS["lvis"](write_lvis(tmp_path), images, absent_ratio=9)
    assert blocks(samples[0]) == {"dog": (1,), "pop (soda)": ()}
    assert samples[0].image == images / "train2017" / "000000000007.jpg"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("neg_category_ids", [99], r"image 7: neg_category_ids: expected categories of the file, got \[99\]"),
        ("coco_url", "7.jpg", "image 7: expected a coco_url"),
        ("width", "200", "image 7: expected width and height in pixels, got '200' and 120"),
    ],
)
def test_lvis_names_the_image(tmp_path: Path, images: Path, key: str, value, message: str) -> None:
    path = write_lvis(tmp_path)
    content = json.loads(path.read_text())
    content["images"][0][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        READERS["lvis"](path, images)


def test_objects365_finds_patches_and_asks_in_lower_case(tmp_path: Path, images: Path) -> None:
    path = write_objects365(tmp_path)
    samples, _ = READERS["objects365"](path, images, absent_ratio=9)
    assert blocks(samples[0]) == {"person": (0,), "cabinet/shelf": ()}
    (images / "patch8" / "objects365_v1_00420917.jpg").unlink()
    with pytest.raises(ValueError, match=r"image 420917: image .*patch8.*no such file"):
        READERS["objects365"](path, images)
    samples, report = READERS["objects365"](path, images, lenient=True)
    assert samples == [] and report.skipped == {"unusable": 1} and "no such file" in report.problems[0]


def test_coco_counts_crowds_as_present_and_reads_all_masks(tmp_path: Path, images: Path) -> None:
    path = write_instances(tmp_path)
    content = json.loads(path.read_text())
    content["annotations"][3]["category_id"] = 3  # a crowd of cats
    masks = [[[0, 0, 9, 0, 9, 9]], {"size": [120, 200], "counts": "abc"}, {"size": [9, 9], "counts": [1, 80]}]
    for row, mask in zip(content["annotations"], [*masks, masks[2]], strict=True):
        row["segmentation"] = mask
    path.write_text(json.dumps(content))
    samples, report = READERS["coco"](path, images, absent_ratio=9)
    assert blocks(samples[0]) == {"person": (0, 2), "dog": (1,)} and report.skipped == {"crowd": 1}


def test_all_problems_are_named_at_once_or_skipped(tmp_path: Path, images: Path) -> None:
    path = write_instances(tmp_path)
    content = json.loads(path.read_text())
    content["annotations"][0]["bbox"] = [10, 20, 0, 90]
    content["annotations"][1]["category_id"] = 77
    content["annotations"].append({"id": 9, "image_id": 99, "category_id": 1, "bbox": [0, 0, 9, 9]})
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"(?s)annotation 2: .* 77\n.*annotation 9: .* 99\n.*annotation 1: .*no area"
    ):
        READERS["coco"](path, images)
    samples, report = READERS["coco"](path, images, lenient=True, absent_ratio=9)
    assert report.skipped == {"unusable": 3, "crowd": 1}
    assert blocks(samples[0]) == {"person": (0,), "dog": (), "cat": ()}


def test_refcoco_reads_a_split_of_the_original_pickle(tmp_path: Path, images: Path) -> None:
    path = write_refcoco(tmp_path)
    (sample,), report = READERS["refcoco"](path, images, split="train")
    assert blocks(sample) == {"right person": (2,), "green one": (2,)} and len(sample.boxes_xyxy_px) == 3
    assert {turn.kind for turn in sample.turns} == {"person"} and sample.absent == ("cat",)
    assert report.rows == 1
    as_json = written(tmp_path, refs())
    (other,), _ = READERS["refcoco"](as_json, images, split="testA")
    assert blocks(other) == {"person on the left": (0,)}
    with pytest.raises(ValueError, match=r"split 'val', got the splits \['testA', 'train'\]"):
        READERS["refcoco"](path, images, split="val")


def test_refcoco_among_a_detector_s_boxes(tmp_path: Path, images: Path) -> None:
    found = write_detections(tmp_path, [[1, 1, 9, 9], [141, 12, 188, 99], [140, 30, 190, 120]])
    (sample,), _ = READERS["refcoco"](write_refcoco(tmp_path), images, candidates=found)
    assert blocks(sample) == {"right person": (1,), "green one": (1,)} and len(sample.boxes_xyxy_px) == 3
    with pytest.raises(ValueError, match="ref 0: 1 of 1 answer boxes match no candidate"):
        READERS["refcoco"](write_refcoco(tmp_path), images, candidates=found, match_iou=0.99)


def test_a_pickle_runs_no_code(tmp_path: Path, images: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    path = write_refcoco(tmp_path)
    for content in (pickle.dumps([Evil()]), pickle.dumps(refs())[:-9], b"no pickle"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"refs\(unc\)\.p: expected a pickled list of references"):
            READERS["refcoco"](path, images)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ann_id", 99, "ref 0: expected an instance of its image, got ann_id 99"),
        ("image_id", 99, "ref 0: expected an image of .*instances.json, got image_id 99"),
        ("sentences", "x", "ref 0: sentences: expected a list, got 'x'"),
        ("sentences", [{"sent": " ", "sent_id": 3}], "ref 0: sentence 3: expected some text"),
    ],
)
def test_refcoco_names_the_reference(tmp_path: Path, images: Path, key: str, value, message: str) -> None:
    write_instances(tmp_path)
    broken = refs()
    broken[0][key] = value
    with pytest.raises(ValueError, match=message):
        READERS["refcoco"](written(tmp_path, broken), images)


def test_refadv_matches_answers_to_candidates(tmp_path: Path, images: Path) -> None:
    path = write_refadv(tmp_path)
    found = str(tmp_path / "detections.jsonl")
    (sample,), _ = READERS["refadv"](path, images, candidates=found)
    assert blocks(sample) == {"the one that is not red": (1,)} and sample.turns[0].sub_domain == "negation"
    write_lines(path, [refadv_row(width=300)])
    with pytest.raises(ValueError, match=r"refadv\.jsonl:1: expected 300x120 pixels, got 200x120"):
        READERS["refadv"](path, images, candidates=found)
    write_lines(path, [refadv_row(file_name="b.jpg")])
    with pytest.raises(ValueError, match=r"refadv\.jsonl:1: expected detections of 'b\.jpg'"):
        READERS["refadv"](path, images, candidates=found)


def test_refadv_takes_images_out_of_parquet(tmp_path: Path, images: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    write_detections(tmp_path)
    content = (images / "a.jpg").read_bytes()
    (images / "a.jpg").unlink()
    row = refadv_row(image={"bytes": content, "path": None})
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "train.parquet")
    found = str(tmp_path / "detections.jsonl")
    (sample,), _ = READERS["refadv"](tmp_path / "train.parquet", images, candidates=found)
    assert (images / "a.jpg").read_bytes() == content and sample.load_image().size == (200, 120)


def test_jsonl_with_broken_lines_and_duplicate_ids(tmp_path: Path, images: Path) -> None:
    rows = [referring_row(0, "x", [0]), referring_row(0, "y", [1]), referring_row(2, "z", [1], absent=[3])]
    path = write_lines(tmp_path / "a.jsonl", rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n{broken\r\n")
    with pytest.raises(
        ValueError, match=r"(?s):2: expected each id once, got 0.*:3: absent: .*line 5: not valid JSON"
    ):
        READERS["humanref"](path, images)
    samples, report = READERS["humanref"](path, images, lenient=True)
    assert blocks(samples[0]) == {"x": (0,)} and report.skipped == {"unusable": 3} and report.rows == 4
