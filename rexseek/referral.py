"""The answer to one expression about one image."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from rexseek.boxes import BoxArray
from rexseek.images import ImageInput, load_image
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
        rejection_probability: how sure the model is, 0..1, that nothing fits; above the predictor's threshold
            (0.5 by default) it rejects.
        text: the model's answer. With over 100 candidates that of the last round, counting that round's.
        seconds: wall time by stage ("load", "preprocess", "vision", "prefix", "decide", "decode"), of the
            image's encoding and of the call; the expressions of a call share it.
    """

    expression: str
    status: Status
    indices: tuple[int, ...]
    boxes_xyxy_px: np.ndarray
    scores: tuple[float, ...]
    rejection_probability: float
    text: str
    seconds: Mapping[str, float] = field(default_factory=dict)

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
            "seconds": dict(self.seconds),
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
