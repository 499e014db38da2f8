"""Where the time of a call goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Wall time by stage; on a GPU a stage ends when the device has done its work.

    Attributes:
        seconds: by stage, in order of first entry; a stage that is entered again adds up.
    """

    def __init__(self, device: torch.device, seconds: dict[str, float] | None = None) -> None:
        self.device = device
        self.seconds = dict(seconds or {})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what is inside towards a stage."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
