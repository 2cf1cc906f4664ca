"""The space that a run's files need is held against what is free before the first update."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rised.learner.state as learner_state
import rised.records.files as record_files
import stages.saving
from rised.learner.errors import LearnerError
from rised.records.errors import RecordError
from stages.saving import check_space
from stages.setup import load_run

PARAMETERS = 1_000_000
Free = Callable[[int], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    def let(count: int) -> None:
        for module in (stages.saving, learner_state, record_files):
            monkeypatch.setattr(module, "free_bytes", lambda folder: count)

    return let


def test_a_state_that_does_not_fit_is_refused_before_the_first_update(
    tiny_experiment, free: Free, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_run(tiny_experiment.config, "rised", 0, [])
    needed = 12 * PARAMETERS + 4 * PARAMETERS + record_files.SPARE_BYTES
    free(needed - 1)
    with pytest.raises(RecordError, match=rf"run.*{PARAMETERS:,} parameters take {needed:,} bytes.*--out"):
        check_space(config, tmp_path / "run", PARAMETERS, 0)
    free(needed)
    check_space(config, tmp_path / "run", PARAMETERS, 0)
    said = capsys.readouterr().err
    assert "2 states of 12,000,000 bytes" in said and "export_every, keep_exports" in said
    free(1 << 50)
    check_space(config, tmp_path / "run", PARAMETERS, 0)
    assert not capsys.readouterr().err


def test_a_state_that_meets_a_full_disk_names_what_it_needs_and_what_is_free(free: Free, tmp_path: Path) -> None:
    free(123)
    (tmp_path / "folder").write_text("")
    taken = learner_state.Snapshot({}, {}, {}, {})
    with pytest.raises(LearnerError, match=r"0 bytes needed, 123 bytes free\).*start the same command again"):
        taken.write(tmp_path / "folder")
