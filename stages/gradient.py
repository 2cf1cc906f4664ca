"""gradient: the gradient signal of the correlation experiments, at every exported checkpoint of a finished run.

Reads the experiment file, tasks.parquet and a run that trained on one environment; writes ``gradient_signal`` in the
run: one committed step per checkpoint, with the mean policy gradients of the environments compared. At a checkpoint
the same few tasks are played anew, ``rollouts_per_group`` times each, on their original prompts and with the training
temperature: training tasks of the training environment, and held-out tasks of every environment [ours: the stored
validation has too few rollouts of a task for a group's advantages, and a profile too compares training with
validation]. The draws are the same at every checkpoint, so that what differs between two of them is the policy. What
is committed already is not measured again. As a job array, each part measures some of the checkpoints.

    python -m stages.gradient --config configs/experiments/webshop_only.yaml --method grpo_64 --seed 0 \\
        --tasks results/webshop_only/tasks.parquet --run results/webshop_only/grpo_64/seed-0
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from rised.config import ConfigError
from rised.config.resolved import dump, keys
from rised.environments.base import Task
from rised.environments.pool import EnvironmentPool
from rised.experiment import RunConfig
from rised.learner.gradients import cosine, count_sketch, flat, layer_count, layer_parameters, term_gradient
from rised.learner.settings import GradientSettings
from rised.methods.composition import Method
from rised.methods.rewards import zero_variance
from rised.methods.streams import LossTerm
from rised.records.commit import RunDirectory
from rised.records.errors import RecordError
from rised.records.layout import CHECKPOINTS, DONE, GRADIENT_SIGNAL, HEADER, step_name
from rised.records.schemas import from_table, to_table
from rised.records.shards import RunReader
from rised.records.types import Gradient, Rollout
from rised.rollouts.episodes import CollectionRequest, collect_rollouts
from rised.rollouts.plans import EpisodePlan
from rised.rubrics.vocabulary import load_vocabulary
from rised.rubrics.windows import TagWindow
from stages.cli import run_stage, stage_parser
from stages.loop import TRAIN, VALIDATION, prompt_groups
from stages.parts import Part, part_of_array
from stages.policy import Policy, open_policy
from stages.provenance import refuse_other_inputs
from stages.setup import load_experiment, load_run, open_pool, panel, panel_hash, read_tasks, refuse_other_run
from stages.stored import add_stored_run, stored_run

LAYER, PROJECTION = "layer", "projection"
PART_FOLDER = f".{GRADIENT_SIGNAL}-part-"
"""Beginning of the name of a folder, in the run, of what one part of a job array measured."""

Batch = tuple[str, str]
"""Split and environment of the tasks over which a gradient is a mean."""


def source_environment(config: RunConfig) -> str:
    """The one training environment; ConfigError if the run trained on several."""
    if len(config.trained_on) != 1:
        raise ConfigError(
            f"training_environments: the run trains on {', '.join(config.trained_on)}; the gradient signal compares "
            "one training environment with all: name one"
        )
    return config.trained_on[0]


def chosen_tasks(config: RunConfig, settings: GradientSettings, tasks: Sequence[Task]) -> dict[Batch, list[Task]]:
    """The first tasks of the panels: the training environment's training tasks, then every environment's held-out ones.

    ConfigError if a panel holds too few.
    """
    chosen: dict[Batch, list[Task]] = {}
    for split, name in [(TRAIN, source_environment(config)), *((VALIDATION, name) for name in config.environments)]:
        found = panel(tasks, name, split)
        if len(found) < settings.tasks:
            raise ConfigError(
                f"gradient.tasks is {settings.tasks}; environments.{name}.{split}_tasks is {len(found)}: ask for fewer"
            )
        chosen[split, name] = found[: settings.tasks]
    return chosen


def gradient_plans(
    config: RunConfig, settings: GradientSettings, chosen: Mapping[Batch, Sequence[Task]], step: int
) -> list[EpisodePlan]:
    """Original prompts, ``rollouts_per_group`` episodes a task, the same draws at every checkpoint."""
    return [
        EpisodePlan(
            task=task,
            split=split,
            step=step,
            group_id=f"{split}-{name}-{task.task_id}",
            rollout_index=index,
            run=f"{config.experiment}/{config.method.name}/seed-{config.seed}/{GRADIENT_SIGNAL}",
            run_seed=settings.seed,
            weight_version=step,
            paired=True,
        )
        for (split, name), tasks in chosen.items()
        for task in tasks
        for index in range(config.rollouts_per_group)
    ]


def policy_term(method: Method) -> LossTerm:
    """The policy-gradient term; ConfigError if the method has none, or one that follows from a teacher."""
    term = next((term for term in method.loss_terms() if term.name == "rl"), None)
    if term is None or method.advantage.shaped_by_teacher:
        raise ConfigError(
            f"the gradient of method {method.settings.name!r} cannot be measured: its policy gradient "
            f"{'has weight 0' if term is None else 'follows from a teacher'}; take a method whose follows from rewards"
        )
    return term


def gradient_rows(
    config: RunConfig,
    settings: GradientSettings,
    method: Method,
    policy: Policy,
    batches: Mapping[Batch, Sequence[Rollout]],
    step: int,
) -> list[Gradient]:
    """One row per batch and signal. The first batch is the one that the others are compared with."""
    layers = layer_count(policy.model)
    layer = layers // 2 if settings.layer is None else settings.layer
    of_layer = layer_parameters(policy.model, [layer])
    parameters = layer_parameters(policy.model) if settings.projection else of_layer
    term = policy_term(method)
    source: dict[str, np.ndarray] = {}
    rows = []
    for (split, environment), rollouts in batches.items():
        groups = method.rewarded(prompt_groups(rollouts, []))
        sequences = method.training_sequences(
            groups, TagWindow(config.rubrics.window_steps), policy.rendering, config.block_style
        )
        gradient = term_gradient(
            policy.model, sequences, term, parameters, config.learner, temperature=config.rollout.temperature
        )
        vectors = {LAYER: (str(layer), flat({name: gradient[name] for name in of_layer}))}
        if settings.projection:
            vectors[PROJECTION] = (f"0-{layers - 1}", count_sketch(gradient, settings.projection, settings.seed))
        for signal, (named, vector_P) in vectors.items():
            first = source.setdefault(signal, vector_P)
            rows.append(
                Gradient(
                    step=step,
                    environment=environment,
                    split=split,
                    signal=signal,
                    layers=named,
                    dimension=vector_P.size,
                    group_count=len(groups),
                    signal_group_count=sum(not zero_variance(group.valid_rewards) for group in groups),
                    rollout_count=len(rollouts),
                    norm=float(np.linalg.norm(vector_P)),
                    cosine=None if first is vector_P else cosine(first, vector_P),
                    vector=tuple(vector_P.astype(np.float32).tolist()) if signal == PROJECTION else (),
                )
            )
    return rows


def play(
    config: RunConfig, plans: Sequence[EpisodePlan], policy: Policy, pool: EnvironmentPool
) -> dict[Batch, list[Rollout]]:
    """The rollouts of the plans by split and environment, in the order of the plans."""
    batches: dict[Batch, list[Rollout]] = {}
    for rollout in collect_rollouts(policy.engine, CollectionRequest(plans, policy.rendering, pool, config.rollout)):
        batches.setdefault((rollout.split, rollout.environment), []).append(rollout)
    return batches


def exported_checkpoints(run: Path) -> list[int]:
    """Steps of a finished run whose policy was exported; RecordError if the run is not finished."""
    reader = RunReader(run)
    if not reader.done:
        raise RecordError(f"{run} has no {DONE}: start the train stage again to finish it")
    return [step for step in reader.steps() if (run / CHECKPOINTS / step_name(step)).is_dir()]


def measure_gradients(
    config: RunConfig, settings: GradientSettings, tasks: Sequence[Task], run: Path, part: Part | None = None
) -> None:
    """Measure at every exported checkpoint that is not committed yet, oldest first.

    ``part`` of a job array: only this part's checkpoints, into a folder of its own; the call without it takes over
    what the parts measured. ConfigError or RecordError if the run was made with another configuration or other tasks,
    or if what is there was measured with other settings.
    """
    steps = exported_checkpoints(run)
    vocabulary = load_vocabulary(Path(config.rubrics.vocabulary))
    refuse_other_run(config, run)
    refuse_other_inputs(config, tasks, vocabulary, run)
    chosen = chosen_tasks(config, settings, tasks)
    method = Method.from_settings(config.method, vocabulary)
    policy_term(method)
    header = {
        "run": RunReader(run).header()["config_hash"],
        "panel_hashes": {split: panel_hash(tasks, split) for split in (TRAIN, VALIDATION)},
        "gradient": {key: value for key, value, _ in keys(settings)},
    }
    name = GRADIENT_SIGNAL if part is None else f"{PART_FOLDER}{part.index}-of-{part.count}"
    with RunDirectory(run / name) as out:
        out.recover()
        out.write_header(header)
        out.write_config(dump(config))
        wanted = steps if part is None else part.share(_not_measured(steps, run, header))
        missing = [step for step in wanted if step not in out.committed_steps()]
        if missing:
            (out.path / DONE).unlink(missing_ok=True)
            measured = _measured_by_parts(run, header) if part is None else {}
            with ExitStack() as stack:
                pool: EnvironmentPool | None = None
                for step in missing:
                    if step in measured:
                        rows = from_table(RunReader(measured[step]).scan("gradients", steps=[step]))
                    else:
                        pool = pool or stack.enter_context(open_pool(config))
                        rows = _measure(config, settings, method, chosen, run, step, pool)
                    with out.step(step, expected={"gradients": len(rows)}) as record:
                        record.write("gradients", to_table(rows, "gradients"))
                        record.commit()
        if wanted:
            out.finish(wanted[-1], wanted)
    if part is None:
        for folder in run.glob(f"{PART_FOLDER}*"):
            shutil.rmtree(folder)


def _not_measured(steps: Sequence[int], run: Path, header: Mapping[str, object]) -> list[int]:
    """The checkpoints that the run's signal lacks; RecordError if it was measured otherwise."""
    signal = run / GRADIENT_SIGNAL
    if not (signal / HEADER).is_file():
        return list(steps)
    reader = RunReader(signal)
    differing = [key for key, value in header.items() if reader.header().get(key) != value]
    if differing:
        raise RecordError(f"{signal} was measured with another {differing[0]!r}: remove it to measure again")
    return [step for step in steps if step not in reader.steps()]


def _measured_by_parts(run: Path, header: Mapping[str, object]) -> dict[int, Path]:
    """Checkpoint -> the folder of the part that measured it, with the settings and on the run of ``header``."""
    found: dict[int, Path] = {}
    for folder in sorted(run.glob(f"{PART_FOLDER}*")):
        reader = RunReader(folder)
        if reader.done and all(reader.header().get(key) == value for key, value in header.items()):
            found |= dict.fromkeys(reader.steps(), folder)
    return found


def _measure(
    config: RunConfig,
    settings: GradientSettings,
    method: Method,
    chosen: Mapping[Batch, Sequence[Task]],
    run: Path,
    step: int,
    pool: EnvironmentPool,
) -> list[Gradient]:
    model = config.model.model_copy(update={"path": str(run / CHECKPOINTS / step_name(step))})
    policy = open_policy(config.model_copy(update={"model": model}), step, computes=True)
    plans = gradient_plans(config, settings, chosen, step)
    with policy.engine:
        batches = play(config, plans, policy, pool)
    rows = gradient_rows(config, settings, method, policy, batches, step)
    shown = " ".join(
        f"{row.environment} {'undefined' if row.cosine is None else format(row.cosine, '.3f')}"
        for row in rows
        if row.signal == LAYER and row.split == VALIDATION
    )
    print(f"step {step}: {len(plans)} episodes; cosine with {rows[0].environment}: {shown}", flush=True)
    return rows


def main() -> None:
    parser = stage_parser("gradient", __doc__)
    add_stored_run(parser)
    parser.add_argument("--tasks", type=Path, help="tasks.parquet (default: in the experiment's results folder)")
    args = parser.parse_args()
    settings = load_experiment(args.config, [o for o in args.set if not o.startswith("method.")]).gradient
    if settings is None:
        raise ConfigError(f"{args.config}: gradient is null; give its settings (gradient: {{}} for the defaults)")
    config = load_run(args.config, args.method, args.seed, args.set)
    run = stored_run(args, config)
    if args.dry_run:
        print(dump(settings))
        print(f"# plan: the gradient signal of {run}, trained on {source_environment(config)}")
        return
    tasks = read_tasks(args.tasks or Path("results") / config.experiment / "tasks.parquet")
    measure_gradients(config, settings, tasks, run, part_of_array())


if __name__ == "__main__":
    run_stage(main)
