"""Cost and hashes of the runs in the report."""

from __future__ import annotations

import shutil
from pathlib import Path

from analysis.frames import Frames
from analysis.report.cost import cost_table
from analysis.report.provenance import software
from analysis.runs import find_experiment
from rised.records.commit import RunDirectory
from rised.records.schemas import to_table
from rised.records.types import Metric, Timing


def test_the_cost_of_a_run_is_what_its_records_add_up_to(frames: Frames) -> None:
    table = cost_table(frames)
    run = frames.experiment.runs[0]
    metrics = run.reader.scan("metrics").to_pandas().groupby("name")["value"].sum()
    timings = run.reader.scan("timings").to_pandas()
    steps = timings[(timings["name"] == "time/step") & (timings["subject"] == "")]["value"].sum()
    row = dict(zip(table.columns, (cell.text for cell in table.groups[0].rows[0]), strict=True))
    assert row["Run"] == run.label and row["Updates"] == "4"
    assert row["Tokens"] == f"{metrics['rollout/tokens']:,.0f}"
    assert row["Training, h"] == f"{steps / 3600:.2f}"
    assert row["Judge's tokens"] == row["Judge, h"] == "–", "no judge model: not recorded is no zero"
    assert len(table.groups[0].rows) == len(frames.experiment.runs)


def test_a_judge_models_tokens_and_hours_are_counted(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "judged" / "rised" / "seed-0") as run:
        run.write_config("updates: 1\n")
        run.write_header({"experiment": "judged", "method": "rised", "seed": 0})
        run.recover()
        for step in (0, 1):
            with run.step(step) as writer:
                tokens = [Metric(step, f"judge/{kind}_tokens", 50.0, "tokens") for kind in ("prompt", "completion")]
                rate = Metric(step, "validation/success/webshop", 0.5, "fraction")
                writer.write("metrics", to_table([*tokens, rate]))
                writer.write("timings", to_table([Timing(step, "judge/tag", 1800.0, "s", "some-judge")]))
                writer.commit()
        run.finish(1)
    table = cost_table(Frames(find_experiment(tmp_path)))
    row = dict(zip(table.columns, (cell.text for cell in table.groups[0].rows[0]), strict=True))
    assert row["Judge's tokens"] == "200" and row["Judge, h"] == "1.00"


def test_equal_records_have_equal_fingerprints_and_changed_ones_do_not(
    frames: Frames, grid: Path, tmp_path: Path
) -> None:
    copy = find_experiment(shutil.copytree(grid, tmp_path / "grid"))
    prints = [run.fingerprint() for run in frames.experiment.runs]
    assert [run.fingerprint() for run in copy.runs] == prints
    assert len(set(prints)) == len(prints)
    manifest = sorted((copy.runs[0].path / "manifests").iterdir())[-1]
    text = manifest.read_text()
    digest = text.split('"sha256": "')[1][:64]
    manifest.write_text(text.replace(digest, "0" * 64))
    assert find_experiment(tmp_path).runs[0].fingerprint() != prints[0]


def test_the_report_names_the_software_that_made_it() -> None:
    assert "pyarrow 26.0.1" in software() and software().startswith("Python 3.")
