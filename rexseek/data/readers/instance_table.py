"""Files in COCO's instances format, read as a stream into columns of numbers.

A file of any size is read in three passes (categories, images, annotations), so that memory grows by some
100 bytes an image and 60 an annotation, not with the masks that are passed over.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rexseek.data.readers.report import ReadReport, read_json, require_id, require_keys
from rexseek.tokens import check_plain_text

_LONGEST = 2**63  # of a machine word


@dataclass(frozen=True)
class ImageRow:
    """One entry of `images`.

    Attributes:
        id: of the file.
        name: path below the folder of images.
        width, height: pixels as annotated.
        absent: names that are known to be absent; None if every name without an instance is.
        incomplete: names of which not all instances are annotated; they are never asked.
    """

    id: Any
    name: str
    width: int
    height: int
    absent: tuple[str, ...] | None = None
    incomplete: frozenset[str] = frozenset()


class Identities:
    """Ids in order: eight bytes each while all are whole numbers, as they nearly always are."""

    def __init__(self) -> None:
        self._values: array | list[Any] = array("q")

    def append(self, value: Any) -> None:
        """Add an id of any kind."""
        whole = type(value) is int and -_LONGEST <= value < _LONGEST
        if isinstance(self._values, array) and not whole:
            self._values = list(self._values)
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: int) -> Any:
        return self._values[place]

    def ordered(self, order: np.ndarray) -> "Identities":
        """The same ids in another order."""
        result = Identities()
        if isinstance(self._values, array):
            result._values.frombytes(np.frombuffer(self._values, dtype=np.int64)[order].tobytes())
        else:
            result._values = [self._values[place] for place in order]
        return result


class ImageRows(Sequence[ImageRow]):
    """All `ImageRow`s in order, as columns; a row is made when it is asked for."""

    def __init__(self) -> None:
        self._ids = Identities()
        self._names, self._ends = bytearray(), array("q", [0])
        self._sizes = array("q")
        self._known: dict[int, tuple[tuple[str, ...] | None, frozenset[str]]] = {}

    def append(self, row: ImageRow) -> None:
        """Add a row."""
        if row.absent is not None or row.incomplete:
            self._known[len(self)] = (row.absent, row.incomplete)
        self._ids.append(row.id)
        self._names += row.name.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._names))
        self._sizes.extend((row.width, row.height))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: int) -> ImageRow:
        name = self._names[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogatepass")
        known = self._known.get(place, (None, frozenset()))
        return ImageRow(self._ids[place], name, *self._sizes[2 * place : 2 * place + 2], *known)

    def __iter__(self) -> Iterator[ImageRow]:
        return (self[place] for place in range(len(self)))


@dataclass(frozen=True)
class InstanceTable:
    """Images, and A instances as numbers.

    Attributes:
        images: in the file's order.
        names: of the categories, in the file's order.
        image, category: int64 [A], places among `images` (ascending) and `names`.
        boxes_xywh: float64 [A, 4], pixels.
        ids: of the annotations, A of them.
        crowds: (image, category) places of crowds, which are no instances: present, but not to be chosen.
    """

    images: ImageRows
    names: list[str]
    image: np.ndarray
    category: np.ndarray
    boxes_xywh: np.ndarray
    ids: Identities
    crowds: frozenset[tuple[int, int]]

    def instances(self, place: int) -> range:
        """The rows of the instances of image number `place`, in the file's order."""
        return range(*np.searchsorted(self.image, [place, place + 1]).tolist())

    def absent(self, place: int) -> list[str]:
        """The names of which the image has neither an instance nor a crowd, in alphabetical order."""
        rows = self.instances(place)
        present = {self.names[number] for number in self.category[rows.start : rows.stop]}
        possible = self.images[place].absent
        if possible is None:
            possible = (name for n, name in enumerate(self.names) if (place, n) not in self.crowds)
        return sorted(set(possible) - present)


def checked_size(entry: dict[str, Any], where: str) -> tuple[int, int]:
    """Width and height, or ValueError if they are no positive integers."""
    size = entry["width"], entry["height"]
    if any(type(value) is not int or value < 1 for value in size):
        raise ValueError(f"{where}: expected width and height in pixels, got {size[0]!r} and {size[1]!r}")
    return size


def stream_items(path: Path, key: str) -> Iterator[Any]:
    """The items of the list under a top-level key of a JSON file, one by one.

    Raises:
        ValueError: missing or no JSON, naming the file and line.
    """
    import ijson  # of the train extra

    if not path.is_file():
        raise ValueError(f"{path}: no such annotation file")
    try:
        with open(path, "rb") as file:
            yield from ijson.items(file, f"{key}.item", use_float=True)
    except ijson.JSONError as error:
        read_json(path)  # says where
        raise ValueError(f"{path}: expected JSON, got {error}") from error


def read_table(
    annotations: Path,
    report: ReadReport,
    category_name: Callable[[dict], str],
    image_row: Callable[[dict, dict[Any, str]], ImageRow],
) -> InstanceTable:
    """Read an instances file; crowds are skipped and counted.

    Args:
        category_name: the phrase that asks for a category.
        image_row: an entry of `images`, given the names of the categories by id.
    """
    names: dict[Any, str] = {}
    for entry in stream_items(annotations, "categories"):
        require_keys(entry, ("id", "name"), f"{annotations}: categories")
        require_id(entry["id"], f"{annotations}: categories: id")
        names[entry["id"]] = check_plain_text(category_name(entry), f"{annotations}: category {entry['id']}")
    images = ImageRows()
    places: dict[Any, int] = {}
    for entry in stream_items(annotations, "images"):
        with report.annotation():
            row = image_row(entry, names)
            require_id(row.id, f"{annotations}: images: id")
            if row.id in places:
                raise ValueError(f"{annotations}: image {row.id}: expected each id once, got it twice")
            places[row.id] = len(images)
            images.append(row)
    empty = [key for key, found in (("categories", names), ("images", images)) if not found]
    if empty and not report.errors:
        raise ValueError(
            f"{annotations}: expected the lists images, annotations, categories, "
            f"missing or empty: {', '.join(empty)}"
        )
    return _with_annotations(annotations, report, images, names, places)


def _with_annotations(
    annotations: Path,
    report: ReadReport,
    images: ImageRows,
    names: dict[Any, str],
    places: dict[Any, int],
) -> InstanceTable:
    number = {identity: index for index, identity in enumerate(names)}
    image, category, boxes, ids = array("q"), array("q"), array("d"), Identities()
    crowds = set()
    for entry in stream_items(annotations, "annotations"):
        report.rows += 1
        with report.annotation():
            where = f"{annotations}: annotation {entry.get('id') if isinstance(entry, dict) else entry!r}"
            require_keys(entry, ("id", "image_id", "category_id", "bbox"), where)
            for key in ("id", "image_id", "category_id"):
                require_id(entry[key], f"{where}: {key}")
            if entry["category_id"] not in names:
                raise ValueError(
                    f"{where}: expected a category of the file, got category_id {entry['category_id']}"
                )
            if entry["image_id"] not in places:
                raise ValueError(f"{where}: expected an image of the file, got image_id {entry['image_id']}")
            place, name = places[entry["image_id"]], number[entry["category_id"]]
            if entry.get("iscrowd"):
                crowds.add((place, name))
                report.skip("crowd", where)
                continue
            box = entry["bbox"]
            if not isinstance(box, list) or len(box) != 4 or any(type(v) not in (int, float) for v in box):
                raise ValueError(f"{where}: expected a bbox of four numbers, got {box!r}")
            image.append(place)
            category.append(name)
            boxes.extend(box)
            ids.append(entry["id"])
    order = np.argsort(np.frombuffer(image, dtype=np.int64), kind="stable")
    return InstanceTable(
        images,
        list(names.values()),
        np.frombuffer(image, dtype=np.int64)[order],
        np.frombuffer(category, dtype=np.int64)[order],
        np.frombuffer(boxes, dtype=np.float64).reshape(-1, 4)[order],
        ids.ordered(order),
        frozenset(crowds),
    )
