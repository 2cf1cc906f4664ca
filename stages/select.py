"""select: what other selectors, or another judge's tags, would have chosen of a finished run's candidates.

Reads the experiment file and a finished run, compacted or not; writes ``reselected`` in the run: a run directory of its
own with a row for each selector and candidate (``reselections``). Selectors are those of configs/selectors.yaml, by
name. Each chooses as many groups as the run trained on, or half of the candidates where it trained on all. A selector
that reads tags chooses once by the run's own, and once by those of each of --judges, which `stages.retag --judge` has
made. The run itself stays as it is. Nothing is played and no judge is asked.

What is committed already is kept while selectors and judges stay the same; otherwise all is chosen anew.

    python -m stages.select --config configs/experiments/laptop_grid.yaml --method rised --seed 0 \\
        --selectors profile herding random --judges qwen3_8b
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rised.config import ConfigError
from rised.config.resolved import dump
from rised.experiment import RunConfig
from rised.methods.base import PromptGroup, Selector
from rised.methods.registry import build
from rised.methods.settings import SelectorCatalogue, load_selectors
from rised.records.commit import RunDirectory
from rised.records.errors import RecordError
from rised.records.layout import DONE, HEADER, RESELECTED, RETAGS
from rised.records.schemas import to_table
from rised.records.shards import RunReader
from rised.records.types import Reselection, Selection
from rised.rubrics.vocabulary import load_vocabulary
from stages.cli import run_stage, stage_parser
from stages.setup import load_experiment, load_run
from stages.stored import StoredCandidates, add_stored_run, compared_count, finished_run, steps_with, stored_run

OWN = "own"
"""The name under which the run's own tags stand."""


def reselect(config: RunConfig, run: Path, selectors: SelectorCatalogue, judges: Sequence[str] = ()) -> None:
    """Choose where it is not done yet.

    RecordError or ConfigError for a run that is unfinished or was made with another configuration, or whose rollouts
    a judge has not tagged; MethodError for a selector that cannot choose among stored candidates.
    """
    reader = finished_run(config, run)
    vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
    sources = {name: StoredCandidates(reader, *source) for name, source in tag_sources(reader, judges).items()}
    pieces = {name: build("selector", settings, vocabulary=vocabulary) for name, settings in selectors.items()}
    steps = steps_with(reader, "rollouts")
    if not steps:
        raise RecordError(f"{run} has no training rollouts")
    own = reader.header()
    header = {
        **{key: own[key] for key in ("config_hash", "vocabulary_hash")},
        "selectors": {name: settings.model_dump(mode="json") for name, settings in selectors.items()},
        "tags": {name: source.judge for name, source in sources.items()},
    }
    forget_others(run / RESELECTED, header)
    with RunDirectory(run / RESELECTED) as out:
        out.recover()
        out.write_header(header)
        out.write_config(dump(config))
        missing = [step for step in steps if step not in out.committed_steps()]
        if missing:
            (out.path / DONE).unlink(missing_ok=True)
        for step in missing:
            rows = list(choices(pieces, sources, config, step))
            with out.step(step) as record:
                record.write("reselections", to_table(rows, "reselections"))
                record.commit()
            print(f"update {step}: {len({(row.selector, row.tags) for row in rows})} selections", flush=True)
        out.finish(steps[-1], steps)


def tag_sources(reader: RunReader, judges: Sequence[str]) -> dict[str, tuple[RunReader, str]]:
    """Name -> where its tags lie, and its judge's id; the run's own come first.

    RecordError for a judge that has not tagged the whole run.
    """
    sources = {OWN: (reader, str(reader.header()["judge"]))}
    for name in judges:
        folder = reader.path / RETAGS / name
        if not (folder / DONE).is_file():
            raise RecordError(
                f"{folder} is not there or not finished: {name} has not tagged this run. Run `python -m stages.retag "
                f"--judge {name}`, or `snakemake retag --config judge={name}`, first"
            )
        tags = RunReader(folder)
        sources[name] = tags, str(tags.header()["judge"])
    return sources


def choices(
    selectors: Mapping[str, Selector], sources: Mapping[str, StoredCandidates], config: RunConfig, step: int
) -> Iterator[Reselection]:
    """One update's rows. A source without any tag of the update is passed over: a selection by it would be chance."""
    for tags, source in sources.items():
        groups, tagged = source.groups(step)
        for name, selector in selectors.items():
            if selector.needs_tags and tagged:
                yield from _rows(name, tags, source.judge, _chosen(selector, groups, config, step))
            elif not selector.needs_tags and tags == OWN:
                yield from _rows(name, "", "", _chosen(selector, groups, config, step))


def _chosen(selector: Selector, groups: Sequence[PromptGroup], config: RunConfig, step: int) -> list[Selection]:
    return selector.select(groups, compared_count(config, len(groups)), step, config.seed)


def _rows(name: str, tags: str, judge: str, selections: Sequence[Selection]) -> Iterator[Reselection]:
    for selection in selections:
        yield Reselection(selector=name, tags=tags, judge=judge, **asdict(selection))


def forget_others(folder: Path, header: Mapping[str, Any]) -> None:
    """Remove what was chosen by other selectors, settings or judges: it costs minutes, and a table holds one kind."""
    if not (folder / HEADER).is_file():
        return
    found = RunReader(folder).header()
    if any(found.get(key) != value for key, value in header.items()):
        print(f"{folder}: other selectors or judges than before; all is chosen anew", flush=True)
        shutil.rmtree(folder)


def main() -> None:
    parser = stage_parser("select", __doc__)
    add_stored_run(parser)
    parser.add_argument("--selectors", nargs="*", help="names (default: the experiment's `reselect`, else all)")
    parser.add_argument("--judges", nargs="*", help="judges whose tags select, too (default: the experiment's)")
    args = parser.parse_args()
    config = load_run(args.config, args.method, args.seed, args.set)
    wanted = load_experiment(args.config, [text for text in args.set if not text.startswith("method.")]).reselect
    names = args.selectors if args.selectors is not None else (wanted.selectors if wanted else [])
    judges = args.judges if args.judges is not None else (wanted.judges if wanted else [])
    if len(set(judges)) < len(judges) or OWN in judges:
        raise ConfigError(f"--judges: name each judge once, and not {OWN!r}, which is always there")
    selectors = load_selectors(names)
    run = stored_run(args, config)
    if args.dry_run:
        print(f"# plan: what {', '.join(selectors)} choose of the candidates of {run}, by {', '.join([OWN, *judges])}")
        return
    reselect(config, run, selectors, judges)


if __name__ == "__main__":
    run_stage(main)
