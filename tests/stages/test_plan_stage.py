"""The planner: what it counts for a cluster, its verdict, and that its mends really help."""

from __future__ import annotations

from pathlib import Path

import pytest

from rised.config import ConfigError
from rised.experiment import RunConfig
from rised.learner.settings import DeepSpeedLearnerSettings
from rised.models.shape import ModelShape
from rised.records.shards import RunReader
from stages.plan import GB, Cluster, episode_tokens, fits, longest_pass, main, mended, needs, shape_of
from stages.setup import load_experiment, load_run

PAPER = Path("configs/experiments/paper_qwen25_3b.yaml")
PLAIN = ("learner.type=torch", "learner.activation_checkpointing=false", "learner.layout=padded")


@pytest.fixture(autouse=True)
def _in_the_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)


def paper(*overrides: str) -> tuple[RunConfig, ModelShape, Cluster]:
    config = load_run(PAPER, "rised", 0, overrides)
    return config, shape_of(config), Cluster.of(load_experiment(PAPER, overrides), 80.0)


def peak_gb(config: RunConfig, shape: ModelShape, cluster: Cluster) -> float:
    return max(need.peak for need in needs(config, shape, cluster)) / GB


def planned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["stages.plan", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen25_3b", 3.086), ("qwen3_4b", 4.022), ("qwen3_1p7b", 1.721), ("smollm2_135m", 0.1345)]
)
def test_the_shapes_of_shipped_models_have_their_published_sizes(name: str, billions: float, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        f"extends: [{Path('configs').resolve()}/base.yaml, {Path('configs').resolve()}/models/{name}.yaml]\n"
    )
    file.write_text(file.read_text() + "experiment: x\nmethods: [grpo_64]\nupdates: 1\n")
    shape = load_experiment(file).model.shape
    assert shape is not None and shape.parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_the_papers_run_fits_its_cluster_as_it_is_configured() -> None:
    config, shape, cluster = paper()
    assert (cluster.learners, cluster.players, cluster.shared) == (32, 32, True)
    assert fits(needs(config, shape, cluster), 80.0)


def test_mends_are_found_in_turn_lower_the_peak_and_end_in_a_fit() -> None:
    config, shape, cluster = paper(*PLAIN)
    assert not fits(needs(config, shape, cluster), 80.0)
    steps, enough = mended(config, shape, cluster)
    assert enough and steps[0][0] == "learner.activation_checkpointing: true"
    peaks = [peak_gb(config, shape, cluster) * GB, *(left for _, left in steps)]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == len(peaks)


def test_with_a_lag_episodes_and_update_stand_in_memory_together_and_players_have_weights_of_their_own() -> None:
    single = "model.rollout_dtype=float32"
    (apart,), (together,) = (needs(*paper(single, f"pipeline.lag={lag}")) for lag in (0, 1))
    weights = {part.name: part.bytes for part, _, _ in together.parts}["policy to play with"]
    assert "policy to play with" not in {part.name for part, _, _ in apart.parts}
    assert together.playing == together.learning == sum(part.bytes for part, _, _ in apart.parts) + weights
    (copied,) = needs(*paper("pipeline.lag=1"))
    assert "policy to play with" not in {part.name for part, _, _ in copied.parts}, "the engine has its copy"


def test_what_no_setting_mends_is_said() -> None:
    config, shape, _ = paper(*PLAIN)
    _, enough = mended(config, shape, Cluster(1, 1, True, 8.0))
    assert not enough


def test_nodes_that_only_play_are_counted_by_themselves() -> None:
    overrides = ("learner.type=torch", "placement.rollout_nodes=1")
    config, shape, cluster = paper(*overrides)
    assert (cluster.learners, cluster.players) == (24, 8)
    learns, plays = needs(config, shape, cluster)
    assert (learns.kind, plays.kind) == ("learns", "plays")
    names = [part.name for part, _, _ in plays.parts]
    assert "key-value cache" in names and "optimiser" not in names
    with pytest.raises(ConfigError, match="no node is left to learn"):
        Cluster.of(load_experiment(PAPER, ["placement.rollout_nodes=4"]))


def test_an_episode_longer_than_the_budget_is_the_largest_pass() -> None:
    config, _, _ = paper("learner.micro_batch_tokens=1000", "rollout.max_episode_tokens=8190")
    assert longest_pass(config) == 8192


def test_sharded_weights_cost_the_players_a_whole_copy() -> None:
    config, shape, cluster = paper("learner.type=deepspeed", "learner.zero_stage=3", "learner.gradient_share_every=0")
    assert isinstance(config.learner, DeepSpeedLearnerSettings)
    names = {part.name: part.bytes for need in needs(config, shape, cluster) for part, _, _ in need.parts}
    assert names["policy to play with"] == 4 * shape.parameters
    assert names["weights"] == 4 * shape.parameters // 32


def test_the_command_says_what_does_not_fit_and_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for text in PLAIN for word in ("--set", text)]
    code, text = planned(monkeypatch, capsys, PAPER, "--memory-gb", 80, *sets)
    assert code == 1 and "IT DOES NOT FIT" in text and "Then it fits." in text
    code, text = planned(monkeypatch, capsys, "configs/experiments/quickstart.yaml", "--memory-gb", 8)
    assert code == 0 and "It fits" in text and "2,215,872 parameters" in text


def test_lengths_of_a_stored_run_give_the_tokens_of_a_step(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = repository / "data" / "sample_results" / "laptop_grid" / "rised" / "seed-0"
    means = episode_tokens(run)
    assert set(means) == {"alfworld", "webshop", "dbbench"} and all(20 < mean < 640 for mean in means.values())
    assert RunReader(run).steps()
    code, text = planned(monkeypatch, capsys, "configs/experiments/laptop_grid.yaml", "--run", run, "--method", "rised")
    assert code == 0 and "tokens played" in text and "Memory of a device not known" in text


def test_a_model_that_is_not_here_and_has_no_shape_is_an_error_with_the_mend() -> None:
    config, _, _ = paper()
    bare = config.model_copy(update={"model": config.model.model_copy(update={"shape": None})})
    with pytest.raises(
        ConfigError, match=r"no models/Qwen2\.5-3B-Instruct/config\.json here, and model\.shape is not set"
    ):
        shape_of(bare)
