"""RexSeek: referring detection by choosing among candidate boxes (arXiv 2503.08507).

Importing registers the model, its config and its processor with transformers' Auto classes, so that
`AutoModelForImageTextToText.from_pretrained` loads a checkpoint without remote code.
"""

from rexseek.config import RexSeekConfig
from rexseek.model.modeling import RexSeekForConditionalGeneration
from rexseek.predictor import Referral, RexSeekPredictor
from rexseek.processor import RexSeekProcessor

__version__ = "0.1.0"

__all__ = [
    "Referral",
    "RexSeekConfig",
    "RexSeekForConditionalGeneration",
    "RexSeekPredictor",
    "RexSeekProcessor",
]
