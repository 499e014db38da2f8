"""Ask a trained checkpoint: image + candidate boxes + expressions -> referrals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from PIL import Image

from rexseek.boxes import BoxArray, validate_boxes_xyxy_px
from rexseek.images import ImageInput, load_image
from rexseek.model.checkpoint import load_model
from rexseek.model.decoding import Answer, Prefix, answer_expressions, encode_prefix
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.processor import RexSeekProcessor, load_processor
from rexseek.tokens import MAX_OBJECTS, REFUSAL, check_plain_text
from rexseek.visualize import draw_referrals

if TYPE_CHECKING:
    import supervision

Status = Literal["found", "rejected", "malformed"]


@dataclass(frozen=True, eq=False)
class Referral:
    """The answer to one expression about one image.

    Attributes:
        expression: as asked, without surrounding blanks.
        status: "found", "rejected" (nothing in the image fits), or "malformed" (an answer that cannot be
            read; the predictor decodes under the grammar and never returns it, files of predictions may).
        indices: of the chosen candidates, in the order the model named them.
        boxes_xyxy_px: float32 [K, 4], the chosen candidates in pixels of the upright image.
        scores: per chosen candidate, the probability of its index token among those allowed at that point.
        rejection_probability: how sure the model is, 0..1, that nothing fits; above 0.5 it rejects.
        text: the model's answer. With over 100 candidates that of the last round, counting that round's.
    """

    expression: str
    status: Status
    indices: tuple[int, ...]
    boxes_xyxy_px: np.ndarray
    scores: tuple[float, ...]
    rejection_probability: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The referral as plain numbers, strings and lists, ready for `json.dumps`."""
        return {
            "expression": self.expression,
            "status": self.status,
            "indices": list(self.indices),
            "boxes_xyxy_px": self.boxes_xyxy_px.tolist(),
            "scores": list(self.scores),
            "rejection_probability": self.rejection_probability,
            "text": self.text,
        }

    def to_supervision(self) -> "supervision.Detections":
        """The chosen boxes as `supervision.Detections`: confidence = scores; data: candidate index.

        Raises:
            ImportError: when the package supervision is not installed (extra `demo`).
        """
        import supervision

        return supervision.Detections(
            xyxy=self.boxes_xyxy_px.astype(np.float32).reshape(-1, 4),
            confidence=np.array(self.scores, dtype=np.float32),
            class_id=np.zeros(len(self.indices), dtype=int),
            data={
                "candidate_index": np.array(self.indices, dtype=int),
                "class_name": np.array([self.expression] * len(self.indices), dtype=str),
            },
        )

    def draw(self, image: ImageInput, candidate_boxes_xyxy_px: BoxArray = ()) -> Image.Image:
        """A picture of this answer on `image`, with the other candidates in grey where they are given."""
        return draw_referrals(load_image(image), candidate_boxes_xyxy_px, [self])


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """An image and its candidates, ready to be asked many times (`RexSeekPredictor.ask`).

    Attributes:
        image: upright RGB picture.
        boxes_xyxy_px: float32 [O, 4], clipped to the image.
        prefixes: cached prompts, one for each 100 candidates in order; none when there are no candidates.
    """

    image: Image.Image
    boxes_xyxy_px: np.ndarray
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True)
class _Verdict:
    """An answer with indices into all candidates of the image."""

    indices: tuple[int, ...]
    scores: tuple[float, ...]
    rejection_probability: float
    text: str


class RexSeekPredictor:
    """Answers referring expressions about images with one loaded checkpoint. Holds no state between calls."""

    def __init__(self, model: RexSeekForConditionalGeneration, processor: RexSeekProcessor) -> None:
        """Use a model and processor already in memory; the model is switched to evaluation mode."""
        self.model = model.eval()
        self.processor = processor

    @classmethod
    def from_pretrained(
        cls,
        folder: str | PathLike,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype = "auto",
        attn_implementation: Literal["eager", "sdpa"] = "sdpa",
    ) -> "RexSeekPredictor":
        """Load a checkpoint folder.

        Args:
            folder: written by training or `save_pretrained` (config.json, model.safetensors ...).
            device: where the model runs; default the first CUDA device if there is one, else the CPU.
            dtype: of the weights, such as torch.bfloat16; "auto" is the checkpoint's own.
            attn_implementation: flash-attention takes no mask and so cannot serve packed expressions.

        Raises:
            ValueError: `folder` is not a RexSeek checkpoint, or is incomplete or unreadable; no such device.
        """
        if attn_implementation not in ("eager", "sdpa"):
            raise ValueError(f"attn_implementation: expected 'eager' or 'sdpa', got {attn_implementation!r}")
        target = _device(device)
        model = load_model(Path(folder), dtype, attn_implementation)
        return cls(model.to(target), load_processor(Path(folder)))

    @overload
    def refer(self, image: ImageInput, boxes_xyxy_px: BoxArray, expressions: str) -> Referral: ...
    @overload
    def refer(
        self, image: ImageInput, boxes_xyxy_px: BoxArray, expressions: Sequence[str]
    ) -> list[Referral]: ...
    def refer(
        self, image: ImageInput, boxes_xyxy_px: BoxArray, expressions: str | Sequence[str]
    ) -> Referral | list[Referral]:
        """Find what expressions refer to among candidate boxes.

        Args:
            image: path, PIL image, uint8 array [H, W, C] or tensor [C, H, W]; EXIF orientation is applied.
            boxes_xyxy_px: [O, 4] candidates in pixels of the upright image; [] is legal, always a rejection.
                More than 100 are served in chunks of 100, then the survivors together until they fit.
            expressions: one, or several at once (cheaper than one after another; the answers are the same).

        Returns:
            A Referral, or one per expression in order for a list.

        Raises:
            ValueError: an unreadable image, a box that is not of this image, an empty expression or one that
                contains special tokens.
        """
        texts = _check_expressions(expressions)
        referrals = self._ask(self.encode(image, boxes_xyxy_px), texts)
        return referrals[0] if isinstance(expressions, str) else referrals

    def encode(self, image: ImageInput, boxes_xyxy_px: BoxArray) -> EncodedImage:
        """Run all that does not depend on the expression, to `ask` several times; arguments as in `refer`."""
        picture = load_image(image)
        what = f"candidate boxes of {image}" if isinstance(image, str | PathLike) else "candidate boxes"
        boxes = validate_boxes_xyxy_px(boxes_xyxy_px, picture.width, picture.height, what)
        return EncodedImage(
            picture, boxes, tuple(self._prefix(picture, chunk) for chunk in _in_chunks(boxes))
        )

    def ask(self, encoded: EncodedImage, expressions: str | Sequence[str]) -> Referral | list[Referral]:
        """Like `refer`, about an image encoded before."""
        referrals = self._ask(encoded, _check_expressions(expressions))
        return referrals[0] if isinstance(expressions, str) else referrals

    def refer_batch(
        self, questions: Iterable[tuple[ImageInput, BoxArray, str | Sequence[str]]]
    ) -> list[Referral | list[Referral]]:
        """`refer` for each (image, boxes_xyxy_px, expressions), in order."""
        return [self.refer(image, boxes, expressions) for image, boxes, expressions in questions]

    def _ask(self, encoded: EncodedImage, expressions: Sequence[str]) -> list[Referral]:
        if not encoded.prefixes:
            verdicts = [_Verdict((), (), 1.0, REFUSAL)] * len(expressions)
        else:
            rounds = [
                answer_expressions(self.model, self.processor, prefix, expressions)
                for prefix in encoded.prefixes
            ]
            chunks = _in_chunks(np.arange(len(encoded.boxes_xyxy_px)))
            verdicts = [_merge(answers, chunks) for answers in zip(*rounds, strict=True)]
            if len(chunks) > 1:
                verdicts = [self._narrow(encoded, *pair) for pair in zip(expressions, verdicts, strict=True)]
        return [
            Referral(
                expression=expression,
                status="found" if verdict.indices else "rejected",
                indices=verdict.indices,
                boxes_xyxy_px=encoded.boxes_xyxy_px[list(verdict.indices)].reshape(-1, 4),
                scores=verdict.scores,
                rejection_probability=verdict.rejection_probability,
                text=verdict.text,
            )
            for expression, verdict in zip(expressions, verdicts, strict=True)
        ]

    def _narrow(self, encoded: EncodedImage, expression: str, verdict: _Verdict) -> _Verdict:
        """Ask about the survivors of the last round together, again in chunks while they are more than 100.

        A round in which the model names every candidate of every chunk is final: all are its answer.
        """
        while verdict.indices:
            survivors = np.sort(verdict.indices)
            chunks = _in_chunks(survivors)
            answers = []
            for chunk in chunks:
                prefix = self._prefix(encoded.image, encoded.boxes_xyxy_px[chunk])
                answers += answer_expressions(self.model, self.processor, prefix, [expression])
            verdict = _merge(answers, chunks)
            if len(chunks) == 1 or len(verdict.indices) == len(survivors):
                break
        return verdict

    def _prefix(self, image: Image.Image, boxes_xyxy_px: np.ndarray) -> Prefix:
        return encode_prefix(self.model, self.processor, image, boxes_xyxy_px)


def _in_chunks(candidates: np.ndarray) -> list[np.ndarray]:
    """Candidates [O, ...] in order, at most 100 a chunk."""
    return [candidates[start : start + MAX_OBJECTS] for start in range(0, len(candidates), MAX_OBJECTS)]


def _merge(answers: Sequence[Answer], candidates: Sequence[np.ndarray]) -> _Verdict:
    """Join the answers about several chunks; `candidates[n][i]` is what index i meant in chunk n.

    Nothing fits the expression only if nothing fits in any chunk: the lowest rejection probability counts.
    """
    pairs = zip(answers, candidates, strict=True)
    return _Verdict(
        indices=tuple(int(own[index]) for answer, own in pairs for index in answer.indices),
        scores=tuple(score for answer in answers for score in answer.object_scores),
        rejection_probability=min(answer.rejection_probability for answer in answers),
        text="\n".join(answer.text for answer in answers if answer.indices) or REFUSAL,
    )


def _check_expressions(expressions: str | Sequence[str]) -> list[str]:
    if isinstance(expressions, str):
        return [check_plain_text(expressions, "expression")]
    return [check_plain_text(text, f"expression {number}") for number, text in enumerate(expressions)]


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device: expected one such as 'cpu' or 'cuda:0', got {device!r}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device}: there are {torch.cuda.device_count()} CUDA devices")
    return device
