"""A browsable page of pictured successes and failures: one folder, no network, no server."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from PIL import Image

from rexseek.evaluation.judged import Judged
from rexseek.images import load_image
from rexseek.metrics.errors import ERRORS, RIGHT, Outcome
from rexseek.metrics.rows import Row

THUMBNAIL_PX = 480
_TEMPLATE = Path(__file__).with_name("gallery.html")


def write_gallery(model: Judged, images: Path, folder: Path, limit: int) -> int:
    """Write `index.html` and `images/` into `folder`.

    Args:
        model: whose expressions to show.
        images: folder that the annotations' `image_name` refer to.
        limit: most expressions shown, spread over error types and domains; their images only are copied,
            reduced to 480 px.

    Returns:
        The number of expressions shown.

    Raises:
        ValueError: an image that is missing or cannot be read.
    """
    from jinja2 import Environment

    (folder / "images").mkdir(parents=True, exist_ok=True)
    chosen = choose(model.outcomes, limit)
    thumbnails: dict[str, tuple[str, tuple[int, int]]] = {}
    for index in chosen:
        annotation = model.annotations[index]
        if annotation["image_name"] not in thumbnails:
            picture, size = picture_of(annotation, images)
            link = f"images/{len(thumbnails):05d}.jpg"  # an image's own name may hold folders
            picture.save(folder / link, quality=85)
            thumbnails[annotation["image_name"]] = (link, size)
    cards = [_card(model, index, *thumbnails[model.annotations[index]["image_name"]]) for index in chosen]
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        _TEMPLATE.read_text(encoding="utf-8")
    )
    text = page.render(
        model=model,
        origin={key: model.result[key] for key in ("protocol", "candidates") if key in model.result},
        outcomes=(RIGHT, *ERRORS),
        domains=[domain for domain in model.counts if domain != "all"],
        cards=cards,
    )
    (folder / "index.html").write_text(text, encoding="utf-8")
    return len(cards)


def choose(outcomes: Sequence[Outcome], limit: int) -> list[int]:
    """Places of at most `limit` outcomes, in turn from each pair of an error type (or none) and a domain."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, outcome in enumerate(outcomes):
        for error in outcome.errors or (RIGHT,):
            groups.setdefault((error, outcome.domain), []).append(index)
    turns = zip_longest(*groups.values())
    in_turn = dict.fromkeys(index for turn in turns for index in turn if index is not None)
    return sorted(list(in_turn)[:limit])


def picture_of(annotation: Row, images: Path) -> tuple[Image.Image, tuple[int, int]]:
    """The annotation's image, reduced to 480 px, and its own (width, height).

    Raises:
        ValueError: naming the annotation and the file.
    """
    try:
        picture = load_image(images / str(annotation["image_name"]))
    except ValueError as error:
        raise ValueError(f"id {annotation['id']!r}: {error}") from error
    size = picture.size
    picture.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
    return picture, size


def _card(model: Judged, index: int, link: str, size: tuple[int, int]) -> dict[str, Any]:
    """What the template shows of one expression."""
    outcome, annotation = model.outcomes[index], model.annotations[index]
    prediction = {} if outcome.place is None else model.predictions[outcome.place]
    return {
        "id": outcome.id,
        "link": link,
        "width": size[0],
        "height": size[1],
        "expression": annotation["referring"],
        "domain": outcome.domain,
        "sub_domain": annotation.get("sub_domain"),
        "image": annotation["image_name"],
        "errors": outcome.errors or (RIGHT,),
        "shapes": _shapes(outcome, annotation, prediction),
        "answers": len(annotation["answer_boxes"]),
        "predicted": len(outcome.regions),
        "rejection_probability": prediction.get("rejection_probability"),
        "text": model.text_of(outcome),
        "line": json.dumps(prediction, ensure_ascii=False) if prediction else "none",
    }


def _shapes(outcome: Outcome, annotation: Row, prediction: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Candidates, answers and predictions as (kind, box or point, title), in the order of drawing."""
    shapes = [
        _shape("candidate", box, f"candidate {number}")
        for number, box in enumerate(annotation["candidate_boxes"])
    ]
    for number, box in enumerate(annotation["answer_boxes"]):
        kind = "answer" if number in outcome.found else "answer missed"
        shapes.append(_shape(kind, box, f"{kind} {number}"))
    scores = prediction.get("scores") or []
    for number, region in enumerate(outcome.regions):
        kind = "right"
        if number in outcome.extra:
            kind = "distractor" if number in outcome.distractors else "extra"
        score = f", score {scores[number]:.2f}" if number < len(scores) else ""
        shapes.append(_shape(f"prediction {kind}", region, f"prediction {number} ({kind}){score}"))
    return shapes


def _shape(kind: str, region: Sequence[float], title: str) -> dict[str, Any]:
    x, y = region[:2]
    if len(region) == 2:
        return {"kind": kind, "title": title, "x": x, "y": y, "point": True}
    return {"kind": kind, "title": title, "x": x, "y": y, "width": region[2] - x, "height": region[3] - y}
