"""One experiment's configuration: the rooms' own settings put together, and the runs that it spans.

An experiment is a grid of methods and seeds over one set of environments and task panels. :class:`RunConfig` is what
one run of it sees; it is saved, resolved, with the run. How files become settings (overlays, scalars, messages) is in
``rised.config``; what a setting means is beside the code that obeys it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from rised.config import DISTINCT, Settings, operational, strict
from rised.environments.mix import EnvironmentMix, PanelSettings
from rised.learner.settings import AnyLearnerSettings, GradientSettings
from rised.methods.settings import MethodSettings, stale_mends
from rised.models.engine_settings import LOWEST_TEMPERATURE, AnyEngineSettings, EngineSettings, VllmEngineSettings
from rised.models.settings import ModelSettings
from rised.outputs import AnalysisSettings
from rised.rollouts.settings import RolloutSettings
from rised.rubrics.blocks import BlockStyle
from rised.rubrics.settings import JudgeServerSettings, RubricSettings


class ValidationSettings(Settings):
    """When and how the policy is evaluated; always on the original prompts."""

    every: int = strict(20, gt=0, description="Updates between evaluations; the last update is always evaluated.")
    rollouts_per_task: int = strict(1, gt=0, description="Rollouts per held-out task (the paper: 4).")
    rollouts_per_task_at_ends: int | None = strict(
        None,
        gt=0,
        in_hash_at_default=False,
        description="The same for the initial and the last evaluation, which tables compare; null: as for the others.",
    )
    temperature: float = strict(1.0, ge=0, description="Sampling temperature of validation; 0 is greedy.")
    seed: int = strict(0, description="Seed of validation rollouts, shared by all runs so that they are paired.")
    tags: bool = strict(False, description="Tag validation rollouts with the run's judge, for the analysis alone.")


class PlacementSettings(Settings):
    """Who does what in a job of several nodes. The job's size is the launcher's: ``resources``, or torchrun."""

    rollout_nodes: int = operational(
        0,
        ge=0,
        description="Nodes of a training job that only play episodes; the others then only learn. 0: all do both.",
    )
    device_memory_gb: float | None = operational(
        None,
        gt=0,
        description="Memory of one GPU, or of one process without; what `stages.plan` holds the need against.",
    )


MOST_LAG = 8
"""Each step ahead costs a copy of the weights in host memory and as many files in every state."""


class PipelineSettings(Settings):
    """What of a step goes on while something else of the run does (docs/performance.md, "Asynchronous loop")."""

    lag: int = strict(
        0,
        ge=0,
        le=MOST_LAG,
        in_hash_at_default=False,
        description="How many updates the weights that play are behind those that learn. 0: episodes are played "
        "between two updates. 1: a step's episodes are played while the step before it is tagged and learned from. "
        "More: so many steps' episodes are played ahead.",
    )
    defer_saving: bool = operational(
        True,
        description="Write a step's state and export while the next step runs; the run waits for the copy to host "
        "memory only. false: each step is committed before the next one begins.",
    )


class AgreementSettings(Settings):
    """How far the log-probabilities of sampler and learner may be apart (docs/performance.md, "Agreement")."""

    k3_limit: float | None = operational(
        0.01,
        gt=0,
        description="Divergence of sampler and learner (k3, nats a token) above which a step raises the alarm, where "
        "both have the same weights; null: never.",
    )
    k3_limit_stale: float | None = operational(
        0.1,
        gt=0,
        description="The same where the sampler's weights are older, so that the divergence holds a true change too.",
    )
    stop_after: int | None = operational(
        None,
        ge=1,
        description="Steps in a row with an alarm after which the run ends, without that step; null: it warns and "
        "goes on.",
    )


class RunSettings(Settings):
    """What all runs of an experiment share."""

    experiment: str = strict(pattern=r"^[a-z][a-z0-9_]*$", description="Name of the experiment and its results folder.")
    description: str = operational("", description="One sentence for the report.")
    environments: EnvironmentMix = strict(description="The environment mix.")
    training_environments: Annotated[list[str] | None, DISTINCT] = strict(
        None,
        min_length=1,
        description="Environments that training rollouts come from; validation covers the whole mix. null: all of it.",
    )
    panels: PanelSettings = strict(PanelSettings(), description="Task panels.")
    rubrics: RubricSettings = strict(RubricSettings(), description="Vocabulary and judge.")
    judge_server: JudgeServerSettings | None = operational(
        None, description="How `stages.serve_judge` serves the judge."
    )
    block_style: BlockStyle = strict("full", description="How hint and avoid blocks are written.")
    model: ModelSettings = strict(description="The policy to start from.")
    engine: AnyEngineSettings = strict(
        EngineSettings(), in_hash_at_default=False, description="Who generates the rollouts."
    )
    rollout: RolloutSettings = strict(description="Sampling, limits of episodes, worker processes.")
    rollouts_per_group: int = strict(8, gt=1, description="Rollouts per prompt group (G).")
    learner: AnyLearnerSettings = strict(description="Optimiser and passes, and who runs them.")
    updates: int = operational(gt=0, description="Policy updates of a run; a finished run goes on when there are more.")
    validation: ValidationSettings = strict(ValidationSettings(), description="Evaluation during training.")
    placement: PlacementSettings = operational(PlacementSettings(), description="Who does what in a job of nodes.")
    pipeline: PipelineSettings = strict(PipelineSettings(), description="What of a step overlaps with another.")
    agreement: AgreementSettings = operational(
        AgreementSettings(), description="How far sampler and learner may be apart."
    )
    export_every: int = operational(0, ge=0, description="Updates between exported checkpoints; 0: only the last.")
    keep_exports: int | None = operational(
        None, ge=1, description="How many exported checkpoints stay, the latest ones; null: all."
    )
    keep_states: int = operational(1, ge=1, description="Of how many latest steps the state to resume from stays.")

    @model_validator(mode="after")
    def _training_environments_are_of_the_mix(self) -> RunSettings:
        chosen = self.training_environments or []
        unknown = [name for name in chosen if name not in self.environments]
        if unknown:
            known = ", ".join(self.environments)
            raise ValueError(f"training_environments: {', '.join(unknown)} is not of the mix ({known})")
        return self

    @model_validator(mode="after")
    def _an_episode_fits_the_engine(self) -> RunSettings:
        longest = self.engine.longest_text
        if longest is not None and longest < self.rollout.max_episode_tokens:
            raise ValueError(
                f"engine.max_model_len is {longest}; rollout.max_episode_tokens needs at least "
                f"{self.rollout.max_episode_tokens}"
            )
        return self

    @model_validator(mode="after")
    def _replies_have_a_limit_in_every_environment(self) -> RunSettings:
        limits = self.rollout.max_new_tokens_per_turn
        missing = [] if isinstance(limits, int) else [name for name in self.environments if name not in limits]
        if missing:
            raise ValueError(f"rollout.max_new_tokens_per_turn: add a limit for {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _the_engine_draws_at_the_temperatures(self) -> RunSettings:
        wanted = {"rollout": self.rollout.temperature, "validation": self.validation.temperature}
        for name, temperature in wanted.items():
            if not self.engine.draws_at(temperature):
                raise ValueError(
                    f"{name}.temperature is {temperature:g}; {self.engine.type} draws at 0, and from 0.01 to 2"
                )
        return self

    @model_validator(mode="after")
    def _episodes_can_be_given_up(self) -> RunSettings:
        if self.rollout.oversample and not self.engine.gives_up_episodes:
            raise ValueError(
                f"rollout.oversample is {self.rollout.oversample:g}, but episodes of engine.type {self.engine.type} "
                "advance together and none is given up: set engine.type: vllm, or rollout.oversample: 0"
            )
        if self.rollout.oversample and self.rollout.cohort_size % self.rollouts_per_group:
            raise ValueError(
                f"rollout.oversample needs whole groups in each process: rollout.cohort_size "
                f"({self.rollout.cohort_size}) must be a multiple of rollouts_per_group ({self.rollouts_per_group})"
            )
        return self

    @property
    def trained_on(self) -> list[str]:
        """The environments of the training rollouts, in the order of the mix."""
        chosen = self.training_environments
        return [name for name in self.environments if chosen is None or name in chosen]


class AuditSettings(Settings):
    """Which judges are compared with the rule-based detectors, and on how much of a run."""

    judges: Annotated[list[str], DISTINCT] = strict(
        [], description="Judges by the names of their files in configs/judges."
    )
    steps: int = strict(5, gt=0, description="Updates whose rollouts are tagged, spread evenly over the run.")


class ReselectSettings(Settings):
    """Which other selectors, by whose tags, choose among the candidates of finished runs."""

    selectors: Annotated[list[str], DISTINCT] = strict(
        [], description="Selectors by their names in configs/selectors.yaml; empty: all."
    )
    judges: Annotated[list[str], DISTINCT] = strict(
        [],
        description="Further judges (files of configs/judges, or `rules`): they tag the runs again, and select, too.",
    )


class EstimateSettings(Settings):
    """What a run is expected to take, for the plan's device-hours."""

    step_s: dict[str, float] = operational({}, description="Seconds of an update, by method.")
    validation_s: float = operational(0.0, ge=0, description="Seconds of an evaluation of the whole panel.")
    episode_tokens: dict[str, float] = operational(
        {}, description="Mean tokens of an episode, by environment; for the tokens of a step."
    )
    source: str = operational("", description="Where the figures come from.")


class RunConfig(RunSettings):
    """One run: one method, one seed."""

    method: MethodSettings = strict(description="The method.")
    seed: int = strict(ge=0, description="Seed of task order, sampling, tie-breaks and selection.")

    @model_validator(mode="after")
    def _training_samples(self) -> RunConfig:
        temperature = self.rollout.temperature
        if temperature < LOWEST_TEMPERATURE:
            raise ValueError(
                f"rollout.temperature is {temperature:g}: the rollouts of a group would be equal, and the learner "
                f"divides logits by it. Set it to at least {LOWEST_TEMPERATURE:g}; greedy evaluation is "
                "validation.temperature: 0"
            )
        return self

    @model_validator(mode="after")
    def _verifier_has_a_model_to_ask(self) -> RunConfig:
        verifier = getattr(self.method.teacher, "verifier", None)
        if verifier is not None and verifier.type == "judge" and self.rubrics.judge.type != "llm":
            raise ValueError(
                f"method.teacher.verifier: `judge` asks the model under rubrics.judge, which is of type "
                f"{self.rubrics.judge.type!r}; lay a file of configs/judges under the experiment, or give the teacher "
                "the writer `vocabulary` and the verifier `tags`"
            )
        return self

    @model_validator(mode="after")
    def _older_tokens_are_weighed(self) -> RunConfig:
        wanted = stale_mends(self.method) if self.pipeline.lag else []
        if wanted:
            keys = " and ".join(f"method.{key}" for key in wanted)
            raise ValueError(
                f"pipeline.lag is {self.pipeline.lag}: an update's tokens were sampled by older weights, and "
                f"{keys} is null, so nothing weighs them. Set {keys}: 2.0 (for all methods under method_scale, for one "
                "under method_overrides), or pipeline.lag: 0"
            )
        return self

    @model_validator(mode="after")
    def _weights_can_wait(self) -> RunConfig:
        lag, engine = self.pipeline.lag, self.engine
        if lag > 1 and isinstance(engine, VllmEngineSettings) and engine.handover == "nccl":
            raise ValueError(
                f"pipeline.lag is {lag}: weights wait until the episodes before theirs are played, which those that "
                "travel from GPU to GPU cannot. Set engine.handover: files, or pipeline.lag: 1"
            )
        writer = getattr(self.method.teacher, "writer", None)
        if lag > 1 and writer is not None and writer.type == "policy":
            raise ValueError(
                f"pipeline.lag is {lag}: the next steps' episodes are played with other weights when the policy that "
                "played this one's is to write. Set pipeline.lag: 1, or another method.teacher.writer"
            )
        return self

    @model_validator(mode="after")
    def _turn_limits_name_known_environments(self) -> RunConfig:
        unknown = [name for name in _environment_keys(self.rollout) if name not in self.environments]
        if unknown:
            raise ValueError(f"rollout: limits for {', '.join(unknown)}, which the experiment does not contain")
        return self


def _environment_keys(settings: Settings) -> set[str]:
    """Keys of all per-environment mappings in ``settings``."""
    return {
        key
        for name in type(settings).model_fields
        if isinstance(value := getattr(settings, name), Mapping)
        for key in value
    }


class ExperimentConfig(RunSettings):
    """The whole grid."""

    methods: Annotated[list[str], DISTINCT] = strict(
        description="Methods by the names of their files in configs/methods.", min_length=1
    )
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], DISTINCT] = strict([0], description="Run seeds.", min_length=1)
    method_scale: dict[str, Any] = strict({}, description="Overlay on every method, e.g. its numbers of groups.")
    method_overrides: dict[str, dict[str, Any]] = strict({}, description="Overlays on single methods.")
    gradient: GradientSettings | None = strict(
        None, description="The gradient signal of finished runs (correlation experiments); null: it is not measured."
    )
    second_tags: bool = strict(
        False, description="Tag the rollouts of finished runs a second time, to measure the tagger's reproducibility."
    )
    audit: AuditSettings = strict(AuditSettings(), description="Judges compared with the detectors on finished runs.")
    reselect: ReselectSettings | None = strict(
        None, description="What other selectors choose of finished runs' candidates; null: it is not looked at."
    )
    resources: dict[str, dict[str, Any]] = operational(
        {}, description="What jobs of a stage need, with the keys of the site file's `stages`, which these go before."
    )
    estimate: EstimateSettings = operational(EstimateSettings(), description="What a run is expected to take.")
    analysis: AnalysisSettings = operational(AnalysisSettings(), description="What the DAG makes of the runs.")

    @model_validator(mode="after")
    def _the_gradient_finds_its_checkpoints(self) -> ExperimentConfig:
        if self.gradient is not None and self.keep_exports is not None:
            raise ValueError("gradient is measured at every exported checkpoint: leave keep_exports at null")
        return self


def environment_settings(config: RunSettings) -> dict[str, Settings]:
    """environment -> its own settings, in the order of the config."""
    return {name: entry.settings for name, entry in config.environments.items()}


def run_directory(results: Path, experiment: str, method: str, seed: int) -> Path:
    """``results/<experiment>/<method>/seed-<seed>``."""
    return results / experiment / method / f"seed-{seed}"


GRID_KEYS: Sequence[str] = (
    "methods",
    "seeds",
    "method_scale",
    "method_overrides",
    "gradient",
    "second_tags",
    "audit",
    "reselect",
    "resources",
    "estimate",
    "analysis",
)
"""Keys of an experiment file that no single run sees."""
