"""The strong model behind a real HTTP server: bad replies, refusals, an outage, and files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from discovery_work import MakeWork, run_steps
from scripted_judge_server import ScriptedServer

from rised.config import ConfigError
from rised.config.loader import load
from rubric_discovery import propose, screen
from rubric_discovery.errors import DiscoveryError
from rubric_discovery.prompts import load_prompt
from rubric_discovery.records import Pair, Reply, read_rows, write_rows
from rubric_discovery.settings import DiscoverySettings
from rubric_discovery.work import Work, perform

DISCOVERY = {"kind": "discovery"}
NO_JSON = {"kind": "text", "text": "I would rather not."}


@pytest.fixture
def served(make_work: MakeWork):  # type: ignore[no-untyped-def]
    with ScriptedServer() as server:
        model = f"{{type: server, model: test/strong, endpoint: {server.url}, concurrency: 1, max_attempts: 1"

        def make(more: str = "", *further: str) -> Work:
            return make_work(f"strong_model={model}, wait_for_server_s: 0.2{more}}}", "screen.min_tagged=4", *further)

        yield server, make


def test_all_steps_run_against_a_server(served) -> None:  # type: ignore[no-untyped-def]
    server, make = served
    work = make()
    server.script(*[DISCOVERY] * 80)
    record = run_steps(work)
    assert record["counts"]["rubrics"] >= 3
    assert "llm:test/strong@main:" in work.path("vocabulary.yaml").read_text()
    requests = server.requests()
    names = [request["body"]["response_format"]["json_schema"]["name"] for request in requests]
    assert names.count("behaviours") == 6 and names.count("skills") == 1
    seeds = {r["body"]["seed"] for r, name in zip(requests, names, strict=True) if name == "tags"}
    assert seeds == {0, 1}, "the second tagging has a seed of its own"


def test_a_filtered_question_is_asked_once_and_is_no_outage(served) -> None:  # type: ignore[no-untyped-def]
    server, make = served
    work = make(", max_failed_share: 0")
    run_steps(work, "sample")
    server.script({"kind": "text", "text": "", "finish_reason": "content_filter"})
    assert perform(propose.STEP, work)["replies"] == {"ok": 5, "filtered": 1}
    assert len(server.requests()) == 6


def test_an_unreadable_reply_is_asked_for_again_and_then_left_out(served) -> None:  # type: ignore[no-untyped-def]
    server, make = served
    work = make()
    run_steps(work, "sample")
    server.script(NO_JSON, DISCOVERY, NO_JSON, NO_JSON)
    record = perform(propose.STEP, work)
    assert record["replies"] == {"ok": 5, "parse_error": 1}
    assert len(server.requests()) == 6 + 2
    again = server.requests()[1]["body"]["messages"]
    assert [m["role"] for m in again] == ["system", "user", "assistant", "user"] and "no_json" in again[3]["content"]
    failed = [r for r in read_rows(work.path("propose_replies.parquet"), Reply) if r.status != "ok"]
    assert [(r.subject, r.text) for r in failed] == [("alfworld:001", "I would rather not.")]


def test_replies_without_any_evidence_stop_the_step_with_where_to_look(served) -> None:  # type: ignore[no-untyped-def]
    server, make = served
    work = make(", reasks: 0")
    run_steps(work, "sample")
    server.script(*[{"kind": "text", "text": '{"behaviours": []}'}] * 6)
    with pytest.raises(DiscoveryError, match="no behaviour with evidence in 6 pairs.*propose_replies.parquet"):
        perform(propose.STEP, work)
    assert not work.path("propose.yaml").exists()


def test_a_model_that_is_away_stops_the_step_and_what_is_answered_is_kept(served) -> None:  # type: ignore[no-untyped-def]
    server, make = served
    work = make()
    run_steps(work, "sample")
    server.script(DISCOVERY, DISCOVERY, *[{"kind": "status", "status": 400}] * 4)
    with pytest.raises(DiscoveryError, match="left 4 of 6 requests of propose unanswered.*start the same command"):
        perform(propose.STEP, work)
    server.script()
    perform(propose.STEP, work)
    assert len(server.requests()) == 4, "two are answered already"
    server.stop()
    with pytest.raises(DiscoveryError, match="could not be reached"):
        run_steps(work, "normalise")


def test_a_refused_key_and_a_missing_endpoint_are_said_in_the_steps_own_words(
    served,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, make = served
    work = make()
    run_steps(work, "sample")
    server.script({"kind": "status", "status": 401, "body": "no"})
    with pytest.raises(DiscoveryError, match="the key is refused.*Check strong_model.model"):
        perform(propose.STEP, work)
    with pytest.raises(DiscoveryError, match="strong_model.api_key_env names 'NO_SUCH_KEY'"):
        perform(propose.STEP, make(", api_key_env: NO_SUCH_KEY"))
    homeless = make("", "strong_model.endpoint=null")
    with pytest.raises(DiscoveryError, match="endpoint of test/strong is missing"):
        perform(propose.STEP, homeless)


def test_tag_errors_are_counted_and_never_absent(served) -> None:  # type: ignore[no-untyped-def]
    server, make = served
    work = make(", reasks: 0")
    run_steps(work, "sample", "propose", "normalise", "merge")
    server.script(NO_JSON, NO_JSON, *[DISCOVERY] * 46)
    record = perform(screen.STEP, work)
    assert record["replies"] == {"ok": 46, "parse_error": 2}
    rows = read_rows(work.path("screen.parquet"), screen.Screened)
    assert {row.tag_errors for row in rows if row.environments == ("alfworld",)} == {2}
    assert all(row.tagged == 6 for row in rows if row.environments == ("alfworld",))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strong_model={type: recorded, file: nowhere.yaml}"], "there is no file of recorded replies nowhere.yaml"),
        (["strong_model={type: recorded, file: configs/base.yaml}"], "each with step, subject and reply"),
        (["rollouts=null"], "name run directories with --runs"),
        (["environments=[appworld]"], "no task has both a success and a failure among 0 usable of 24"),
    ],
)
def test_what_a_discovery_lacks_is_named(make_work: MakeWork, overrides: list[str], message: str) -> None:
    with pytest.raises(DiscoveryError, match=message):
        run_steps(make_work(*overrides))


def test_runs_and_a_shard_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="either `runs` or `rollouts`, not both"):
        load(DiscoverySettings, [Path("configs/discovery/recorded.yaml")], ["runs=[somewhere]"])


def test_tables_and_prompts_that_are_none_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "pairs.parquet", Pair, [])
    assert read_rows(tmp_path / "pairs.parquet", Pair) == []
    with pytest.raises(DiscoveryError, match="no table of Reply rows"):
        read_rows(tmp_path / "pairs.parquet", Reply)
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1")
    with pytest.raises(DiscoveryError, match="cannot be read"):
        read_rows(tmp_path / "pairs.parquet", Pair)
    (tmp_path / "prompt.md").write_text("# System\nhello\n# User\n{{text}}\n# Again\nno\n")
    with pytest.raises(DiscoveryError, match=r"under `# Again` stand the places \[\]; \['reason'\] must be there"):
        load_prompt(str(tmp_path / "prompt.md"), frozenset({"text"}))
    with pytest.raises(DiscoveryError, match="cannot be read"):
        load_prompt(str(tmp_path / "none.md"), frozenset())
