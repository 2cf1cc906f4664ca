"""Words of the synthetic tables: themes, their columns and the values that fill them.

Only data. The words are few and plain on purpose, so that a small vocabulary covers them. Everything made from this
file is synthetic.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_NAMES = (
    "anna ben carl dora emil fay gus hana ivan jill kurt lena max nora otto pia quin rosa sam tina ugo vera walt xena "
    "yuri zoe alma bruno clara david elsa felix greta hugo irma jonas kira leon mara nils"
).split()
CITIES = "paris london berlin rome madrid oslo vienna prague dublin lisbon athens cairo tokyo seoul lima boston".split()
COUNTRIES = "france spain italy norway egypt japan peru brazil kenya india canada greece".split()
COLORS = "red blue green black white silver brown gold".split()
TEAMS = "lions tigers bears hawks wolves sharks eagles bulls".split()
DEPARTMENTS = "sales legal finance support design research".split()
STATUSES = "open closed pending active paused sold".split()
GENRES = "jazz rock pop folk metal opera drama comedy crime fantasy".split()
SUBJECTS = "math history physics music art biology law".split()
MAKERS = "acme nova zenith orion luma terra pixel vega".split()
FUELS = "petrol diesel electric hybrid".split()
LEVELS = "low medium high".split()
SIZES = "small medium large giant".split()
DISHES = "soup pasta salad curry stew pizza rice cake bread fish pie tacos noodles beans".split()
ANIMALS = "cat dog horse goat rabbit parrot turtle sheep".split()
TITLES = (
    "dawn river storm garden mirror island harbor winter tower forest desert bridge shadow silence ocean fire "
    "crown stone thunder meadow lantern valley castle comet"
).split()
MONTHS = "january march april june july august october december".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of words. ``names``: its plain name, then (where there is one) a name of two words."""

    names: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A column of whole numbers in [low, high]. ``wide``: the numbers differ in length.

    As every column is TEXT, a wide column sorts as a number only after ``+ 0``.
    """

    names: tuple[str, ...]
    low: int
    high: int

    @property
    def wide(self) -> bool:
        return len(str(self.low)) != len(str(self.high))


@dataclass(frozen=True, slots=True)
class Theme:
    """A kind of table: possible table names, the column that names a row, and the columns to choose from."""

    tables: tuple[str, ...]
    key: TextColumn
    texts: tuple[TextColumn, ...]
    numbers: tuple[NumberColumn, ...]


def _t(names: str, values: list[str]) -> TextColumn:
    return TextColumn(tuple(names.split("|")), tuple(values))


def _n(names: str, low: int, high: int) -> NumberColumn:
    return NumberColumn(tuple(names.split("|")), low, high)


THEMES = (
    Theme(
        ("staff", "workers", "office staff"),
        _t("name|full name", FIRST_NAMES),
        (_t("dept|home dept", DEPARTMENTS), _t("city|home city", CITIES), _t("status|work status", STATUSES)),
        (_n("age", 18, 69), _n("salary|base salary", 110, 990), _n("bonus", 0, 90), _n("hired|hire year", 1980, 2024)),
    ),
    Theme(
        ("players", "club players"),
        _t("player|player name", FIRST_NAMES),
        (_t("team|home team", TEAMS), _t("country|home country", COUNTRIES), _t("level|skill level", LEVELS)),
        (_n("points|total points", 0, 400), _n("games", 10, 99), _n("age", 18, 41), _n("wins|home wins", 0, 60)),
    ),
    Theme(
        ("albums", "old albums"),
        _t("title|album title", TITLES),
        (_t("artist|lead artist", FIRST_NAMES[:14]), _t("genre|main genre", GENRES), _t("label", MAKERS)),
        (
            _n("year|release year", 1950, 2024),
            _n("sales|total sales", 5, 900),
            _n("tracks", 10, 24),
            _n("score", 0, 99),
        ),
    ),
    Theme(
        ("orders", "shop orders"),
        _t("client|client name", FIRST_NAMES),
        (_t("city|ship city", CITIES), _t("status|order status", STATUSES), _t("month", MONTHS), _t("size", SIZES)),
        (_n("price|unit price", 5, 950), _n("items", 1, 40), _n("weight|total weight", 100, 999)),
    ),
    Theme(
        ("cars", "used cars"),
        _t("owner|owner name", FIRST_NAMES),
        (_t("color|body color", COLORS), _t("maker", MAKERS), _t("fuel|fuel type", FUELS), _t("city", CITIES)),
        (_n("year|model year", 1970, 2024), _n("price|list price", 50, 990), _n("doors", 2, 5), _n("power", 40, 400)),
    ),
    Theme(
        ("movies", "night movies"),
        _t("title|movie title", TITLES),
        (_t("genre|main genre", GENRES), _t("country", COUNTRIES), _t("actor|lead actor", FIRST_NAMES[14:28])),
        (
            _n("year|release year", 1950, 2024),
            _n("length", 60, 240),
            _n("score|critic score", 0, 99),
            _n("cost", 10, 99),
        ),
    ),
    Theme(
        ("students", "night students"),
        _t("name|student name", FIRST_NAMES),
        (_t("subject|main subject", SUBJECTS), _t("city|birth city", CITIES), _t("level", LEVELS)),
        (_n("grade|final grade", 10, 99), _n("age", 18, 41), _n("absent|days absent", 0, 120), _n("room", 100, 480)),
    ),
    Theme(
        ("hotels", "beach hotels"),
        _t("hotel|hotel name", TITLES),
        (_t("city", CITIES), _t("country|home country", COUNTRIES), _t("size|room size", SIZES)),
        (
            _n("rooms|free rooms", 5, 400),
            _n("price|night price", 40, 600),
            _n("rating", 10, 99),
            _n("built", 1900, 2020),
        ),
    ),
    Theme(
        ("dishes", "daily dishes"),
        _t("dish|dish name", DISHES),
        (_t("cook|head cook", FIRST_NAMES[:12]), _t("day|serve day", DAYS), _t("country", COUNTRIES)),
        (_n("price|menu price", 3, 60), _n("minutes|cook minutes", 10, 95), _n("energy", 100, 990), _n("stars", 1, 9)),
    ),
    Theme(
        ("pets", "lost pets"),
        _t("pet|pet name", FIRST_NAMES),
        (_t("kind|animal kind", ANIMALS), _t("color|fur color", COLORS), _t("city", CITIES)),
        (_n("age", 1, 19), _n("weight|body weight", 2, 90), _n("fee|care fee", 10, 99), _n("cage", 100, 300)),
    ),
    Theme(
        ("trips", "train trips"),
        _t("guide|guide name", FIRST_NAMES),
        (_t("start|start city", CITIES[:8]), _t("finish|end city", CITIES[8:]), _t("day|start day", DAYS)),
        (_n("length|trip length", 8, 900), _n("seats|free seats", 0, 120), _n("cost|total cost", 20, 99)),
    ),
    Theme(
        ("tools", "rented tools"),
        _t("tool|tool name", TITLES[:18]),
        (_t("maker|tool maker", MAKERS), _t("status|rent status", STATUSES), _t("color", COLORS)),
        (
            _n("stock|units left", 0, 200),
            _n("price|day price", 10, 99),
            _n("weight", 1, 60),
            _n("year|buy year", 1990, 2024),
        ),
    ),
)

RESPELLINGS = ("{v} (x)", "the {v}", "{v} one", "new {v}")
"""How a look-up task's table spells a value that the question gives plainly."""
