"""How a family of models is asked and how it answers: one YAML file each, in `configs/mllm`."""

from dataclasses import asdict, dataclass, field
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rexseek.metrics.refadv_answers import UNITS

ANSWERS = ("boxes", "points", "marks")
PROMPTS = ("direct", "cot")
ORDERS = ("xyxy", "yxyx")
NOTHING = ("none", "there are none", "there is none", "there is no such", "no such")
EXPRESSION, COUNT = "{expression}", "{count}"


@dataclass(frozen=True)
class Price:
    """What a million tokens cost, in any one currency."""

    input: float
    output: float


@dataclass(frozen=True)
class Convention:
    """The content of a YAML file.

    Attributes:
        family: the models it is for.
        answer: "boxes", "points" (percent of the image, as Molmo writes them) or "marks" (numbers of the
            candidates, which are drawn into the image).
        questions: by prompt ("direct", "cot"); `{expression}` stands for the expression and, for marks,
            `{count}` for the largest number. A model with one fixed form of question has one prompt only.
        follow_up: what is said once after an answer that cannot be read.
        when_nothing: added to the question where the answer may be that nothing fits (HumanRef).
        nothing_phrases: the last line of an answer that says so is or begins with one of these, in lower
            case. An empty list (`[]`, `{"bboxes": []}`) at its end always says so.
        box_format: for boxes: "abs_xyxy" (pixels of the image that is sent), "norm_1_xyxy", "norm_1000_xyxy".
        corner_order: "xyxy" or "yxyx".
        box_separator: what stands between the boxes of one pair of brackets.
        thinking: opening and closing mark of thinking text, which is no part of the answer.
        pad_to_square: the image is padded on both sides to a square, as LLaVA-1.5 was trained.
        size_multiple: both sides of the image are resized to a multiple of this.
        max_pixels: a larger image is reduced.
        generation: passed to `chat.completions.create`, such as `max_tokens` and `temperature`.
        price_per_million: of tokens; None: costs are not computed.
    """

    family: str
    answer: str
    questions: dict[str, str]
    follow_up: str
    when_nothing: str = ""
    nothing_phrases: list[str] = field(default_factory=lambda: list(NOTHING))
    box_format: str | None = None
    corner_order: str = "xyxy"
    box_separator: str | None = None
    thinking: list[str] | None = None
    pad_to_square: bool = False
    size_multiple: int = 1
    max_pixels: int | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    price_per_million: Price | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.answer not in ANSWERS:
            problems.append(f"answer is {self.answer!r}, expected one of {', '.join(ANSWERS)}")
        if (self.answer == "boxes") != (self.box_format in UNITS):
            expected = f"one of {', '.join(UNITS)}" if self.answer == "boxes" else "none"
            problems.append(
                f"box_format is {self.box_format!r} with answer {self.answer!r}, expected {expected}"
            )
        if self.corner_order not in ORDERS:
            problems.append(f"corner_order is {self.corner_order!r}, expected one of {', '.join(ORDERS)}")
        if not self.questions or set(self.questions) - set(PROMPTS):
            names = ", ".join(self.questions) or "none"
            problems.append(f"questions are {names}, expected some of {', '.join(PROMPTS)}")
        problems += [
            f"question {name!r} has no {EXPRESSION}"
            for name, text in self.questions.items()
            if EXPRESSION not in text
        ]
        if self.thinking is not None and (len(self.thinking) != 2 or not all(self.thinking)):
            problems.append(f"thinking is {self.thinking!r}, expected an opening and a closing mark")
        if self.size_multiple < 1:
            problems.append(f"size_multiple is {self.size_multiple}, expected at least 1")
        elif self.max_pixels is not None and self.max_pixels < 4 * self.size_multiple**2:
            problems.append(f"max_pixels is {self.max_pixels}, expected at least {4 * self.size_multiple**2}")
        if problems:
            raise ValueError("; ".join(problems))

    def question(self, prompt: str, expression: str, may_be_nothing: bool, marks: int) -> str:
        """The text of a question.

        Args:
            prompt: one of `questions`.
            may_be_nothing: whether `when_nothing` is added.
            marks: number of the marks in the picture.

        Raises:
            ValueError: the convention has no such prompt.
        """
        if prompt not in self.questions:
            raise ValueError(
                f"prompt {prompt!r}: the convention for {self.family} has {', '.join(self.questions)}"
            )
        template = self.questions[prompt] + (self.when_nothing if may_be_nothing else "")
        return template.replace(COUNT, str(marks)).replace(EXPRESSION, expression)

    def fingerprint(self) -> str:
        """Hash of everything that has an influence on answers (the price has none)."""
        content = {key: value for key, value in asdict(self).items() if key != "price_per_million"}
        return sha256(dumps(content, sort_keys=True).encode()).hexdigest()


def load_convention(file: Path) -> Convention:
    """Read a convention.

    Raises:
        ValueError: no such file, no YAML, unknown or missing keys, or values that cannot be; names the file.
    """
    if not file.is_file():
        raise ValueError(f"{file}: no such convention file")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Convention), OmegaConf.load(file))
        convention = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        where = [line for line in lines[1:] if line.startswith("full_key")]
        raise ValueError(f"{file}: {' '.join([*lines[:1], *where])}") from error
    assert isinstance(convention, Convention)
    return convention
