"""ALFWorld's detectors on hand-written logs (each shown and not shown) and on episodes of the real engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rised.rubrics.detectors.alfworld  # noqa: F401
from rised.environments.alfworld import AlfworldSettings, prepare
from rised.environments.alfworld.environment import Alfworld
from rised.environments.base import Task
from rised.records.types import Rollout, StopReason, TagState, Turn
from rised.rubrics.base import DETECTORS, Verdict

YES, NO, ABSENT = TagState.DEMONSTRATES, TagState.VIOLATES, TagState.ABSENT
ROOM = {
    "type": "pick_heat_then_place_in_recep",
    "object": "egg",
    "receptacle": "desk",
    "toggle": "",
    "appliance": "microwave",
    "count": 1,
    "receptacles": ["desk 1", "drawer 1", "fridge 1", "microwave 1", "shelf 1", "sofa 1"],
    "openable": ["drawer 1", "fridge 1", "microwave 1"],
    "plausible": ["desk 1", "drawer 1", "fridge 1", "microwave 1"],
    "start": "s0",
    "direct": 4,
}
PLAIN = {**ROOM, "type": "pick_and_place_simple", "appliance": ""}
LAMP = {**ROOM, "type": "look_at_obj_in_light", "appliance": "", "receptacle": "", "toggle": "desklamp"}
_STATES = iter(range(1, 10**9))


def log(event: str, **fields: Any) -> dict[str, Any]:
    """A turn's log with harmless values for what a case does not say; every event changes the state."""
    info: dict[str, Any] = {
        "event": event,
        "object": None,
        "receptacle": None,
        "verb": {"goto": "go"}.get(event, event),
        "named": [],
        "readable": True,
        "admissible": event != "nothing",
        "unobserved": [],
        "location": None,
        "closed": False,
        "holding": None,
        "visible": [],
        "target_visible": False,
        "placed": 0,
        "changed": False,
        "ready": "search",
        "state": f"state {next(_STATES)}",
    }
    return {**info, **fields}


def goto(place: str, visible: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    seen = any(name.startswith("egg ") for name in visible)
    told = {"receptacle": place, "location": place, "named": [place], "visible": list(visible), "target_visible": seen}
    return log("goto", **{**told, **fields})


def take(name: str, place: str, **fields: Any) -> dict[str, Any]:
    ready = "change" if name.startswith("egg") else "search"
    told = {"object": name, "receptacle": place, "location": place, "named": [name, place], "holding": name}
    return log("take", **{**told, "ready": ready, **fields})


def put(name: str, place: str, **fields: Any) -> dict[str, Any]:
    told = {"object": name, "receptacle": place, "location": place, "named": [name, place], "visible": [name]}
    return log("put", **{**told, **fields})


def heat(name: str, place: str = "microwave 1") -> dict[str, Any]:
    told = {"object": name, "receptacle": place, "location": place, "named": [name, place], "holding": name}
    return log("heat", **told, changed=True, ready="place")


def fail(verb: str, *named: str, **fields: Any) -> dict[str, Any]:
    return log("nothing", **{"verb": verb, "named": list(named), "state": "same", **fields})


def opened(place: str, visible: tuple[str, ...] = ()) -> dict[str, Any]:
    seen = any(name.startswith("egg ") for name in visible)
    return log("open", receptacle=place, location=place, named=[place], visible=list(visible), target_visible=seen)


def use(name: str, **fields: Any) -> dict[str, Any]:
    return log("use", **{"object": name, "named": [name], **fields})


def rollout(
    *logs: dict[str, Any],
    task: dict[str, Any] = ROOM,
    success: bool = False,
    stop: StopReason = StopReason.ENVIRONMENT_DONE,
    texts: tuple[str, ...] = (),
    truncated: bool = False,
) -> Rollout:
    turns = []
    for index, info in enumerate(logs):
        text = texts[index] if texts else f"{info['verb']} {' '.join(info['named'])}"
        logged = {**info, "task": task} if index == 0 else info
        turns.append(Turn("seen", text, text, info["event"] != "nothing", 0, 1, truncated, logged))
    return Rollout(
        rollout_id="r",
        run="run",
        step=0,
        weight_version=0,
        split="train",
        environment="alfworld",
        task_id="t",
        group_id="g",
        rollout_index=0,
        seed=0,
        system_prompt="alfworld",
        steering_rubrics=(),
        steering_text="",
        steering_text_hash="",
        turns=tuple(turns),
        final_observation="",
        token_ids=(),
        policy_mask=(),
        logprobs=(),
        reward=float(success),
        reward_valid=True,
        success=success,
        stop_reason=stop,
    )


def judged(rubric: str, episode: Rollout) -> Verdict:
    return DETECTORS["alfworld"][rubric](episode)


TAKEN = (goto("fridge 1", ("egg 1",)), take("egg 1", "fridge 1"))
HOT = (*TAKEN, goto("microwave 1", holding="egg 1", ready="change"), heat("egg 1"))
AT_DESK = goto("desk 1", holding="egg 1", changed=True, ready="place")
AT_DESK_COLD = goto("desk 1", holding="egg 1", ready="change")
DONE = (*HOT, AT_DESK, put("egg 1", "desk 1", placed=1, ready="done"))
CASES = [
    ("systematic_object_search", rollout(goto("desk 1"), goto("shelf 1"), goto("sofa 1")), YES, 2),
    ("systematic_object_search", rollout(goto("desk 1"), goto("shelf 1"), goto("desk 1"), goto("shelf 1")), NO, 3),
    ("systematic_object_search", rollout(goto("desk 1"), goto("drawer 1", closed=True), goto("sofa 1")), ABSENT, None),
    ("systematic_object_search", rollout(*TAKEN), ABSENT, None),
    ("inspects_plausible_locations_first", rollout(goto("desk 1"), goto("drawer 1", closed=True)), YES, 1),
    ("inspects_plausible_locations_first", rollout(goto("fridge 1", ("egg 1",))), YES, 0),
    ("inspects_plausible_locations_first", rollout(goto("sofa 1"), goto("shelf 1")), NO, 1),
    ("inspects_plausible_locations_first", rollout(goto("sofa 1"), goto("desk 1")), ABSENT, None),
    (
        "inspects_plausible_locations_first",
        rollout(goto("desk 1"), goto("drawer 1"), task={**ROOM, "plausible": ROOM["receptacles"]}),
        ABSENT,
        None,
    ),
    ("searches_visited_location_again", rollout(goto("desk 1"), goto("sofa 1"), goto("desk 1")), NO, 2),
    (
        "searches_visited_location_again",
        rollout(goto("drawer 1", closed=True), goto("sofa 1"), goto("drawer 1", closed=True), opened("drawer 1")),
        ABSENT,
        None,
    ),
    ("searches_visited_location_again", rollout(*DONE, goto("fridge 1")), ABSENT, None),
    ("redundant_navigation", rollout(goto("drawer 1", closed=True), goto("desk 1")), NO, 0),
    ("redundant_navigation", rollout(goto("desk 1"), goto("sofa 1"), goto("desk 1"), goto("shelf 1")), NO, 2),
    ("redundant_navigation", rollout(goto("desk 1"), goto("sofa 1"), goto("shelf 1")), ABSENT, None),
    ("redundant_navigation", rollout(goto("drawer 1", closed=True), opened("drawer 1")), ABSENT, None),
    ("revises_plan_after_failure", rollout(fail("take", "egg 1", "drawer 1"), opened("drawer 1")), YES, 1),
    ("revises_plan_after_failure", rollout(fail("take", "egg 1"), fail("take", "egg 1")), NO, 1),
    ("revises_plan_after_failure", rollout(fail("take", "egg 1", "drawer 1"), goto("sofa 1")), ABSENT, None),
    ("repeats_failed_action", rollout(fail("open", "desk 1"), fail("look"), fail("open", "desk 1")), NO, 2),
    (
        "repeats_failed_action",
        rollout(fail("open", "desk 1"), goto("sofa 1"), fail("open", "desk 1", state="other")),
        ABSENT,
        None,
    ),
    ("recovers_from_invalid_action", rollout(fail("open", "desk 1"), goto("desk 1")), YES, 1),
    ("recovers_from_invalid_action", rollout(*(fail("open", "desk 1") for _ in range(3))), NO, 2),
    ("recovers_from_invalid_action", rollout(goto("desk 1"), goto("sofa 1")), ABSENT, None),
    (
        "cycles_between_states",
        rollout(*(goto(f"{place} 1", state=place) for place in ("desk", "sofa", "desk", "sofa", "desk"))),
        NO,
        4,
    ),
    ("cycles_between_states", rollout(*(fail("open", "desk 1", state="s0") for _ in range(5))), ABSENT, None),
    ("cycles_between_states", rollout(*DONE), ABSENT, None),
    ("uses_appliance_for_state_change", rollout(*HOT), YES, 3),
    ("uses_appliance_for_state_change", rollout(*TAKEN, AT_DESK_COLD, put("egg 1", "desk 1")), NO, 3),
    ("uses_appliance_for_state_change", rollout(heat("mug 1")), ABSENT, None),
    ("uses_appliance_for_state_change", rollout(*HOT, task=PLAIN), ABSENT, None),
    ("opens_closed_receptacle", rollout(goto("drawer 1", closed=True), opened("drawer 1")), YES, 1),
    ("opens_closed_receptacle", rollout(goto("drawer 1", closed=True), fail("take", "egg 1", "drawer 1")), NO, 1),
    ("opens_closed_receptacle", rollout(goto("drawer 1", closed=True), goto("desk 1")), ABSENT, None),
    ("picks_up_target_object", rollout(*TAKEN), YES, 1),
    ("picks_up_target_object", rollout(goto("desk 1", ("egg 1", "mug 1")), take("mug 1", "desk 1")), NO, 1),
    ("picks_up_target_object", rollout(goto("desk 1", ("mug 1",)), take("mug 1", "desk 1")), ABSENT, None),
    ("places_object_in_target_receptacle", rollout(*DONE), YES, 5),
    ("places_object_in_target_receptacle", rollout(*TAKEN, put("egg 1", "sofa 1")), NO, 2),
    ("places_object_in_target_receptacle", rollout(put("mug 1", "desk 1")), ABSENT, None),
    ("picks_up_irrelevant_object", rollout(take("mug 1", "desk 1")), NO, 0),
    ("picks_up_irrelevant_object", rollout(*TAKEN), ABSENT, None),
    ("manipulates_absent_object", rollout(goto("desk 1", ("mug 1",)), fail("take", "egg 1", "desk 1")), NO, 1),
    ("manipulates_absent_object", rollout(goto("desk 1", ("mug 1",)), fail("take", "mug 1", "sofa 1")), ABSENT, None),
    ("manipulates_absent_object", rollout(*TAKEN, fail("put", "egg 1", "sofa 1")), ABSENT, None),
    ("ignores_task_constraint", rollout(*TAKEN, AT_DESK_COLD, put("egg 1", "desk 1")), NO, 3),
    ("ignores_task_constraint", rollout(*TAKEN, AT_DESK_COLD, fail("put", "egg 1", "desk 1")), NO, 3),
    ("ignores_task_constraint", rollout(*DONE), ABSENT, None),
    ("ignores_task_constraint", rollout(*TAKEN, AT_DESK_COLD, put("egg 1", "desk 1"), task=PLAIN), ABSENT, None),
    ("commits_too_early", rollout(goto("desk 1"), fail("put", "egg 1", "desk 1")), NO, 1),
    ("commits_too_early", rollout(goto("desk 1", ("desklamp 1",)), use("desklamp 1"), task=LAMP), NO, 1),
    ("commits_too_early", rollout(*TAKEN, use("desklamp 1", holding="egg 1"), task=LAMP), ABSENT, None),
    ("commits_too_early", rollout(*DONE), ABSENT, None),
    ("refers_to_unobserved_entity", rollout(fail("take", "ghost 1", unobserved=["ghost 1"])), NO, 0),
    ("refers_to_unobserved_entity", rollout(*DONE), ABSENT, None),
    (
        "hallucinates_observation",
        rollout(goto("desk 1"), texts=("go to desk 1\nOn the desk 1, you see a mug 1",)),
        NO,
        0,
    ),
    (
        "hallucinates_observation",
        rollout(goto("desk 1"), texts=("THOUGHT: find it\nACTION: go to desk 1",)),
        ABSENT,
        None,
    ),
    (
        "remembers_seen_object_location",
        rollout(goto("fridge 1", ("egg 1",)), goto("desk 1"), goto("fridge 1", ("egg 1",)), take("egg 1", "fridge 1")),
        YES,
        2,
    ),
    ("remembers_seen_object_location", rollout(goto("fridge 1", ("egg 1",)), goto("desk 1"), goto("sofa 1")), NO, 1),
    ("remembers_seen_object_location", rollout(*DONE), ABSENT, None),
    ("completes_subgoals_in_order", rollout(*DONE), YES, 5),
    ("completes_subgoals_in_order", rollout(*TAKEN, AT_DESK_COLD, put("egg 1", "desk 1")), NO, 3),
    ("completes_subgoals_in_order", rollout(*TAKEN, use("desklamp 1", holding="egg 1"), task=LAMP), YES, 2),
    ("completes_subgoals_in_order", rollout(use("desklamp 1"), task=LAMP), NO, 0),
    ("completes_subgoals_in_order", rollout(*HOT), ABSENT, None),
    ("finishes_without_detour", rollout(*DONE, success=True), YES, 5),
    ("finishes_without_detour", rollout(*(goto("desk 1") for _ in range(12)), success=True), NO, 11),
    ("finishes_without_detour", rollout(*(goto("desk 1") for _ in range(9)), success=True), ABSENT, None),
    ("finishes_without_detour", rollout(*DONE, success=False), ABSENT, None),
    ("exhausts_turn_budget", rollout(*TAKEN, stop=StopReason.TURN_LIMIT), NO, 1),
    ("exhausts_turn_budget", rollout(*TAKEN, stop=StopReason.EPISODE_TOKEN_LIMIT), NO, 1),
    ("exhausts_turn_budget", rollout(*TAKEN, stop=StopReason.REPEATED_OUTPUT), ABSENT, None),
    ("uses_valid_action_format", rollout(*DONE), YES, 5),
    ("uses_valid_action_format", rollout(goto("desk 1"), truncated=True), ABSENT, None),
    ("uses_valid_action_format", rollout(*DONE, fail("egg", readable=False)), ABSENT, None),
    ("malformed_action", rollout(goto("desk 1"), fail("egg", readable=False)), NO, 1),
    ("malformed_action", rollout(goto("desk 1"), truncated=True), NO, 0),
    ("malformed_action", rollout(*DONE, fail("take", "ghost 1")), ABSENT, None),
]


@pytest.mark.parametrize(("rubric", "episode", "state", "turn"), CASES)
def test_a_detector_sees_what_the_episode_shows(
    rubric: str, episode: Rollout, state: TagState, turn: int | None
) -> None:
    assert judged(rubric, episode) == Verdict(state, turn)


def test_every_detector_has_a_case_that_shows_it_and_one_that_does_not() -> None:
    shown = {rubric for rubric, _, state, _ in CASES if state is not ABSENT}
    absent = {rubric for rubric, _, state, _ in CASES if state is ABSENT}
    assert shown == absent == set(DETECTORS["alfworld"])
    assert len(shown) >= 12


def test_a_rollout_without_turns_or_logs_shows_nothing_but_its_ending() -> None:
    bare = Turn("seen", "look", "look", True, 0, 1, False, {})
    for turns in ((), (bare,)):
        for rubric, detector in DETECTORS["alfworld"].items():
            episode = rollout()
            verdict = detector(Rollout(**{**_fields(episode), "turns": turns}))
            assert verdict.state is ABSENT or rubric in ("uses_valid_action_format", "malformed_action"), rubric


def _fields(episode: Rollout) -> dict[str, Any]:
    return {name: getattr(episode, name) for name in episode.__slots__}


def polarities(repository: Path) -> dict[str, str]:
    from ruamel.yaml import YAML

    vocabulary = YAML(typ="safe").load((repository / "data" / "vocabulary.yaml").read_text())
    return {entry["id"]: entry["polarity"] for entry in vocabulary["rubrics"] if "alfworld" in entry["environments"]}


def test_detectors_and_vocabulary_name_the_same_rubrics(repository: Path) -> None:
    assert set(DETECTORS["alfworld"]) == set(polarities(repository))


@pytest.fixture(scope="module")
def episodes() -> dict[str, list[Rollout]]:
    """Real episodes of the expert, of the noisy expert and of a random agent on twelve tasks."""
    settings = AlfworldSettings(prompt_style="compact")
    environment = Alfworld(settings)

    def random_agent(seed: int) -> Iterator[str]:
        rng = random.Random(seed)
        while True:
            yield rng.choice([*environment.state.commands, "take ghost 1 from desk 7", "grab the egg"])

    def play(task: Task, agent: Any) -> Rollout:
        environment.reset(task, 0)
        logs, texts, result = [], [], None
        for action in agent:
            result = environment.step(action)
            logs.append(result.info)
            texts.append(action)
            if result.done or len(logs) == settings.max_turns:
                break
        assert result is not None
        stop = StopReason(result.stop) if result.stop else StopReason.TURN_LIMIT
        task_log = logs[0]["task"]
        return rollout(*logs, task=task_log, success=bool(result.success), stop=stop, texts=tuple(texts))

    tasks = prepare(settings, "train", 12, seed=21)
    return {
        "expert": [play(task, environment.expert(3, 0.0)) for task in tasks],
        "noisy": [play(task, environment.expert(3, 0.4)) for task in tasks],
        "random": [play(task, random_agent(number)) for number, task in enumerate(tasks)],
    }


def test_a_negative_rubric_is_never_demonstrated(episodes: dict[str, list[Rollout]], repository: Path) -> None:
    for rubric, polarity in polarities(repository).items():
        states = {judged(rubric, episode).state for group in episodes.values() for episode in group}
        assert polarity == "positive" or YES not in states, rubric


def test_the_expert_commits_no_fault_and_random_play_many(episodes: dict[str, list[Rollout]], repository: Path) -> None:
    faults = {name: 0 for name in episodes}
    for rubric, polarity in polarities(repository).items():
        for name, group in episodes.items():
            found = [episode for episode in group if judged(rubric, episode).state is NO]
            faults[name] += len(found) * (polarity == "negative")
            assert name != "expert" or not found, rubric
    assert 0 == faults["expert"] < faults["noisy"] < faults["random"]


def test_verdicts_on_real_episodes_cite_a_turn_that_exists(episodes: dict[str, list[Rollout]]) -> None:
    for group in episodes.values():
        for episode in group:
            for detector in DETECTORS["alfworld"].values():
                verdict = detector(episode)
                assert (verdict.evidence_turn is None) == (verdict.state is ABSENT)
                assert verdict.evidence_turn is None or 0 <= verdict.evidence_turn < len(episode.turns)
