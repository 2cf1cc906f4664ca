"""A run that was killed anywhere ends as one that was not; a step is visible as a whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from record_examples import rollout, step_tables, tags, write_run, write_step

from rised.records import faults
from rised.records.commit import RunDirectory, Step
from rised.records.digest import reproducible_digest
from rised.records.errors import RecordError
from rised.records.files import write_bytes, write_file
from rised.records.manifests import manifest_path
from rised.records.schemas import to_table
from rised.records.shards import RunReader
from rised.records.types import Metric, Timing

LAST_STEP = 1


def run_in_child(path: Path, kill_at: int) -> int:
    """Write the run in a forked process that kills itself at its ``kill_at``-th point; returns the signal or 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faults.arm(kill_at)
            write_run(path, LAST_STEP, seconds=float(kill_at))
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def points(path: Path, folder: Path) -> list[str]:
    """Names of all kill points that writing the run passes."""
    listing = folder / "points.txt"
    faults.arm(0, str(listing))
    try:
        write_run(path, LAST_STEP)
    finally:
        faults.arm()
    return listing.read_text().splitlines()


def test_a_run_killed_at_any_write_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Every third point of the run, and every point inside the second step's commit."""
    names = points(tmp_path / "undisturbed", tmp_path)
    wanted = reproducible_digest(tmp_path / "undisturbed")
    in_commit = [number for number, name in enumerate(names, start=1) if name.endswith("step-000001.json")]
    assert len(in_commit) == 4
    chosen = sorted({*range(1, len(names) + 1, 3), *in_commit, *(number + 1 for number in in_commit)})
    assert len(chosen) >= 25
    for number in chosen:
        name = names[number - 1]
        run = tmp_path / f"killed-{number}"
        assert run_in_child(run, number) == signal.SIGKILL, name
        assert run_in_child(run, 0) == 0, name
        assert reproducible_digest(run) == wanted, f"killed at {name}"
        shutil.rmtree(run)


def test_every_file_is_on_disk_before_its_rename_and_the_rename_before_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine must not leave a name without its bytes."""
    events: list[tuple[str, str]] = []
    fsync, replace_ = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        events.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        events.append(("rename", Path(source).name))
        replace_(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    folder = tmp_path / "folder"
    folder.mkdir()
    wanted = [("sync", ".tmp-name"), ("rename", ".tmp-name"), ("sync", "folder")]
    write_bytes(folder / "name", b"content")
    assert events == wanted
    events.clear()
    write_file(folder / "name", lambda path: path.write_bytes(b"content") and None, 10)
    assert events == wanted
    events.clear()
    write_run(tmp_path / "run", 1)
    for place, (what, name) in enumerate(events):
        if what == "rename":
            assert events[place - 1] == ("sync", name) and events[place + 1][0] == "sync", name
    assert sum(what == "rename" for what, _ in events) > 15


def test_an_older_state_goes_only_when_the_step_that_replaces_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_ = os.replace

    def full_at_the_manifest(source: Path, target: Path) -> None:
        if Path(target) == manifest_path(tmp_path / "run", 2):
            raise OSError(errno.ENOSPC, "no space")
        replace_(source, target)

    def states() -> list[str]:
        return sorted(path.parent.name for path in (tmp_path / "run").glob("state/*/optimiser.bin"))

    with RunDirectory(tmp_path / "run", keep_states=1) as run:
        run.recover()
        for step in (0, 1):
            write_step(run, step)
        assert states() == ["step-000001"]
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full_at_the_manifest)
            with pytest.raises(RecordError, match="no space left"):
                write_step(run, 2)
        assert run.recover().last_committed == 1 and states() == ["step-000001"]
        assert run.state_file("optimiser.bin").read_bytes() == bytes(range(2)) * 100
        write_step(run, 2)
        assert states() == ["step-000002"], "and then at once"


def test_a_run_killed_again_while_it_recovers_ends_the_same(tmp_path: Path) -> None:
    names = points(tmp_path / "undisturbed", tmp_path)
    wanted = reproducible_digest(tmp_path / "undisturbed")
    first = names.index("renamed step-000000.json") + 12
    for second in (1, 2, 3, 6, 10):
        run = tmp_path / f"killed-{second}"
        assert run_in_child(run, first) == signal.SIGKILL
        assert run_in_child(run, second) == signal.SIGKILL
        assert run_in_child(run, 0) == 0
        assert reproducible_digest(run) == wanted, second


def test_the_kill_can_be_ordered_from_outside(tmp_path: Path) -> None:
    """What tests of whole stages use: the environment variable of a fresh process."""
    code = f"from record_examples import write_run; write_run({str(tmp_path / 'run')!r}, 0)"
    here = Path(__file__).resolve()
    search_path = os.pathsep.join([str(here.parents[2]), str(here.parent)])
    environment = os.environ | {"RISED_KILL_AT_WRITE": "9", "PYTHONPATH": search_path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert RunReader(tmp_path / "run").steps() == []


def test_manifests_differ_in_timings_only(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1, seconds=1.0)
    write_run(tmp_path / "b", 1, seconds=2.0)
    assert reproducible_digest(tmp_path / "a") == reproducible_digest(tmp_path / "b")
    assert manifest_path(tmp_path / "a", 1).read_bytes() != manifest_path(tmp_path / "b", 1).read_bytes()


def test_a_digest_notices_a_changed_metric(tmp_path: Path) -> None:
    write_run(tmp_path / "a", 1)
    before = reproducible_digest(tmp_path / "a")
    path = next((tmp_path / "a" / "metrics").rglob("*.parquet"))
    path.write_bytes(path.read_bytes() + b"x")
    assert reproducible_digest(tmp_path / "a") != before


def test_recovery_removes_leftovers_of_the_run_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "run"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("mine")
    with RunDirectory(root) as run:
        run.recover()
        write_step(run, 0)
        write_step(run, 1)
    (root / "notes.txt").write_text("mine")
    (root / "logs" / "step-000009").mkdir(parents=True)
    (root / "rollouts" / "README").write_text("mine")
    (root / "rollouts" / "step-000003").symlink_to(outside)
    leftovers = [
        "rollouts/step-000002/part-0.parquet",
        "tags/judge-x/step-000002/part-0.parquet",
        "state/step-000002/deep/optimiser.bin",
        "checkpoints/step-000005/model.safetensors",
        "rollouts/step-000001/.tmp-part-1.parquet",
        "manifests/.tmp-step-000002.json",
        ".tmp-config.yaml",
    ]
    for name in leftovers:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"half")
    before = reproducible_digest(root)
    with RunDirectory(root) as run:
        recovery = run.recover()
        assert recovery.last_committed == 1
        assert len(recovery.removed) == len(leftovers)
        assert run.recover().removed == ()
    after = reproducible_digest(root)
    assert after == {name: digest for name, digest in before.items() if name not in leftovers}
    assert (outside / "kept.txt").exists() and (root / "logs" / "step-000009").exists()
    assert not (root / "tags" / "judge-x").exists()


def test_a_step_must_be_preceded_by_recovery(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run, pytest.raises(RecordError, match=r"call recover\(\)"):
        run.step(0)


def test_recovery_refuses_a_committed_step_that_was_tampered_with(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    state = tmp_path / "run" / "state" / "step-000001" / "optimiser.bin"
    data = state.read_bytes()
    state.write_bytes(data[:-1] + b"?")
    with RunDirectory(tmp_path / "run") as run, pytest.raises(RecordError, match=r"optimiser\.bin .*SHA-256 differs"):
        run.recover()


def test_a_missing_rollout_prevents_the_commit(tmp_path: Path) -> None:
    """Case 38: a lost worker's rows are missing although every process ended well."""
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        with (
            pytest.raises(RecordError, match="1,023 rows of rollouts, the plan says 1,024"),
            run.step(0, expected={"rollouts": 1024}) as step,
        ):
            step.write("rollouts", to_table([rollout(0, index, turn_count=1) for index in range(1023)]))
            step.commit()
        assert run.last_committed() is None
        assert not list((tmp_path / "run").rglob("*.parquet"))
        with pytest.raises(RecordError, match="not finished"):
            run.finish(0)
        assert not (tmp_path / "run" / "DONE").exists()


def test_the_right_number_with_one_rollout_twice_prevents_the_commit(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        with pytest.raises(RecordError, match="'0/0' appears more than once"), run.step(0, {"rollouts": 2}) as step:
            step.write("rollouts", to_table([rollout(0, 0)]))
            step.write("rollouts", to_table([rollout(0, 0)]))
            step.commit()


def test_a_plan_must_say_how_many_rollouts_there_are(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        with pytest.raises(RecordError, match="its plan does not say how many"), run.step(0) as step:
            step.write("rollouts", to_table([rollout(0, 0)]))
            step.commit()
        with pytest.raises(RecordError, match="0 rows of validation, the plan says 4"):
            with run.step(0, {"validation": 4}) as step:
                step.commit()


def test_rows_of_another_step_or_judge_are_refused(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        with pytest.raises(RecordError, match="rows of other steps than 0"), run.step(0) as step:
            step.write("metrics", to_table([Metric(1, "a", 1.0, "count")]))
        with pytest.raises(RecordError, match="other judges than 'y'"), run.step(0) as step:
            step.write("tags", to_table(tags([rollout(0, 0)], judge="x")), judge="y")
        with pytest.raises(RecordError, match="holds 'metrics', expected 'timings'"), run.step(0) as step:
            step.write("timings", to_table([Metric(0, "a", 1.0, "s")]))


def test_an_exception_in_a_step_leaves_no_trace_of_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 0)
    (tmp_path / "run" / "DONE").unlink()
    before = reproducible_digest(tmp_path / "run")
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        with pytest.raises(ZeroDivisionError), run.step(1, {"rollouts": 8}) as step:
            step.write("rollouts", step_tables(1)["rollouts"])
            step.write_state("optimiser.bin", b"x")
            raise ZeroDivisionError
        assert reproducible_digest(tmp_path / "run") == before
        with pytest.raises(RecordError, match="left without a commit"), run.step(1):
            pass


def test_a_second_writer_is_refused_with_the_first_ones_process(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run"):
        with pytest.raises(RecordError, match="already has a writer in this process"):
            RunDirectory(tmp_path / "run")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                from rised.records import lock

                lock._held.clear()
                RunDirectory(tmp_path / "run")
            except RecordError as error:
                code = 0 if f"another writer (process {os.getppid()} on" in str(error) else 2
            finally:
                os._exit(code)
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 0
    RunDirectory(tmp_path / "run").close()


def test_a_killed_trainers_forked_worker_does_not_hold_the_lock(tmp_path: Path) -> None:
    """The trainer dies by SIGKILL, its worker lives on: the restart must not be refused."""
    reader, writer = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        run = RunDirectory(tmp_path / "run")
        worker = os.fork()
        if worker == 0:
            signal.pause()
        os.write(writer, f"{worker} {run.path.name}".encode())
        signal.pause()
    worker = int(os.read(reader, 100).split()[0])
    try:
        os.kill(trainer, signal.SIGKILL)
        os.waitpid(trainer, 0)
        with RunDirectory(tmp_path / "run") as run:
            run.recover()
            write_step(run, 0)
            assert run.last_committed() == 0
        os.kill(worker, 0)  # it lives
    finally:
        os.kill(worker, signal.SIGKILL)


def test_steps_are_written_once_and_in_order(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        with pytest.raises(RecordError, match="is finished"):
            run.step(2)
        (tmp_path / "run" / "DONE").unlink()
        with pytest.raises(RecordError, match="committed up to step 1"):
            run.step(1)
        write_step(run, 3)
        with pytest.raises(RecordError, match="should end at step 3, committed are 0 to 3, 3 in all"):
            run.finish(3)


def test_done_can_be_written_again_without_a_step(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    before = (tmp_path / "run" / "DONE").read_bytes()
    (tmp_path / "run" / "DONE").unlink()
    write_run(tmp_path / "run", 1)
    assert (tmp_path / "run" / "DONE").read_bytes() == before


def test_only_the_latest_state_is_kept_and_checkpoints_stay(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run", keep_states=2) as run:
        run.recover()
        for number in range(5):
            write_step(run, number)
        assert sorted(path.name for path in (run.path / "state").iterdir()) == ["step-000003", "step-000004"]
        assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == ["step-000001", "step-000003"]
        assert run.state_file("optimiser.bin").read_bytes() == bytes(range(5)) * 100
        with pytest.raises(RecordError, match="names no state file 'rng.bin'"):
            run.state_file("rng.bin")


def test_only_so_many_checkpoints_are_kept_as_asked_for_and_never_none(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run", keep_checkpoints=1) as run:
        run.recover()
        for number in range(5):
            write_step(run, number)
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-000003"]
        run.finish(4)
    with pytest.raises(RecordError, match="the last checkpoint is always kept"):
        RunDirectory(tmp_path / "other", keep_checkpoints=0)


def test_a_kill_between_commit_and_pruning_leaves_no_old_checkpoint_behind(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        for number in range(4):
            write_step(run, number)
    with RunDirectory(tmp_path / "run", keep_checkpoints=1) as run:
        assert run.recover().removed == ("checkpoints/step-000001",)


def test_files_of_other_savers_become_part_of_the_step(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.recover()
        with run.step(0) as step:
            folder = step.folder(checkpoint=True)
            (folder / "shard").mkdir()
            (folder / "shard" / "rank0.pt").write_bytes(b"zero")
            (folder / "config.json").write_text("{}")
            step.add_files(checkpoint=True)
            with pytest.raises(RecordError, match="does not lie in the state or checkpoint folder"):
                step.add_file("config.yaml")
            with pytest.raises(RecordError, match=r"cannot add .*lost\.pt"):
                step.add_file("state/step-000000/lost.pt")
            manifest = step.commit({"cursor": {"alfworld": 3}})
        assert [entry.path for entry in manifest.state] == [
            "checkpoints/step-000000/config.json",
            "checkpoints/step-000000/shard/rank0.pt",
        ]
        assert run.manifest(0).extra == {"cursor": {"alfworld": 3}}
        assert run.manifest(0) == manifest


def test_a_resumed_run_with_another_header_is_refused(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.write_header({"panel": "abc", "vocabulary": "v1"})
        run.write_header({"vocabulary": "v1", "panel": "abc"})
        with pytest.raises(RecordError, match="'panel' was 'abc' when the run began and is 'xyz' now"):
            run.write_header({"panel": "xyz", "vocabulary": "v1"})


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    path = manifest_path(tmp_path / "run", 1)
    data = path.read_text()
    path.write_text(data[: len(data) // 2])
    with pytest.raises(RecordError, match=r"step-000001\.json is not readable JSON"):
        RunReader(tmp_path / "run").metrics()
    path.write_text(data.replace('"version": 1', '"version": 9'))
    with pytest.raises(RecordError, match="version 9, this code reads 'rised.manifest' version 1"):
        RunReader(tmp_path / "run").metrics()


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordError, match=r"cannot write in .*file/run"):
        RunDirectory(tmp_path / "file" / "run")


def test_timings_are_seconds_of_a_step(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 0, seconds=2.5)
    assert RunReader(tmp_path / "run").scan("timings").to_pylist() == [
        {"step": 0, "name": "collect", "value": 2.5, "unit": "s", "subject": ""}
    ]
    assert Timing(0, "collect", 2.5, "s").subject == ""


def later(run: RunDirectory, number: int, write: Callable[[Step], None]) -> None:
    """Hand a step over to the thread that commits."""
    with run.step(number) as step:
        step.write_state("loop.json", b"{}")
        step.commit_later(lambda: write(step))


def test_a_step_that_a_thread_commits_is_invisible_until_all_of_it_is_written(tmp_path: Path) -> None:
    written, seen = threading.Event(), []
    with RunDirectory(tmp_path) as run:
        run.recover()
        later(run, 0, lambda step: None)

        def write(step: Step) -> None:
            assert written.wait(120)
            step.write_state("weights", b"w")

        later(run, 1, write)
        seen.append(run.committed_steps())
        with run.step(2) as step:  # the next step is in the making meanwhile
            step.write_state("loop.json", b"{}")
            written.set()
            step.commit_later(lambda: seen.append(run.committed_steps()))
        run.settle()
        assert seen == [[0], [0, 1]] and run.committed_steps() == [0, 1, 2]
        assert {entry.path for entry in run.manifest(1).state} == {
            f"state/step-000001/{n}" for n in ("loop.json", "weights")
        }
        with pytest.raises(RecordError, match="committed up to step 2"):
            run.step(2)


@pytest.mark.parametrize("next_is_open", [True, False])
def test_what_a_thread_could_not_write_ends_the_run_and_leaves_nothing_of_its_step(
    tmp_path: Path, next_is_open: bool
) -> None:
    def fail(step: Step) -> None:
        step.write_state("half", b"h")
        raise RecordError("no space left")

    with RunDirectory(tmp_path) as run:
        run.recover()
        later(run, 0, lambda step: None)
        later(run, 1, fail)
        with pytest.raises(RecordError, match="no space left"):
            if next_is_open:
                later(run, 2, lambda step: None)
            else:
                run.settle()
        assert run.committed_steps() == [0]
        assert {path.name for path in (tmp_path / "state").iterdir()} == {"step-000000"}


def test_a_step_that_fails_leaves_alone_what_a_thread_still_commits(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.recover()
        later(run, 0, lambda step: time.sleep(0.3))
        with pytest.raises(RuntimeError, match="elsewhere"), run.step(1) as step:
            step.write_state("loop.json", b"{}")
            raise RuntimeError("elsewhere")
        assert run.committed_steps() == [0] and (tmp_path / "state/step-000000/loop.json").is_file()
        assert not (tmp_path / "state/step-000001").exists()


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_file_of_an_earlier_state_outlives_it_as_part_of_a_later_one(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with RunDirectory(tmp_path) as run:
        run.recover()
        with run.step(0) as step:
            step.write_state("weights", b"zero")
            step.commit()
        with run.step(1) as step:
            step.write_state("weights", b"one")
            step.link_state("played", run.state_entry(0, "weights"))
            step.commit()
        assert not (tmp_path / "state/step-000000").exists(), "keep_states is 1"
        assert run.state_file("played").read_bytes() == b"zero"
        run.recover()
        run.state_file("played").write_bytes(b"torn")
        with pytest.raises(RecordError, match="played"):
            run.recover()
