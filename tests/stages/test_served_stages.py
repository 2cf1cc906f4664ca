"""Which judge's server a stage of the DAG holds on a cluster, and that nothing of it shows in a direct run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rised.config import ConfigError
from rubric_discovery.planning import Discovery, read_discovery
from slurm.launch import judge_services
from slurm.plan import Plan
from slurm.site import load_site
from stages.grid import Grid, read_grid
from stages.judge_need import named_judge_need

pytestmark = pytest.mark.usefixtures("at_the_root")


def grid(executor: str = "slurm", **options: str) -> Grid:
    return read_grid({"experiment": "quickstart", "executor": executor, **options})


def held(command: str) -> tuple[str, bool]:
    """Judge and whether its server lingers, from what stands before a stage's command."""
    words = shlex.split(command.partition(" -- ")[0])
    return (words[words.index("--judge") + 1] if "--judge" in words else ""), "--lingers" in words


def discovery(name: str, executor: str = "slurm") -> Discovery:
    return read_discovery({"discovery": name}, grid(executor))


def test_a_judge_by_its_name_says_where_its_server_will_be_and_how_it_is_started() -> None:
    need = named_judge_need("qwen3_8b")
    assert need is not None and need.endpoint == Path("results/services/qwen3_8b/endpoint.json")
    assert need.command[2:] == (
        "stages.serve_judge", "--config", "configs/judges/qwen3_8b.yaml", "--endpoint", str(need.endpoint)
    )  # fmt: skip
    assert named_judge_need("configs/judges/qwen3_8b.yaml") == need
    assert named_judge_need("rules") is None
    with pytest.raises(
        ConfigError, match="no judge file configs/judges/qwen3_7b.yaml: choose one of rules, .*qwen3_8b"
    ):
        named_judge_need("qwen3_7b")


def test_a_judge_at_a_fixed_address_or_without_a_server_is_not_started(tmp_path: Path) -> None:
    judge = "rubrics: {{judge: {{type: llm, model: m, endpoint: '{endpoint}'}}}}\n"
    for name, endpoint, server in [
        ("remote", "https://judge.example/v1", "judge_server: {replicas: 1}\n"),
        ("somebodys", "results/services/s/endpoint.json", ""),
    ]:
        (tmp_path / f"{name}.yaml").write_text(judge.format(endpoint=endpoint) + server)
        assert named_judge_need(str(tmp_path / f"{name}.yaml")) is None


def test_audits_and_further_tags_hold_the_server_of_their_judge() -> None:
    on_cluster = grid()
    assert held(on_cluster.launch("audit_judge", "a", judge="{wildcards.judge}")) == ("{wildcards.judge}", False)
    rules = Path("stages/retag.smk").read_text() + Path("stages/audit_judge.smk").read_text()
    assert len(re.findall(r'judge="\{wildcards\.judge\}"', rules)) == 2
    assert grid("direct").launch("audit_judge", "a", judge="x") == ""


def test_steps_of_discovery_hold_the_server_of_the_model_that_they_ask_and_leave_it_to_the_next() -> None:
    strong, tagger = "configs/judges/qwen3_235b.yaml", "configs/judges/qwen3_32b.yaml"
    found = {step: held(discovery("strong").command(step)) for step in STEPS}
    assert found == {
        "sample": ("", False),
        "propose": (strong, True),
        "normalise": (strong, True),
        "merge": ("", False),
        "screen": (tagger, False),
        "group": (strong, False),
        "freeze": ("", False),
    }
    for step in STEPS:
        assert discovery("strong", "direct").command(step).startswith(f"python -m rubric_discovery.{step} ")
        assert held(discovery("recorded").command(step)) == held(discovery("quickstart").command(step)) == ("", False)


STEPS = ("sample", "propose", "normalise", "merge", "screen", "group", "freeze")


def test_a_model_and_the_file_that_serves_it_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "odd.yaml"
    model = "{type: server, model: Qwen/Qwen3-8B, endpoint: e.json, served_by: configs/judges/qwen3_8b.yaml}"
    file.write_text(f"discovery: odd\nrollouts: data/discovery/rollouts.parquet\nstrong_model: {model}\n")
    monkeypatch.setattr("rubric_discovery.planning.DISCOVERIES", tmp_path)
    with pytest.raises(ConfigError, match=r"strong_model.endpoint is 'e.json', but .*qwen3_8b.yaml, which serves it"):
        discovery("odd")
    file.write_text(file.read_text().replace("qwen3_8b.yaml", "qwen3_7b.yaml"))
    with pytest.raises(
        ConfigError, match="strong_model.served_by: there is no judge file configs/judges/qwen3_7b.yaml"
    ):
        discovery("odd")


def test_the_launcher_makes_one_service_of_a_judge_and_none_where_no_second_process_may_run(tmp_path: Path) -> None:
    site = load_site(Path("slurm/site.yaml"))
    (service,) = judge_services(named_judge_need("qwen3_8b"), site, "slurm", lingers=True)
    assert service.lingers and service.call.stage == "judge_server"
    assert service.endpoint == Path("results/services/qwen3_8b/endpoint.json").absolute()
    assert judge_services(named_judge_need("rules"), site, "slurm") == []
    assert judge_services(named_judge_need("qwen3_8b"), site, "debug") == []


def test_two_judges_served_at_once_each_have_the_resources_of_their_own_file() -> None:
    sizes = {}
    for name in ("qwen3_14b", "smollm2_cpu"):
        need = named_judge_need(name)
        assert need is not None
        site = load_site(Path("slurm/site.yaml"), experiment=Path("configs/paper.yaml"), judge=need.config)
        (service,) = judge_services(need, site, "slurm")
        wanted = service.site.resources(service.call.stage)
        sizes[name] = (wanted.gpus_per_node, wanted.cpus_per_task)
        assert site.resources("train").gpus_per_node == 8, "the experiment's"
    assert sizes == {"qwen3_14b": (8, 32), "smollm2_cpu": (0, 2)}


def test_the_plan_counts_the_servers_of_audits_and_of_further_tags(tmp_path: Path) -> None:
    audit = Plan.of(read_grid({"experiment": "judge_audit", "executor": "slurm", "results": str(tmp_path)}))
    servers = {line.name: line.to_do for line in audit.lines() if line.name.startswith("judge_server")}
    assert servers == {f"judge_server qwen3_{size}b": 1 for size in (8, 14, 32)}
    assert {line.gpus for line in audit.lines() if line.name.startswith("judge_server")} == {8}
    further = Plan.of(grid(judge="rules,qwen3_8b", results=str(tmp_path)))
    lines = {line.name: line.to_do for line in further.lines()}
    assert lines["retag by judges"] == 2 * 2 and lines["judge_server qwen3_8b"] == 1
    assert not any("rules" in name for name in lines)
    mark = tmp_path / "quickstart" / "rised" / "seed-0" / "retags" / "rules" / "DONE"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert {line.name: line.to_do for line in further.lines()}["retag by judges"] == 3
