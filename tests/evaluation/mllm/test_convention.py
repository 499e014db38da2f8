"""The shipped YAML files, what is refused in others, and the pictures that are sent."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("omegaconf")

from rexseek.evaluation.mllm.convention import Convention, load_convention
from rexseek.evaluation.mllm.picture import frame_of, picture_of

SHIPPED = sorted((Path(__file__).resolve().parents[3] / "configs/mllm").glob("*.yaml"))
MINIMAL = "family: a\nanswer: points\nquestions: {direct: 'where is {expression}'}\nfollow_up: again\n"


def boxes(**more) -> Convention:
    fields = {"family": "a", "answer": "boxes", "questions": {"direct": "{expression}"}, "follow_up": "again"}
    return Convention(**{**fields, "box_format": "abs_xyxy", **more})


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped(file: Path) -> None:
    convention = load_convention(file)
    for prompt in convention.questions:
        text = convention.question(prompt, "the {count} men", True, 7)
        assert "the {count} men" in text and text.endswith(convention.when_nothing)
        assert ("from 1 to 7" in text) == (convention.answer == "marks")
    assert file.read_text().startswith("# ") and "# Source" in file.read_text()  # each says where it is from


def test_some_are_shipped() -> None:
    kinds = {(convention.answer, convention.box_format) for convention in map(load_convention, SHIPPED)}
    formats = {("boxes", f"{name}_xyxy") for name in ("abs", "norm_1", "norm_1000")}
    assert kinds == {*formats, ("points", None), ("marks", None)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (MINIMAL + "box_fromat: abs_xyxy\n", "box_fromat"),
        (MINIMAL.replace("family: a\n", ""), "family"),
        (MINIMAL.replace("points", "masks"), "answer is 'masks', expected one of boxes, points, marks"),
        (
            MINIMAL.replace("points", "boxes"),
            "box_format is None with answer 'boxes', expected one of abs_xyxy",
        ),
        (MINIMAL + "box_format: abs_xyxy\n", "with answer 'points', expected none"),
        (MINIMAL.replace("{expression}", "it"), "question 'direct' has no {expression}"),
        (MINIMAL.replace("direct", "plain"), "questions are plain, expected some of direct, cot"),
        (MINIMAL + "thinking: [<think>]\n", "expected an opening and a closing mark"),
        (MINIMAL + "size_multiple: many\n", "size_multiple"),
        (MINIMAL + "size_multiple: 28\nmax_pixels: 100\n", "max_pixels is 100, expected at least 3136"),
        ("family: [", "while parsing"),
    ],
)
def test_refused(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(ValueError) as caught:
        load_convention(file)
    assert str(file) in str(caught.value) and reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_prompt_and_a_missing_file() -> None:
    with pytest.raises(ValueError, match="prompt 'cot': the convention for a has direct"):
        boxes().question("cot", "a man", False, 0)
    with pytest.raises(ValueError, match=r"no\.yaml: no such"):
        load_convention(Path("no.yaml"))


def test_the_price_is_no_part_of_the_fingerprint() -> None:
    assert boxes().fingerprint() == boxes(price_per_million={"input": 1, "output": 2}).fingerprint()
    assert boxes().fingerprint() != boxes(size_multiple=28).fingerprint()


def test_a_plain_frame_changes_nothing() -> None:
    frame = frame_of(101, 57, boxes())
    picture = Image.new("RGB", (101, 57))
    assert picture_of(picture, frame) is picture
    assert frame.to_image(np.array([[1.5, 2, 200, 57]])).tolist() == [[1.5, 2, 101, 57]]


@pytest.mark.parametrize("more", [{"pad_to_square": True}, {"size_multiple": 28}, {"max_pixels": 5000}])
@pytest.mark.parametrize("size", [(300, 100), (90, 200), (33, 34)])
def test_a_drawn_box_is_where_the_frame_says(more, size) -> None:
    """A white box in the image, found in the picture sent, comes back to where it was."""
    image, box = Image.new("RGB", size), (size[0] // 4, size[1] // 4, size[0] // 2, size[1] // 2)
    image.paste((255, 255, 255), box)
    frame = frame_of(*size, boxes(**more))
    picture = picture_of(image, frame)
    assert picture.size == (frame.sent_width, frame.sent_height)
    white = np.asarray(picture).min(axis=2) > 200
    rows, columns = np.flatnonzero(white.any(axis=1)), np.flatnonzero(white.any(axis=0))
    found = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], dtype=np.float64)
    step = max(frame.scale_x, frame.scale_y)
    assert np.abs(frame.to_image(found) - np.array(box)).max() <= step
    if "size_multiple" in more:
        assert picture.width % 28 == picture.height % 28 == 0
    if "max_pixels" in more:
        assert picture.width * picture.height <= 5000
    if "pad_to_square" in more:
        assert picture.width == picture.height == max(size)
