"""Special tokens of RexSeek; rendering and strict parsing of its answers.

The tokens and the question template are those of the released checkpoint (IDEA-Research/RexSeek).
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # this module needs nothing but Python
    from transformers import PreTrainedTokenizerBase

IMAGE_TOKEN = "<image>"
OBJECT_FEATURE_TOKEN = "<objfeat>"
IMAGE_TOKEN_ID = -200  # stands for one image feature in `input_ids`
OBJECT_FEATURE_TOKEN_ID = -300  # stands for one object feature in `input_ids`
IGNORE_INDEX = -100  # label of a position without loss
PREFIX, PADDING = 0, -1  # branch numbers of a packed row's tokens; branches count from 1
MAX_OBJECTS = 100

OBJECT_TOKENS = tuple(f"<obj{index}>" for index in range(MAX_OBJECTS))
GROUND_START, GROUND_END = "<ground>", "</ground>"
OBJECTS_START, OBJECTS_END = "<objects>", "</objects>"
ADDED_TOKENS = (*OBJECT_TOKENS, GROUND_START, GROUND_END, OBJECTS_START, OBJECTS_END)

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
REQUIRED_TOKENS = (IM_START, IM_END, *ADDED_TOKENS)  # what a tokenizer must have
REFUSAL = "There is no such thing in this image."

CAPTION_QUESTION = "Describe this image."  # of several wordings in training, the usual ones
DESCRIPTION_QUESTION = "Describe {}."  # of an object token

_QUESTION = "Please detect {expression} in this image. Answer the question with object indexes."
_RESERVED = re.compile(r"<image>|<objfeat>|<obj\d+>|</?ground>|</?objects>|</?tool_call>|<\|[A-Za-z0-9_]+\|>")
_BLOCK = re.compile(r"<ground>(.*?)</ground><objects>(.*?)</objects>", re.DOTALL)
_INDEX = re.compile(r"<obj(0|[1-9][0-9]*)>")


@dataclass(frozen=True)
class ParsedAnswer:
    """What an answer says.

    Attributes:
        status: "found" (objects are named), "rejected" (exactly the refusal), "malformed" (anything else).
        blocks: (phrase, object indices) pairs in the answer's order; empty unless the status is "found".
        problem: why the answer is malformed, else None.
    """

    status: Literal["found", "rejected", "malformed"]
    blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    problem: str | None = None


def with_required_tokens(tokenizer: "PreTrainedTokenizerBase") -> "PreTrainedTokenizerBase":
    """A copy of an LLM's tokenizer that has RexSeek's tokens; those it lacks are added in released order."""
    tokenizer = deepcopy(tokenizer)
    known = tokenizer.get_vocab()
    missing = [token for token in REQUIRED_TOKENS if token not in known]
    tokenizer.add_tokens(missing, special_tokens=True)
    return tokenizer


def question_for(expression: str) -> str:
    """The released question template around a referring expression (surrounding blanks are removed)."""
    return _QUESTION.format(expression=expression.strip())


def check_plain_text(text: str, what: str) -> str:
    """Check that a user's text is text and nothing else.

    Args:
        text: an expression or a question.
        what: its name in error messages.

    Returns:
        The text without surrounding blanks.

    Raises:
        ValueError: the text is no string, is blank, or contains a special token.
    """
    if not isinstance(text, str):
        raise ValueError(f"{what}: expected a string, got {type(text).__name__}")
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"{what}: expected some text, got {text!r}")
    reserved = _RESERVED.search(stripped)
    if reserved:
        raise ValueError(
            f"{what}: the special token {reserved.group()!r} must not occur in a text, got {stripped[:200]!r}"
        )
    return stripped


def render_answer(blocks: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Write an answer: one block a phrase, indices ascending; the refusal when no phrase has an object.

    In an answer to several phrases an absent one keeps its block, with an empty object list.

    Args:
        blocks: (phrase, object indices) pairs.

    Returns:
        For example `<ground>a man</ground><objects><obj1><obj4></objects>`.

    Raises:
        ValueError: no block, a bad phrase, a repeated index, or an index outside 0..99.
    """
    if not blocks:
        raise ValueError("an answer needs at least one (phrase, indices) pair, got none")
    if all(len(indices) == 0 for _, indices in blocks):
        for phrase, _ in blocks:
            check_plain_text(phrase, "phrase of an answer")
        return REFUSAL
    return "".join(render_block(phrase, indices) for phrase, indices in blocks)


def render_block(phrase: str, indices: Sequence[int]) -> str:
    """Write a phrase and its objects, indices ascending.

    Raises:
        ValueError: a bad phrase, a repeated index, or an index outside 0..99.
    """
    phrase = check_plain_text(phrase, "phrase of an answer")
    numbers = sorted(int(index) for index in indices)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"phrase {phrase!r}: expected distinct object indices, got {numbers}")
    if numbers and not 0 <= numbers[0] <= numbers[-1] < MAX_OBJECTS:
        raise ValueError(f"phrase {phrase!r}: expected object indices in 0..{MAX_OBJECTS - 1}, got {numbers}")
    objects = "".join(OBJECT_TOKENS[number] for number in numbers)
    return f"{GROUND_START}{phrase}{GROUND_END}{OBJECTS_START}{objects}{OBJECTS_END}"


def parse_answer(text: str, num_objects: int) -> ParsedAnswer:
    """Read an answer strictly.

    Blanks and newlines around and between blocks are accepted, one closing `<|im_end|>` too. Everything else
    that `render_answer` would not write (apart from the order of indices) makes the answer malformed.

    Args:
        text: the decoded answer, special tokens kept.
        num_objects: how many objects the prompt had; indices must be below it.
    """
    body = text.strip().removesuffix(IM_END).strip()
    if body == REFUSAL:
        return ParsedAnswer("rejected")
    blocks: list[tuple[str, tuple[int, ...]]] = []
    position = 0
    while position < len(body):
        match = _BLOCK.match(body, position)
        if match is None:
            return _malformed(
                f"expected a block or the end at character {position}, got {body[position:][:60]!r}"
            )
        phrase, objects = match.group(1).strip(), match.group(2)
        problem = _block_problem(phrase, objects, num_objects)
        if problem is None and any(phrase == earlier for earlier, _ in blocks):
            problem = f"phrase {phrase!r} is answered twice"
        if problem is not None:
            return _malformed(problem)
        blocks.append((phrase, tuple(int(index) for index in _INDEX.findall(objects))))
        position = match.end()
        while position < len(body) and body[position].isspace():
            position += 1
    if not blocks:
        return _malformed("the answer is empty")
    if not any(indices for _, indices in blocks):
        return _malformed("no object is named; expected the refusal instead")
    return ParsedAnswer("found", tuple(blocks))


def _malformed(problem: str) -> ParsedAnswer:
    return ParsedAnswer("malformed", problem=problem)


def _block_problem(phrase: str, objects: str, num_objects: int) -> str | None:
    """What is wrong with one block, or None."""
    if not phrase:
        return "a phrase is empty"
    reserved = _RESERVED.search(phrase)
    if reserved:
        return f"the phrase {phrase[:60]!r} contains {reserved.group()!r}"
    if _INDEX.sub("", objects):
        return f"expected object tokens only, got {objects[:60]!r}"
    indices = [int(index) for index in _INDEX.findall(objects)]
    if len(set(indices)) != len(indices):
        return f"phrase {phrase!r} names an object twice: {indices}"
    if indices and max(indices) >= num_objects:
        return f"phrase {phrase!r} names object {max(indices)}, but there are {num_objects} objects"
    return None
