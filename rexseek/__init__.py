"""RexSeek: referring detection by choosing among candidate boxes (arXiv 2503.08507).

The public names are loaded when first used, so that `rexseek.metrics` needs numpy only. Importing registers the
model's config with transformers' Auto classes as soon as one of the model's names is used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "RexSeekConfig": "rexseek.config",
    "RexSeekProcessor": "rexseek.processor",
    "RexSeekForConditionalGeneration": "rexseek.model.modeling",
    "RexSeekPredictor": "rexseek.predictor",
    "Referral": "rexseek.predictor",
}

__all__ = [
    "Referral",
    "RexSeekConfig",
    "RexSeekForConditionalGeneration",
    "RexSeekPredictor",
    "RexSeekProcessor",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rexseek' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
