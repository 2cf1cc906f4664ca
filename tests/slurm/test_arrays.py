"""Stages of many equal parts as job arrays, on a real cluster."""

from __future__ import annotations

import signal

import pytest
from launched_stage import Stage, await_that, end

TOTAL = "285 from 5 shares\n"
"""0² + 1² + … + 9²."""


@pytest.fixture
def parts(stage: Stage) -> Stage:
    stage.program, stage.options = "parts_stage.py", ("--parts", "5")
    return stage


def runs(stage: Stage, count: int = 5) -> list[int]:
    """How often each part ran."""
    files = [stage.out.with_name("shares") / f"{part}.runs" for part in range(count)]
    return [len(file.read_text().split()) if file.exists() else 0 for file in files]


def test_the_parts_of_an_array_are_put_together(parts: Stage) -> None:
    assert parts.launch("--items", 10).wait(240) == 0
    assert parts.out.read_text() == TOTAL
    log = parts.log.read_text()
    assert log.count("submitted job") == 1 and "5 of 5 parts have ended" in log
    assert runs(parts) == [1] * 5


def test_only_the_parts_that_failed_are_run_again(parts: Stage) -> None:
    assert parts.launch("--items", 10, "--fail-once", 3).wait(240) == 2
    log = parts.log.read_text()
    assert "1 of 5 parts failed" in log and "_3 failed" in log and "part 3 has a headache" in log
    assert not parts.out.exists()
    assert parts.launch("--items", 10, "--fail-once", 3).wait(240) == 0
    assert parts.out.read_text() == TOTAL
    assert runs(parts) == [1, 1, 1, 2, 1]


def test_more_parts_than_the_sites_limit_become_several_arrays_and_all_are_tried(parts: Stage) -> None:
    """The cluster's MaxArraySize is 6; the part that fails is in the first array."""
    parts.options = ("--parts", "8")
    assert parts.launch("--items", 10, "--fail-once", 3).wait(240) == 2
    log = parts.log.read_text()
    assert log.count("submitted job") == 2 and "6 of 6 parts have ended" in log and "2 of 2 parts have ended" in log
    assert "1 of 6 parts failed" in log and "_3 failed" in log
    assert parts.launch("--items", 10, "--fail-once", 3).wait(240) == 0
    assert parts.out.read_text() == "285 from 8 shares\n"
    assert runs(parts, 8) == [1, 1, 1, 2, 1, 1, 1, 1]


def test_a_killed_launcher_is_followed_by_one_that_attaches_to_the_array(parts: Stage) -> None:
    launcher = parts.launch("--items", 10, "--seconds", 10)
    await_that(lambda: sum(runs(parts)) >= 1, why=parts.log.read_text)
    end(launcher, signal.SIGKILL)
    assert parts.launch("--items", 10, "--seconds", 10).wait(240) == 0
    assert "attached to job" in parts.log.read_text()
    assert parts.out.read_text() == TOTAL
    assert runs(parts) == [1] * 5


def test_an_array_whose_id_was_never_written_down_is_found_by_its_name(parts: Stage) -> None:
    launcher = parts.launch("--items", 10, "--seconds", 10)
    await_that(lambda: sum(runs(parts)) >= 1, why=parts.log.read_text)
    end(launcher, signal.SIGKILL)
    record = parts.folder / "job" / "job.json"
    text = record.read_text()
    job = parts.array()
    record.write_text(text.replace(f'"job": "{job}"', '"job": ""'))
    assert record.read_text() != text
    assert parts.launch("--items", 10, "--seconds", 10).wait(240) == 0
    assert "found by its name" in parts.log.read_text()
    assert runs(parts) == [1] * 5


def test_an_interrupt_cancels_the_whole_array(parts: Stage) -> None:
    launcher = parts.launch("--items", 10, "--seconds", 60)
    await_that(lambda: sum(runs(parts)) >= 2, why=parts.log.read_text)
    assert end(launcher, signal.SIGINT) == 130
    await_that(lambda: parts.jobs() == [], 180)


def test_a_part_that_someone_cancels_is_run_again_alone(parts: Stage) -> None:
    launcher = parts.launch("--items", 10, "--seconds", 3)
    await_that(lambda: sum(runs(parts)) == 5, why=parts.log.read_text)
    parts.slurm("scancel", f"{parts.array()}_2")
    assert launcher.wait(240) == 2
    assert "_2 ended" in parts.log.read_text()
    assert parts.launch("--items", 10, "--seconds", 3).wait(240) == 0
    assert parts.out.read_text() == TOTAL
    assert runs(parts) == [1, 1, 2, 1, 1]


def test_parts_run_again_when_their_result_is_wanted_again_or_their_number_changes(parts: Stage) -> None:
    assert parts.launch("--items", 10).wait(240) == 0
    parts.out.unlink()
    assert parts.launch("--items", 10).wait(240) == 0
    assert runs(parts) == [2] * 5
    parts.options = ("--parts", "4")
    assert parts.launch("--items", 10).wait(240) == 0
    assert runs(parts) == [3, 3, 3, 3, 2]


def test_a_requeued_part_ends_as_the_others(parts: Stage) -> None:
    launcher = parts.launch("--items", 10, "--seconds", 10)
    await_that(lambda: sum(runs(parts)) == 5, why=parts.log.read_text)
    parts.slurm("scontrol", "requeue", f"{parts.array()}_1")
    assert launcher.wait(240) == 0
    assert parts.out.read_text() == TOTAL
    assert runs(parts) == [1, 2, 1, 1, 1]


def test_a_closing_call_can_be_interrupted(parts: Stage) -> None:
    launcher = parts.launch("--items", 10, "--closing-seconds", 60)
    await_that(lambda: "5 of 5 parts have ended" in parts.log.read_text())
    await_that(lambda: any("closing-seconds" in line and "slurm.launch" not in line for line in parts.processes()))
    assert end(launcher, signal.SIGINT) == 130
    assert not parts.out.exists()


def test_several_processes_of_a_part_are_refused(parts: Stage) -> None:
    parts.stage = "meet"
    assert parts.launch("--items", 10).wait(240) == 2
    assert "set nodes and tasks_per_node of meet to 1" in parts.log.read_text()


def test_without_slurm_the_command_does_all_parts_itself(parts: Stage) -> None:
    parts.executor = "local"
    assert parts.launch("--items", 10).wait(240) == 0
    assert parts.out.read_text() == "0 from 0 shares\n", "the program was told of no part"
