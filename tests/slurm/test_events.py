"""Everything that happens to jobs and launchers on a cluster, caused on a real one and survived."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path

import pytest
from launched_stage import Stage, await_that, end


def counted(stage: Stage) -> list[int]:
    return [int(line) for line in stage.out.with_name("out.txt.steps").read_text().split()]


def test_a_stage_runs_and_its_log_comes_back(stage: Stage) -> None:
    assert stage.launch("--steps", 3).wait(240) == 0
    assert stage.out.read_text() == "3 steps\n"
    log = stage.log.read_text()
    assert "submitted job" in log and "step 3" in log and "done" in log


def test_a_failure_brings_the_traceback_and_names_the_log(stage: Stage) -> None:
    assert stage.launch("--steps", 5, "--fail-at", 3).wait(240) == 2
    log = stage.log.read_text()
    assert "the third egg is rotten" in log and "log: " in log and "ended with code 1" in log
    assert not stage.out.exists()


def test_a_job_reads_its_experiment_file_as_it_was_when_it_was_submitted(stage: Stage) -> None:
    """The job is held until the file and what it extends are gone."""
    stage.site.write_text(stage.site.read_text() + "sbatch: {priority: 0}\n")
    base, experiment = stage.folder / "base.yaml", stage.folder / "experiment.yaml"
    base.write_text("updates: 0123\nmethods: [rised]\n")
    experiment.write_text("extends: [base.yaml]\nmethods: ['no', no]\n")
    launcher = stage.launch("--steps", 1, "--config", experiment)
    await_that(lambda: "submitted job" in stage.log.read_text())
    base.unlink()
    experiment.unlink()
    stage.slurm("scontrol", "release", stage.jobs()[0])
    assert launcher.wait(240) == 0, stage.log.read_text()
    log = stage.log.read_text()
    assert f"read from {stage.folder}/job/config.yaml" in log
    assert '"updates": 0123\n"methods":\n- "no"\n- no\n' in log, "nothing is read as something else"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_the_job(stage: Stage, number: signal.Signals) -> None:
    launcher = stage.launch("--steps", 600)
    stage.await_steps(2)
    assert end(launcher, number) == 130
    await_that(lambda: stage.jobs() == [], 180)


def test_a_killed_launcher_is_followed_by_one_that_attaches(stage: Stage) -> None:
    launcher = stage.launch("--steps", 60)
    stage.await_steps(3)
    end(launcher, signal.SIGKILL)
    assert len(stage.jobs()) == 1
    assert stage.launch("--steps", 60).wait(240) == 0
    assert "attached to job" in stage.log.read_text()
    assert counted(stage) == list(range(1, 61))


def test_a_result_that_came_while_nobody_watched_is_taken_over(stage: Stage) -> None:
    launcher = stage.launch("--steps", 20)
    stage.await_steps(2)
    end(launcher, signal.SIGKILL)
    await_that(lambda: stage.out.exists() and stage.jobs() == [])
    stage.out.unlink()  # Snakemake removes the outputs of a rule that it takes for incomplete
    assert stage.launch("--steps", 20).wait(240) == 0
    assert "finished while nobody watched" in stage.log.read_text()
    assert stage.out.read_text() == "20 steps\n"
    assert stage.log.read_text().count("submitted job") == 1


def test_a_job_whose_id_was_never_written_down_is_found_by_its_name(stage: Stage) -> None:
    launcher = stage.launch("--steps", 60)
    stage.await_steps(2)
    end(launcher, signal.SIGKILL)
    (stage.folder / "job" / "job.json").unlink()
    assert stage.launch("--steps", 60).wait(240) == 0
    assert "found by its name" in stage.log.read_text()
    assert counted(stage) == list(range(1, 61))


def test_a_hang_up_leaves_the_job(stage: Stage) -> None:
    launcher = stage.launch("--steps", 50)
    stage.await_steps(2)
    assert end(launcher, signal.SIGHUP) == 129
    assert len(stage.jobs()) == 1
    assert stage.launch("--steps", 50).wait(240) == 0


def test_a_job_that_someone_else_cancels_is_reported(stage: Stage) -> None:
    launcher = stage.launch("--steps", 600)
    stage.await_steps(2)
    stage.slurm("scancel", stage.jobs()[0])
    assert launcher.wait(240) == 2
    assert "without a result" in stage.log.read_text()


def test_an_administrators_requeue_repeats_at_most_a_step(stage: Stage) -> None:
    launcher = stage.launch("--steps", 40)
    stage.await_steps(5)
    stage.slurm("scontrol", "requeue", stage.jobs()[0])
    assert launcher.wait(240) == 0
    assert counted(stage) == list(range(1, 41))
    assert stage.starts() == 2


def test_a_job_that_is_requeued_after_it_finished_does_not_run_again(stage: Stage) -> None:
    launcher = stage.launch("--steps", 10)
    stage.await_steps(1)
    end(launcher, signal.SIGKILL)
    job = stage.jobs()[0]
    await_that(lambda: stage.out.exists() and stage.jobs() == [])
    stage.slurm("scontrol", "requeue", job)
    await_that(lambda: stage.jobs() == [], 180)
    assert counted(stage) == list(range(1, 11)) and stage.starts() == 1
    logs = "".join(log.read_text() for log in (stage.folder / "job" / job).glob("*_log.out"))
    assert logs.count("Starting with JobEnvironment") == 2, "the job did start again"
    assert stage.launch("--steps", 10).wait(240) == 0
    assert "finished while nobody watched" in stage.log.read_text()


def test_a_nodes_death_repeats_at_most_a_step_on_another_node(stage: Stage) -> None:
    launcher = stage.launch("--steps", 60, "--seconds", 0.2)
    stage.await_steps(5)
    job = stage.jobs()[0]
    node = stage.slurm("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    stage.cluster.kill_node(node)
    try:
        assert launcher.wait(240) == 0
    finally:
        stage.cluster.start_node(node)
        await_that(lambda: node in stage.slurm("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split())
    assert counted(stage) == list(range(1, 61))
    assert stage.starts() == 2


def test_a_process_that_fails_ends_the_job_of_several_and_is_named(stage: Stage) -> None:
    """The others wait for it in the rendezvous."""
    stage.stage = "meet"
    assert stage.launch("--steps", 0, "--rendezvous", "--fail-rank", 2).wait(240) == 2
    log = stage.log.read_text()
    assert "task 2 failed" in log and "rank 2 has lost its way" in log and "_2_log.out" in log


def test_a_time_limit_ends_in_a_requeue_and_the_same_result(stage: Stage) -> None:
    stage.stage = "brief"
    launcher = stage.launch("--steps", 130, "--seconds", 0.5)
    assert launcher.wait(240) == 0
    assert counted(stage) == list(range(1, 131))
    assert stage.starts() >= 2


def test_a_stage_that_does_not_resume_fails_at_its_time_limit_and_names_the_key(stage: Stage) -> None:
    stage.stage, stage.resumes = "brief", False
    assert stage.launch("--steps", 1000).wait(240) == 2
    log = stage.log.read_text()
    assert "raise stages.brief.time_min" in log
    assert stage.starts() == 1


def test_a_refused_submission_is_one_message(stage: Stage) -> None:
    stage.site.write_text(stage.site.read_text() + "partition: nowhere\n")
    assert stage.launch("--steps", 1).wait(240) == 2
    log = stage.log.read_text()
    assert "was not accepted" in log and "invalid partition" in log
    assert "Traceback" not in log


def test_after_a_cancellation_the_next_launcher_begins_anew(stage: Stage) -> None:
    """It must not attach to the job that is still ending."""
    launcher = stage.launch("--steps", 60)
    stage.await_steps(2)
    end(launcher, signal.SIGINT)
    assert stage.launch("--steps", 60).wait(240) == 0
    assert counted(stage) == list(range(1, 61))


def test_a_launcher_that_starts_while_the_controller_is_down_waits(stage: Stage) -> None:
    stage.cluster.stop_controller()
    launcher = stage.launch("--steps", 3)
    time.sleep(4)
    assert launcher.poll() is None
    stage.cluster.start_controller()
    assert launcher.wait(240) == 0


def test_nohup_keeps_the_launcher_at_its_job(stage: Stage) -> None:
    stage.nohup = True
    launcher = stage.launch("--steps", 20)
    stage.await_steps(2)
    assert end(launcher, signal.SIGHUP, 60) == 0


def test_preemption_by_a_higher_partition(stage: Stage, tmp_path: Path) -> None:
    stage.stage = "low"
    launcher = stage.launch("--steps", 60, "--seconds", 0.2)
    stage.await_steps(3)
    stage.slurm(
        "sbatch", "--partition=high", "--nodes=3", "--exclusive", f"--output={tmp_path}/high.log", "--wrap=sleep 3"
    )
    assert launcher.wait(240) == 0
    assert counted(stage) == list(range(1, 61))
    assert stage.starts() >= 2


def test_the_controller_restarts_under_a_job(stage: Stage) -> None:
    launcher = stage.launch("--steps", 80)
    stage.await_steps(3)
    stage.cluster.stop_controller()
    await_that(lambda: stage.steps() >= 40)
    assert launcher.poll() is None
    stage.cluster.start_controller()
    assert launcher.wait(240) == 0
    assert counted(stage) == list(range(1, 81))


def test_four_ranks_on_two_nodes_meet_and_see_their_gpus(stage: Stage) -> None:
    stage.stage = "meet"
    assert stage.launch("--steps", 0, "--rendezvous").wait(240) == 0
    assert stage.out.read_text() == "4 ranks, sum 6, gpus 0,1\n"


def test_a_job_can_be_submitted_from_inside_a_job(stage: Stage) -> None:
    """The launcher runs in a job of its own with half a core's memory; its stage's job gets what the stage asks for."""
    outer = stage.folder / "outer.log"
    words = shlex.join(stage.command("--steps", 3))
    options = ["--job-name=outer", "--ntasks=2", "--mem=300M", "--time=3", f"--output={outer}", "--wait"]
    stage.slurm("sbatch", *options, f"--chdir={stage.repository}", f"--wrap={words}")
    assert stage.out.read_text() == "3 steps\n", outer.read_text()
    assert "submitted job" in outer.read_text()
    script = next((stage.folder / "job").glob("*/*_submission.sh")).read_text()
    assert "#SBATCH --ntasks-per-node=1" in script and "#SBATCH --mem=204MB" in script


def test_two_launchers_of_one_stage_do_not_run_it_twice(stage: Stage) -> None:
    first = stage.launch("--steps", 30)
    stage.await_steps(1)
    assert stage.launch("--steps", 30).wait(240) == 2
    assert "another launcher" in stage.log.read_text()
    assert first.wait(240) == 0
    assert counted(stage) == list(range(1, 31))


def test_a_job_with_other_inputs_is_not_taken_over(stage: Stage) -> None:
    launcher = stage.launch("--steps", 100)
    stage.await_steps(2)
    end(launcher, signal.SIGKILL)
    stage.site.write_text(stage.site.read_text() + "\n")
    second = stage.launch("--steps", 100)
    assert second.wait(240) == 2
    assert "older inputs" in stage.log.read_text()
    stage.slurm("scancel", stage.jobs()[0])
    await_that(lambda: stage.jobs() == [], 180)


def test_outputs_that_become_visible_late_are_waited_for(stage: Stage) -> None:
    launcher = stage.launch("--steps", 30)
    stage.await_steps(2)
    end(launcher, signal.SIGKILL)
    await_that(lambda: stage.out.exists() and stage.jobs() == [])
    stage.out.unlink()
    kept, hidden = stage.folder / "job" / "kept", stage.folder / "hidden"
    kept.rename(hidden)  # what a shared folder's cache does not show yet
    launcher = stage.launch("--steps", 30)
    await_that(lambda: "finished while nobody watched" in stage.log.read_text())
    hidden.rename(kept)
    assert launcher.wait(240) == 0
    assert stage.out.read_text() == "30 steps\n"
