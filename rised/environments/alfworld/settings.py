"""Settings of the ALFWorld environment. Nothing here imports the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rised.config.settings import Settings, operational, strict

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]


class RoomSettings(Settings):
    """Size of the generated rooms."""

    max_receptacles: int = strict(8, ge=4, le=60, description="Receptacles of a generated room.")
    max_distractors: int = strict(6, ge=0, le=60, description="Objects of a generated room that no goal asks for.")


class AlfworldSettings(Settings):
    """Which games, which action grammar, and how the episode is shown to the policy."""

    source: Literal["generated", "files"] = strict(
        "generated", description="`generated`: synthetic games from the alfworld wheel; `files`: game.tw-pddl folders."
    )
    games_dir: Path | None = operational(
        None, description="Root of the game folders (source `files`); default: the variable ALFWORLD_DATA."
    )
    index_file: dict[str, Path] = strict(
        {}, description="Split name -> AgentBench split file (lists of game paths by family); empty: folder order."
    )
    room: RoomSettings = strict(RoomSettings(), description="Size of the generated rooms.")
    grammar: Literal["agentbench", "alfworld"] = strict(
        "agentbench", description="`agentbench`: put X in/on Y; `alfworld` (0.4): move X to Y. The prompt follows."
    )
    prompt_style: Literal["compact", "full"] = strict(
        "full", description="`full`: instructions and the list of actions; `compact` [ours]: short text, no list."
    )
    mapping: Literal["normalised", "faithful"] = strict(
        "normalised",
        description="`normalised` [ours]: case, quotes, final punctuation; `faithful`: AgentBench's nearest by BLEU.",
    )
    repeat_limit: int = strict(
        3, ge=0, description="So many equal raw replies in a row end the episode as a failure (AgentBench 3; 0 never)."
    )
    max_turns: int = strict(20, ge=1, description="Turns of an episode; generated tasks are solvable within them.")
    cached_games: int = operational(128, ge=1, description="Games whose explored states a process keeps in memory.")
    prepare_workers: int = operational(1, ge=1, description="Processes that draw and check generated games.")
