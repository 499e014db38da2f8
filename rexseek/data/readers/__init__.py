"""One reader a data set. Each takes (annotations, images, **options) and returns (samples, report)."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rexseek.data.readers.allava import read_allava
from rexseek.data.readers.coco import read_coco
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.readers.llava import read_llava
from rexseek.data.readers.regions import read_regions
from rexseek.data.readers.report import ReadReport

READERS: dict[str, Callable] = {
    "allava": read_allava,
    "coco": read_coco,
    "humanref": read_humanref,
    "llava": read_llava,
    "regions": read_regions,
}

__all__ = ["READERS", "ReadReport", "option_names", "option_problems"]


def option_names(reader: str) -> list[str]:
    """Names of a reader's options."""
    parameters = inspect.signature(READERS[reader]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def option_problems(reader: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with a reader's name and the names of its options, in words; empty if nothing is."""
    if reader not in READERS:
        return [f"unknown reader {reader!r}, expected one of {', '.join(sorted(READERS))}"]
    known = option_names(reader)
    return [
        f"reader {reader!r} has no option {name!r}, it has {', '.join(known) or 'none'}"
        for name in options
        if name not in known
    ]
