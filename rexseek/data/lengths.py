"""Token counts of a whole source as arrays; kept beside the samples where those are in a cache."""

import hashlib
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rexseek.data.arrow import ArrowSamples
from rexseek.data.candidates import CandidateOptions
from rexseek.data.collate import branch_lengths, prefix_length
from rexseek.data.sample import Sample
from rexseek.processor import RexSeekProcessor
from rexseek.tokens import MAX_OBJECTS


@dataclass(frozen=True)
class Lengths:
    """Tokens of N samples.

    Attributes:
        prefix: int64 [N].
        branches: int64 [branches of all samples]; a conversation has one.
        offsets: int64 [N + 1], where a sample's branches begin.
        conversation: bool [N].
        crowded: bool [N], more than 100 candidates: turns together may name too many.
    """

    prefix: np.ndarray
    branches: np.ndarray
    offsets: np.ndarray
    conversation: np.ndarray
    crowded: np.ndarray

    def of(self, index: int) -> tuple[int, list[int]]:
        """Tokens of a sample's prefix and of its branches."""
        start, end = self.offsets[index : index + 2]
        return int(self.prefix[index]), self.branches[start:end].tolist()


def source_lengths(processor: RexSeekProcessor, samples: Sequence[Sample], distractors: int = 0) -> Lengths:
    """Count the tokens of all samples, or read the counts if these samples were counted before.

    Args:
        processor: counts.
        samples: counts of `ArrowSamples` are kept beside them.
        distractors: candidates that are added in training, as far as there is room.
    """
    if not isinstance(samples, ArrowSamples):
        return _count(processor, samples, distractors)
    file = samples.folder / f"lengths-{_fingerprint(processor)}-{distractors}.npz"
    if not file.is_file():
        part = file.with_suffix(f".{os.getpid()}.npz")
        np.savez(part, **vars(_count(processor, samples, distractors)))
        os.replace(part, file)
    with np.load(file, allow_pickle=False) as stored:
        return Lengths(**stored)


def _count(processor: RexSeekProcessor, samples: Sequence[Sample], distractors: int) -> Lengths:
    room = CandidateOptions(distractors=distractors).room
    prefix, branches, offsets = array("q"), array("q"), array("q", [0])
    conversation, crowded = array("b"), array("b")
    for sample in samples:
        candidates = len(sample.boxes_xyxy_px)
        prefix.append(prefix_length(processor, sample, room(candidates)))
        branches.extend(branch_lengths(processor, sample))
        offsets.append(len(branches))
        conversation.append(sample.conversation)
        crowded.append(candidates > MAX_OBJECTS)
    counts = (np.asarray(column) for column in (prefix, branches, offsets))
    return Lengths(*counts, *(np.asarray(column).view(bool) for column in (conversation, crowded)))


def _fingerprint(processor: RexSeekProcessor) -> str:
    """A hash of what token counts depend on."""
    digest = hashlib.blake2b(processor.tokenizer.backend_tokenizer.to_str().encode(), digest_size=8)
    for objects, with_image in ((1, True), (0, False)):
        digest.update(repr(processor.prefix_ids(objects, with_image=with_image)).encode())
    digest.update(repr(processor.question_ids("?", with_image=True)).encode())
    return digest.hexdigest()
