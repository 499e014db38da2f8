"""The model: encoders, object tokens, language model."""

from rexseek.model.modeling import RexSeekForConditionalGeneration

__all__ = ["RexSeekForConditionalGeneration"]
