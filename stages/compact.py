"""compact: an experiment's finished runs as one small file per kind, ready to be published or committed.

Reads run directories; writes the same tree with compacted shards, which the analysis reads like the originals. Runs
that are not finished are named and left out; runs that are compacted already are left as they are. --last-texts keeps
what the last update's episodes said, where the environments' licences let it be published: Tables 3 and 4 and the
report's browser quote it.

    python -m stages.compact --runs results/laptop_grid --out data/sample_results/laptop_grid --last-texts
    snakemake --cores 1 report --config experiment=laptop_grid runs=data/sample_results/laptop_grid
"""

from __future__ import annotations

from pathlib import Path

from rised.records.compaction import compact
from rised.records.errors import RecordError
from rised.records.layout import COMPACTED, CONFIG, DONE, MANIFESTS
from stages.cli import bare_parser, run_stage
from stages.dataset_card import withheld_texts


def compact_experiment(runs: Path, out: Path, last_texts: bool = False) -> tuple[list[Path], list[Path]]:
    """Compact every finished run below ``runs``; the runs written and the runs left out because they are unfinished.

    Raises RecordError where texts are asked for that may not be published.
    """
    written, unfinished = [], []
    for config in sorted(runs.rglob(CONFIG)):
        run = config.parent
        if not (run / MANIFESTS).is_dir() or run.name == "warm_start":
            continue
        if not (run / DONE).is_file():
            unfinished.append(run)
            continue
        reasons = withheld_texts([config.read_text(encoding="utf-8")]) if last_texts else []
        if reasons:
            raise RecordError(f"texts of {run} cannot be kept: {'; '.join(reasons)}. Compact without --last-texts.")
        target = out / run.relative_to(runs)
        if not (target / COMPACTED).is_file():
            compact(run, target, last_texts=last_texts)
            written.append(target)
    return written, unfinished


def main() -> None:
    parser = bare_parser("compact", __doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of an experiment's runs")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--last-texts", action="store_true", help="keep what the last update's episodes said")
    args = parser.parse_args()
    written, unfinished = compact_experiment(args.runs, args.out, args.last_texts)
    for run in written:
        print(f"compacted {run}: {sum(p.stat().st_size for p in run.iterdir()) / 1e6:.1f} MB")
    for run in unfinished:
        print(f"left out, not finished: {run}")


if __name__ == "__main__":
    run_stage(main)
