"""Names of the released checkpoint's tensors (`rexseek_qwen`), and what a checkpoint must hold."""

import re
from collections.abc import Collection, Mapping

_PREFIXES = {  # released -> ours
    "vision_tower.vision_tower.vision_model.": "vision_tower.",
    "vision_tower_aux.vision_stem.": "vision_tower_aux.stem.",
    "vision_tower_aux.vision_stages.": "vision_tower_aux.stages.",
    "mm_projector.": "image_projector.",
    "mm_object_projector.": "object_projector.",
    "model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
# ConvNeXt's layer scale is called ramma in released checkpoints, gamma here and in timm.
# The same as patterns for transformers; none of them matches one of our own names.
KEY_MAPPING = {
    **{f"^{re.escape(released)}": ours for released, ours in _PREFIXES.items()},
    r"\.ramma$": ".gamma",
}
# Buffers that older files hold and that are computed, not loaded.
IGNORED = (r"(^|\.)position_ids$", r"rotary_emb\.inv_freq$")


def from_released(name: str) -> str:
    """Our name of a tensor of the released checkpoint (`rexseek_qwen`).

    Raises:
        ValueError: no tensor of the released model has this name.
    """
    for released, ours in _PREFIXES.items():
        if name.startswith(released):
            return re.sub(r"\.ramma$", ".gamma", ours + name.removeprefix(released))
    raise ValueError(f"not a tensor of the released model: {name!r}")


def to_released(name: str) -> str:
    """The released checkpoint's name of one of our tensors; the inverse of `from_released`.

    Raises:
        ValueError: our model has no such tensor.
    """
    for released, ours in _PREFIXES.items():
        if name.startswith(ours):
            return released + re.sub(r"\.gamma$", ".ramma", name.removeprefix(ours))
    raise ValueError(f"not a tensor of a RexSeek model: {name!r}")


def require_complete(
    report: Mapping[str, Collection], checkpoint: object, allow_other_shapes: bool = False
) -> None:
    """Refuse a checkpoint whose tensors are not those of the model.

    Args:
        report: what transformers says of a loading (`output_loading_info`).
        checkpoint: its folder or name, for the message.
        allow_other_shapes: accept tensors that were left out because of their shape.

    Raises:
        ValueError: tensors that are missing, not expected or of another shape, all by name.
    """
    problems = {
        "are missing": sorted(report["missing_keys"]),
        "are not expected": sorted(report["unexpected_keys"]),
    }
    if not allow_other_shapes:
        problems["have another shape"] = [
            f"{name} (got {tuple(found)}, expected {tuple(expected)})"
            for name, found, expected in sorted(report["mismatched_keys"])
        ]
    found = [f"{len(names)} tensors {what}: {', '.join(names)}" for what, names in problems.items() if names]
    if found:
        raise ValueError(f"checkpoint {checkpoint}: {'; '.join(found)}")
