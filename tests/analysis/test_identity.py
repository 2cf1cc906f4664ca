"""A run is what its manifest says: renamed, copied and mixed folders are refused, and other runs' episodes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import episodes, write_run

from analysis import AnalysisError
from analysis.frames import Frames
from analysis.runs import find_experiment
from rised.records.commit import RunDirectory
from rised.records.files import sha256_of
from rised.records.schemas import schema_of, to_table

TASKS = {"webshop": {"t0": "10", "t1": "01"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for method in ("grpo_64", "rised"):
        write_run(tmp_path / "made_up", method, 0, TASKS)
    return tmp_path / "made_up"


def rewrite(run: Path, kind: str, change: Callable[[pa.Table], pa.Table], step: int = 1) -> Path:
    """Change a committed shard behind the manifest's back, which keeps its size and hash right."""
    (path,) = (run / kind).glob(f"*{step:06d}/*.parquet")
    table = change(pq.read_table(path))
    pq.write_table(table.cast(schema_of("rollouts")), path)
    manifest = next((run / "manifests").glob(f"*{step:06d}.json"))
    document = json.loads(manifest.read_text())
    for shard in document["shards"]:
        if shard["path"] == str(path.relative_to(run)):
            shard |= {"byte_count": path.stat().st_size, "sha256": sha256_of(path)}
    manifest.write_text(json.dumps(document))
    return path


def with_column(table: pa.Table, name: str, values: list) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def test_name_method_and_seed_are_those_of_the_manifest(root: Path) -> None:
    moved = root.rename(root.with_name("downloaded"))
    experiment = find_experiment(moved)
    assert experiment.name == "made_up" and [run.name for run in experiment.runs] == [
        "made_up/grpo_64/seed-0",
        "made_up/rised/seed-0",
    ]


@pytest.mark.parametrize("place", ["rised/seed-7", "grpo_64/seed-1", "rised_copy/seed-0", "rised/seed-00"])
def test_a_copied_or_renamed_run_is_refused_with_what_it_is(root: Path, place: str) -> None:
    shutil.copytree(root / "rised" / "seed-0", root / place)
    with pytest.raises(AnalysisError, match=rf"says made_up/rised/seed-0, the folder says {place}.*remove it"):
        find_experiment(root)


def test_a_shipped_run_copied_to_another_seed_or_method_is_refused(repository: Path, tmp_path: Path) -> None:
    shipped = repository / "data" / "sample_results" / "laptop_grid"
    for source, place in (("rised/seed-0", "rised/seed-7"), ("grpo_64/seed-0", "rised/seed-1")):
        root = tmp_path / place.replace("/", "-")
        shutil.copytree(shipped / "rised" / "seed-0", root / "rised" / "seed-0")
        shutil.copytree(shipped / source, root / place)
        with pytest.raises(AnalysisError, match=f"laptop_grid/{source}, the folder says {place}"):
            find_experiment(root)


def test_a_table_of_a_copied_run_ends_with_one_message(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "rised" / "seed-0", root / "rised" / "seed-7")
    command = [sys.executable, "-m", "analysis.tables.table2", "--runs", str(root), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and "the folder says rised/seed-7" in done.stderr


def test_the_same_records_under_an_edited_manifest_are_refused(root: Path) -> None:
    copy = shutil.copytree(root / "rised" / "seed-0", root / "rised" / "seed-7")
    header = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(header | {"seed": 7}))
    with pytest.raises(AnalysisError, match=r"seed-7 holds the records of .*rised/seed-0: one is a copy"):
        find_experiment(root)
    shutil.rmtree(root / "rised" / "seed-0")
    with pytest.raises(AnalysisError, match=r"belong to made_up/rised/seed-0, not to made_up/rised/seed-7"):
        Frames(find_experiment(root)).validation  # noqa: B018


def test_runs_of_two_experiments_in_one_folder_are_refused(root: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", "grpo_128", 0, TASKS)
    shutil.copytree(other, root / "grpo_128" / "seed-0")
    with pytest.raises(AnalysisError, match=r"several experiments \(made_up, other\).*grpo_128/seed-0 of other"):
        find_experiment(root)


def test_a_manifest_without_identity_is_refused(root: Path) -> None:
    path = root / "rised" / "seed-0" / "manifest.json"
    header = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in header.items() if key != "method"}))
    with pytest.raises(AnalysisError, match="does not say of which experiment, method and seed"):
        find_experiment(root)


def test_repeated_episodes_are_refused_with_their_files(root: Path) -> None:
    path = rewrite(root / "rised" / "seed-0", "validation", lambda table: pa.concat_tables([table, table.slice(0, 1)]))
    with pytest.raises(AnalysisError, match=rf"2 validation episodes are there twice.*webshop-t0-0.*{path.name}"):
        Frames(find_experiment(root)).validation  # noqa: B018


@pytest.mark.parametrize(
    ("other", "message"),
    [("again", "12 rollouts episodes are there twice"), ("other_run", "there twice|belong to made_up/B")],
)
def test_the_listed_repeats_of_a_step_and_of_a_run_are_refused(
    cases_dir: Path, tmp_path: Path, other: str, message: str
) -> None:
    """The case's rows in our columns: the step in flight written twice, and another run's shard beside it."""
    folder = cases_dir / "36-two-runs-and-duplicates"
    listed, more = (pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("rollouts", other))

    def of_rows(rows: list) -> pa.Table:
        table = to_table(episodes("", 3, {"webshop": {"t0": "0"}}) * len(rows))
        table = with_column(table, "run", [f"made_up/{row['run']}/seed-0" for row in rows])
        table = with_column(table, "rollout_id", [row["rollout_id"] for row in rows])
        return with_column(table, "success", [bool(row["success"]) for row in rows])

    path = tmp_path / "made_up" / "A" / "seed-0"
    with RunDirectory(path) as run:
        run.write_config("updates: 3\n")
        run.write_header({"experiment": "made_up", "method": "A", "seed": 0})
        run.recover()
        with run.step(3, {"rollouts": len(listed)}) as writer:
            writer.write("rollouts", of_rows(listed))
            writer.write("metrics", to_table([], "metrics"))
            writer.commit()
    alone = Frames(find_experiment(path.parent.parent)).episode_counts.set_index("success")["count"]
    assert alone[True] / alone.sum() == pytest.approx(0.3333333333)
    shard = rewrite(path, "rollouts", lambda table: of_rows(listed + more), step=3)
    with pytest.raises(AnalysisError, match=rf"({message}).*{shard.name}"):
        Frames(find_experiment(path.parent.parent)).episode_counts  # noqa: B018


def test_episodes_that_name_another_step_are_refused(root: Path) -> None:
    def shift(table: pa.Table) -> pa.Table:
        return with_column(table, "step", [5] * table.num_rows)

    rewrite(root / "rised" / "seed-0", "validation", shift)
    with pytest.raises(AnalysisError, match=r"4 validation episodes name another step .*validation-000001-webshop"):
        Frames(find_experiment(root)).validation  # noqa: B018


def test_a_reward_that_contradicts_its_validity_is_refused(root: Path) -> None:
    rewrite(root / "rised" / "seed-0", "validation", lambda t: with_column(t, "reward", [None, 0.0, 0.0, 1.0]))
    with pytest.raises(AnalysisError, match=r"1 validation episodes have a reward that contradicts.*t0-0"):
        Frames(find_experiment(root)).validation  # noqa: B018


@pytest.mark.parametrize("name", ["laptop_grid", "laptop_ablation", "laptop_orsd", "webshop_only", "dbbench_only"])
def test_the_shipped_runs_pass_these_checks(repository: Path, name: str) -> None:
    frames = Frames(find_experiment(repository / "data" / "sample_results" / name))
    assert frames.experiment.name == name
    assert frames.validation["outcome"].notna().all() and frames.episode_counts["count"].sum()
