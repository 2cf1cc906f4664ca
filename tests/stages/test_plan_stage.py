"""The planner: what it counts for a cluster, its verdict, and that its mends really help."""

from __future__ import annotations

from pathlib import Path

import pytest

from rised.config import ConfigError
from rised.experiment import RunConfig
from rised.learner.settings import DeepSpeedLearnerSettings
from rised.models.shape import ModelShape
from rised.records.shards import RunReader
from stages.plan import GB, Cluster, episode_tokens, fits, longest_pass, main, mended, needs, shape_of, vllm_room
from stages.setup import load_experiment, load_run

PAPER = Path("configs/experiments/paper_qwen25_3b.yaml")
GRID = "configs/experiments/laptop_grid.yaml"
SHARED = ("engine={type: transformers}", "placement.rollout_nodes=0", "pipeline.lag=0")
PLAIN = (*SHARED, "learner.type=torch", "learner.activation_checkpointing=false", "learner.layout=padded")


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


@pytest.mark.parametrize("name", sorted(path.stem for path in Path("configs/experiments").glob("paper_*.yaml")))
def test_every_run_at_the_papers_scale_fits_its_devices_as_it_is_configured(name: str) -> None:
    file = Path(f"configs/experiments/{name}.yaml")
    experiment = load_experiment(file)
    cluster = Cluster.of(experiment)
    assert cluster.memory_gb == 80 and experiment.engine.type == "vllm"
    for method in experiment.methods:
        config = load_run(file, method, experiment.seeds[0])
        shape = shape_of(config)
        found = needs(config, shape, cluster)
        assert fits(found, cluster.memory_gb), method
        room, share = vllm_room(config, shape, found, cluster.memory_gb)
        asked = config.engine.arguments  # type: ignore[union-attr]
        assert room >= 2, method
        if asked:
            assert asked[0] == "--gpu-memory-utilization" and float(asked[1]) <= share + 0.01, method
        else:
            assert not cluster.shared, "vLLM takes nine tenths of a device that is its own"


def test_the_papers_cluster_is_counted_as_it_is_configured() -> None:
    _, _, cluster = paper()
    assert (cluster.learners, cluster.players, cluster.shared) == (24, 8, False)


def test_mends_are_found_in_turn_lower_the_peak_and_end_in_a_fit() -> None:
    config, shape, cluster = paper(*PLAIN)
    assert not fits(needs(config, shape, cluster), 80.0)
    steps, enough = mended(config, shape, cluster)
    assert enough and steps[0][0] == "learner.activation_checkpointing: true"
    peaks = [peak_gb(config, shape, cluster) * GB, *(left for _, left in steps)]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == len(peaks)


def test_with_a_lag_episodes_and_update_stand_in_memory_together_and_players_have_weights_of_their_own() -> None:
    single = (*SHARED, "model.rollout_dtype=float32")
    (apart,), (together,) = (needs(*paper(*single, f"pipeline.lag={lag}")) for lag in (0, 1))
    weights = {part.name: part.bytes for part, _, _ in together.parts}["policy to play with"]
    assert "policy to play with" not in {part.name for part, _, _ in apart.parts}
    assert together.playing == together.learning == sum(part.bytes for part, _, _ in apart.parts) + weights
    (copied,) = needs(*paper(*SHARED, "pipeline.lag=1"))
    assert "policy to play with" not in {part.name for part, _, _ in copied.parts}, "the engine has its copy"


def test_what_no_setting_mends_is_said() -> None:
    config, shape, _ = paper(*PLAIN)
    _, enough = mended(config, shape, Cluster(1, 1, True, 8.0))
    assert not enough


def test_nodes_that_only_play_are_counted_by_themselves() -> None:
    overrides = ("engine={type: transformers}", "learner.type=torch", "placement.rollout_nodes=1")
    config, shape, cluster = paper(*overrides)
    assert (cluster.learners, cluster.players) == (24, 8)
    learns, plays = needs(config, shape, cluster)
    assert (learns.kind, plays.kind) == ("learns", "plays")
    names = [part.name for part, _, _ in plays.parts]
    assert "key-value cache" in names and "optimiser" not in names
    with pytest.raises(ConfigError, match="no node is left to learn"):
        Cluster.of(load_experiment(PAPER, ["placement.rollout_nodes=4"]))


def test_vllms_servers_are_counted_with_their_share_of_the_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = ("engine.type=vllm", "engine.tensor_parallel=2", "placement.rollout_nodes=1")
    config, shape, cluster = paper(*apart)
    learns, plays = needs(config, shape, cluster)
    assert [(part.name, part.bytes) for part, _, _ in plays.parts] == [
        ("vLLM's weights", 2 * shape.parameters // 2),
        ("key-value cache", shape.cache_bytes(8192, 2) // 2),
    ]
    assert "policy to play with" not in {part.name for part, _, _ in learns.parts}, "that waits in the host's memory"
    (both,) = needs(*paper("engine.type=vllm", "placement.rollout_nodes=0"))
    assert both.learning > learns.learning, "on a shared device servers keep what they have while it learns"
    code, text = planned(monkeypatch, capsys, "--config", PAPER, "--set", apart[0], "--set", apart[2])
    assert code == 0
    # 72 GB usable, 6.17 of them weights; 36 layers of 2 x 256 keys and values of 2 bytes for 8,192 tokens an episode
    assert f"room for {int((72e9 - 2 * shape.parameters) // (36 * 2 * 256 * 2 * 8192))} of the longest episodes" in text


def test_an_episode_longer_than_the_budget_is_the_largest_pass() -> None:
    config, _, _ = paper("learner.micro_batch_tokens=1000", "rollout.max_episode_tokens=8190")
    assert longest_pass(config) == 8192


def test_sharded_weights_cost_the_players_a_whole_copy() -> None:
    config, shape, cluster = paper(*SHARED, "learner.zero_stage=3", "learner.gradient_share_every=0")
    assert isinstance(config.learner, DeepSpeedLearnerSettings)
    names = {part.name: part.bytes for need in needs(config, shape, cluster) for part, _, _ in need.parts}
    assert names["policy to play with"] == 4 * shape.parameters
    assert names["weights"] == 4 * shape.parameters // 32


def test_the_command_says_what_does_not_fit_and_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for text in PLAIN for word in ("--set", text)]
    code, text = planned(monkeypatch, capsys, "--config", PAPER, "--memory-gb", 80, *sets)
    assert code == 1 and "IT DOES NOT FIT" in text and "Then it fits." in text
    code, text = planned(monkeypatch, capsys, "--config", "configs/experiments/quickstart.yaml", "--memory-gb", 8)
    assert code == 0 and "It fits" in text and "2,215,872 parameters" in text


def test_lengths_of_a_stored_run_give_the_tokens_of_a_step(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = repository / "data" / "sample_results" / "laptop_grid" / "rised" / "seed-0"
    means = episode_tokens(run)
    assert set(means) == {"alfworld", "webshop", "dbbench"} and all(20 < mean < 640 for mean in means.values())
    assert RunReader(run).steps()
    code, text = planned(
        monkeypatch, capsys, "--config", "configs/experiments/laptop_grid.yaml", "--run", run, "--method", "rised"
    )
    assert code == 0 and "tokens played" in text and "Memory of a device not known" in text


def test_a_model_that_is_not_here_and_has_no_shape_is_an_error_with_the_mend() -> None:
    config, _, _ = paper()
    bare = config.model_copy(update={"model": config.model.model_copy(update={"shape": None})})
    with pytest.raises(
        ConfigError, match=r"no models/Qwen2\.5-3B-Instruct/config\.json here, and model\.shape is not set"
    ):
        shape_of(bare)
