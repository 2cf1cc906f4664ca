"""Where a shop comes from at run time: the prepared folder, loaded once per process.

``prepare_shop`` writes, once per catalogue, what workers need and cannot compute cheaply: the generated files in
WebShop's formats and the noun sets of all titles (spaCy). ``load_shop`` reads them back, checks their hashes, and
builds the search index. The folder is named by what defines its content, so two catalogues never mix.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rised.environments.base import EnvironmentFault
from rised.environments.webshop.catalogue import Catalogue, Product, build_catalogue, load_catalogue, read_json
from rised.environments.webshop.generator import GENERATOR_VERSION, RawFiles, generate
from rised.environments.webshop.search import SearchIndex
from rised.environments.webshop.settings import WebshopSettings

GENERATED_NAMES = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")
NOUNS_NAME = "title_nouns.json"
CARD_NAME = "card.json"


@dataclass(frozen=True, slots=True)
class Shop:
    """A catalogue ready to shop in. ``key`` identifies it in task payloads; ``nouns``: product id -> title nouns."""

    key: str
    catalogue: Catalogue
    nouns: dict[str, tuple[str, ...]]
    index: SearchIndex

    def product(self, asin: str) -> Product:
        return self.catalogue.by_asin[asin]

    def price(self, asin: str) -> float:
        """Dollars that the reward compares with the limit (drawn once where the tag is a range)."""
        return self.catalogue.prices[asin]


def shop_key(settings: WebshopSettings) -> str:
    """Name of the prepared folder: the generator's inputs, or names and sizes of the user's files."""
    if settings.source == "generated":
        parts: list[Any] = [
            "generated",
            GENERATOR_VERSION,
            settings.product_count,
            settings.goals_per_product,
            settings.catalogue_seed,
        ]
    else:
        parts = ["files", settings.product_limit]
        for path in source_files(settings):
            if path is None:
                continue
            if not path.is_file():
                raise EnvironmentFault(f"webshop: {path} does not exist; check the paths in the environment's settings")
            parts.append([path.name, path.stat().st_size])
    digest = hashlib.sha256(json.dumps([*parts, settings.price_seed]).encode()).hexdigest()[:12]
    return f"{settings.source}-{digest}"


def shop_folder(settings: WebshopSettings) -> Path:
    """Folder of the prepared catalogue."""
    return Path(settings.cache_dir) / shop_key(settings)


def source_files(settings: WebshopSettings) -> tuple[Path, Path, Path | None]:
    """The three files of WebShop's formats: the user's, or those that prepare generated."""
    if settings.source == "generated":
        products, attributes, human = (shop_folder(settings) / name for name in GENERATED_NAMES)
        return products, attributes, human
    if settings.products_file is None or settings.attributes_file is None:
        raise EnvironmentFault("webshop: source 'files' needs products_file and attributes_file in the settings")
    human_file = Path(settings.human_goals_file) if settings.human_goals_file is not None else None
    return Path(settings.products_file), Path(settings.attributes_file), human_file


def prepare_shop(settings: WebshopSettings) -> Path:
    """Write the prepared folder (whole or not at all) unless it is there and undamaged, and return it."""
    folder = shop_folder(settings)
    if not damage(folder):
        return folder
    from rised.environments.webshop.nouns import title_nouns

    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        if settings.source == "generated":
            raw = generate(settings.product_count, settings.goals_per_product, settings.catalogue_seed)
            catalogue = build_catalogue(*raw, settings.price_seed)
            _write_generated(draft, raw)
        else:
            catalogue = load_catalogue(*source_files(settings), settings.price_seed, settings.product_limit)
        titles = title_nouns([product.title for product in catalogue.products])
        nouns = {product.asin: found for product, found in zip(catalogue.products, titles, strict=True)}
        _write_json(draft / NOUNS_NAME, nouns)
        _write_json(draft / CARD_NAME, _card(settings, catalogue, draft))
        if damage(folder):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            os.rename(draft, folder)
        except OSError:
            if damage(folder):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def restore_shop(settings: WebshopSettings) -> None:
    """Write the prepared folder again if somebody removed or changed it since the tasks were prepared."""
    if found := damage(shop_folder(settings)):
        print(f"webshop: {found}: writing it again", flush=True)
        prepare_shop(settings)


def damage(folder: Path) -> str:
    """What keeps a prepared folder from being used; "" if it is as it was written."""
    if not (folder / CARD_NAME).is_file():
        return f"no prepared catalogue at {folder}"
    try:
        sums = read_json(folder / CARD_NAME)["sha256"]
        changed = [name for name, sha256 in sums.items() if _sha256(folder / name) != sha256]
    except (EnvironmentFault, KeyError, AttributeError, TypeError, FileNotFoundError):
        return f"{folder} is damaged"
    return f"{folder / changed[0]} differs from its card" if changed else ""


def _write_generated(folder: Path, raw: RawFiles) -> None:
    for name, content in zip(GENERATED_NAMES, raw, strict=True):
        _write_json(folder / name, content)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _card(settings: WebshopSettings, catalogue: Catalogue, folder: Path) -> dict[str, Any]:
    """The data card: what this is, how prices were read, and the hashes that loading checks."""
    return {
        "what": (
            "SYNTHETIC catalogue in WebShop's file formats, written by rised's generator; no product is real"
            if settings.source == "generated"
            else "title nouns of the user's WebShop files"
        ),
        "settings": settings.model_dump(exclude={"cache_dir"}),
        "counts": catalogue.card,
        "sha256": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
    }


def load_shop(settings: WebshopSettings) -> Shop:
    """The prepared shop, built once per process. EnvironmentFault if it was not prepared or was changed since."""
    limit = settings.product_limit if settings.source == "files" else None
    return _load_shop(shop_folder(settings).resolve(), source_files(settings), settings.price_seed, limit)


@lru_cache(maxsize=4)
def _load_shop(folder: Path, files: tuple[Path, Path, Path | None], price_seed: int, product_limit: int | None) -> Shop:
    if found := damage(folder):
        raise EnvironmentFault(f"webshop: {found}; run the prepare stage with these settings (stages.prepare)")
    catalogue = load_catalogue(*files, price_seed, product_limit)
    nouns = {asin: tuple(found) for asin, found in read_json(folder / NOUNS_NAME).items()}
    return Shop(folder.name, catalogue, nouns, SearchIndex(catalogue.products))
