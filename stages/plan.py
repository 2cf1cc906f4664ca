"""plan: what an experiment's training needs in memory and tokens, and whether that fits its cluster.

Reads the experiment file, the model's config.json where the model is here already (else `model.shape`), and with
`--run` the lengths of a run's episodes. Prints for one process of the training: each part of its memory while it plays
and while it learns, the tokens of a step, and, where something does not fit, settings with which it would. Writes
nothing. Exit code 1 means that it does not fit.

    python -m stages.plan --config configs/experiments/paper_qwen25_3b.yaml --memory-gb 80
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rised.config import ConfigError
from rised.config.paths import add_named_path, required, shipped
from rised.experiment import ExperimentConfig, RunConfig
from rised.learner.footprint import FLOAT32, Part, learner_parts, number_bytes
from rised.learner.settings import DeepSpeedLearnerSettings, LearnerSettings
from rised.models.engine_settings import VllmEngineSettings
from rised.models.shape import ModelShape, shape_of_folder
from rised.records.shards import RunReader
from rised.rollouts.plans import COHORTS_AT_ONCE
from stages.cli import add_overrides, bare_parser, run_stage
from stages.loop import quotas
from stages.setup import load_experiment, load_run

GB = 1e9
FREE_SHARE = 0.1
"""Of a device's memory kept free for what is not counted: the runtime's own, fragmentation, communication buffers."""
LENGTH_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class Cluster:
    """The processes of a training: how many learn, how many play, whether one does both, and a device's memory.

    ``host_apart``: devices have a memory of their own, beside the host's.
    """

    learners: int
    players: int
    shared: bool
    memory_gb: float | None
    host_apart: bool = False

    @classmethod
    def of(cls, experiment: ExperimentConfig, memory_gb: float | None = None) -> Cluster:
        """As ``resources.train`` and ``placement`` say; ConfigError if no node is left to learn."""
        wanted = experiment.resources.get("train", {})
        nodes, per_node = int(wanted.get("nodes", 1)), int(wanted.get("tasks_per_node", 1))
        playing = experiment.placement.rollout_nodes
        if playing >= nodes:
            raise ConfigError(
                f"placement.rollout_nodes is {playing} and resources.train.nodes {nodes}: no node is left to learn"
            )
        memory = memory_gb or experiment.placement.device_memory_gb
        if memory is None and not wanted.get("gpus_per_node") and wanted.get("memory_gb"):
            memory = float(wanted["memory_gb"]) / per_node
        learners, players = (nodes - playing) * per_node, (playing or nodes) * per_node
        return cls(learners, players, playing == 0, memory, bool(wanted.get("gpus_per_node")))


def shape_of(config: RunConfig, root: Path = Path(".")) -> ModelShape:
    """The policy's shape, from its files if they are here. ConfigError if neither files nor setting say it."""
    found = shape_of_folder(shipped(root / config.model.path)) or config.model.shape
    if found is None:
        raise ConfigError(
            f"there is no {config.model.path}/config.json here, and model.shape is not set: "
            "put the model there, or write its shape into the configuration (configs/models shows how)"
        )
    return found


def longest_pass(config: RunConfig) -> int:
    """Tokens of the largest actor pass: the budget, or the longest episode alone."""
    longest = -(-config.rollout.max_episode_tokens // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return max(config.learner.micro_batch_tokens, longest)


def transformers_parts(config: RunConfig, shape: ModelShape, learns_too: bool) -> list[tuple[Part, bool]]:
    """Of the engine in the process itself: weights that are not the learner's own, a cache for the episodes at play."""
    number = number_bytes(config.model.rollout_dtype)
    parts = []
    copied = config.model.rollout_dtype != config.model.dtype
    if not learns_too or not config.learner.trains_in_place or (config.pipeline.lag and not copied):
        whole = number_bytes(config.model.dtype) * shape.parameters
        parts.append(Part("policy to play with", whole, config.model.dtype))
    if copied:
        copy = number * shape.parameters + FLOAT32 * shape.embedding_parameters
        parts.append(Part("its copy", copy, f"{config.model.rollout_dtype}, output layer in float32"))
    episodes = COHORTS_AT_ONCE * config.rollout.cohort_size
    cache = shape.cache_bytes(episodes * config.rollout.max_episode_tokens, number)
    why = f"{COHORTS_AT_ONCE} x {config.rollout.cohort_size} episodes of {config.rollout.max_episode_tokens:,} tokens"
    return [*((part, True) for part in parts), (Part("key-value cache", cache, why), False)]


def waiting_parts(config: RunConfig, shape: ModelShape) -> list[Part]:
    """Weights of the steps ahead, which wait in host memory for the batch before theirs."""
    copies = config.pipeline.lag - 1
    if copies < 1:
        return []
    whole = copies * number_bytes(config.model.dtype) * shape.parameters
    return [Part("weights that wait", whole, f"{copies} x {config.model.dtype}, for the steps ahead")]


def vllm_parts(config: RunConfig, shape: ModelShape, learns_too: bool) -> list[tuple[Part, bool]]:
    """Of one GPU of a vLLM server: its part of the weights, and a cache in which one episode has room."""
    assert isinstance(config.engine, VllmEngineSettings)
    number, devices = number_bytes(config.model.rollout_dtype), config.engine.tensor_parallel
    why = f"{config.model.rollout_dtype}, over {devices} GPUs" if devices > 1 else config.model.rollout_dtype
    weights = Part(VLLM_WEIGHTS, number * shape.parameters // devices, why)
    cache = Part("key-value cache", episode_cache(config, shape), "one episode, the least that vLLM needs")
    return [(weights, True), (cache, True)]


def episode_cache(config: RunConfig, shape: ModelShape) -> int:
    """Bytes on each GPU for the keys and values of the longest episode in a vLLM server."""
    assert isinstance(config.engine, VllmEngineSettings)
    longest = config.engine.max_model_len or config.rollout.max_episode_tokens
    whole = shape.cache_bytes(longest, number_bytes(config.model.rollout_dtype))
    return whole // min(config.engine.tensor_parallel, shape.key_value_heads)


PLAYING: Mapping[str, Callable[[RunConfig, ModelShape, bool], list[tuple[Part, bool]]]] = {
    "transformers": transformers_parts,
    "vllm": vllm_parts,
}
"""What a process holds to play, and whether it does so while it learns; by the engine's type."""


VLLM_WEIGHTS = "vLLM's weights"
PASSING = ("gradients", "gathered weights", "reduction buffer", "cast weights", "activations", "logits")
"""What a learner holds only while it learns."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one kind of process holds. ``parts`` with the phases in which each is there."""

    kind: str
    parts: tuple[tuple[Part, bool, bool], ...]
    """(part, while it plays, while it learns)."""

    @property
    def playing(self) -> int:
        return sum(part.bytes for part, plays, _ in self.parts if plays)

    @property
    def learning(self) -> int:
        return sum(part.bytes for part, _, learns in self.parts if learns)

    @property
    def peak(self) -> int:
        return max(self.playing, self.learning)


def needs(config: RunConfig, shape: ModelShape, cluster: Cluster) -> list[Need]:
    """One entry for each kind of process."""
    tokens = longest_pass(config)
    learner = learner_parts(
        shape, config.learner, cluster.learners, tokens, with_reference=config.method.kl.coefficient > 0
    )
    learning = [(part, part.name not in PASSING, True) for part in learner]
    playing = PLAYING[config.engine.type](config, shape, cluster.shared)
    if not cluster.host_apart:
        playing += [(part, True) for part in waiting_parts(config, shape)]
    if cluster.shared:
        both_at_once = config.pipeline.lag > 0
        learning = [(part, plays or both_at_once, learns) for part, plays, learns in learning]
        both = (*learning, *((part, True, stays or both_at_once) for part, stays in playing))
        return [Need("plays and learns", both)]
    # weights that are only handed on wait in the host's memory
    handed_on = [] if cluster.host_apart else transformers_parts(config, shape, True)[:-1]
    return [
        Need("learns", (*learning, *((part, True, True) for part, _ in handed_on))),
        Need("plays", tuple((part, True, False) for part, _ in playing)),
    ]


def vllm_room(config: RunConfig, shape: ModelShape, found: list[Need], memory_gb: float) -> tuple[int, float]:
    """How many of the longest episodes have room in a vLLM server beside all else on its GPUs, and which share of their
    memory that takes.
    """
    one = episode_cache(config, shape)
    need = next(need for need in found if "plays" in need.kind)
    weights = next(part.bytes for part, _, _ in need.parts if part.name == VLLM_WEIGHTS)
    rest = need.peak - weights - one
    room = int(((1 - FREE_SHARE) * memory_gb * GB - rest - weights) // one)
    return room, (weights + room * one) / (memory_gb * GB)


def vllm_lines(config: RunConfig, shape: ModelShape, found: list[Need], memory_gb: float) -> Iterator[str]:
    """What a plan says of vLLM's servers, if there are any."""
    if not isinstance(config.engine, VllmEngineSettings):
        return
    room, share = vllm_room(config, shape, found, memory_gb)
    yield (
        f"vLLM: each of a process's {config.engine.replicas} servers has room for {room:,} of the longest episodes at "
        f"once; the process asks for up to {config.engine.concurrency:,}."
    )
    yield f'  That takes engine.arguments: [--gpu-memory-utilization, "{share:.2f}"] (vLLM\'s default: 0.9).'


def fits(found: list[Need], memory_gb: float) -> bool:
    """Whether every kind of process stays below its device's memory, the reserve left free."""
    return max(need.peak for need in found) <= (1 - FREE_SHARE) * memory_gb * GB


Change = Callable[[RunConfig], RunConfig]


def _learner(config: RunConfig, **values: object) -> RunConfig:
    kind = DeepSpeedLearnerSettings if values.get("type", config.learner.type) == "deepspeed" else LearnerSettings
    return config.model_copy(update={"learner": kind(**(config.learner.model_dump() | values))})  # type: ignore[arg-type]


def mends(config: RunConfig, cluster: Cluster) -> Iterator[tuple[str, Change]]:
    """Settings that lower the need, the cheapest in time first."""
    learner = config.learner
    whole_copy = not learner.trains_in_place or config.pipeline.lag > 0
    if config.model.rollout_dtype == "float32" and config.model.dtype == "float32" and whole_copy:
        yield (
            "model.rollout_dtype: bfloat16",
            lambda c: c.model_copy(update={"model": c.model.model_copy(update={"rollout_dtype": "bfloat16"})}),
        )
    if not learner.activation_checkpointing:
        yield "learner.activation_checkpointing: true", lambda c: _learner(c, activation_checkpointing=True)
    if learner.logits_chunk_tokens > 256:
        yield "learner.logits_chunk_tokens: 256", lambda c: _learner(c, logits_chunk_tokens=256)
    if cluster.learners > 1 and not (isinstance(learner, DeepSpeedLearnerSettings) and learner.zero_stage >= 2):
        yield "learner.type: deepspeed, zero_stage: 2", lambda c: _learner(c, type="deepspeed", zero_stage=2)
    if cluster.learners > 1:
        yield "learner.reference: sharded", lambda c: _learner(c, type="deepspeed", reference="sharded")
    tokens = learner.micro_batch_tokens
    while tokens // 2 >= config.rollout.max_episode_tokens:
        tokens //= 2
        yield f"learner.micro_batch_tokens: {tokens}", lambda c, t=tokens: _learner(c, micro_batch_tokens=t)  # type: ignore[misc]
    cohort = config.rollout.cohort_size
    while cohort > 1:
        cohort //= 2
        yield (
            f"rollout.cohort_size: {cohort}",
            lambda c, n=cohort: c.model_copy(  # type: ignore[misc]
                update={"rollout": c.rollout.model_copy(update={"cohort_size": n})}
            ),
        )
    if cluster.learners > 1:
        yield (
            "learner.zero_stage: 3, gradient_share_every: 0",
            lambda c: _learner(c, type="deepspeed", zero_stage=3, gradient_share_every=0),
        )
    if config.pipeline.lag:
        yield (
            "pipeline.lag: 0",
            lambda c: c.model_copy(update={"pipeline": c.pipeline.model_copy(update={"lag": 0})}),
        )
    yield (
        "learner.offload_optimizer: true",
        lambda c: _learner(
            c, type="deepspeed", offload_optimizer=True, zero_stage=max(1, getattr(c.learner, "zero_stage", 2))
        ),
    )


def mended(config: RunConfig, shape: ModelShape, cluster: Cluster) -> tuple[list[tuple[str, int]], bool]:
    """Mends one on top of the other, each with the peak that it leaves, and whether it fits in the end.

    A mend that does not lower the peak is left out. With ``cluster.memory_gb``, which must be known.
    """
    assert cluster.memory_gb is not None
    steps: list[tuple[str, int]] = []
    peak = max(need.peak for need in needs(config, shape, cluster))
    for name, change in mends(config, cluster):
        changed = change(config)
        lower = needs(changed, shape, cluster)
        if max(need.peak for need in lower) < peak:
            config, peak = changed, max(need.peak for need in lower)
            steps.append((name, peak))
            if fits(lower, cluster.memory_gb):
                return steps, True
    return steps, False


def episode_tokens(run: Path) -> dict[str, float]:
    """Mean tokens of an episode in a stored run, by environment."""
    table = RunReader(run).scan("rollouts", columns=["environment", "token_count"])
    means = table.group_by("environment").aggregate([("token_count", "mean")])
    return dict(zip(means["environment"].to_pylist(), means["token_count_mean"].to_pylist(), strict=True))


def token_lines(config: RunConfig, cluster: Cluster, means: Mapping[str, float]) -> Iterator[str]:
    """Tokens of a step: at most, and as expected from the mean lengths of episodes."""
    method = config.method
    groups = quotas(method.candidate_groups, config.trained_on, 1)
    episodes = method.candidate_groups * config.rollouts_per_group
    trained = method.selected_groups * config.rollouts_per_group
    yield f"  played: {episodes:,} episodes, at most {episodes * config.rollout.max_episode_tokens:,} tokens"
    yield f"  trained on: {trained:,} episodes, at most {trained * config.rollout.max_episode_tokens:,} tokens"
    absent = [name for name in config.trained_on if name not in means]
    if absent:
        yield f"  expected: not known (estimate.episode_tokens, or --run, for {', '.join(absent)})"
        return
    played = sum(groups[name] * config.rollouts_per_group * means[name] for name in config.trained_on)
    share = played * method.selected_groups / method.candidate_groups
    passes = share / config.learner.micro_batch_tokens / cluster.learners
    yield f"  expected: {played:,.0f} tokens played, {share:,.0f} trained on, {passes:.1f} passes on each learner"


def report(config: RunConfig, experiment: ExperimentConfig, cluster: Cluster, means: Mapping[str, float]) -> list[str]:
    """The whole plan, and as its last line the verdict if the memory is known."""
    shape = shape_of(config)
    found = needs(config, shape, cluster)
    lines = [
        f"{config.experiment}, {config.method.name}: {shape.parameters:,} parameters, {cluster.learners} learners, "
        f"{cluster.players} players" + (" (the same processes)" if cluster.shared else "")
    ]
    for need in found:
        lines += ["", f"A process that {need.kind}:", f"  {'GB':>21}{'playing':>10}{'learning':>10}"]
        for part, plays, learns in need.parts:
            amount = f"{part.bytes / GB:.2f}"
            lines.append(f"  {part.name:<21}{amount if plays else '':>10}{amount if learns else '':>10}  {part.why}")
        lines.append(f"  {'sum':<21}{need.playing / GB:>10.2f}{need.learning / GB:>10.2f}")
    lines += ["", "Tokens of a step:", *token_lines(config, cluster, means or experiment.estimate.episode_tokens), ""]
    if cluster.memory_gb is None:
        return [*lines, "Memory of a device not known: --memory-gb, or placement.device_memory_gb."]
    peak = max(need.peak for need in found) / GB
    usable = (1 - FREE_SHARE) * cluster.memory_gb
    if fits(found, cluster.memory_gb):
        lines += vllm_lines(config, shape, found, cluster.memory_gb)
        return [*lines, f"It fits: {peak:.1f} GB of {usable:.1f} GB ({cluster.memory_gb:g} GB, a tenth kept free)."]
    lines.append(f"IT DOES NOT FIT: {peak:.1f} GB of {usable:.1f} GB ({cluster.memory_gb:g} GB, a tenth kept free).")
    steps, enough = mended(config, shape, cluster)
    lines += ["One after the other:"] * bool(steps)
    lines += [f"  {name:<48} {left / GB:>8.1f} GB" for name, left in steps]
    lines.append("Then it fits." if enough else "That is not enough: more learners, devices with more memory, or less.")
    return lines


def main() -> None:
    parser = bare_parser("plan", __doc__)
    add_named_path(parser, "config", "experiment file (YAML)")
    add_overrides(parser)
    parser.add_argument("--method", help="method of the experiment (default: the one with the most episodes)")
    parser.add_argument("--memory-gb", type=float, help="memory of one device (default: placement.device_memory_gb)")
    parser.add_argument("--run", type=Path, help="a run directory whose episodes tell how long they are")
    args = parser.parse_args()
    args.config = required(parser, args, "config")
    experiment = load_experiment(args.config, args.set)
    methods = [args.method] if args.method else experiment.methods
    runs = [load_run(args.config, method, experiment.seeds[0], args.set) for method in methods]
    config = max(runs, key=lambda run: (run.method.selected_groups, run.method.candidate_groups))
    cluster = Cluster.of(experiment, args.memory_gb)
    means = episode_tokens(args.run) if args.run else {}
    print("\n".join(report(config, experiment, cluster, means)))
    if cluster.memory_gb is not None and not fits(needs(config, shape_of(config), cluster), cluster.memory_gb):
        sys.exit(1)


if __name__ == "__main__":
    run_stage(main)
