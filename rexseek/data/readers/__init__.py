"""One reader a data set. Each takes (annotations, images, **options) and returns (samples, report)."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rexseek.data.readers.allava import read_allava
from rexseek.data.readers.coco import read_coco
from rexseek.data.readers.humanref import read_humanref
from rexseek.data.readers.humanref_cot import read_humanref_cot
from rexseek.data.readers.llava import read_llava
from rexseek.data.readers.lvis import read_lvis
from rexseek.data.readers.objects365 import read_objects365
from rexseek.data.readers.refadv import read_refadv
from rexseek.data.readers.refcoco import read_refcoco
from rexseek.data.readers.regions import read_regions
from rexseek.data.readers.report import ReadReport

READERS: dict[str, Callable] = {
    "allava": read_allava,
    "coco": read_coco,
    "humanref": read_humanref,
    "humanref_cot": read_humanref_cot,
    "llava": read_llava,
    "lvis": read_lvis,
    "objects365": read_objects365,
    "refadv": read_refadv,
    "refcoco": read_refcoco,
    "regions": read_regions,
}

__all__ = ["READERS", "ReadReport", "option_names", "option_problems"]


def option_names(reader: str) -> list[str]:
    """Names of a reader's options."""
    parameters = inspect.signature(READERS[reader]).parameters.values()
    own = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return ["lenient", *own]


def option_problems(reader: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with a reader's name and the names of its options, in words; empty if nothing is."""
    if reader not in READERS:
        return [f"unknown reader {reader!r}, expected one of {', '.join(sorted(READERS))}"]
    known = option_names(reader)
    return [
        f"reader {reader!r} has no option {name!r}, it has {', '.join(known)}"
        for name in options
        if name not in known
    ]
