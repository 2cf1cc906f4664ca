"""Settings of the WebShop environment. Import-light: nothing but pydantic.

Which catalogue is shopped in (our generated one, or the user's copy of the original files), how pages read
(the original's text mode, or the short style for small models) and which goals are train and validation.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from rised.config.settings import Settings, operational, strict


class WebshopSettings(Settings):
    """What defines a WebShop task panel and how its pages are rendered."""

    prompt_style: Literal["compact", "full"] = strict(
        "compact", description="full: the original's text observations; compact: numbered results, short pages [ours]"
    )
    source: Literal["generated", "files"] = strict(
        "generated", description="generated: our synthetic catalogue; files: WebShop's own, which the user downloads"
    )
    products_file: str | None = operational(None, description="items_shuffle.json (source: files)")
    attributes_file: str | None = operational(None, description="items_ins_v2.json (source: files)")
    human_goals_file: str | None = operational(None, description="items_human_ins.json (source: files)")
    product_limit: int | None = strict(
        None, ge=1, description="only the first products of the file (source: files), as the original's num_products"
    )
    goal_kind: Literal["human", "synthetic"] = strict(
        "human", description="human: goals of items_human_ins.json; synthetic: one goal per option combination"
    )
    product_count: int = strict(1200, ge=10, description="products of the generated catalogue")
    goals_per_product: int = strict(2, ge=1, description="instructions written for each generated product")
    catalogue_seed: int = strict(7, description="seed of the generated catalogue")
    price_seed: int = strict(
        20220704, description="seed of price limits and of prices given as a range; the original draws them unseeded"
    )
    train_range: tuple[int, int] | None = strict(
        None, description="half-open range of goal indices; null: AgentBench's [1000, 12000), generated: all"
    )
    validation_range: tuple[int, int] | None = strict(
        None, description="half-open range of goal indices; null: AgentBench's [0, 200), generated: all"
    )
    results_per_page: int | None = strict(None, ge=1, le=10, description="null: 10 in style full, 5 in style compact")
    show_attributes: bool = strict(
        False, description="style full: offer the Attributes sub-page (off in the original's default)"
    )
    cache_dir: str = operational(
        "results/cache/webshop", description="where prepare stores the generated files and the noun sets of the titles"
    )

    @model_validator(mode="after")
    def _files_are_named(self) -> WebshopSettings:
        needed = ["products_file", "attributes_file"] + (["human_goals_file"] if self.goal_kind == "human" else [])
        missing = [name for name in needed if getattr(self, name) is None]
        if self.source == "files" and missing:
            raise ValueError(
                f"webshop: source 'files' with {self.goal_kind} goals needs {', '.join(missing)}: "
                "name WebShop's downloaded files, or set source: generated"
            )
        return self

    @property
    def page_size(self) -> int:
        """Results shown on one page."""
        if self.results_per_page is not None:
            return self.results_per_page
        return 5 if self.prompt_style == "compact" else 10

    def goal_range(self, split: str) -> tuple[int, int | None]:
        """Half-open range of goal indices of ``split``; an end of None means all that follow.

        In a generated catalogue a split has, of these, the goals of its own products.
        """
        generated: tuple[int, int | None] = (0, None)
        if split == "train":
            return self.train_range or (generated if self.source == "generated" else (1000, 12000))
        if split == "validation":
            return self.validation_range or (generated if self.source == "generated" else (0, 200))
        if split == "sft" and self.source == "generated":
            return generated
        raise ValueError(f"webshop has the splits train, validation and, if generated, sft; not {split!r}")
