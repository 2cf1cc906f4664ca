"""verify: check a published dataset, downloaded or just written, against its checksums and its list of shards.

Ends with exit code 2 and names the first file that is missing, damaged or not listed, and what to do. Needs no torch.

    python -m stages.verify --dataset results/laptop_grid/dataset
"""

from __future__ import annotations

from pathlib import Path

from rised.records.dataset import verify_dataset
from stages.cli import bare_parser, run_stage


def main() -> None:
    parser = bare_parser("verify", __doc__)
    parser.add_argument("--dataset", type=Path, required=True, help="folder that publish wrote, or a download of it")
    args = parser.parse_args()
    print(f"{args.dataset}: {verify_dataset(args.dataset)} files are as they were published")


if __name__ == "__main__":
    run_stage(main)
