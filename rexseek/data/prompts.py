"""Question templates and their paraphrases, in one place."""

from typing import Literal

import numpy as np

from rexseek.tokens import CAPTION_QUESTION, DESCRIPTION_QUESTION, check_plain_text, question_for

QuestionStyle = Literal["released", "paraphrase", "mixed"]
QUESTION_STYLES = ("released", "paraphrase", "mixed")

_RELEASED_SHARE = 0.6  # of "mixed" questions: inference uses the released template

_DETECT = (
    "Please detect {} in this image.",
    "Find {} in this image. Answer with object indexes.",
    "Which objects are {}? Answer the question with object indexes.",
    "Locate {} in the picture. Answer the question with object indexes.",
    "Point out {}. Answer the question with object indexes.",
    "Can you detect {} in this image? Answer the question with object indexes.",
)
_DESCRIBE = (
    DESCRIPTION_QUESTION,
    "What is {}?",
    "Please describe the region {} in this image.",
    "Give a short description of {}.",
)
_CAPTION = (
    CAPTION_QUESTION,
    "What is in this image?",
    "Please describe the picture.",
    "Give a description of the image.",
)
_GROUNDED_CAPTION = (
    "Please briefly describe this image in one sentence and detect all the mentioned objects. "
    "Answer the question with grounded object indexes.",  # as ChatRex, RexSeek's predecessor, is asked
    "Describe this image and point out every object you mention. Answer with object indexes.",
    "What is in this image, and where? Answer with grounded object indexes.",
)


def detection_question(phrases: list[str], style: QuestionStyle, generator: np.random.Generator) -> str:
    """Ask for one or several phrases, joined by `; ` as in the released demos.

    Args:
        phrases: referring expressions or category names.
        style: "released" is the template of inference; "paraphrase" another wording; "mixed" either.
        generator: chooses the wording.

    Raises:
        ValueError: a phrase is blank or contains a special token; an unknown style.
    """
    if style not in QUESTION_STYLES:
        raise ValueError(f"question_style: expected one of {', '.join(QUESTION_STYLES)}, got {style!r}")
    joined = "; ".join(check_plain_text(phrase, "phrase of a question") for phrase in phrases)
    if style == "released" or (style == "mixed" and generator.random() < _RELEASED_SHARE):
        return question_for(joined)
    return str(generator.choice(_DETECT)).replace("{}", joined)


def description_question(index: int, generator: np.random.Generator) -> str:
    """Ask what object `<obj{index}>` is; the first wording is the usual one."""
    template = _DESCRIBE[0] if generator.random() < _RELEASED_SHARE else str(generator.choice(_DESCRIBE))
    return template.replace("{}", f"<obj{index}>")


def caption_question(generator: np.random.Generator) -> str:
    """Ask for a caption."""
    return str(generator.choice(_CAPTION))


def grounded_caption_question(generator: np.random.Generator) -> str:
    """Ask for a caption whose phrases name their objects; the first wording is the usual one."""
    if generator.random() < _RELEASED_SHARE:
        return _GROUNDED_CAPTION[0]
    return str(generator.choice(_GROUNDED_CAPTION))
