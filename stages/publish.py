"""publish: an experiment's finished runs as a dataset folder: shards, card, list and checksums, ready for a hub.

Reads run directories, or their compacted form; writes the folder whole or not at all. What was said in episodes is
left out unless --texts asks for it, and then only where the environments' licences let it be published. Unfinished
runs are named and left out. Needs no torch.

    python -m stages.publish --runs results/laptop_grid --out results/laptop_grid/dataset
    python -m stages.verify --dataset results/laptop_grid/dataset
"""

from __future__ import annotations

from pathlib import Path

from rised.records.dataset import Dataset, write_dataset
from rised.records.errors import RecordError
from rised.records.layout import COMPACTED, CONFIG, DONE, IN_A_RUN, MANIFESTS
from stages.cli import bare_parser, run_stage
from stages.dataset_card import dataset_card, local_paths, withheld_texts


def find_runs(root: Path) -> tuple[dict[str, Path], list[Path]]:
    """Finished runs below an experiment by their path in it, and the unfinished ones; validation alone is no run."""
    finished, unfinished = {}, []
    for config in sorted(root.rglob(CONFIG)):
        run = config.parent
        hidden = any(part.startswith(".") for part in run.relative_to(root).parts)
        is_run = (run / MANIFESTS).is_dir() or (run / COMPACTED).is_file()
        if hidden or not is_run or run.name == "warm_start" or "dataset" in run.relative_to(root).parts:
            continue
        if (run / DONE).is_file():
            finished[run.relative_to(root).as_posix()] = run
        else:
            unfinished.append(run)
    return finished, unfinished


def publish(root: Path, out: Path, name: str | None = None, texts: bool = False) -> tuple[Dataset, list[Path]]:
    """Write the dataset of an experiment's runs; the dataset, and the runs that are left out because unfinished.

    ``root`` may be a dataset or a results folder with one experiment in it. Raises RecordError where texts are asked
    for that may not be published.
    """
    finished, unfinished = find_runs(root)
    depths = {len(Path(run).parts) for run in finished if not IN_A_RUN & set(Path(run).parts)}
    if depths == {3}:
        experiments = sorted({Path(run).parts[0] for run in finished})
        if len(experiments) > 1:
            raise RecordError(f"{root} holds several experiments ({', '.join(experiments)}): give the folder of one")
        root = root / experiments[0]
        finished, unfinished = find_runs(root)
    if texts:
        reasons = withheld_texts([(run / CONFIG).read_text(encoding="utf-8") for run in finished.values()])
        if reasons:
            raise RecordError(f"texts cannot be published: {'; '.join(reasons)}. Publish without --texts.")
    return write_dataset(finished, out, name or root.resolve().name, dataset_card, texts), unfinished


def main() -> None:
    parser = bare_parser("publish", __doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of an experiment's runs")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; replaced where it exists")
    parser.add_argument("--name", help="of the experiment (default: the folder's)")
    parser.add_argument("--texts", action="store_true", help="with prompts, observations, replies and tokens")
    args = parser.parse_args()
    dataset, unfinished = publish(args.runs, args.out, args.name, args.texts)
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(
        f"wrote {args.out}: {len(dataset.runs)} runs, {size / 1e6:.1f} MB; read {args.out / 'README.md'} before upload"
    )
    for run in unfinished:
        print(f"left out, not finished: {run}")
    for line in local_paths(dataset):
        print(f"names a path of this machine: {line}")


if __name__ == "__main__":
    run_stage(main)
