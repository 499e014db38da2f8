"""Show what a recipe's batch really holds: rows, branches, supervised tokens, shapes.

    python tools/inspect_batch.py --config configs/tiny/stage4.yaml [--rows 2] [dotted.key=value ...]

With a checkpoint as `init_from` no weights are loaded.
"""

import argparse
from pathlib import Path

from rexseek.data.collate import PackedCollator
from rexseek.data.mixture import Mixture, PackLimits
from rexseek.data.sample import Sample
from rexseek.data.show import as_text, prompt_parts
from rexseek.processor import RexSeekProcessor
from rexseek.training.checks import check_config
from rexseek.training.config import TrainConfig, load_config
from rexseek.training.setup import load_sources, load_start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parsed = parser.parse_args()
    config = load_config(parsed.config, parsed.overrides)
    check_config(config, config.stage, 1)
    processor = load_processor(config)
    sources, reports = load_sources(config.data.train, config.seed)
    for report in reports:
        print(
            f"{report.annotations}: {report.rows} rows, {report.samples} samples, {report.turns} turns, ",
            end="",
        )
        print(f"skipped {dict(report.skipped) or 'none'}")
    mixture = Mixture(
        sources, processor, PackLimits(config.data.max_length, config.data.max_turns), config.seed
    )
    rows = mixture.epoch_rows(0)
    turns = sum(len(row.turns) for row in rows)
    tokens = sum(row.length for row in rows)
    print(
        f"an epoch: {len(rows)} packed rows, {turns} turns, {tokens} tokens; skipped {dict(mixture.skipped)}"
    )
    samples = [mixture.sample_of(row) for row in rows[: parsed.rows]]
    for sample in samples:
        show(sample, processor)
    batch = PackedCollator(processor, config.data.max_length)(samples)
    print("batch:", {key: (tuple(value.shape), str(value.dtype)) for key, value in batch.items()})


def load_processor(config: TrainConfig) -> RexSeekProcessor:
    """The processor alone where a checkpoint has one, else that of the model put together from its parts."""
    if config.init_from and (Path(config.init_from) / "config.json").is_file():
        return RexSeekProcessor.from_pretrained(config.init_from)
    return load_start(config)[1]


def show(sample: Sample, processor: RexSeekProcessor) -> None:
    """One row: the prefix and each branch; what is learnt stands in brackets."""
    print(f"\n{sample.name}: {sample.image}, {len(sample.boxes_xyxy_px)} candidates")
    for parts in prompt_parts(processor, sample):
        print(f"  {as_text(parts)}")


if __name__ == "__main__":
    main()
