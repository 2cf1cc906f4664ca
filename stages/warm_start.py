"""warm_start: build the nano policy from nothing.

Reads a nano-policy configuration (environments, shape, training); records expert transcripts with a share of wrong
steps, tags them, trains the tokenizer, then trains the model on them, some under hint and avoid blocks. Writes a
Hugging Face directory with a card (README.md), the transcripts (demonstrations-*.parquet).
and tags.parquet. Transcripts that are there already are used again if they were recorded with the same settings.

    python -m stages.warm_start --config configs/nano_policy.yaml --out results/nano_policy
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rised.config.loader import load
from rised.config.resolved import dump, keys, settings_hash
from rised.environments.discovery import get
from rised.learner.demonstration_batches import supervised_examples
from rised.learner.supervised import SupervisedExample, SupervisedPlan, SupervisedProgress, train_supervised
from rised.models.nano.architecture import build_nano
from rised.models.nano.settings import WarmStartSettings
from rised.models.nano.tokenizer import END, PAD, save_tokenizer, spaced_variants, train_tokenizer
from rised.models.rendering import ChatRendering
from rised.nano_policy import NanoPolicyConfig
from rised.records.schemas import from_table, to_table
from rised.records.shards import read_shard, write_shard
from rised.records.types import Rollout, Tag
from rised.rollouts.demonstrations import record_demonstrations
from rised.rubrics.blocks import avoid_block, hint_block
from rised.rubrics.judges import JUDGES
from rised.rubrics.vocabulary import Polarity, Vocabulary, load_vocabulary
from stages.cli import run_stage, stage_parser

SPLIT = "sft"
"""The split of the demonstrated tasks; by construction it shares no task with train or validation panels."""


def record(config: NanoPolicyConfig, out: Path) -> list[Rollout]:
    """Successful transcripts of every environment, in config order."""
    with _progress() as progress:
        return [rollout for name in config.environments for rollout in _record_environment(config, name, out, progress)]


def _record_environment(config: NanoPolicyConfig, name: str, out: Path, progress: Progress) -> list[Rollout]:
    """One environment's transcripts; read back if they were recorded with the same settings."""
    entry, warm = config.environments[name], config.warm_start
    shaping = {key: value for key, value, operational in keys(entry) if not operational}
    shaping |= {"panels.seed": config.panels.seed, "noise": warm.noise, "seed": warm.seed}
    shaping |= {"demonstrations": warm.demonstrations[name], "split": SPLIT}
    digest = hashlib.sha256(json.dumps(shaping, sort_keys=True, default=str).encode()).hexdigest()
    shard, mark = out / f"demonstrations-{name}.parquet", out / f"demonstrations-{name}.json"
    if shard.is_file() and mark.is_file() and json.loads(mark.read_text()).get("settings") == digest:
        found: list[Rollout] = from_table(read_shard(shard, "rollouts"), str(shard))
        return found
    spec = get(name)
    tasks = spec.prepare(entry.settings, SPLIT, entry.train_tasks, config.panels.seed)
    bar = progress.add_task(f"{name}: transcripts", total=warm.demonstrations[name])
    rollouts = []
    for rollout in record_demonstrations(
        entry.settings, tasks, warm.demonstrations[name], warm.noise, warm.seed, spec.max_turns, warm.workers
    ):
        progress.advance(bar)
        if rollout.success:
            rollouts.append(rollout)
    write_shard(shard, to_table(rollouts, "rollouts"))
    mark.write_text(json.dumps({"settings": digest, "count": len(rollouts)}))
    return rollouts


def tokenizer_texts(rollouts: Sequence[Rollout], vocabulary: Vocabulary, config: NanoPolicyConfig) -> list[str]:
    """Everything the policy will ever read or write, once per transcript, and every rubric's wording."""
    texts = [text for r in rollouts for turn in r.turns for text in (turn.observation, turn.action_raw)]
    texts += [rollout.system_prompt for rollout in rollouts[:: max(1, len(rollouts) // 50)]]
    for rubric_id in vocabulary.rubric_ids:
        positive = vocabulary.polarity(rubric_id) is Polarity.POSITIVE
        block = (hint_block if positive else avoid_block)([rubric_id], vocabulary, config.block_style)
        texts += [block] * 20
    return texts


def build(config: NanoPolicyConfig, out: Path) -> None:
    """Record, tag, train, write."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(config.warm_start.threads)
    vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
    rollouts = record(config, out)
    recorded_s = time.monotonic() - started
    judge = JUDGES[config.rubrics.judge.type](config.rubrics.judge, vocabulary)
    tags: dict[str, list[Tag]] = {}
    for tag in judge.tag(rollouts):
        tags.setdefault(tag.rollout_id, []).append(tag)
    write_shard(out / "tags.parquet", to_table([tag for group in tags.values() for tag in group], "tags"))
    texts = tokenizer_texts(rollouts, vocabulary, config)
    tokenizer = train_tokenizer(texts, config.shape.vocabulary_size)
    rendering = ChatRendering(tokenizer)
    warm = config.warm_start
    weighted = [r for r in rollouts for _ in range(warm.repeats.get(r.environment, 1))]
    print(f"{len(rollouts)} transcripts, {len(tokenizer)} tokens in the vocabulary", flush=True)
    model = build_nano(
        config.shape, len(tokenizer), _id(tokenizer, PAD), _id(tokenizer, END), spaced_variants(tokenizer), warm.seed
    )
    parameters = sum(p.numel() for p in model.parameters())
    finals = []
    for index in range(len(warm.lessons)):
        examples = supervised_examples(weighted, tags, rendering, vocabulary, config.block_style, warm, index)
        finals.append(teach(model, examples, warm, index))
    (out / "build.yaml").write_text(dump(config))
    (out / "README.md").write_text(card(config, rollouts, parameters, len(tokenizer), finals))
    save_tokenizer(tokenizer, out)
    model.save_pretrained(str(out), safe_serialization=True)
    elapsed = time.monotonic() - started
    print(
        f"wrote {out}: {parameters:,} parameters, loss {finals[-1].loss:.3f}; "
        f"transcripts {recorded_s:.0f} s, in all {elapsed:.0f} s",
        flush=True,
    )


def teach(
    model: Qwen2ForCausalLM, examples: Sequence[SupervisedExample], warm: WarmStartSettings, lesson_index: int
) -> SupervisedProgress:
    """Train the model in place on one lesson's examples, with a progress bar."""
    lesson = warm.lessons[lesson_index]
    plan = SupervisedPlan(
        lesson.learning_rate,
        lesson.warm_up_steps,
        warm.batch_tokens,
        lesson.total_tokens,
        warm.weight_decay,
        warm.seed + lesson_index,
    )
    name = f"lesson {lesson_index + 1} of {len(warm.lessons)}"
    with _progress() as progress:
        bar = progress.add_task(name, total=lesson.total_tokens)

        def show(state: SupervisedProgress) -> None:
            progress.update(bar, completed=state.tokens, description=f"{name}: loss {state.loss:.3f}")
            if state.step % 50 == 0:
                progress.console.print(f"{name}: step {state.step}, {state.tokens:,} tokens, loss {state.loss:.4f}")

        return train_supervised(model, examples, plan, show)


def card(
    config: NanoPolicyConfig,
    rollouts: Sequence[Rollout],
    parameters: int,
    tokens: int,
    lessons: Sequence[SupervisedProgress],
) -> str:
    """The model card."""
    counts = {name: sum(r.environment == name for r in rollouts) for name in config.environments}
    lines = [
        "# Nano policy",
        "",
        f"A Qwen2 model of {parameters:,} parameters (hidden size {config.shape.hidden_size}, {config.shape.layers} "
        f"layers) with its own BPE tokenizer of {tokens} tokens. It is the embedded CPU default of rised's quickstart.",
        "",
        "It was trained from scratch on synthetic expert transcripts only: generated ALFWorld games, a generated",
        "WebShop catalogue and generated DBBench tables. Their tasks are of the split `sft`, which shares no task with",
        "any train or validation panel: no errand in the same scene (ALFWorld), no product (WebShop), no question on",
        "the same table (DBBench). It speaks the `compact` prompt style and nothing else, and results with it say",
        "nothing about larger models.",
        "",
        "| environment | transcripts |",
        "| --- | --- |",
        *(f"| {name} | {count} |" for name, count in counts.items()),
        "",
        "Supervised warm start, lessons one after the other (loss in nats a token, weighted as the lesson says):",
        "",
        "| lesson | steps | tokens | last loss |",
        "| --- | --- | --- | --- |",
        *(f"| {n} | {lesson.step} | {lesson.tokens:,} | {lesson.loss:.3f} |" for n, lesson in enumerate(lessons, 1)),
        "",
        f"Built with `python -m stages.warm_start --config configs/nano_policy.yaml`; settings hash "
        f"`{settings_hash(config)[:16]}` (build.yaml holds them all). The same command on the same kind of processor",
        "gives the same bytes; another kind rounds otherwise and gives another policy of about the same success.",
        "Licence: Apache-2.0.",
        "",
    ]
    return "\n".join(lines)


def _id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    return tokenizer.get_vocab()[token]


def _progress() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def main() -> None:
    parser = stage_parser("warm_start", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the Hugging Face directory to write")
    args = parser.parse_args()
    config = load(NanoPolicyConfig, [args.config], args.set)
    if args.dry_run:
        print(dump(config))
        return
    build(config, args.out)


if __name__ == "__main__":
    run_stage(main)
