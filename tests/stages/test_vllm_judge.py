"""A real model behind a real vLLM as judge and as discovery's strong model, end to end. Slow: `make test-vllm`.

SmolLM2-135M on a CPU says nothing sensible; what is tested is that its server starts, that structured output is
enforced and read, that nothing is asked twice, and that discovery comes to its end and counts what was valid.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from rised.config.loader import read_plain
from rised.records.schemas import from_table
from rised.records.shards import read_shard
from rised.records.types import Rollout, TagStatus
from rised.rubrics.judges import make_judge
from rised.rubrics.vocabulary import load_vocabulary
from stages.serve_judge import load_judge

pytestmark = pytest.mark.vllm

ENVIRONMENT = ".venv-vllm"
JUDGE = "configs/judges/smollm2_cpu.yaml"
ROOMS = ("analysis", "configs", "data", "profiles", "rised", "rubric_discovery", "slurm", "stages")
STEPS = ("propose", "normalise", "merge", "screen", "group", "freeze")
READY_S, DISCOVERY_S = 600, 1800
HONEST_ENDS = (
    "named no behaviour with evidence",
    "made no candidate",
    "no candidate passed the screens",
    "gave no skills",
)
"""How discovery may end with a model that has nothing valid to say; which one depends on the machine's arithmetic."""


@dataclass(frozen=True)
class Served:
    """A checkout of links in which the model is served. ``ready_s``: from the stage's start to its endpoint file."""

    folder: Path
    url: str
    ready_s: float


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Served]:
    if not (repository / ENVIRONMENT / ".ready").is_file():
        pytest.skip("vLLM is not set up here: make vllm")
    folder = tmp_path_factory.mktemp("checkout")
    for part in (*ROOMS, "Snakefile", "environment.yml", ENVIRONMENT):
        (folder / part).symlink_to(repository / part)
    endpoint = folder / "results" / "services" / "smollm2_cpu" / "endpoint.json"
    started = time.monotonic()
    with (folder / "serve.log").open("wb") as log:
        stage = subprocess.Popen(
            [sys.executable, "-m", "stages.serve_judge", "--config", JUDGE],
            cwd=folder,
            env=environment(folder),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while not endpoint.is_file():
            assert stage.poll() is None, (folder / "serve.log").read_text()
            assert time.monotonic() - started < READY_S, (folder / "serve.log").read_text()
            time.sleep(0.5)
        ready_s = time.monotonic() - started
        (url,) = json.loads(endpoint.read_text())["urls"]
        print(f"\nready after {ready_s:.0f} s")
        yield Served(folder, url, ready_s)
        stage.send_signal(signal.SIGTERM)
        assert stage.wait(60) == 0 and not endpoint.exists(), "it ends cleanly, the file first"
    finally:
        if stage.poll() is None:
            stage.kill()
            stage.wait()


def environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PYTHONPATH": str(folder), "PATH": path, "OMP_NUM_THREADS": "1"}


def metric(url: str, name: str) -> float:
    """A counter of vLLM's own."""
    text = httpx.get(f"{url.removesuffix('/v1')}/metrics", trust_env=False).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


def test_a_real_model_tags_rollouts_under_the_schema_and_is_asked_nothing_twice(
    served: Served, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    stored: list[Rollout] = from_table(read_shard("data/discovery/rollouts.parquet", "rollouts"))
    rollouts = [r for name in ("alfworld", "dbbench", "webshop") for r in stored if r.environment == name][::4]
    settings, _ = load_judge(Path(JUDGE), [f"rubrics.judge.endpoint={served.url}", f"rubrics.judge.cache={tmp_path}"])
    vocabulary = load_vocabulary()
    judge = make_judge(settings, vocabulary)
    started = time.monotonic()
    first = judge.tag(rollouts)
    took_s, asked = time.monotonic() - started, judge.record.counters
    assert asked.calls >= len(rollouts) == 6 and asked.cached == 0
    assert len(first) == sum(r.environment in rubric.environments for r in rollouts for rubric in vocabulary.rubrics)
    assert {tag.status for tag in first} == {TagStatus.OK}, Counter(reply.reason for reply in judge.record.replies)
    assert all(tag.evidence_turn is not None for tag in first if tag.state != "absent"), "as the grammar demands"
    again = make_judge(settings, vocabulary)
    second = again.tag(rollouts)
    assert again.record.counters.calls == 0 and again.record.counters.cached == len(rollouts)
    assert all(tag.cached for tag in second)
    assert [(t.rollout_id, t.rubric_id, t.state) for t in second] == [
        (t.rollout_id, t.rubric_id, t.state) for t in first
    ]
    hits, queries = (metric(served.url, f"vllm:prefix_cache_{what}_total") for what in ("hits", "queries"))
    print(
        f"\n{asked.calls} calls in {took_s:.0f} s ({asked.calls / took_s:.3f}/s), {asked.prompt_tokens} prompt and "
        f"{asked.completion_tokens} reply tokens; states {dict(Counter(str(tag.state) for tag in first))}\n"
        f"second pass: {again.record.counters.cached} of {len(rollouts)} from the cache; the server's prefix cache "
        f"held {hits / queries:.0%} of all prompt tokens"
    )


def test_discovery_with_a_real_model_comes_to_its_end_and_counts_what_was_valid(served: Served) -> None:
    command = ["-m", "snakemake", "--cores", "1", "--nolock", "rubrics", "--config", "discovery=smollm2_cpu"]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=served.folder,
        env=environment(served.folder),
        capture_output=True,
        text=True,
        timeout=DISCOVERY_S,
    )
    found = served.folder / "results" / "discovery" / "smollm2_cpu"
    records = {path.stem: read_plain(path) for path in found.glob("*.yaml") if path.stem in ("sample", *STEPS)}
    for step, record in records.items():
        print(f"\n{step}: {record.get('counts')} {record.get('replies', '')}", end="")
    asked = pq.read_table(found / "propose_replies.parquet").to_pylist()
    assert len(asked) == 8 and all(row["model"].startswith("llm:smollm2@main") for row in asked)
    assert sum(row["status"] == "ok" for row in asked) >= 4, "the schema's form is enforced by the server"
    if done.returncode == 0:
        vocabulary = load_vocabulary(found / "vocabulary.yaml")
        counts = {step: records[step]["counts"] for step in STEPS}
        assert len(vocabulary.rubrics) == counts["freeze"]["rubrics"] == counts["screen"]["kept"] > 0
        assert {rubric.source.model.split("@")[0] for rubric in vocabulary.rubrics if rubric.source} == {"llm:smollm2"}
    else:
        log = "".join(path.read_text() for path in (found / "logs").glob("*.log"))
        assert any(words in log for words in HONEST_ENDS), done.stdout[-2000:] + done.stderr[-2000:] + log[-2000:]
        print("\nno vocabulary: the model had nothing valid to say")
