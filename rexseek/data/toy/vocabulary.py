"""What the toy world is made of: colours, clothes, things to hold, scenery and named characters."""

COLOURS = {
    "red": (214, 40, 40),
    "blue": (45, 85, 215),
    "green": (20, 135, 60),
    "yellow": (250, 215, 30),
    "purple": (135, 50, 165),
    "orange": (245, 130, 25),
    "white": (250, 250, 250),
    "black": (30, 30, 34),
}
HAIR_COLOURS = {
    "black": (25, 22, 22),
    "blond": (240, 205, 110),
    "red": (180, 70, 30),
    "gray": (165, 165, 170),
}
SKIN_TONES = ((250, 215, 185), (225, 175, 135), (165, 110, 75), (110, 72, 50))

KINDS = ("man", "woman", "boy", "girl")
HATS = ("cap", "top hat")
TOPS = ("shirt", "jacket")
BOTTOMS = ("trousers", "shorts", "skirt")
HELD = ("umbrella", "balloon", "bag", "book", "flag")
POSES = ("standing", "arms raised", "waving")
SCENERY = ("tree", "car", "house", "lamp post", "bush")

# (garment or thing, colour) pairs that are neither drawn nor mentioned in training; the test has them.
HELD_OUT = frozenset(
    {
        ("shirt", "purple"),
        ("jacket", "yellow"),
        ("trousers", "green"),
        ("dress", "orange"),
        ("cap", "blue"),
        ("top hat", "red"),
        ("umbrella", "white"),
        ("bag", "black"),
    }
)

# name -> fixed look; everything else is drawn at random. `emblem` is the colour of the disc on the chest.
CHARACTERS = {
    "Captain Bolt": {"kind": "man", "skin": (120, 170, 240), "emblem": "yellow", "cape": "red"},
    "Lady Plum": {"kind": "woman", "skin": (200, 150, 230), "emblem": "white", "cape": "purple"},
    "Professor Moss": {"kind": "man", "skin": (140, 200, 120), "emblem": "black", "cape": "green"},
    "Queen Amber": {"kind": "woman", "skin": (255, 190, 80), "emblem": "red", "cape": "yellow"},
    "Doctor Frost": {"kind": "man", "skin": (225, 240, 255), "emblem": "blue", "cape": "white"},
    "Princess Coral": {"kind": "girl", "skin": (255, 150, 140), "emblem": "green", "cape": "orange"},
    "Pirate Rook": {"kind": "man", "skin": (120, 120, 130), "emblem": "red", "cape": "black"},
    "Star Kid": {"kind": "boy", "skin": (150, 230, 230), "emblem": "orange", "cape": "blue"},
}
