"""Detectors of ALFWorld: one rubric each, decided from the environment's log (the engine's own state).

A negative rubric that is exhibited is ``violates``; a positive one ``demonstrates`` when shown, and ``violates`` only
where its opposite is plain and no negative rubric names it. All thresholds are [ours]. How the log is read is in
``_alfworld``.
"""

from __future__ import annotations

import re

from rised.records.types import Rollout, StopReason
from rised.rubrics.base import ABSENT, Verdict, detector
from rised.rubrics.detectors import _alfworld as read
from rised.rubrics.detectors._alfworld import Step, demonstrates, kind, violates

ENVIRONMENT = "alfworld"
SYSTEMATIC_LOOKS = 3
"""Places searched, none twice, that make a search systematic."""
DETOUR_TURNS = 3
"""Turns beyond the direct plan that searching explains; twice the direct plan and more is a detour."""
_INVENTED = re.compile(
    r"you see |nothing happens|available actions|^you (arrive|pick|put|open|heat|cool|clean)\b", re.MULTILINE
)


@detector(ENVIRONMENT, "systematic_object_search")
def systematic_object_search(rollout: Rollout) -> Verdict:
    """Searches three places and more, none twice; the opposite: two looks at places searched before."""
    fresh: list[Step] = []
    again: list[Step] = []
    for step in read.search_of(read.steps_of(rollout)):
        if step.looked_into is not None:
            known = step.looked_into in {earlier.looked_into for earlier in fresh}
            (again if known else fresh).append(step)
    if len(again) >= 2:
        return violates(again[1].turn)
    return demonstrates(fresh[SYSTEMATIC_LOOKS - 1].turn) if len(fresh) >= SYSTEMATIC_LOOKS and not again else ABSENT


@detector(ENVIRONMENT, "inspects_plausible_locations_first")
def inspects_plausible_locations_first(rollout: Rollout) -> Verdict:
    """The first two places visited (or the one where the object is) can hold it; the opposite: neither can."""
    task = read.task_of(rollout)
    plausible = set(task.get("plausible", ()))
    if not plausible or plausible >= set(task.get("receptacles", ())):
        return ABSENT
    visits: list[str] = []
    for step in read.search_of(read.steps_of(rollout)):
        if step.get("event") == "goto" and step.get("receptacle") not in visits:
            visits.append(step.get("receptacle"))
        found = bool(step.get("target_visible"))
        if visits and (len(visits) == 2 or found):
            if set(visits) <= plausible:
                return demonstrates(step.turn)
            return ABSENT if plausible.intersection(visits) else violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "searches_visited_location_again")
def searches_visited_location_again(rollout: Rollout) -> Verdict:
    """Empty-handed and with the object not seen yet, looks where it has looked before."""
    looked: dict[str, list[str]] = {}
    for step in read.search_of(read.steps_of(rollout)):
        place = step.looked_into
        if place is not None:
            contents = list(step.get("visible", ()))
            if looked.get(place) == contents and step.get("holding") is None:
                return violates(step.turn)
            looked[place] = contents
    return ABSENT


@detector(ENVIRONMENT, "redundant_navigation")
def redundant_navigation(rollout: Rollout) -> Verdict:
    """Goes on from a place that showed nothing new (shut, or seen before) without having done anything there."""
    steps = read.steps_of(rollout)
    looked: set[str] = set()
    for step, following in zip(steps, steps[1:], strict=False):
        place = step.get("receptacle")
        showed_nothing = step.get("closed", False) or place in looked
        if step.get("event") == "goto" and showed_nothing and following.get("event") == "goto":
            return violates(step.turn)
        if step.looked_into is not None:
            looked.add(step.looked_into)
    return ABSENT


@detector(ENVIRONMENT, "revises_plan_after_failure")
def revises_plan_after_failure(rollout: Rollout) -> Verdict:
    """After a failure another action works on the same thing, or goes to it; the opposite: the same action again."""
    steps = read.steps_of(rollout)
    repeated: int | None = None
    for step, following in zip(steps, steps[1:], strict=False):
        if not step.failed:
            continue
        if following.failed:
            if following.said == step.said and repeated is None:
                repeated = following.turn
            continue
        if {kind(name) for name in step.named} & {kind(name) for name in following.named}:
            return demonstrates(following.turn)
    return ABSENT if repeated is None else violates(repeated)


@detector(ENVIRONMENT, "repeats_failed_action")
def repeats_failed_action(rollout: Rollout) -> Verdict:
    """The same text fails again in the same state."""
    failed: set[tuple[str, str]] = set()
    for step in read.steps_of(rollout):
        if step.failed:
            if (step.said, step.state) in failed:
                return violates(step.turn)
            failed.add((step.said, step.state))
    return ABSENT


@detector(ENVIRONMENT, "recovers_from_invalid_action")
def recovers_from_invalid_action(rollout: Rollout) -> Verdict:
    """An accepted action right after one that was not; the opposite: three failures in a row and no recovery."""
    steps = read.steps_of(rollout)
    for step in steps[1:]:
        if step.before.get("event") == "nothing" and not step.failed:
            return demonstrates(step.turn)
    if len(steps) >= 3 and all(step.failed for step in steps[-3:]):
        return violates(steps[-1].turn)
    return ABSENT


@detector(ENVIRONMENT, "cycles_between_states")
def cycles_between_states(rollout: Rollout) -> Verdict:
    """Comes back to one and the same state for the second time (waiting in it does not count)."""
    steps = read.steps_of(rollout)
    current = str(read.task_of(rollout).get("start", ""))
    visits = {current: 1}
    for step in steps:
        if step.state and step.state != current:
            current = step.state
            visits[current] = visits.get(current, 0) + 1
            if visits[current] == 3:
                return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "uses_appliance_for_state_change")
def uses_appliance_for_state_change(rollout: Rollout) -> Verdict:
    """Heats, cools or cleans the goal's object as asked; the opposite: places it without."""
    task = read.task_of(rollout)
    if not task.get("appliance"):
        return ABSENT
    steps = read.steps_of(rollout)
    for step in steps:
        appliance = kind(step.get("receptacle")) == task["appliance"]
        if step.get("event") in read.CHANGES and appliance and read.is_goal_object(step.get("object"), task):
            return demonstrates(step.turn)
    placed = read.placements(steps, task)
    return violates(placed[0].turn) if placed else ABSENT


@detector(ENVIRONMENT, "opens_closed_receptacle")
def opens_closed_receptacle(rollout: Rollout) -> Verdict:
    """Opens one; the opposite: takes from or puts into one that is shut, in vain."""
    steps = read.steps_of(rollout)
    for step in steps:
        if step.get("event") == "open":
            return demonstrates(step.turn)
    for step in steps:
        shut = step.before.get("closed", False) and step.before.get("location") in step.named
        if step.failed and shut and step.get("verb") in ("take", "put", "move"):
            return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "picks_up_target_object")
def picks_up_target_object(rollout: Rollout) -> Verdict:
    """Takes an object of the goal's type; the opposite: sees one with free hands and takes another kind."""
    task = read.task_of(rollout)
    passed: int | None = None
    for step in read.steps_of(rollout):
        if step.get("event") != "take":
            continue
        if read.is_goal_object(step.get("object"), task):
            return demonstrates(step.turn)
        if step.before.get("target_visible") and passed is None:
            passed = step.turn
    return ABSENT if passed is None else violates(passed)


@detector(ENVIRONMENT, "places_object_in_target_receptacle")
def places_object_in_target_receptacle(rollout: Rollout) -> Verdict:
    """Puts a goal object where the task says; the opposite: only ever puts it elsewhere."""
    task = read.task_of(rollout)
    if not task.get("receptacle"):
        return ABSENT
    steps = read.steps_of(rollout)
    placed = read.placements(steps, task)
    if placed:
        return demonstrates(placed[0].turn)
    for step in steps:
        if step.get("event") == "put" and read.is_goal_object(step.get("object"), task):
            return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "picks_up_irrelevant_object")
def picks_up_irrelevant_object(rollout: Rollout) -> Verdict:
    """Takes an object of another type than the goal's."""
    task = read.task_of(rollout)
    for step in read.steps_of(rollout):
        if task and step.get("event") == "take" and not read.is_goal_object(step.get("object"), task):
            return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "manipulates_absent_object")
def manipulates_absent_object(rollout: Rollout) -> Verdict:
    """Handles, in vain, an object that neither lies here nor is in hand."""
    for step in read.steps_of(rollout):
        if step.failed and step.get("verb") in read.HANDLING and step.named:
            if step.named[0] not in {*step.before.get("visible", ()), step.held_before}:
                return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "ignores_task_constraint")
def ignores_task_constraint(rollout: Rollout) -> Verdict:
    """Places the object, or tries to, without the state change that the task asks for."""
    task = read.task_of(rollout)
    for step in read.steps_of(rollout):
        if read.is_unready_placement(step, task):
            return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "commits_too_early")
def commits_too_early(rollout: Rollout) -> Verdict:
    """Places, changes or lights before the goal's object is in hand."""
    task = read.task_of(rollout)
    for step in read.steps_of(rollout):
        if read.is_light_without_object(step, task):
            return violates(step.turn)
        about_goal = bool(step.named) and read.is_goal_object(step.named[0], task)
        final = step.get("verb") in {"put", "move", *read.CHANGES}
        if step.failed and final and about_goal and not read.is_goal_object(step.held_before, task):
            return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "refers_to_unobserved_entity")
def refers_to_unobserved_entity(rollout: Rollout) -> Verdict:
    """Names something that no observation has shown."""
    for step in read.steps_of(rollout):
        if step.get("unobserved"):
            return violates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "hallucinates_observation")
def hallucinates_observation(rollout: Rollout) -> Verdict:
    """The reply itself contains an observation's words."""
    for index, turn in enumerate(rollout.turns):
        if _INVENTED.search(turn.action_raw.lower()):
            return violates(index)
    return ABSENT


@detector(ENVIRONMENT, "remembers_seen_object_location")
def remembers_seen_object_location(rollout: Rollout) -> Verdict:
    """Goes back to where it saw what it needs now, and uses it; the opposite: saw, left and never took the object."""
    task = read.task_of(rollout)
    seen: dict[str, str] = {}
    left: int | None = None
    taken = False
    steps = read.steps_of(rollout)
    for step in steps:
        wanted = {"search": task.get("object"), "light": task.get("toggle")}.get(step.before.get("ready", "search"))
        place = step.get("receptacle")
        if step.get("event") == "goto" and wanted:
            known = wanted in {kind(name) for name in seen if seen[name] == place}
            uses = any(
                later.get("event") in ("take", "use") and kind(later.get("object")) == wanted
                for later in steps[step.turn + 1 : step.turn + 2]
            )
            if known and uses and place != step.before.get("location"):
                return demonstrates(step.turn)
            if step.before.get("target_visible") and step.held_before is None and not step.before.get("placed"):
                left = step.turn if left is None else left
        taken = taken or (step.get("event") == "take" and read.is_goal_object(step.get("object"), task))
        for name in step.get("visible", ()):
            seen[name] = str(step.get("location"))
        seen.pop(str(step.get("holding")), None)
        if step.get("event") == "put":
            seen.pop(str(step.get("object")), None)
    return violates(left) if left is not None and not taken else ABSENT


@detector(ENVIRONMENT, "completes_subgoals_in_order")
def completes_subgoals_in_order(rollout: Rollout) -> Verdict:
    """Takes the object, gives it its state, places or lights it; the opposite: places or lights it too early."""
    task = read.task_of(rollout)
    for step in read.steps_of(rollout):
        if read.is_light_without_object(step, task):
            return violates(step.turn)
        if step.get("event") == "use" and kind(step.get("object")) == task.get("toggle") and task.get("toggle"):
            return demonstrates(step.turn)
        if step in read.placements([step], task):
            return violates(step.turn) if read.is_unready_placement(step, task) else demonstrates(step.turn)
    return ABSENT


@detector(ENVIRONMENT, "finishes_without_detour")
def finishes_without_detour(rollout: Rollout) -> Verdict:
    """Succeeds within three turns of the direct plan; the opposite: succeeds after twice as many and more."""
    direct = int(read.task_of(rollout).get("direct", 0))
    turns = len(rollout.turns)
    if not rollout.success or not direct:
        return ABSENT
    if turns <= direct + DETOUR_TURNS:
        return demonstrates(turns - 1)
    return violates(turns - 1) if turns > 2 * direct + DETOUR_TURNS else ABSENT


@detector(ENVIRONMENT, "exhausts_turn_budget")
def exhausts_turn_budget(rollout: Rollout) -> Verdict:
    """The turns or the episode's tokens ran out."""
    exhausted = rollout.stop_reason in (StopReason.TURN_LIMIT, StopReason.EPISODE_TOKEN_LIMIT)
    return violates(len(rollout.turns) - 1) if exhausted and rollout.turns else ABSENT


@detector(ENVIRONMENT, "uses_valid_action_format")
def uses_valid_action_format(rollout: Rollout) -> Verdict:
    """Every reply has the form of an action. Its opposite is ``malformed_action``."""
    steps = read.steps_of(rollout)
    return demonstrates(len(steps) - 1) if steps and malformed_action(rollout) is ABSENT else ABSENT


@detector(ENVIRONMENT, "malformed_action")
def malformed_action(rollout: Rollout) -> Verdict:
    """A reply that has the form of no action, or was cut off."""
    for step in read.steps_of(rollout):
        if not step.get("readable", False) or rollout.turns[step.turn].truncated:
            return violates(step.turn)
    return ABSENT
