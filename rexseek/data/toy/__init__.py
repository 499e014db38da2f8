"""The toy world: drawn scenes with exact expressions, written in the formats of the real data sets."""

from rexseek.data.toy.write import write_toy_dataset

__all__ = ["write_toy_dataset"]
