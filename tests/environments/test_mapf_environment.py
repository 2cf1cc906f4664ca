"""Episodes of MAPF-FrozenLake: what a reply does, how an episode ends, and what its log and measures say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rised.environments.base import EnvironmentFault, StepResult, Task
from rised.environments.discovery import get
from rised.environments.mapf_frozenlake.environment import FAILURES, MapfFrozenLakeEnvironment
from rised.environments.mapf_frozenlake.measures import measures
from rised.environments.mapf_frozenlake.settings import MapfFrozenLakeSettings, MapKnobs
from rised.environments.mapf_frozenlake.styles import read_reply, write_reply

# a goes from the top left to the top right, b from the top right to the bottom left; the hole is in the middle.
# Optimum: a down the left edge would meet b, so a goes along the top when b has left: a 2, b 4.
ROWS = ["...", ".H.", "..."]
STARTS, GOALS = [[0, 0], [0, 2]], [[0, 2], [2, 0]]
PLAN = ["rd", "rd", "wl", "wl"]
TASK = Task(
    "mapf_frozenlake",
    "train",
    "t-0",
    0,
    {"map": ROWS, "starts": STARTS, "goals": GOALS, "wait": False, "optimal_cost": 6, "plan": PLAN},
    "hash",
)


def started(**values: Any) -> MapfFrozenLakeEnvironment:
    environment = MapfFrozenLakeEnvironment(MapfFrozenLakeSettings(**values))
    environment.reset(TASK, 0)
    return environment


def played(*replies: str, **values: Any) -> list[StepResult]:
    environment = started(**values)
    return [environment.step(reply) for reply in replies]


def ending(result: StepResult) -> tuple[bool, float | None, bool | None, str | None, str | None]:
    return result.done, result.reward, result.success, result.stop, result.info["failure"]


def test_the_optimal_plan_succeeds_with_reward_1_whether_given_at_once_or_step_by_step() -> None:
    (at_once,) = played("rd rd wl wl")
    assert ending(at_once) == (True, 1.0, True, "environment_done", None)
    assert (at_once.info["cost"], at_once.action_mapped) == (6, "rd rd wl wl")
    single = played("rd", "rd wl", "wl")
    assert [result.done for result in single] == [False, False, True]
    assert ending(single[-1]) == ending(at_once) and single[-1].info["cost"] == 6


def test_a_valid_plan_that_costs_more_succeeds_with_the_smaller_reward() -> None:
    (late,) = played("ww rd rd wl wl", suboptimal_reward=0.25)
    assert ending(late) == (True, 0.25, True, "environment_done", None)
    assert (late.info["cost"], late.info["optimal_cost"]) == (8, 6)


def test_an_agent_that_leaves_its_goal_arrives_when_it_is_back_for_good() -> None:
    (result,) = played("rd rd ll rl")
    assert result.success and result.info["cost"] == 4 + 4


@pytest.mark.parametrize(
    ("reply", "failure", "agents", "text"),
    [
        ("ud", "illegal_move", [0], "step 1: off the map: a"),
        ("rd dd", "hole", [0], "step 2: into a hole: a"),
        ("rl", "conflict", [0, 1], "step 1: collision: a and b"),
        ("rw rl", "conflict", [0, 1], "step 2: collision: a and b"),
        ("uu", "illegal_move", [0, 1], "step 1: off the map: a and b"),
        ("ww rd ul", "illegal_move", [0], "step 3: off the map: a"),
    ],
)
def test_a_breach_ends_the_episode_as_a_failure_of_its_kind(
    reply: str, failure: str, agents: list[int], text: str
) -> None:
    (result,) = played(f"{reply} ww ww")
    assert ending(result) == (True, 0.0, False, "environment_done", failure)
    assert (result.info["agents_to_blame"], result.observation, result.action_valid) == (agents, text, False)
    assert result.action_mapped == " ".join(reply.split()[:-1]) and result.info["unused_moves"] == 3


def test_leaving_the_map_comes_before_a_hole_and_a_hole_before_a_conflict() -> None:
    swap = Task("mapf_frozenlake", "train", "t-1", 0, {**TASK.payload, "starts": [[0, 1], [0, 2]]}, "hash")
    environment = started()
    for reply, failure in (("du", "illegal_move"), ("dl", "hole"), ("rl", "conflict")):
        environment.reset(swap, 0)
        assert environment.step(reply).info["failure"] == failure


def test_following_closely_is_allowed() -> None:
    close = Task("mapf_frozenlake", "train", "t-1", 0, {**TASK.payload, "starts": [[0, 0], [0, 1]]}, "hash")
    environment = started()
    environment.reset(close, 0)
    assert environment.step("rr").info["positions"] == [[0, 1], [0, 2]]


def test_moves_behind_the_arrival_are_not_carried_out() -> None:
    (result,) = played("rd rd wl wl uu")
    assert result.success and (result.info["moves"], result.info["unused_moves"]) == (4, 1)


@pytest.mark.parametrize("reply", ["", "go", "r", "rdd", "rx", "r d", "<think>rd rd wl wl</think>", "Moves: rd", "é"])
def test_an_unreadable_reply_changes_nothing_and_too_many_end_the_episode(reply: str) -> None:
    first, second, third = played(reply, reply, reply)
    for result in (first, second):
        assert (result.done, result.action_valid, result.info["failure"]) == (False, False, "parse_error")
        assert result.info["positions"] == STARTS
    assert ending(third) == (True, 0.0, False, "invalid_format", "parse_error")


def test_after_an_unreadable_reply_the_episode_can_still_succeed() -> None:
    results = played("go", "rd rd wl wl")
    assert results[-1].success and results[-1].reward == 1.0


def test_a_plan_has_one_reply() -> None:
    (short,) = played("rd rd", play="plan")
    assert ending(short) == (True, 0.0, False, "environment_done", "not_finished")
    (unreadable,) = played("go", play="plan")
    assert ending(unreadable) == (True, 0.0, False, "invalid_format", "parse_error")
    (whole,) = played("rd rd wl wl", play="plan")
    assert whole.success


def test_the_limit_of_steps_ends_the_episode() -> None:
    results = played("ww ww", "ww ww ww ww", max_steps=5)
    assert ending(results[1]) == (True, 0.0, False, "environment_done", "not_finished")
    assert (results[1].info["time"], results[1].info["unused_moves"]) == (5, 1)


def test_the_first_observation_holds_the_map_and_every_agent_and_the_next_where_they_are() -> None:
    environment = started()
    assert environment.reset(TASK, 0) == "...\n.H.\n...\na 0 0 to 0 2\nb 0 2 to 2 0"
    assert environment.step("rd rd").observation == "a 0 2 home\nb 2 2"
    full = started(prompt_style="full")
    text = full.reset(TASK, 0)
    assert "1  . H ." in text and "B starts at (0, 2), goal (2, 0)" in text
    assert full.step("Moves:\nA=R B=D").observation == (
        "After 1 time steps:\nA is at (0, 1), goal (0, 2)\nB is at (1, 2), goal (2, 0)"
    )


def test_prompts_say_how_to_reply_in_each_style_and_way_to_play() -> None:
    prompts = {
        (style, play): started(prompt_style=style, play=play).system_prompt()
        for style in ("compact", "full")
        for play in ("plan", "turns")
    }
    assert len(set(prompts.values())) == 4 and not any("{" in text for text in prompts.values())
    assert "within 64 time steps" in prompts["full", "plan"]
    example = prompts["full", "turns"]
    assert read_reply("full", example, 3) == ["rdw", "rdl"], "the prompt's own example can be read"


@pytest.mark.parametrize(
    "reply",
    [
        "I think.\nMoves:\nA=R B=D\nA=R B=D\nA=W B=L\nA=W B=L",
        "**Moves:**\n1. a=r, b=d\n2. a=r, b=d\n3) A = W, B = L\n\n4: A=W; B=L\n",
        "<think>Moves:\nA=U B=U</think>Moves: \n```\nA=R B=D\nA=R B=D\nA=W B=L\nA=W B=L\n```",
        "Moves:\nA=U B=U\nNo:\nMoves:\nA=R B=D\nA=R B=D\nA=W B=L\nA=W B=L",
    ],
)
def test_named_moves_are_read_behind_the_last_head(reply: str) -> None:
    assert read_reply("full", reply, 2) == PLAN


@pytest.mark.parametrize(
    "reply",
    [
        "A=R B=D",
        "Moves:",
        "Moves:\nA=R",
        "Moves:\nB=D A=R",
        "Moves:\nA=R B=D and then",
        "Moves:\nA=R B=X",
        "Moves:\nrd",
    ],
)
def test_a_reply_without_named_moves_of_every_agent_is_unreadable(reply: str) -> None:
    assert read_reply("full", reply, 2) is None


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60) | st.text("rdluw =ABab\nMoves:", max_size=60), st.sampled_from(("compact", "full")))
def test_no_reply_whatever_breaks_the_environment(reply: str, style: str) -> None:
    result = played(reply, prompt_style=style)[0]
    assert result.info["failure"] in (*FAILURES, None) and json.loads(json.dumps(result.info)) == result.info


@given(st.lists(st.text("udlrw", min_size=3, max_size=3), min_size=1), st.sampled_from(("compact", "full")))
def test_what_is_written_is_read_as_it_was(steps: list[str], style: str) -> None:
    assert read_reply(style, write_reply(style, steps), 3) == steps


SETTINGS = MapfFrozenLakeSettings(
    train_agents=(2, 3), train_maps={str(size): MapKnobs(wait=0.5, holes=0.2) for size in (3, 4, 6)}
)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return get("mapf_frozenlake").prepare(SETTINGS, "train", 18, 3)


@pytest.mark.parametrize("style", ["compact", "full"])
@pytest.mark.parametrize("play", ["plan", "turns"])
def test_the_expert_replays_to_reward_1_and_recovers_from_its_noise(tasks: list[Task], style: Any, play: Any) -> None:
    chosen = SETTINGS.model_copy(update={"prompt_style": style, "play": play})
    environment = get("mapf_frozenlake").make(chosen)
    rewards: dict[float, list[float | None]] = {0.0: [], 0.6: []}
    unreadable = 0
    for noise, found in rewards.items():
        for seed, task in enumerate(tasks):
            environment.reset(task, seed)
            results = [environment.step(reply) for reply in environment.expert(seed, noise)]
            assert results[-1].success and len(results) <= chosen.max_turns
            found.append(results[-1].reward)
            unreadable += sum(result.info["reply"] == "unreadable" for result in results)
    assert set(rewards[0.0]) == {1.0} and set(rewards[0.6]) == {0.5, 1.0}
    assert (unreadable > 0) == (play == "turns")


def test_a_task_without_its_optimum_is_a_fault_and_so_is_a_step_after_the_end() -> None:
    environment = MapfFrozenLakeEnvironment(MapfFrozenLakeSettings())
    with pytest.raises(EnvironmentFault, match="call reset first"):
        environment.step("rd")
    broken = {key: value for key, value in TASK.payload.items() if key != "optimal_cost"}
    with pytest.raises(EnvironmentFault, match="t-0.*optimal_cost.*prepare the tasks again"):
        environment.reset(Task("mapf_frozenlake", "train", "t-0", 0, broken, "hash"), 0)
    environment.reset(TASK, 0)
    environment.step("uu")
    with pytest.raises(EnvironmentFault, match="the episode is over"):
        environment.step("rd")


def measured(*replies: str, **values: Any) -> dict[str, float]:
    return measures([result.info for result in played(*replies, **values)])


def test_measures_say_valid_and_optimal_and_of_which_kind_a_failure_is() -> None:
    best, late, fallen = measured("rd rd wl wl"), measured("ww rd rd wl wl"), measured("rd dd")
    assert [(m["valid"], m["optimal"]) for m in (best, late, fallen)] == [(1, 1), (1, 0), (0, 0)]
    assert (best["cost_ratio"], late["cost_ratio"]) == (1.0, 8 / 6) and "cost_ratio" not in fallen
    for found in (best, late, fallen):
        assert sum(found[f"failure_{kind}"] for kind in FAILURES) == 1 - found["valid"]
        assert found["valid/size_3"] == found["valid/agents_2"] == found["valid"] and "valid/wait" not in found
    assert fallen["failure_hole"] == fallen["failure_hole/size_3"] == 1


def test_an_episode_that_is_cut_counts_as_what_it_was_at_its_last_turn() -> None:
    assert measured("rd")["failure_not_finished"] == 1
    assert measured("rd", "go")["failure_parse_error"] == 1
    assert measured("go", "rd")["failure_not_finished"] == 1
    cut = [played("rd")[0].info, {"executed": False}]
    assert measures(cut)["failure_not_finished/size_3"] == 1
    assert measures([{"executed": False}])["failure_not_finished"] == 1


def test_wait_instances_have_rates_of_their_own() -> None:
    environment = started()
    environment.reset(Task("mapf_frozenlake", "train", "t-1", 0, {**TASK.payload, "wait": True}, "hash"), 0)
    found = measures([environment.step("ww rd rd wl wl").info])
    assert (found["valid/wait"], found["optimal/wait"]) == (1, 0)
