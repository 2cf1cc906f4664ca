"""A published dataset is there whole or not at all, and a check names the first damaged file and the mend."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from analysis.synthetic import write_run
from rised.records import dataset as module
from rised.records.compaction import compact
from rised.records.dataset import Dataset, verify_dataset, write_dataset
from rised.records.errors import RecordError
from rised.records.shards import RunReader


def card(dataset: Dataset) -> str:
    return f"# {dataset.experiment}, {len(dataset.runs)} runs, synthetic: {dataset.synthetic}\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "rised" / "seed-0"
    write_run(path, "rised", 0, updates=2, stop=2, every=1, tasks=3)
    return path


@pytest.fixture()
def dataset(run: Path, tmp_path: Path) -> Path:
    write_dataset({"rised/seed-0": run}, tmp_path / "dataset", "grid", card)
    return tmp_path / "dataset"


def test_a_dataset_holds_the_runs_a_card_and_checksums_that_other_tools_read(dataset: Path, run: Path) -> None:
    names = {path.relative_to(dataset).as_posix() for path in dataset.rglob("*") if path.is_file()}
    shards = {f"grid/rised/seed-0/{kind}.parquet" for kind in RunReader(run).kinds()}
    assert shards <= names
    assert {"README.md", "dataset.json", "SHA256SUMS", "grid/rised/seed-0/DONE"} <= names
    assert (dataset / "README.md").read_text() == "# grid, 1 runs, synthetic: True\n"
    assert verify_dataset(dataset) == len(names) - 1
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=dataset, check=True)
    published = RunReader(dataset / "grid" / "rised" / "seed-0")
    assert published.done and "turns" not in published.columns("rollouts")
    assert published.scan("metrics").equals(RunReader(run).scan("metrics"))


def test_equal_runs_give_equal_datasets(dataset: Path, run: Path, tmp_path: Path) -> None:
    write_dataset({"rised/seed-0": run}, tmp_path / "again", "grid", card)
    assert (tmp_path / "again" / "SHA256SUMS").read_bytes() == (dataset / "SHA256SUMS").read_bytes()


def test_texts_come_only_when_asked_for_whatever_the_source_is(run: Path, tmp_path: Path) -> None:
    full, small = tmp_path / "full", tmp_path / "small"
    compact(run, full, full_rollouts=True)
    compact(run, small)

    def columns(source: Path, texts: bool) -> list[str]:
        write_dataset({"r/seed-0": source}, tmp_path / "out", "g", card, texts)
        verify_dataset(tmp_path / "out")
        return RunReader(tmp_path / "out" / "g" / "r" / "seed-0").columns("rollouts")

    for source in (run, full, small):
        assert "turns" not in columns(source, texts=False)
    for source in (run, full):
        assert "turns" in columns(source, texts=True)
    with pytest.raises(RecordError, match="keeps no texts to publish"):
        columns(small, texts=True)


def test_a_failure_leaves_the_dataset_that_was_there_and_nothing_beside_it(
    dataset: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (dataset / "SHA256SUMS").read_bytes()

    def no_card(_: Dataset) -> str:
        raise OSError(28, "No space left on device")

    with pytest.raises(RecordError, match="No space left on device"):
        write_dataset({"rised/seed-0": run}, dataset, "grid", no_card)
    assert (dataset / "SHA256SUMS").read_bytes() == before
    assert [path.name for path in dataset.parent.iterdir()] == ["dataset"]
    verify_dataset(dataset)


def test_what_a_killed_publication_left_is_replaced(dataset: Path, run: Path) -> None:
    leftover = dataset.parent / ".tmp-dataset" / "half"
    leftover.mkdir(parents=True)
    write_dataset({"rised/seed-0": run}, dataset, "other", card)
    assert [path.name for path in dataset.parent.iterdir()] == ["dataset"]
    assert not (dataset / "grid").exists() and (dataset / "other").is_dir()


def test_unfinished_and_absent_runs_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "half", "rised", 0, updates=4, stop=2, every=1, tasks=2)
    with pytest.raises(RecordError, match="has no DONE: only finished runs are published"):
        write_dataset({"rised/seed-0": tmp_path / "half"}, tmp_path / "out", "grid", card)
    with pytest.raises(RecordError, match="no finished run to publish"):
        write_dataset({}, tmp_path / "out", "grid", card)
    assert not (tmp_path / "out").exists()


def spoil(path: Path, how: str) -> None:
    if how == "flip":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
@pytest.mark.parametrize("name", ["grid/rised/seed-0/tags.parquet", "README.md", "grid/rised/seed-0/config.yaml"])
def test_any_damage_is_found_and_the_file_and_the_mend_are_named(dataset: Path, name: str, how: str) -> None:
    spoil(dataset / name, how)
    with pytest.raises(RecordError) as caught:
        verify_dataset(dataset)
    message = str(caught.value)
    assert message.startswith(f"{dataset / name} is {'missing' if how == 'remove' else 'damaged'}")
    assert message.endswith("Download this file again, or publish the runs again with the same command.")


def test_of_several_damaged_files_the_first_of_the_list_is_named(dataset: Path) -> None:
    names = [line.split("  ")[1] for line in (dataset / "SHA256SUMS").read_text().splitlines()]
    for name in names[3:6]:
        spoil(dataset / name, "cut")
    with pytest.raises(RecordError, match=f"{names[3]} is damaged"):
        verify_dataset(dataset)


def test_files_that_are_not_listed_are_named_but_what_a_hub_adds_is_not(dataset: Path) -> None:
    (dataset / ".gitattributes").write_text("*.parquet filter=lfs\n")
    (dataset / ".cache" / "huggingface").mkdir(parents=True)
    (dataset / ".cache" / "huggingface" / "x.lock").write_text("")
    verify_dataset(dataset)
    (dataset / "grid" / "rised" / "seed-0" / "more.parquet").write_bytes(b"x")
    with pytest.raises(RecordError, match=r"more\.parquet is not listed in SHA256SUMS"):
        verify_dataset(dataset)


@pytest.mark.parametrize("line", ["", "no checksum", f"{'0' * 64}  ../outside", f"{'0' * 64}  /etc/hostname"])
def test_a_list_that_is_none_is_refused(dataset: Path, line: str) -> None:
    (dataset / "SHA256SUMS").write_text(line and f"{line}\n")
    with pytest.raises(RecordError, match="SHA256SUMS(, line 1)? is (empty|no checksum)"):
        verify_dataset(dataset)


def test_a_folder_without_checksums_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"no whole dataset: it has no {module.SUMS}"):
        verify_dataset(tmp_path)


def test_a_list_of_shards_that_disagrees_is_found_though_its_own_checksum_fits(dataset: Path) -> None:
    listed = dataset / "dataset.json"
    listed.write_text(listed.read_text().replace('"row_count": ', '"row_count": 9', 1))
    digest = module.sha256_of(listed)
    sums = dataset / "SHA256SUMS"
    lines = [
        f"{digest}  dataset.json" if line.endswith("  dataset.json") else line for line in sums.read_text().splitlines()
    ]
    sums.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=r"rows, dataset\.json says 9"):
        verify_dataset(dataset)
