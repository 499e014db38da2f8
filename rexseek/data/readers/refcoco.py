"""RefCOCO, RefCOCO+ and RefCOCOg in the form their authors published (lichengunc/refer).

A folder holds `refs(unc).p` (or `refs(google).p`, `refs(umd).p`), a pickled list of references, and
`instances.json`, the COCO instances of their images. Written against the fields that `refer.py` reads.
Accepted: the original pickle, through a loader that builds lists, dicts, strings and numbers and refuses
everything else, and the same list as JSON. (Parquet forms of other people are not read.)
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rexseek.boxes import validate_boxes_xyxy_px, xywh_to_xyxy
from rexseek.data.candidates import MATCH_IOU, detections_of, read_detections
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.coco import coco_image
from rexseek.data.readers.humanref import Matching, Unreachable
from rexseek.data.readers.instance_table import InstanceTable, read_table
from rexseek.data.readers.report import (
    ReadReport,
    generator_for,
    image_size,
    read_json,
    reader,
    require_id,
    require_keys,
    require_list,
)
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import check_plain_text

_KEYS = ("ref_id", "ann_id", "image_id", "split", "sentences")


@reader("refcoco")
def read_refcoco(
    report: ReadReport,
    annotations: Path,
    images: Path,
    *,
    split: str = "train",
    instances: str | None = None,
    candidates: str | None = None,
    match_iou: float = MATCH_IOU,
    unreachable: Unreachable = "refuse",
    question_style: QuestionStyle = "mixed",
    seed: int = 0,
) -> Iterator[Sample]:
    """Read references; each of a reference's sentences becomes a turn, an image one sample.

    Args:
        annotations: the list of references, `refs(*).p` or JSON.
        images: COCO's `train2014`.
        split: train, val, test, testA or testB, as the references say.
        instances: the instances file; default: `instances.json` beside the references.
        candidates: a file of a detector's boxes to choose among instead of the image's instances; see
            `rexseek.data.candidates.read_detections`.
        match_iou, unreachable: with `candidates`, see `read_humanref`.
        question_style: the released template, paraphrases, or both mixed.
        seed: chooses the wording of questions.

    Raises:
        ValueError: naming file and ref_id.
    """
    refs = read_refs(annotations)
    file = annotations.parent / "instances.json" if instances is None else Path(instances)
    instance_report = ReadReport("refcoco", str(file))  # crowds are no candidates; a broken file is an error
    table = read_table(file, instance_report, lambda e: e["name"], lambda e, _: coco_image(file, e))
    instance_report.raise_errors()
    detections = None if candidates is None else read_detections(Path(candidates))
    by_image: dict[Any, list[tuple[str, dict[str, Any]]]] = {}
    for number, ref in enumerate(refs):
        with report.annotation():
            where = f"{annotations}: ref {ref.get('ref_id', number) if isinstance(ref, dict) else number}"
            require_keys(ref, _KEYS, where)
            for key in ("ann_id", "image_id"):
                require_id(ref[key], f"{where}: {key}")
            if ref["split"] == split:
                report.rows += 1
                by_image.setdefault(ref["image_id"], []).append((where, ref))
    if not by_image:
        found = sorted({str(ref.get("split")) for ref in refs if isinstance(ref, dict)})
        raise ValueError(f"{annotations}: expected references of the split {split!r}, got the splits {found}")
    matching = Matching(unreachable, match_iou)
    references = _References(report, table, images, file, matching, question_style, seed)
    for place, image in enumerate(table.images):
        sample = None
        if image.id in by_image:
            with report.annotation():
                sample = references.sample(place, by_image.pop(image.id), detections)
        if sample is not None:
            yield sample
    for left in by_image.values():
        for where, ref in left:
            with report.annotation():
                raise ValueError(f"{where}: expected an image of {file}, got image_id {ref['image_id']}")


@dataclass(frozen=True)
class _References:
    """Turns the references to one image into a sample."""

    report: ReadReport
    table: InstanceTable
    images: Path
    file: Path
    matching: Matching
    style: QuestionStyle
    seed: int

    def sample(
        self, place: int, refs: list[tuple[str, dict[str, Any]]], detections: dict[str, Any] | None
    ) -> Sample | None:
        """The image's sample, or None if no reference could be read."""
        image, rows = self.table.images[place], self.table.instances(place)
        where = f"{self.file}: image {image.id}"
        size = image_size(self.images / image.name, where)
        if size != (image.width, image.height):
            raise ValueError(
                f"{where}: expected {image.width}x{image.height} pixels, got {size[0]}x{size[1]}"
            )
        boxes_xyxy = xywh_to_xyxy(self.table.boxes_xywh[rows.start : rows.stop])
        boxes = validate_boxes_xyxy_px(boxes_xyxy, *size, f"{where}: instances")
        chosen = boxes
        if detections is not None:
            found = detections_of(detections, image.name, where)
            chosen = validate_boxes_xyxy_px(found, *size, f"{where}: detections")
        position = {self.table.ids[row]: index for index, row in enumerate(rows)}
        turns: list[Turn] = []
        for what, ref in refs:
            with self.report.annotation():
                if ref["ann_id"] not in position:
                    raise ValueError(f"{what}: expected an instance of its image, got ann_id {ref['ann_id']}")
                index = position[ref["ann_id"]]
                indices = (index,)
                if detections is not None:
                    indices = self.matching.indices(chosen, boxes[index][None], what, self.report)
                if indices is not None:
                    kind = self.table.names[self.table.category[rows[index]]]
                    alike = self.table.category[rows.start : rows.stop] == self.table.category[rows[index]]
                    turns.extend(self._turns(what, ref, indices, kind, int(alike.sum()) - 1))
        if not turns:
            return None
        absent = tuple(self.table.absent(place))
        path = self.images / image.name
        return Sample(str(image.id), "refcoco", path, *size, chosen, tuple(turns), absent=absent)

    def _turns(
        self, where: str, ref: dict[str, Any], indices: tuple[int, ...], kind: str, distractors: int
    ) -> Iterator[Turn]:
        for sentence in require_list(ref["sentences"], f"{where}: sentences"):
            require_keys(sentence, ("sent", "sent_id"), f"{where}: sentences")
            text = check_plain_text(sentence["sent"], f"{where}: sentence {sentence['sent_id']}")
            generator = generator_for(self.seed, self.file.name, sentence["sent_id"])
            question = detection_question([text], self.style, generator)
            known = {"id": str(sentence["sent_id"]), "kind": kind, "distractors": distractors}
            yield Turn(question, blocks=((text, indices),), **known)


def read_refs(path: Path) -> list[Any]:
    """The list of references.

    Raises:
        ValueError: missing; neither a harmless pickle (`.p`, `.pkl`) nor JSON; no list.
    """
    if path.suffix == ".json":
        refs = read_json(path)
    else:
        if not path.is_file():
            raise ValueError(f"{path}: no such annotation file")
        try:
            with open(path, "rb") as file:
                refs = _PlainUnpickler(file, encoding="utf-8").load()
        except (pickle.UnpicklingError, EOFError, IndexError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: expected a pickled list of references, got {error!r}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: expected UTF-8 strings, got {error}") from error
    return require_list(refs, str(path))


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dicts, strings and numbers; any class or function, and so any code, is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a reference to {module}.{name}; expected plain lists and dicts only")
