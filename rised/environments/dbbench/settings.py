"""Settings of DBBench: prompt style, source of the tasks, protocol, limits of model-written SQL, difficulty mix.

Only declarations live here; nothing of the database or of the generator is imported.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from rised.config.settings import Settings, operational, strict


class DifficultyMix(Settings):
    """Make-up of the generated tasks. The three shares are relative weights.

    easy: one table-wide figure or one condition. medium: two conditions, IN, BETWEEN, AVG, DISTINCT, short lists,
    named inserts, updates under two conditions. hard: grouping, second places, comparison with the average, three
    conditions, updates of several columns, values that are spelled differently in the table.
    """

    easy: float = strict(0.2, ge=0, description="weight of easy tasks")
    medium: float = strict(0.45, ge=0, description="weight of medium tasks")
    hard: float = strict(0.35, ge=0, description="weight of hard tasks")
    two_word_names: float = strict(
        0.35, ge=0, le=1, description="chance of a name of two words (quoted in SQL) where a table offers one"
    )
    look_first: float = strict(0.08, ge=0, le=1, description="share of tasks whose value the table spells differently")
    rows_min: int = strict(8, ge=4, description="fewest rows of a generated table")
    rows_max: int = strict(24, ge=4, description="most rows of a generated table")

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.rows_max < self.rows_min:
            raise ValueError(f"rows_max ({self.rows_max}) is below rows_min ({self.rows_min}); raise it")
        if self.easy + self.medium + self.hard <= 0:
            raise ValueError("easy, medium and hard are all 0; give at least one of them a weight")
        return self


class DbbenchSettings(Settings):
    """DBBench. ``compact`` + ``generated`` is the laptop's default, ``full`` + ``files`` the benchmark's protocol."""

    prompt_style: Literal["compact", "full"] = strict(
        "compact", description="full: AgentBench's Action/sql blocks; compact: 'sql: …' and 'answer: …'"
    )
    source: Literal["generated", "files"] = strict(
        "generated", description="generated: our synthetic tasks; files: AgentBench record files of the user"
    )
    train_file: str | None = strict(None, description="AgentBench .jsonl or .json to train on (source: files)")
    validation_file: str | None = strict(
        None, description="AgentBench .jsonl or .json of the validation split (source: files)"
    )
    reply_format: Literal["published", "lenient"] = strict(
        "published", description="how strictly full-style replies are read; lenient is our forgiving mode"
    )
    max_turns: int = strict(8, ge=1, description="turns of an episode; AgentBench allows 20")
    reply_limit_chars: int = strict(800, ge=20, description="full style: characters of a database reply that are shown")
    compact_limit_chars: int = strict(
        160, ge=20, description="compact style: the observation is cut at so many characters"
    )
    compact_rows: int = strict(6, ge=1, description="compact style: rows of a result that are shown")
    max_vm_steps: int = strict(
        2_000_000, ge=10_000, description="SQLite virtual-machine instructions that one statement may take"
    )
    max_statement_s: float = operational(
        20.0, gt=0, description="wall-clock limit of one statement in seconds; the instruction limit comes first"
    )
    max_result_rows: int = strict(500, ge=1, description="rows read of one result; the rest is dropped and flagged")
    mix: DifficultyMix = strict(DifficultyMix(), description="make-up of the generated tasks")

    @model_validator(mode="after")
    def _files_given(self) -> Self:
        if self.source == "files" and not (self.train_file or self.validation_file):
            raise ValueError("source is 'files' but neither train_file nor validation_file is set; name a record file")
        return self
