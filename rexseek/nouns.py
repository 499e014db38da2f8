"""Which kinds of object to detect for an expression: a light rule for English, no parser.

An expression is cut into phrases at prepositions and the like; English phrases end with their noun. The
first phrase names what is meant, later ones count where an article or possessive introduces them.
"""

import re
from collections.abc import Sequence

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_PERSONS = frozenset(
    _WORD.findall(
        "person people man men woman women boy boys girl girls child children kid kids baby babies "
        "toddler guy guys lady ladies gentleman gentlemen adult adults teenager human humans pedestrian "
        "pedestrians cyclist cyclists passenger passengers player players worker workers waiter waitress "
        "dancer rider riders skier surfer skater doctor nurse chef soldier policeman policemen "
        "policewoman officer officers bride groom couple crowd family team student students teacher "
        "spectator spectators he she him her who whoever anyone anybody everyone everybody someone "
        "somebody"
    )
)
_DETERMINERS = frozenset(
    _WORD.findall("a an the this that these those his her their its my our your some any each every")
)
_NUMBERS = frozenset(
    _WORD.findall("one two three four five six seven eight nine ten all both no many several few")
)
_BOUNDARIES = frozenset(
    _WORD.findall(
        "in on at by of with without near behind beside besides between before above below under over "
        "from to into onto off next for against along across around through inside outside beneath toward "
        "towards than except like as and or but not nor who which whose whom where when while is are was "
        "were be has have does do closest nearest"
    )
)
_NO_KINDS = frozenset(  # nouns that name a place, a part of the picture or a set, not a kind of object
    _WORD.findall(
        "left right middle centre center front back top bottom side corner background foreground image "
        "picture photo photograph scene row line group pair bunch set number most rest them it they other "
        "others one ones something anything everything thing things object objects first second third "
        "fourth fifth last far here there"
    )
)
_IRREGULAR = {"feet": "foot", "teeth": "tooth", "geese": "goose", "mice": "mouse", "knives": "knife"}


def nouns_of(expression: str) -> tuple[str, ...]:
    """The kinds of object an expression speaks of, singular and in lower case: the one it means first.

    All words for persons give "person": the others are needed as candidates too. Where a word in -ing may
    be a verb or an adjective ("dog chasing cats", "big barking dog") both readings are returned.

    Returns:
        Distinct nouns, at least one.

    Raises:
        ValueError: no noun was found, as in "all of them".
    """
    nouns: dict[str, None] = {}
    for number, phrase in enumerate(_phrases(expression)):
        introduced = bool(_DETERMINERS & set(phrase))
        if number == 0 or introduced or not nouns:
            nouns |= dict.fromkeys(_heads(phrase))
    if not nouns:
        raise ValueError(
            f"expression {expression[:200]!r}: found no noun to detect; expected one such as 'person', or "
            "name the objects to detect yourself (--objects)"
        )
    return tuple(nouns)


def wanted_categories(expressions: Sequence[str], objects: Sequence[str]) -> tuple[str, ...]:
    """What to detect for some expressions: `objects` if given, else all their nouns."""
    return tuple(objects) or tuple(dict.fromkeys(noun for text in expressions for noun in nouns_of(text)))


def singular(word: str) -> str:
    """The singular of an English noun by its ending ("buses" -> "bus"); others stay as they are."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "uses")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _phrases(expression: str) -> list[list[str]]:
    phrases: list[list[str]] = [[]]
    for part in re.split(r"[,;:.!?]", expression.lower()):
        for word in _WORD.findall(part):
            if word in _BOUNDARIES and word not in _PERSONS:
                phrases.append([])
            else:
                phrases[-1].append(word)
        phrases.append([])
    return [phrase for phrase in phrases if phrase]


def _heads(phrase: list[str]) -> list[str]:
    """The noun of a phrase; two where its word in -ing can be read in two ways."""
    words = [word for word in phrase if word not in _DETERMINERS | _NUMBERS | _NO_KINDS]
    if any(word in _PERSONS for word in phrase if word not in _DETERMINERS):
        return ["person"]
    while words and (words[-1].endswith("ing") or _is_participle(words[-1])) and len(words) > 1:
        words.pop()
    if not words:
        return []
    verbs = [place for place, word in enumerate(words) if place and word.endswith("ing")]
    places = [*(place - 1 for place in verbs[:1]), len(words) - 1]
    return [singular(words[place]) for place in places]


def _is_participle(word: str) -> bool:
    return len(word) > 4 and word.endswith("ed")
