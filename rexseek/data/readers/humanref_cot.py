"""HumanRef-CoT-45k's answers (its chains of thought are not learnt): TSV files with images inside.

Written against the published viewer (`tools/visualize_humanref_cot.py` of IDEA-Research/Rex-Thinker). A line
of `NAME.annotations.tsv` points into `NAME.images.tsv` (see `tsv`) and holds `gt_boxes`, which the viewer
draws as x, y, width, height in pixels (its docstring also says corners: many such boxes would be refused as
lying outside, some would pass), and `region_map`, expression -> indices of boxes.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rexseek.boxes import to_array, validate_boxes_xyxy_px, xywh_to_xyxy
from rexseek.data.prompts import QuestionStyle, detection_question
from rexseek.data.readers.report import ReadReport, generator_for, reader, require_list
from rexseek.data.readers.tsv import TsvLine, read_tsv
from rexseek.data.sample import Sample, Turn
from rexseek.tokens import check_plain_text

_ENDING = ".annotations.tsv"


@reader("humanref_cot")
def read_humanref_cot(
    report: ReadReport,
    annotations: Path,
    images: Path,
    *,
    question_style: QuestionStyle = "mixed",
    seed: int = 0,
) -> Iterator[Sample]:
    """Read expressions and their answers; a line becomes a sample.

    Args:
        annotations: `NAME.annotations.tsv`; its `.lineidx` is not needed.
        images: the folder that holds `NAME.images.tsv`.
        question_style: the released template, paraphrases, or both mixed.
        seed: chooses the wording of questions.

    Raises:
        ValueError: naming file and line.
    """
    if not annotations.name.endswith(_ENDING):
        raise ValueError(f"{annotations}: expected a name that ends in {_ENDING}")
    file = images / f"{annotations.name.removesuffix(_ENDING)}.images.tsv"
    for line in read_tsv(annotations, file, ("gt_boxes", "region_map"), report):
        sample = None
        with report.annotation():
            sample = _sample(line, annotations.name, question_style, seed)
        if sample is not None:
            yield sample


def _sample(line: TsvLine, name: str, style: QuestionStyle, seed: int) -> Sample:
    where, row = line.where, line.row
    boxes_xywh = to_array(row["gt_boxes"], f"{where}: gt_boxes").astype(np.float64)
    boxes = validate_boxes_xyxy_px(xywh_to_xyxy(boxes_xywh), *line.size, f"{where}: gt_boxes")
    if not isinstance(row["region_map"], dict):
        raise ValueError(f"{where}: region_map: expected an object, got {row['region_map']!r:.80}")
    turns = []
    for text, indices in row["region_map"].items():
        expression = check_plain_text(text, f"{where}: region_map")
        for index in require_list(indices, f"{where}: {expression!r}"):
            if type(index) is not int or not 0 <= index < len(boxes):
                raise ValueError(
                    f"{where}: {expression!r}: expected indices of {len(boxes)} boxes, got {index!r}"
                )
        question = detection_question([expression], style, generator_for(seed, name, line.number, expression))
        answers = tuple(sorted(set(indices)))
        turns.append(Turn(question, blocks=((expression, answers),), id=f"{line.number}/{len(turns)}"))
    return Sample(str(line.number), "humanref_cot", line.image, *line.size, boxes, tuple(turns))
