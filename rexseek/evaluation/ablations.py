"""Expressions with information taken away: how much of a score needs it? (Ref-Adv, Tables 2, 3 and 4.)"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rexseek.data.jsonl import read_jsonl
from rexseek.data.readers.report import generator_for
from rexseek.evaluation.prediction_files import file_sha256
from rexseek.tokens import check_plain_text

THE_ONE, BAG_OF_WORDS, REWRITES = "the-one", "bag-of-words", "rewrites"


@dataclass(frozen=True)
class Ablation:
    """What is asked in place of an annotation's expression.

    Attributes:
        kind: "the-one" (always this text: Table 2), "bag-of-words" (the words in random order: Table 3), or
            "rewrites" (texts from a file, such as expressions with one descriptor deleted: Table 4).
        seed: of the order of words. An expression's order depends on the seed and its text only.
        rewrites: text by the annotation's id, with
        rewrites_sha256: of the file they came from.
    """

    kind: str
    seed: int = 0
    rewrites: Mapping[Any, str] = field(default_factory=dict)
    rewrites_sha256: str | None = None

    @classmethod
    def from_options(cls, ablate: str | None, seed: int, rewrites: Path | None) -> "Ablation | None":
        """The ablation of a command line; None if expressions are asked as they are.

        Raises:
            ValueError: unknown name, both of `ablate` and `rewrites`, or see `read_rewrites`.
        """
        if ablate not in (None, THE_ONE, BAG_OF_WORDS):
            raise ValueError(f"ablate: expected {THE_ONE} or {BAG_OF_WORDS}, got {ablate!r}")
        if rewrites is None:
            return None if ablate is None else cls(ablate, seed)
        if ablate is not None:
            raise ValueError(f"expected one of ablate and rewrites, got {ablate!r} and {rewrites}")
        return cls(REWRITES, 0, read_rewrites(rewrites), file_sha256(rewrites))

    def expression(self, id_: Any, expression: str, where: str) -> str:
        """What to ask in place of `expression`, the text of annotation `id_`.

        Raises:
            ValueError: there is no rewrite of this annotation.
        """
        if self.kind == THE_ONE:
            return "the one"
        if self.kind == BAG_OF_WORDS:
            return bag_of_words(expression, self.seed)
        if id_ not in self.rewrites:
            raise ValueError(f"{where}: the rewrites hold no line for it")
        return self.rewrites[id_]

    def record(self) -> dict[str, Any]:
        """What a run notes of it."""
        if self.kind == BAG_OF_WORDS:
            return {"kind": self.kind, "seed": self.seed}
        return {"kind": self.kind, **({"sha256": self.rewrites_sha256} if self.kind == REWRITES else {})}


def ablation_text(record: Mapping[str, Any]) -> str:
    """What a report says of a run's ablation, given what the run noted."""
    more = ", ".join(f"{key} {value}" for key, value in record.items() if key != "kind")
    return f"ablation: {record['kind']}{f' ({more})' if more else ''}"


def bag_of_words(expression: str, seed: int) -> str:
    """The expression's words, split at blanks, in a uniformly random order (which may be the given one)."""
    words = expression.split()
    order = generator_for(seed, "bag of words", expression).permutation(len(words))
    return " ".join(words[place] for place in order)


def read_rewrites(path: Path) -> dict[Any, str]:
    """Texts by id from JSON Lines with `id` and `rewrite`.

    Raises:
        ValueError: naming file and line of a missing key, repeated id, or a text that cannot be asked.
    """
    rewrites: dict[Any, str] = {}
    for line, row in read_jsonl(path):
        where = f"{path}, line {line}"
        if "id" not in row or "rewrite" not in row:
            raise ValueError(f"{where}: expected the keys id and rewrite, got {', '.join(row)}")
        if not isinstance(row["id"], int | str) or row["id"] in rewrites:
            raise ValueError(
                f"{where}: id {row['id']!r}, expected a number or text that did not occur before"
            )
        rewrites[row["id"]] = check_plain_text(row["rewrite"], f"{where}: rewrite")
    return rewrites
