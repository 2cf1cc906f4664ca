"""Bad input and bad luck: one clear message and an exit code, no half-written step, and the same command goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import SafetensorError
from stage_commands import Command, assert_refused, in_process, in_subprocess

import rised.learner.state as learner_state
import rised.records.files as record_files
import stages.setup
import stages.stored
import stages.train
import stages.workers
from rised.records.commit import RunDirectory
from rised.records.digest import reproducible_digest
from rised.records.errors import RecordError
from rised.records.schemas import VERSION_KEY, from_table, to_table
from rised.records.shards import RunReader, read_shard, write_shard
from rised.records.types import Rollout, StopReason
from rised.rubrics.vocabulary import Vocabulary, load_vocabulary
from rised.rubrics.windows import TagWindow
from stages import attempts, progress
from stages.grid import read_grid

pytestmark = pytest.mark.usefixtures("at_the_root")

UPDATES = 2


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return in_process(monkeypatch, capsys)


def train_arguments(tiny_experiment, out: Path, *more: object, **instead: object) -> list[object]:
    """Arguments of the train stage for the tiny experiment, cut to two updates."""
    given = {
        "config": tiny_experiment.config,
        "method": "rised",
        "seed": 0,
        "tasks": tiny_experiment.tasks,
        "warm-start": tiny_experiment.warm_start,
        "out": out,
    } | {name.replace("_", "-"): value for name, value in instead.items()}
    pairs = [part for name, value in given.items() for part in (f"--{name}", value)]
    return [*pairs, "--set", f"updates={UPDATES}", *more]


def digest(run: Path) -> dict[str, str]:
    return reproducible_digest(run)


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run but those that show progress and hold the lock."""
    passing = (progress.FILE, attempts.FILE, ".lock")
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in passing
    }


def variant(tiny_experiment, folder: Path, text: str) -> Path:
    """The tiny experiment with some lines laid over it."""
    path = folder / "variant.yaml"
    path.write_text(f"extends: [{tiny_experiment.config}]\n{text}\n")
    return path


@pytest.fixture(scope="module")
def trained(tiny_experiment, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A run that was stopped between its two updates, and the digest of one that never was."""
    from stages.setup import load_run, read_tasks

    folder = tmp_path_factory.mktemp("trained")
    config = load_run(tiny_experiment.config, "rised", 0, [f"updates={UPDATES}"])
    tasks = read_tasks(tiny_experiment.tasks)
    update = stages.train.Trainer.update

    def stop_before_the_second(self, number, *arguments):
        if number == 2:
            self.run.settle()
            shutil.copytree(folder / "whole", folder / "stopped")
        return update(self, number, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.train.Trainer, "update", stop_before_the_second)
        stages.train.train(config, tasks, tiny_experiment.warm_start, folder / "whole")
    return folder / "stopped", digest(folder / "whole")


@pytest.fixture
def stopped(trained, tmp_path: Path) -> Path:
    """A copy of the run that was stopped after its first update."""
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


# ---- configuration


def test_a_misspelt_key_is_named_with_its_file_and_the_nearest_key(
    tiny_experiment, repository: Path, tmp_path: Path
) -> None:
    config = variant(tiny_experiment, tmp_path, "learner:\n  learnig_rate: 1.0e-3")
    arguments = train_arguments(tiny_experiment, tmp_path / "run", config=config)
    outcome = in_subprocess(repository, ["-m", "stages.train", *arguments])
    assert_refused(outcome, f"{config}:3", "learner.learnig_rate", "did you mean 'learning_rate'?")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("environments: {dbench: {train_tasks: 3, validation_tasks: 3}}", ["environments", "'dbench'", "dbbench"]),
        ("environments: {dbbench: {settings: {promt_style: full}}}", ["settings.promt_style", "'prompt_style'"]),
        ("learner: {learning_rate: fast}", ["learner.learning_rate", "'fast'"]),
        ("rollouts_per_group: 1", ["rollouts_per_group", "greater than 1"]),
        ("methods: [grpo_46]", ["grpo_46", "did you mean 'grpo_64'?", "round_robin_variance"]),
        ("updates: 3\nupdates: 4", ["'updates'", "twice"]),
        ("method_scale: {candidate_groups: 2, selected_groups: 3}", ["selected_groups 3 exceeds candidate_groups 2"]),
        ("method_scale: {selecter: {type: all}}", ["selecter", "'selector'"]),
        ("rollout: {max_turns: {webshop: 3}}", ["webshop", "does not contain"]),
        ("rollout: {max_turns: {dbbench: 0}}", ["rollout.max_turns.dbbench", "greater than 0"]),
        ("rollout: {max_new_tokens_per_turn: {webshop: 3}}", ["max_new_tokens_per_turn", "add a limit for dbbench"]),
        ("rollout: {temperature: 0}", ["rollout.temperature is 0", "validation.temperature"]),
        ("rollout: {temperature: 1.0e-3}", ["rollout.temperature is 0.001", "at least 0.01"]),
        ("rollout: {temperature: -1}", ["rollout.temperature", "greater than or equal to 0"]),
        ("rollout: {temperature: .inf}", ["rollout.temperature", "finite number"]),
        ("rollout: {temperature: .nan}", ["rollout.temperature", "finite number"]),
        ("learner: {learning_rate: .nan}", ["learner.learning_rate", "finite number"]),
        ("learner: {betas: [0.9, 1.0]}", ["learner.betas.1", "less than 1"]),
        ("method_overrides: {rised: {kl: {coefficient: .inf}}}", ["method.kl.coefficient", "finite number"]),
        ("seeds: [0, 0]", ["seeds", "0 appears twice"]),
        ("seeds: [0, -1]", ["seeds.1", "greater than or equal to 0"]),
        ("methods: [rised, rised]", ["methods", "'rised' appears twice"]),
        ("analysis: {tables: [table2, table2]}", ["analysis.tables", "'table2' appears twice"]),
        ("audit: {judges: [qwen3_8b, qwen3_8b]}", ["audit.judges", "'qwen3_8b' appears twice"]),
        ("reselect: {selectors: [all, all]}", ["reselect.selectors", "'all' appears twice"]),
        ("environments: {}", ["environments", "{} changes nothing", "dbbench"]),
    ],
)
def test_a_wrong_value_is_refused_before_anything_starts(
    tiny_experiment, command: Command, tmp_path: Path, text: str, words: list[str]
) -> None:
    config = variant(tiny_experiment, tmp_path, text)
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", config=config))
    assert_refused(outcome, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_training_at_temperature_0_is_refused_and_evaluation_is_not(
    tiny_experiment, command: Command, tmp_path: Path, more: tuple[str, ...]
) -> None:
    arguments = [*train_arguments(tiny_experiment, tmp_path / "run", "--set", "rollout.temperature=0"), *more]
    assert_refused(command("train", *arguments), "rollout.temperature is 0", "at least 0.01")
    greedy = ["--config", tiny_experiment.config, "--tasks", tiny_experiment.tasks, "--out", tmp_path / "greedy"]
    outcome = command("evaluate", *greedy, "--set", "validation.temperature=0", *more)
    assert outcome.code == 0, outcome


def test_an_empty_mapping_as_an_override_is_refused(tiny_experiment, command: Command, tmp_path: Path) -> None:
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", "--set", "environments={}"))
    assert_refused(outcome, "override 'environments={}'", "{} changes nothing", "dbbench")


def test_a_method_file_with_another_methods_name_is_refused(
    tiny_experiment, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(stages.setup.METHODS, tmp_path / "methods")
    shutil.copy(stages.setup.METHODS / "rised.yaml", tmp_path / "methods" / "mine.yaml")
    monkeypatch.setattr(stages.setup, "METHODS", tmp_path / "methods")
    config = variant(tiny_experiment, tmp_path, "methods: [rised, mine]")
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", config=config))
    assert_refused(outcome, f"{tmp_path}/methods/mine.yaml:4", "method.name is 'rised' in the file of 'mine'")


def test_a_misspelt_method_is_answered_with_the_nearest(tiny_experiment, command: Command, tmp_path: Path) -> None:
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", method="rized"))
    assert_refused(outcome, "rized", "did you mean 'rised'?", "grpo_64")


def test_a_method_that_the_experiment_does_not_have_is_refused(
    tiny_experiment, command: Command, tmp_path: Path
) -> None:
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", method="global_variance"))
    assert_refused(outcome, "global_variance", "grpo_64, rised")


def test_a_misspelt_override_is_refused(tiny_experiment, command: Command, tmp_path: Path) -> None:
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", "--set", "rollout.temprature=1"))
    assert_refused(outcome, "rollout.temprature", "temperature")


def test_a_results_path_that_batch_jobs_cannot_carry_is_refused(
    tiny_experiment, command: Command, tmp_path: Path
) -> None:
    outcome = command("train", *train_arguments(tiny_experiment, f"{tmp_path}/a\\b"))
    assert_refused(outcome, "backslash", "choose a folder without it")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_configuration_and_plan_and_writes_nothing(
    tiny_experiment, command: Command, tmp_path: Path
) -> None:
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", "--dry-run"))
    assert outcome.code == 0
    assert "learning_rate: 0.001" in outcome.out
    assert "2 updates of 3 candidate groups x 4 rollouts, 2 groups trained on" in outcome.out
    assert not (tmp_path / "run").exists()


# ---- another working directory


def test_from_another_directory_shipped_files_are_those_of_the_checkout_and_results_are_written_here(
    tiny_experiment, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = command("train", *train_arguments(tiny_experiment, "run"))
    assert outcome.code == 0, outcome
    assert digest(tmp_path / "run") == trained[1], "configuration, header and result are the same"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    for name in ("quickstart", "paper_qwen3_4b"):
        arguments = ["--config", f"configs/experiments/{name}.yaml", "--method", "rised", "--seed", "0", "--dry-run"]
        assert command("train", *arguments).code == 0
    grid = read_grid({"experiment": "laptop_grid"})
    assert all(Path(file).is_file() for file in [grid.experiment_file, *grid.extended_files, grid.site])


def test_without_a_checkout_one_line_says_where_to_run(
    tiny_experiment, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rised.config.paths.CHECKOUT", tmp_path / "site-packages")
    outcome = command("train", *train_arguments(tiny_experiment, "run"))
    assert_refused(outcome, "there is no configs/methods here: run from the folder of a checkout")


# ---- files that a stage reads


def test_a_cache_that_was_removed_is_written_again_or_named_where_it_cannot_be(
    tiny_experiment, command: Command, repository: Path, tmp_path: Path
) -> None:
    settings = f"product_count: 40, cache_dir: '{tmp_path}/cache'"
    webshop = f"webshop: {{train_tasks: 2, validation_tasks: 1, settings: {{{settings}}}}}"
    config = variant(tiny_experiment, tmp_path, f"environments: {{{webshop}}}\nrollout: {{max_episode_tokens: 4000}}")
    tasks = tmp_path / "tasks.parquet"
    assert command("prepare", "--config", config, "--out", tasks).code == 0
    shutil.rmtree(tmp_path / "cache")
    outcome = command("evaluate", "--config", config, "--tasks", tasks, "--out", tmp_path / "evaluation")
    assert outcome.code == 0, outcome
    assert "no prepared catalogue" in outcome.out and "writing it again" in outcome.out
    assert {r["environment"] for r in RunReader(tmp_path / "evaluation").scan("validation").to_pylist()} == {
        "dbbench",
        "webshop",
    }
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file, no folder")
    arguments = ["--config", config, "--tasks", tasks, "--out", tmp_path / "evaluation", "--again"]
    assert_refused(command("evaluate", *arguments), f"{tmp_path}/cache")


def _with_metadata(table: pa.Table, source: pa.Table) -> pa.Table:
    return table.replace_schema_metadata(source.schema.metadata)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_version(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, VERSION_KEY: b"9"}), path)


def without_a_field(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(_with_metadata(table.drop_columns(["seed"]), table), path)


def with_a_damaged_payload(path: Path) -> None:
    table = pq.read_table(path)
    payloads = table["payload"].to_pylist()
    payloads[3] = payloads[3][:-20]
    place = table.schema.get_field_index("payload")
    pq.write_table(table.set_column(place, table.schema.field("payload"), pa.array(payloads)), path)


def with_an_edited_payload(path: Path) -> None:
    table = pq.read_table(path)
    payloads = table["payload"].to_pylist()
    payloads[3] = json.dumps(json.loads(payloads[3]) | {"note": "easier"})
    place = table.schema.get_field_index("payload")
    pq.write_table(table.set_column(place, table.schema.field("payload"), pa.array(payloads)), path)


def of_another_program(path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), path)


def absent(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, ["truncated"]),
        (of_another_version, ["version 9", "reads version 2"]),
        (without_a_field, ["columns are missing (seed)"]),
        (with_a_damaged_payload, ["row 3", "dbbench-train-00003", "damaged"]),
        (with_an_edited_payload, ["row 3", "dbbench-train-00003", "changed after it was written"]),
        (of_another_program, ["not a shard of this program"]),
        (absent, ["does not exist"]),
    ],
)
def test_a_task_file_that_cannot_be_used_is_refused(
    tiny_experiment, command: Command, tmp_path: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    tasks = Path(shutil.copy(tiny_experiment.tasks, tmp_path / "tasks.parquet"))
    damage(tasks)
    outcome = command("train", *train_arguments(tiny_experiment, tmp_path / "run", tasks=tasks))
    assert_refused(outcome, str(tasks), *words)
    assert not (tmp_path / "run" / "manifests").exists()


def test_a_task_whose_payload_lacks_a_field_is_marked_and_never_scored(
    tiny_experiment, command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is sound, one task is not: its episode is given up with the reason and counts nowhere."""
    tasks = tmp_path / "tasks.parquet"
    rows = from_table(read_shard(tiny_experiment.tasks, "tasks"))
    broken = next(row for row in rows if row["split"] == "validation")
    del broken["payload"]["description"]
    write_shard(tasks, to_table(rows, "tasks"))
    arguments = ["--config", tiny_experiment.config, "--tasks", tasks, "--out", tmp_path / "validation"]
    assert command("evaluate", *arguments).code == 0
    name = broken["task_id"]
    assert any(name in record.message and "description" in record.message for record in caplog.records)
    reader = RunReader(tmp_path / "validation")
    rollouts: list[Rollout] = from_table(reader.scan("validation"))
    lost = [r for r in rollouts if r.task_id == name]
    assert [(r.stop_reason, r.reward, r.reward_valid, r.success) for r in lost] == [
        (StopReason.ENVIRONMENT_ERROR, None, False, None)
    ]
    metrics = {row["name"]: row["value"] for row in reader.metrics().to_pylist()}
    scored = [r.success for r in rollouts if r.success is not None]
    assert metrics["validation/invalid/dbbench"] == 1
    assert metrics["validation/success/dbbench"] == sum(scored) / len(scored)
    assert len(scored) == len(rollouts) - 1


def test_a_policy_that_is_missing_or_truncated_is_refused(
    tiny_experiment, tiny_policy: Path, command: Command, tmp_path: Path
) -> None:
    def with_policy(path: Path) -> list[object]:
        return train_arguments(tiny_experiment, tmp_path / "run", "--set", f"model.path={path}")

    assert_refused(command("train", *with_policy(tmp_path / "nowhere")), str(tmp_path / "nowhere"), "model.path")
    policy = Path(shutil.copytree(tiny_policy, tmp_path / "policy"))
    truncated(policy / "model.safetensors")
    assert_refused(command("train", *with_policy(policy)), str(policy), "cannot be read")
    assert not (tmp_path / "run" / "manifests").exists()


def test_a_warm_start_that_is_missing_truncated_or_of_other_tasks_is_refused(
    tiny_experiment, command: Command, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def starting_from(path: Path) -> list[object]:
        return train_arguments(tiny_experiment, run, warm_start=path)

    assert_refused(command("train", *starting_from(tmp_path / "nowhere")), str(tmp_path / "nowhere"))
    warm_start = Path(shutil.copytree(tiny_experiment.warm_start, tmp_path / "warm_start"))
    shard = next(warm_start.glob("validation/step-000000/*.parquet"))
    truncated(shard)
    assert_refused(command("train", *starting_from(warm_start)), str(shard), "truncated")
    other_draws = train_arguments(tiny_experiment, run, "--set", "validation.seed=9")
    assert_refused(command("train", *other_draws), str(tiny_experiment.warm_start), "evaluate the warm start again")
    assert not (run / "manifests").exists()


def test_a_validation_of_other_settings_is_never_taken_for_the_one_asked_for(
    tiny_experiment, command: Command, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(tiny_experiment.warm_start, tmp_path / "warm_start"))
    before = contents(out)
    arguments = ["--config", tiny_experiment.config, "--tasks", tiny_experiment.tasks, "--out", out]
    assert command("evaluate", *arguments).code == 0, "the same settings: nothing to do"
    outcome = command("evaluate", *arguments, "--set", "validation.temperature=0.5")
    assert_refused(outcome, str(out), "validation.temperature was 1.0 and is 0.5", "--again")
    assert contents(out) == before


# ---- resuming


def test_a_stopped_run_goes_on_to_the_same_end(tiny_experiment, command: Command, trained, stopped: Path) -> None:
    assert RunReader(stopped).steps() == [0, 1]
    assert command("train", *train_arguments(tiny_experiment, stopped)).code == 0
    assert digest(stopped) == trained[1]


def test_a_resumed_run_has_the_state_that_it_was_stopped_with(
    tiny_experiment, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steering's switch, the window over all candidate groups, and the schedule: what the next step depends on."""
    resumed: list[dict[str, object]] = []

    def stop_at_once(self, number, *arguments):
        resumed.append(json.loads(json.dumps(self.state())))
        raise SystemExit

    monkeypatch.setattr(stages.train.Trainer, "update", stop_at_once)
    with pytest.raises(SystemExit):
        tiny_experiment.train(stopped, "rised", f"updates={UPDATES}")
    (saved,) = stopped.glob("state/*/loop.json")
    assert resumed == [json.loads(saved.read_text())]
    assert resumed[0]["method"]["steering"]["on"]["dbbench"] is True, "without it the switch would not be noticed"
    counts = TagWindow.from_json(resumed[0]["window"]).counts("dbbench")
    assert counts.rollouts == RunReader(stopped).scan("rollouts", steps=[1]).num_rows == 12, "also of groups left out"


def test_a_shard_truncated_before_a_resume_is_named_and_the_run_goes_on_once_it_is_back(
    tiny_experiment, command: Command, trained, stopped: Path
) -> None:
    shard = next(stopped.glob("rollouts/step-000001/*.parquet"))
    whole = shard.read_bytes()
    truncated(shard)
    before = contents(stopped)
    outcome = command("train", *train_arguments(tiny_experiment, stopped))
    assert_refused(outcome, str(shard), "truncated or overwritten", "Restore it")
    assert contents(stopped) == before, "nothing of the run was touched"
    shard.write_bytes(whole)
    assert command("train", *train_arguments(tiny_experiment, stopped)).code == 0
    assert digest(stopped) == trained[1]


def test_a_changed_strict_key_is_named_on_resume_and_an_operational_one_is_taken(
    tiny_experiment, command: Command, trained, stopped: Path
) -> None:
    before = contents(stopped)
    outcome = command("train", *train_arguments(tiny_experiment, stopped, "--set", "learner.learning_rate=2.0e-3"))
    assert_refused(outcome, "learner.learning_rate", "was 0.001", "is 0.002 now", "start a new run")
    assert contents(stopped) == before
    workers = train_arguments(tiny_experiment, stopped, "--set", "rollout.environment_workers=2")
    assert command("train", *workers).code == 0
    changed = {path for path, value in digest(stopped).items() if trained[1].get(path) != value}
    assert changed == {"config.yaml"}, "other workers, the same result"


def test_a_changed_strict_key_is_refused_of_a_finished_run_too(
    tiny_experiment, command: Command, stopped: Path
) -> None:
    assert command("train", *train_arguments(tiny_experiment, stopped)).code == 0
    outcome = command("train", *train_arguments(tiny_experiment, stopped, "--set", "rollouts_per_group=6"))
    assert_refused(outcome, "rollouts_per_group", "was 4", "is 6 now")


def test_other_tasks_on_resume_are_refused(tiny_experiment, command: Command, tmp_path: Path, stopped: Path) -> None:
    tasks = tmp_path / "tasks.parquet"
    table = read_shard(tiny_experiment.tasks, "tasks")
    pq.write_table(table.take(list(range(len(table)))[::-1]), tasks)
    outcome = command("train", *train_arguments(tiny_experiment, stopped, tasks=tasks))
    assert_refused(outcome, "panel_hashes")
    assert RunReader(stopped).steps() == [0, 1]


def with_another_example(vocabulary: Vocabulary, rubric_id: str) -> Vocabulary:
    """The vocabulary after an edit of one rubric's example."""
    edit = {"positive_example": "Something else that shows it."}
    return replace(
        vocabulary,
        rubrics=tuple(r.model_copy(update=edit) if r.id == rubric_id else r for r in vocabulary.rubrics),
    )


@pytest.mark.parametrize("finished", [False, True])
def test_an_edited_vocabulary_is_named_with_its_rubric_and_not_as_the_judge(
    tiny_experiment, command: Command, stopped: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """The file at the same path has other content, so that no key of the configuration differs."""
    if finished:
        assert command("train", *train_arguments(tiny_experiment, stopped)).code == 0
    rubric = "repeats_failed_action"
    edited = with_another_example(load_vocabulary(), rubric)
    monkeypatch.setattr(stages.train, "load_vocabulary", lambda path: edited)
    outcome = command("train", *train_arguments(tiny_experiment, stopped))
    assert_refused(outcome, "the vocabulary data/vocabulary.yaml was edited", f"changed: rubric {rubric})", "Restore")
    assert "'judge'" not in outcome.err
    if finished:
        monkeypatch.setattr(stages.stored, "load_vocabulary", lambda path: edited)
        with pytest.raises(RecordError, match=f"changed: rubric {rubric}"):
            stages.stored.finished_run(tiny_experiment.run_config("rised", f"updates={UPDATES}"), stopped)


def test_a_second_process_on_a_run_is_refused(tiny_experiment, command: Command, trained, stopped: Path) -> None:
    before = contents(stopped)
    ready, holds = os.pipe()
    writer = os.fork()
    if writer == 0:
        with RunDirectory(stopped):
            os.write(holds, b"x")
            signal.pause()
    assert os.read(ready, 1) == b"x"
    outcome = command("train", *train_arguments(tiny_experiment, stopped))
    assert_refused(outcome, str(stopped), f"another writer (process {writer}", "Wait for it or stop it")
    assert contents(stopped) == before
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    assert command("train", *train_arguments(tiny_experiment, stopped)).code == 0
    assert digest(stopped) == trained[1]


# ---- a full disk, a dead worker


def _no_space(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The disk is full for whatever is written to a path that contains ``where``."""
    free = record_files.free_bytes
    monkeypatch.setattr(record_files, "free_bytes", lambda folder: 0 if where in str(folder) else free(folder))


def _fails_half_way(monkeypatch: pytest.MonkeyPatch, name: str, where: str) -> None:
    """The disk fills up in the middle of one file."""
    write = record_files._write_temporary

    def fill_up(temporary: Path, view: memoryview, file_name: str) -> None:
        if file_name == name and where in str(temporary):
            temporary.write_bytes(view[: len(view) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(temporary))
        write(temporary, view, file_name)

    monkeypatch.setattr(record_files, "_write_temporary", fill_up)


def _learner_cannot_save(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(tensors, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(learner_state, "save_file", fill_up)


FULL: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the first shard": lambda patch: _no_space(patch, "rollouts/step-000002"),
    "half of the last shard": lambda patch: _fails_half_way(patch, "part-0.parquet", "timings"),
    "the learner's state": _learner_cannot_save,
    "the manifest": lambda patch: _no_space(patch, "manifests"),
}


def test_a_full_disk_leaves_no_half_step_and_the_same_command_finishes_afterwards(
    tiny_experiment, command: Command, trained, stopped: Path
) -> None:
    before = contents(stopped)
    for place, fill_up in FULL.items():
        with pytest.MonkeyPatch.context() as patch:
            fill_up(patch)
            outcome = command("train", *train_arguments(tiny_experiment, stopped))
        assert outcome.code == 2, place
        assert "no space left" in outcome.err.lower(), place
        assert "bytes needed" in outcome.err and "bytes free" in outcome.err, place
        assert "Traceback" not in outcome.err
        assert contents(stopped) == before, f"{place}: something of step 2 stayed"
    assert command("train", *train_arguments(tiny_experiment, stopped)).code == 0
    assert digest(stopped) == trained[1]


def test_an_environment_worker_killed_in_every_collection_changes_nothing(
    tiny_experiment, command: Command, trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = stages.workers.collect_rollouts
    killed: list[int] = []
    restarts: list[int] = []

    def collect_and_kill(engine, request):
        victims = list(request.pool.worker_pids)

        def kill_once(done: int, total: int) -> None:
            if victims:
                killed.append(victims.pop())
                os.kill(killed[-1], signal.SIGKILL)

        rollouts = collect(engine, replace(request, on_progress=kill_once))
        restarts.append(request.pool.restarts)
        return rollouts

    monkeypatch.setattr(stages.workers, "collect_rollouts", collect_and_kill)
    run = tmp_path / "run"
    assert command("train", *train_arguments(tiny_experiment, run)).code == 0
    assert len(killed) == 3, "two updates and one validation"
    assert restarts == [1, 2, 3]
    assert digest(run) == trained[1]


def test_a_warm_start_of_another_policy_is_refused(
    tiny_experiment, command: Command, tmp_path: Path, tiny_policy: Path
) -> None:
    other = tmp_path / "policy"
    shutil.copytree(tiny_policy, other)
    (other / "README.md").write_text("another policy\n")
    arguments = ["--config", tiny_experiment.config, "--tasks", tiny_experiment.tasks, "--method", "rised"]
    arguments += ["--seed", 0, "--warm-start", tiny_experiment.warm_start, "--out", tmp_path / "run"]
    outcome = command("train", *arguments, "--set", f"model.path={other}")
    assert_refused(outcome, "policy was", "evaluate the warm start again")


def test_a_finished_run_is_not_taken_for_one_of_another_policy(
    tiny_experiment, command: Command, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = ["--config", tiny_experiment.config, "--tasks", tiny_experiment.tasks, "--method", "grpo_64"]
    arguments += ["--seed", 0, "--warm-start", tiny_experiment.warm_start, "--out", run]
    assert command("train", *arguments).code == 0
    header = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(header | {"policy_hash": "another"}))
    assert_refused(command("train", *arguments), "policy_hash", "another folder")


def test_a_panel_too_small_for_different_groups_is_refused(tiny_experiment, command: Command) -> None:
    arguments = ["--config", tiny_experiment.config, "--method", "rised", "--seed", 0, "--dry-run"]
    outcome = command("train", *arguments, "--set", "environments.dbbench.train_tasks=5")
    assert_refused(outcome, "environments.dbbench.train_tasks is 5", "need at least 6")


def test_again_removes_an_evaluation_and_nothing_else(tiny_experiment, command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["--config", tiny_experiment.config, "--tasks", tiny_experiment.tasks]
    train = [*arguments, "--method", "grpo_64", "--seed", 0, "--warm-start", tiny_experiment.warm_start, "--out", run]
    assert command("train", *train).code == 0
    before = reproducible_digest(run)
    assert_refused(command("evaluate", *arguments, "--out", run, "--again"), "not the folder of an evaluation")
    assert reproducible_digest(run) == before
