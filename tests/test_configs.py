"""Every file under configs/ loads, every key is classified, and a saved configuration loads back as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rised.config import ConfigError, Settings
from rised.config.loader import load, load_text, read_plain
from rised.config.resolved import changed_strict_keys, classification_gaps, dump, full_hash, keys, settings_hash
from rised.environments.discovery import discover
from rised.experiment import ExperimentConfig, RunConfig
from rised.methods.registry import FOLDERS, known_types
from rised.methods.settings import load_selectors
from rised.models.engine_settings import VllmEngineSettings
from rised.models.vllm_replica import command as engine_command
from rised.nano_policy import NanoPolicyConfig
from rised.rubrics.judges import make_judge
from rised.rubrics.vocabulary import load_vocabulary
from rubric_discovery.settings import DiscoverySettings
from slurm.job_files import JobFiles, StageCall
from stages.judge_replica import command as replica_command
from stages.judge_replica import slices
from stages.serve_judge import load_judge
from stages.setup import load_experiment, load_run

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
EXPERIMENTS = sorted(CONFIGS.glob("experiments/*.yaml"))
METHODS = sorted(CONFIGS.glob("methods/*.yaml"))
ENVIRONMENTS = sorted(CONFIGS.glob("environments/*.yaml"))
MODELS = sorted(CONFIGS.glob("models/*.yaml"))
JUDGES = sorted(CONFIGS.glob("judges/*.yaml"))
ENGINES = sorted(CONFIGS.glob("engines/*.yaml"))
DISCOVERIES = sorted(CONFIGS.glob("discovery/*.yaml"))
COVERED = {
    *EXPERIMENTS,
    *METHODS,
    *ENVIRONMENTS,
    *MODELS,
    *JUDGES,
    *ENGINES,
    *DISCOVERIES,
    CONFIGS / "base.yaml",
    CONFIGS / "paper.yaml",
    CONFIGS / "paper_orsd.yaml",
    CONFIGS / "nano_policy.yaml",
    CONFIGS / "selectors.yaml",
}

RUNS = [
    pytest.param(path, method, seed, id=f"{path.stem}-{method}-{seed}")
    for path in EXPERIMENTS
    for method in read_plain(path).get("methods", [])
    for seed in read_plain(path).get("seeds", [0])
]


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.fixture(autouse=True)
def _at_the_root(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages are run from the root: paths in configurations are relative to it."""
    monkeypatch.chdir(repository)


def reload(config: Settings) -> Settings:
    return load_text(type(config), dump(config))


def test_every_file_is_covered_by_a_test_below() -> None:
    assert set(CONFIGS.rglob("*.yaml")) == COVERED
    assert not list(CONFIGS.rglob("*.yml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=names(EXPERIMENTS))
def test_every_experiment_loads_with_each_method_and_seed(path: Path) -> None:
    experiment = load_experiment(path)
    assert experiment.experiment == path.stem, "an experiment's file and its results folder have one name"
    kinds = []
    for method in experiment.methods:
        for seed in experiment.seeds:
            run = load_run(path, method, seed)
            assert (run.method.name, run.seed, run.experiment) == (method, seed, path.stem)
            assert run.method.candidate_groups >= run.method.selected_groups
            assert set(run.environments) == set(experiment.environments)
            kinds.append(run.method.kl)
    assert all(kind == kinds[0] for kind in kinds) and not kinds[0].skip_zero_signal, "KL weighs all methods alike"


@pytest.mark.parametrize("path", DISCOVERIES, ids=names(DISCOVERIES))
def test_every_discovery_loads_and_names_prompts_that_are_there(path: Path) -> None:
    settings = load(DiscoverySettings, [path])
    assert settings.discovery == path.stem
    assert all(Path(file).is_file() for file in settings.prompts.model_dump().values())
    assert classification_gaps(DiscoverySettings) == []


@pytest.mark.parametrize(("path", "method", "seed"), RUNS)
def test_a_saved_run_loads_back_equal_with_equal_hashes(path: Path, method: str, seed: int) -> None:
    run = load_run(path, method, seed)
    again = reload(run)
    assert again == run
    assert (settings_hash(again), full_hash(again)) == (settings_hash(run), full_hash(run))
    assert changed_strict_keys(run, again) == []


@pytest.mark.parametrize("path", EXPERIMENTS, ids=names(EXPERIMENTS))
def test_a_jobs_copy_of_an_experiment_file_is_the_same_experiment(path: Path, tmp_path: Path) -> None:
    call = StageCall("train", "train", ("python", "-m", "stages.train", "--config", str(path), "--seed", "0"), (), ())
    words = JobFiles(tmp_path).pin(call).command
    copy = Path(words[4])
    assert (words[:4], words[5:]) == (call.command[:4], call.command[5:]) and copy.parent == tmp_path
    text = copy.read_text()
    assert "extends" not in text and JobFiles(tmp_path).pin(call).command == words and copy.read_text() == text
    assert load_experiment(copy) == load_experiment(path)
    run, copied = (load_run(file, load_experiment(path).methods[-1], 0) for file in (path, copy))
    assert copied == run and (settings_hash(copied), full_hash(copied)) == (settings_hash(run), full_hash(run))


@pytest.mark.parametrize("path", METHODS, ids=names(METHODS))
def test_every_method_file_holds_the_method_of_its_name_and_is_in_some_experiment(path: Path) -> None:
    experiment = next(e for e in EXPERIMENTS if path.stem in read_plain(e).get("methods", []))
    assert load_run(experiment, path.stem, 0).method.name == path.stem


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=names(ENVIRONMENTS))
def test_every_environment_overlay_is_read_by_the_environments_own_settings(path: Path) -> None:
    written = read_plain(path)["environments"][path.stem]["settings"]
    quickstart = CONFIGS / "experiments" / "quickstart.yaml"
    experiment = load(ExperimentConfig, [quickstart, path], ["rollout.max_new_tokens_per_turn=64"])
    settings = experiment.environments[path.stem].settings
    assert type(settings) is discover()[path.stem].settings_type
    resolved = {key: value for key, value, _ in keys(settings)}
    for key, value in written.items():
        if not isinstance(value, dict):
            assert resolved[key] == value


@pytest.mark.parametrize("path", MODELS, ids=names(MODELS))
def test_every_model_overlay_lies_on_an_experiment(path: Path) -> None:
    experiment = load(ExperimentConfig, [CONFIGS / "experiments" / "quickstart.yaml", path])
    assert experiment.model.path == read_plain(path)["model"]["path"]


@pytest.mark.parametrize("path", ENGINES, ids=names(ENGINES))
def test_every_engine_overlay_lies_on_an_experiment_and_has_a_command(path: Path) -> None:
    experiment = load(ExperimentConfig, [CONFIGS / "experiments" / "quickstart.yaml", path])
    assert isinstance(experiment.engine, VllmEngineSettings) and path.stem.startswith("vllm")
    words = engine_command(experiment.engine, Path("weights"), Path("socket"), "float32", 1024)
    assert words.index("weights") > 0 and not any("{" in word for word in words)
    assert reload(experiment) == experiment


@pytest.mark.parametrize("path", JUDGES, ids=names(JUDGES))
def test_every_judge_file_lies_under_an_experiment_and_is_served_as_it_is(path: Path) -> None:
    experiment = load(ExperimentConfig, [CONFIGS / "experiments" / "quickstart.yaml", path])
    judge, server = load_judge(path)
    assert (experiment.rubrics.judge, experiment.judge_server) == (judge, server)
    assert make_judge(judge, load_vocabulary(Path(experiment.rubrics.vocabulary))).judge_id.startswith("llm:")
    assert judge.endpoint == f"results/services/{path.stem}/endpoint.json"
    assert replica_command(judge, server, server.first_port)
    devices = slices(server, {})
    assert len(devices) == server.replicas and len(sum(devices, [])) == (8 if server.use_gpus else 0)
    assert reload(experiment) == experiment


def test_the_selectors_to_replay_are_of_every_type_that_chooses_a_part() -> None:
    found = load_selectors()
    assert {settings.type for settings in found.values()} == set(known_types("selector")) - {"all"}
    assert list(load_selectors(["herding", "random"])) == ["herding", "random"]
    assert (found["profile_skill"].level, found["profile_neg"].signal) == ("skill", "neg")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("selectors: {odd: {type: herdin}}", "selectors.odd: unknown selector type 'herdin'"),
        ("selectors: {odd: {type: profile, lambda: 1}}", "selectors.odd: lambda"),
        ("selectors: [random]", "one mapping is expected under the key `selectors`"),
        ("", "selectors"),
    ],
)
def test_a_file_of_selectors_that_does_not_hold_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "selectors.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_selectors(path=path)


def test_how_a_judge_is_served_and_reached_leaves_the_results_hash_alone() -> None:
    def run(*overrides: str) -> RunConfig:
        return load_run(CONFIGS / "experiments" / "quickstart.yaml", "rised", 0, overrides)

    judge = ["rubrics.judge={type: llm, model: m}"]
    plain = run(*judge)
    assert settings_hash(plain) != settings_hash(run())
    elsewhere = run(
        *judge, "rubrics.judge.endpoint=http://h/v1", "rubrics.judge.concurrency=3", "judge_server.replicas=2"
    )
    assert settings_hash(elsewhere) == settings_hash(plain)
    assert [change.key for change in changed_strict_keys(plain, run(*judge, "rubrics.judge.seed=1"))] == [
        "rubrics.judge.seed"
    ]


def test_the_nano_policys_build_loads_and_saves_back_equal() -> None:
    config = load(NanoPolicyConfig, [CONFIGS / "nano_policy.yaml"])
    assert reload(config) == config
    assert settings_hash(reload(config)) == settings_hash(config)
    assert set(config.warm_start.demonstrations) == set(config.environments)


def test_two_seeds_or_methods_of_an_experiment_differ_in_their_hash_and_only_there() -> None:
    path = CONFIGS / "experiments" / "laptop_grid.yaml"
    first, other_seed, other_method = (load_run(path, *run) for run in (("rised", 0), ("rised", 1), ("grpo_64", 0)))
    assert [change.key for change in changed_strict_keys(first, other_seed)] == ["seed"]
    assert all(change.key.startswith("method.") for change in changed_strict_keys(first, other_method))
    assert len({settings_hash(run) for run in (first, other_seed, other_method)}) == 3


def test_an_operational_key_leaves_the_results_hash_alone() -> None:
    path = CONFIGS / "experiments" / "quickstart.yaml"
    plain, workers, rate = (
        load_run(path, "rised", 0, overrides)
        for overrides in ([], ["rollout.environment_workers=3"], ["learner.learning_rate=0.5"])
    )
    assert settings_hash(workers) == settings_hash(plain) != settings_hash(rate)
    assert full_hash(workers) != full_hash(plain)


def settings_classes() -> list[type[Settings]]:
    """The configurations' roots, and every settings class written in the library (not those built at run time)."""
    discover()
    for kind in FOLDERS:
        known_types(kind)
    found: list[type[Settings]] = [RunConfig, ExperimentConfig, NanoPolicyConfig]
    pending = [Settings]
    while pending:
        for child in pending.pop().__subclasses__():
            pending.append(child)
            written = hasattr(sys.modules[child.__module__], child.__qualname__.split(".")[0])
            if child.__module__.startswith("rised.") and written:
                found.append(child)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("model", settings_classes(), ids=lambda model: f"{model.__module__}.{model.__qualname__}")
def test_every_key_is_strict_or_operational(model: type[Settings]) -> None:
    assert classification_gaps(model) == []
