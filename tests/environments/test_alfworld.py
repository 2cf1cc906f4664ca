"""ALFWorld: the engine's fidelity, the protocol, the expert. Panels and files are tested in ``test_alfworld_games``."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rised.environments.alfworld import AlfworldSettings, make, prepare
from rised.environments.alfworld.actions import action_text, map_faithful, map_normalised
from rised.environments.alfworld.engine import translate
from rised.environments.alfworld.environment import Alfworld
from rised.environments.alfworld.games import load_world
from rised.environments.alfworld.grammar import load_grammar
from rised.environments.alfworld.prompts import compact, system_prompt
from rised.environments.base import ENVIRONMENTS, EnvironmentFault, Task

Chooser = Iterator[Callable[[list[str]], str]]
COMPACT = AlfworldSettings(prompt_style="compact")
FULL = AlfworldSettings(prompt_style="full")
STOCK = """
import json, sys
import textworld
from textworld.envs import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
games = json.load(sys.stdin)
out = []
for game in games:
    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    env = AlfredDemangler(PddlEnv(infos), shuffle=False)
    env.load(game["data"])
    state = env.reset()
    rows = [[state.feedback, state["admissible_commands"], bool(state["won"])]]
    for command in game["commands"]:
        state, _, _ = env.step(command)
        rows.append([state.feedback, state["admissible_commands"], bool(state["won"])])
    out.append(rows)
print("RESULT" + json.dumps(out))
"""


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return prepare(COMPACT, "train", 60, seed=11)


@pytest.fixture()
def environment() -> Alfworld:
    return Alfworld(COMPACT)


def play(environment: Alfworld, task: Task, actions: list[str]) -> list[Any]:
    environment.reset(task, 0)
    results = []
    for action in actions:
        results.append(environment.step(action))
        if results[-1].done:
            break
    return results


def random_commands(seed: int, length: int) -> Chooser:
    """Chooses a command at random each time, inadmissible ones among them."""
    rng = random.Random(seed)
    return (lambda admissible: rng.choice([*admissible, *admissible, "take mug 9 from shelf 9"]) for _ in range(length))


def walk(task: Task, commands: Iterable[str] | Chooser) -> tuple[list[str], list[list[Any]]]:
    """The commands given and what our engine says to them, in the stock engine's terms."""
    world = load_world(task, COMPACT)
    state = world.graph.initial
    given, rows = [], [[world.graph.intro, list(state.commands), state.won]]
    for command in commands:
        given.append(command if isinstance(command, str) else command(list(state.commands)))
        feedback = "Nothing happens."
        if given[-1] in state.commands:
            feedback, state, _ = world.graph.follow(state, given[-1])
        rows.append([feedback, list(state.commands), state.won])
    return given, rows


def expert_commands(environment: Alfworld, task: Task) -> list[str]:
    environment.reset(task, 0)
    commands = []
    for reply in environment.expert(0, 0.0):
        commands.append(reply)
        if environment.step(reply).done:
            break
    return commands


def test_the_memoised_engine_says_exactly_what_the_stock_engine_says(tasks: list[Task], environment: Alfworld) -> None:
    grammar = load_grammar("agentbench")
    games, ours = [], []
    for number, task in enumerate(tasks[:5]):
        commands, rows = walk(task, expert_commands(environment, task) if number == 0 else random_commands(number, 12))
        data = {
            "pddl_domain": grammar.domain,
            "grammar": grammar.with_goal(str(task.payload["goal"])),
            "pddl_problem": task.payload["problem"],
        }
        games.append({"data": data, "commands": commands})
        ours.append(rows)
    done = subprocess.run(
        [sys.executable, "-c", STOCK], input=json.dumps(games), capture_output=True, text=True, check=True, timeout=300
    )
    stock = json.loads(done.stdout.split("RESULT", 1)[1])
    assert stock == ours
    assert ours[0][-1][2], "the first game is played to its end, so that `won` is compared too"


def test_interleaved_games_say_the_same_as_games_played_alone(tasks: list[Task]) -> None:
    pair = tasks[:2]
    alone = []
    for number, task in enumerate(pair):
        environment = Alfworld(COMPACT.model_copy(update={"cached_games": 1}))
        alone.append(play(environment, task, walk(task, random_commands(number, 15))[0]))
    first, second = Alfworld(COMPACT), Alfworld(COMPACT)
    first.reset(pair[0], 0)
    second.reset(pair[1], 0)
    actions = [walk(task, random_commands(number, 15))[0] for number, task in enumerate(pair)]
    together: list[list[Any]] = [[], []]
    for left, right in zip(*actions, strict=True):
        together[0].append(first.step(left))
        together[1].append(second.step(right))
    assert together == alone


def test_what_an_episode_logs_does_not_depend_on_what_the_process_explored_before(tasks: list[Task]) -> None:
    fresh, known = Alfworld(COMPACT.model_copy(update={"cached_games": 1})), Alfworld(COMPACT)
    actions = walk(tasks[3], random_commands(5, 18))[0]
    for seed in range(3):
        play(known, tasks[3], walk(tasks[3], random_commands(seed, 10))[0])
    seen = play(known, tasks[3], actions)
    fresh.reset(tasks[4], 0)
    assert play(fresh, tasks[3], actions) == seen
    json.dumps([result.info for result in seen])


def test_a_second_reset_computes_nothing_again(tasks: list[Task], environment: Alfworld) -> None:
    commands = expert_commands(environment, tasks[5])
    explored = environment.world.graph.state_count
    graph = environment.world.graph
    assert play(environment, tasks[5], commands)[-1].success
    assert environment.world.graph is graph
    assert graph.state_count == explored


def test_the_engine_leaves_the_command_line_alone(tasks: list[Task], environment: Alfworld) -> None:
    before = list(sys.argv)
    translate(str(tasks[0].payload["problem"]), load_grammar("agentbench"))
    environment.reset(tasks[0], 0)
    assert sys.argv == before


def test_the_expert_solves_every_generated_task_of_all_six_types_within_the_turns(tasks: list[Task]) -> None:
    environment = Alfworld(COMPACT)
    assert len({task.payload["task_type"] for task in tasks}) == 6
    for number, task in enumerate(tasks):
        environment.reset(task, 0)
        result = None
        for reply in environment.expert(number, 0.0):
            result = environment.step(reply)
            assert result.action_valid, (task.task_id, reply)
        assert result is not None
        assert (result.done, result.reward, result.success, result.stop) == (True, 1.0, True, "environment_done")
        assert environment.turn <= COMPACT.max_turns


def test_a_noisy_expert_errs_and_still_arrives(tasks: list[Task]) -> None:
    environment = Alfworld(COMPACT)
    invalid = 0
    for number, task in enumerate(tasks[:30]):
        environment.reset(task, 0)
        results = [environment.step(reply) for reply in environment.expert(number, 0.3)]
        invalid += sum(not result.action_valid for result in results)
        assert results[-1].success, task.task_id
    assert invalid >= 5


def test_the_same_expert_seed_gives_the_same_replies(tasks: list[Task], environment: Alfworld) -> None:
    runs = []
    for seed in (4, 4, 5, 6, 7):
        environment.reset(tasks[2], 0)
        runs.append([environment.step(reply).action_mapped for reply in environment.expert(seed, 0.4)])
    assert runs[0] == runs[1]
    assert len({tuple(run) for run in runs}) > 1


def test_the_expert_wins_in_the_other_grammar_and_style(tasks: list[Task]) -> None:
    environment = make(AlfworldSettings(prompt_style="full", grammar="alfworld"))
    environment.reset(tasks[0], 0)
    replies = []
    for reply in environment.expert(0, 0.0):
        replies.append(reply)
        result = environment.step(reply)
    assert result.success
    assert replies[-1].startswith("ACTION: move ")


def test_three_equal_replies_end_the_episode_only_after_more_than_three_turns(tasks: list[Task]) -> None:
    environment = Alfworld(COMPACT)
    results = play(environment, tasks[0], ["look"] * 5)
    assert [result.stop for result in results] == [None, None, None, "repeated_output"]
    assert (results[-1].reward, results[-1].success) == (0.0, False)
    results = play(environment, tasks[0], ["look", "inventory", "look", "look", "inventory", "look"])
    assert not any(result.done for result in results)


def test_equal_means_the_raw_reply_and_the_limit_is_a_setting(tasks: list[Task]) -> None:
    results = play(Alfworld(COMPACT), tasks[0], ["look", "Look", "look", "LOOK", "look."])
    assert not any(result.done for result in results)
    patient = Alfworld(COMPACT.model_copy(update={"repeat_limit": 0}))
    assert not any(result.done for result in play(patient, tasks[0], ["look"] * 12))


def test_repeated_output_is_looked_for_before_success(tasks: list[Task], environment: Alfworld) -> None:
    commands = expert_commands(environment, tasks[0])
    play(environment, tasks[0], commands[:-1])
    environment.outputs = ["look", commands[-1], commands[-1]]
    result = environment.step(commands[-1])
    assert environment.state.won
    assert (result.stop, result.success, result.reward) == ("repeated_output", False, 0.0)


def test_the_faithful_mapping_is_agentbenchs_on_all_rows_of_the_case(cases_dir: Path) -> None:
    case = json.loads((cases_dir / "07-alfworld-nearest-action-is-wrong-object/expected.json").read_text())
    assert len(case["cases"]) == 16
    for row in case["cases"]:
        mapped = map_faithful(row["reply"], case["admissible"])
        assert (mapped.text, mapped.exact) == (row["sent_to_game"], row["exact"]), row
        assert (mapped.text in case["admissible"]) == row["admissible"]


@pytest.mark.parametrize(
    ("reply", "text", "exact"),
    [
        ("Go to Shelf 2.", "go to shelf 2", True),
        ('"go to shelf 2"', "go to shelf 2", True),
        ("`go  to shelf 2`!", "go to shelf 2", True),
        ("go to shelf 2\nthen more", "go to shelf 2", True),
        ("go to shelf2", "go to shelf2", False),
        ("take mug 1", "take mug 1", False),
        ("", "", False),
        ("  \n ", "", False),
    ],
)
def test_the_normalised_mapping_forgives_typing_but_never_changes_the_object(
    reply: str, text: str, exact: bool
) -> None:
    assert map_normalised(reply, ["go to shelf 1", "go to shelf 2"]) == (text, exact)


def test_an_action_is_read_after_its_label() -> None:
    assert action_text("THOUGHT: x\nACTION: go to shelf 2", labelled=True).strip() == "go to shelf 2"
    assert action_text("go to shelf 2", labelled=True) == "go to shelf 2"
    assert action_text("ACTION: go to shelf 2", labelled=False) == "ACTION: go to shelf 2"


def test_raw_and_mapped_action_are_both_told(tasks: list[Task]) -> None:
    faithful = Alfworld(FULL.model_copy(update={"mapping": "faithful"}))
    faithful.reset(tasks[0], 0)
    target = next(iter(faithful.state.commands))
    result = faithful.step(f"THOUGHT: try\nACTION: {target}.")
    assert result.info["admissible"] is False
    assert result.action_valid and result.action_mapped in faithful.world.graph.initial.commands
    ours = Alfworld(FULL)
    ours.reset(tasks[0], 0)
    result = ours.step(f"ACTION: {target.upper()}.")
    assert (result.action_mapped, result.action_valid, result.info["admissible"]) == (target, True, True)
    result = ours.step("ACTION: fly to the moon 1")
    assert (result.action_valid, result.info["event"], result.info["unobserved"]) == (False, "nothing", ["moon 1"])
    assert result.observation.startswith("Nothing happens.")


@pytest.mark.parametrize("mapping", ["normalised", "faithful"])
@pytest.mark.parametrize("form", ["{}", '"{}"', "{}!", "{}\nthen more", "`{}`.", " {} "])
def test_an_action_that_was_executed_as_written_is_readable(tasks: list[Task], form: str, mapping: str) -> None:
    environment = Alfworld(COMPACT.model_copy(update={"mapping": mapping}))
    environment.reset(tasks[0], 0)
    for command in list(environment.state.commands):
        environment.reset(tasks[0], 0)
        result = environment.step(form.format(command))
        assert result.info["readable"] and (result.action_valid or mapping == "faithful"), command
    spaced = environment.step("go  to  desk 1")
    assert spaced.info["readable"] and not environment.step("go somewhere!").info["readable"]


def test_the_log_follows_the_engine(tasks: list[Task], environment: Alfworld) -> None:
    task = next(task for task in tasks if task.payload["task_type"] == "pick_heat_then_place_in_recep")
    results = play(environment, task, expert_commands(environment, task))
    info = [result.info for result in results]
    events = [entry["event"] for entry in info]
    assert events.index("take") < events.index("heat") < events.index("put")
    took, heated, put = (info[events.index(event)] for event in ("take", "heat", "put"))
    assert took["holding"] == took["object"] and took["ready"] == "change" and not took["changed"]
    assert heated["ready"] == "place" and heated["changed"] and heated["receptacle"].startswith("microwave")
    assert put["placed"] == 1 and put["holding"] is None and put["ready"] == "done"
    assert info[0]["task"]["object"] == str(task.payload["object"]).lower()
    assert all("task" not in entry for entry in info[1:])
    assert len({entry["state"] for entry in info}) == len(info)


def test_the_prompt_is_derived_from_the_grammar() -> None:
    agentbench = system_prompt("full", load_grammar("agentbench"))
    newer = system_prompt("full", load_grammar("alfworld"))
    assert "put {obj} in/on {recep}" in agentbench and "move {obj}" not in agentbench
    assert "move {obj} to {recep}" in newer and "put {obj}" not in newer
    assert system_prompt("compact", load_grammar("agentbench")) == "alfworld"


def test_the_agentbench_grammar_and_domain_are_derived_exactly() -> None:
    """SHA-256 of data/alfworld/logic/alfred.twl2 and .pddl of AgentBench at 578c5e9f, without the blanks at the end."""
    grammar = load_grammar("agentbench")
    assert [hashlib.sha256(text.rstrip().encode()).hexdigest() for text in (grammar.text, grammar.domain)] == [
        "9033ef2f998dae1884e325af584c9e56033e3c065357edef47ab499964911584",
        "4aa3c672da976ddc94699c4d8c14ac00a38397b7f756ff15152a1befbf090c84",
    ]


def test_full_observations_cut_the_arrival_and_list_the_actions(tasks: list[Task]) -> None:
    environment = Alfworld(FULL)
    first = environment.reset(tasks[0], 0)
    assert first.startswith("You are in the middle of a room.") and "Your task is to: " in first
    assert "\nAVAILABLE ACTIONS: " in first and "TextWorld" not in first
    place = environment.world.receptacles[0]
    told = environment.step(f"ACTION: go to {place}").observation
    assert "You arrive" not in told and f"the {place}".lower() in told.lower().split("available")[0]


@pytest.mark.parametrize(
    ("sentence", "short"),
    [
        ("You arrive at loc 7. On the sofa 2, you see a box 1, a pen 3, and a mug 1.", "sofa 2: box 1, pen 3, mug 1."),
        ("You arrive at desk 1. On the desk 1, you see nothing.", "desk 1: nothing."),
        ("You arrive at loc 3. The drawer 1 is closed.", "drawer 1 closed."),
        ("You open the drawer 1. The drawer 1 is open. In it, you see a pen 3.", "drawer 1 open: pen 3."),
        ("You pick up the pen 3 from the drawer 1.", "took pen 3."),
        ("You put the pen 3 in/on the desk 1.", "put pen 3."),
        ("You move the pen 3 to the desk 1.", "put pen 3."),
        ("You heat the egg 1 using the microwave 1.", "hot egg 1."),
        ("You turn on the desklamp 1.", "on desklamp 1."),
        ("You are carrying: a pen 3.", "carrying pen 3."),
        ("Nothing happens.", "nothing happens."),
    ],
)
def test_compact_observations_keep_names_and_drop_the_rest(sentence: str, short: str) -> None:
    assert compact(sentence) == short


def test_a_compact_episode_starts_with_goal_and_room(tasks: list[Task], environment: Alfworld) -> None:
    first = environment.reset(tasks[0], 0)
    assert first == f"{tasks[0].payload['goal']}. room: {', '.join(environment.world.receptacles)}."


def test_the_environment_is_registered() -> None:
    spec = ENVIRONMENTS["alfworld"]
    assert spec.settings_type is AlfworldSettings and spec.max_turns == 20


def test_misuse_and_damaged_tasks_are_named(tasks: list[Task]) -> None:
    environment = Alfworld(COMPACT)
    with pytest.raises(EnvironmentFault, match="before reset"):
        environment.step("look")
    payload = {key: value for key, value in tasks[0].payload.items() if key != "problem"}
    with pytest.raises(EnvironmentFault, match="lacks problem"):
        environment.reset(replace(tasks[0], payload=payload), 0)
    damaged = {**tasks[0].payload, "translation": "abc"}
    with pytest.raises(EnvironmentFault, match="damaged"):
        environment.reset(replace(tasks[0], payload=damaged, content_hash="other"), 0)
    broken = {**tasks[0].payload, "translation": "", "problem": "(define (problem"}
    with pytest.raises(EnvironmentFault, match="PDDL"):
        environment.reset(replace(tasks[0], payload=broken, content_hash="broken"), 0)
    commands = expert_commands(environment, tasks[0])
    play(environment, tasks[0], commands)
    with pytest.raises(EnvironmentFault, match="after the episode ended"):
        environment.step("look")
