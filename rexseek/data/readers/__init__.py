"""One reader a data set. Each takes (annotations, images, **options) and returns (samples, report)."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rexseek.data.readers.allava import read_allava
from rexseek.data.readers.coco import read_coco
from rexseek.data.readers.grounded_captions import read_grounded_captions
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.readers.humanref_cot import read_humanref_cot
from rexseek.data.readers.llava import read_llava
from rexseek.data.readers.lvis import read_lvis
from rexseek.data.readers.objects365 import read_objects365
from rexseek.data.readers.refadv import read_refadv
from rexseek.data.readers.refcoco import read_refcoco
from rexseek.data.readers.regions import read_regions
from rexseek.data.readers.report import ReadReport
from rexseek.data.readers.rexverse import read_rexverse

READERS: dict[str, Callable] = {
    "allava": read_allava,
    "coco": read_coco,
    "grounded_captions": read_grounded_captions,
    "humanref": read_humanref,
    "humanref_cot": read_humanref_cot,
    "llava": read_llava,
    "lvis": read_lvis,
    "objects365": read_objects365,
    "refadv": read_refadv,
    "refcoco": read_refcoco,
    "regions": read_regions,
    "rexverse": read_rexverse,
}

__all__ = ["READERS", "ReadReport", "option_names", "option_problems"]


def option_names(reader: str) -> list[str]:
    """Names of a reader's options."""
    return ["lenient", "verify_images", *_options(reader)]


def option_problems(reader: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with a reader's name and the names of its options, in words; empty if nothing is."""
    if reader not in READERS:
        return [f"unknown reader {reader!r}, expected one of {', '.join(sorted(READERS))}"]
    known = option_names(reader)
    unknown = [
        f"reader {reader!r} has no option {name!r}, it has {', '.join(known)}"
        for name in options
        if name not in known
    ]
    missing = [
        f"reader {reader!r} needs the option {name!r}"
        for name, parameter in _options(reader).items()
        if parameter.default is parameter.empty and name not in options
    ]
    return unknown + missing


def _options(reader: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(READERS[reader]).parameters
    return {name: value for name, value in parameters.items() if value.kind is value.KEYWORD_ONLY}
