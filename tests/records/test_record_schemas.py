"""Records survive being stored; tables of another kind, version or content are refused."""

from __future__ import annotations

import dataclasses
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_examples import rollout, step_tables

from rised.records.errors import RecordError
from rised.records.schemas import NAME_KEY, SCHEMAS, VERSION_KEY, check_schema, from_table, schema_of, to_table
from rised.records.shards import encode
from rised.records.types import (
    Gradient,
    JudgeReply,
    Metric,
    Reselection,
    Rollout,
    Selection,
    StopReason,
    Tag,
    TagState,
    TagStatus,
    Timing,
    Turn,
)

TEXT = st.text(max_size=12)
INT32 = st.integers(0, 2**31 - 1)
REAL = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | REAL | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
TURN = st.builds(
    Turn,
    TEXT,
    TEXT,
    TEXT,
    st.booleans(),
    INT32,
    INT32,
    st.booleans(),
    st.dictionaries(TEXT, JSON, max_size=3),
)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    mask = tuple(draw(st.lists(st.booleans(), max_size=8)))
    valid = draw(st.booleans())
    return dataclasses.replace(
        rollout(0, 0),
        rollout_id=draw(TEXT),
        system_prompt=draw(TEXT),
        steering_rubrics=tuple(draw(st.lists(TEXT, max_size=3))),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        turns=tuple(draw(st.lists(TURN, max_size=3))),
        token_ids=tuple(draw(INT32) for _ in mask),
        policy_mask=mask,
        logprobs=tuple(draw(st.floats(max_value=0.0, allow_nan=False)) for kept in mask if kept),
        reward=draw(REAL) if valid else None,
        reward_valid=valid,
        success=draw(st.none() | st.booleans()),
        stop_reason=draw(st.sampled_from(StopReason)),
    )


@st.composite
def tag_records(draw: st.DrawFn) -> Tag:
    state = draw(st.none() | st.sampled_from(TagState))
    status = TagStatus.OK if state else draw(st.sampled_from([s for s in TagStatus if s is not TagStatus.OK]))
    turn = draw(st.none() | INT32)
    return Tag(draw(TEXT), draw(TEXT), state, turn, draw(TEXT), status, draw(TEXT), draw(st.booleans()))


@st.composite
def selection_records(draw: st.DrawFn) -> Selection:
    order = draw(st.none() | INT32)
    maybe = st.none() | REAL
    return Selection(
        draw(INT32), draw(TEXT), draw(TEXT), order is not None, order, draw(maybe), draw(maybe), draw(maybe)
    )


@st.composite
def reselection_records(draw: st.DrawFn) -> Reselection:
    row = draw(selection_records())
    return Reselection(selector=draw(TEXT), tags=draw(TEXT), judge=draw(TEXT), **dataclasses.asdict(row))


REPLY = st.builds(
    JudgeReply,
    TEXT,
    TEXT,
    st.sampled_from(TagStatus),
    TEXT,
    TEXT,
    TEXT,
    TEXT,
    st.booleans(),
    st.none() | INT32,
    st.none() | INT32,
)
METRIC = st.builds(Metric, st.integers(0, 2**40), TEXT, st.none() | REAL, TEXT)
TIMING = st.builds(Timing, st.integers(0, 2**40), TEXT, REAL, TEXT, TEXT)
TASK = st.fixed_dictionaries(
    {
        "environment": TEXT,
        "split": TEXT,
        "task_id": TEXT,
        "seed": INT32,
        "payload": st.dictionaries(TEXT, JSON, max_size=3),
        "content_hash": TEXT,
    }
)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("rollouts", rollouts()),
        ("tags", tag_records()),
        ("judge_replies", REPLY),
        ("selections", selection_records()),
        ("reselections", reselection_records()),
        ("metrics", METRIC),
        ("timings", TIMING),
        ("tasks", TASK),
    ],
)
def test_records_come_back_equal(name: str, strategy: st.SearchStrategy) -> None:
    @settings(max_examples=15 if name == "rollouts" else 30, deadline=None)
    @given(st.lists(strategy, max_size=4))
    def there_and_back(records: list) -> None:
        table = to_table(records, name)
        assert from_table(table) == records
        read = pq.read_table(pa.BufferReader(encode(table)))
        assert from_table(read) == records

    there_and_back()


def test_the_schema_is_found_from_the_first_record() -> None:
    assert to_table([Metric(1, "a", 1.0, "s")]).schema.metadata[NAME_KEY] == b"metrics"
    assert to_table([Timing(1, "a", 1.0, "s")]).schema.metadata[NAME_KEY] == b"timings"
    with pytest.raises(RecordError, match="name the schema"):
        to_table([])


def test_every_field_of_a_rollout_has_a_column_and_messages_follow_the_turns() -> None:
    table = to_table([rollout(3, 1)])
    assert {field.name for field in dataclasses.fields(Rollout)} <= set(table.column_names)
    messages = table["messages"][0].as_py()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[4]["content"] == "go to shelf 1"
    assert table["turn_count"].to_pylist() == [2] and table["token_count"].to_pylist() == [12]


def test_another_version_is_refused_with_both_versions_named() -> None:
    table = to_table([Metric(1, "a", 1.0, "s")])
    newer = table.schema.with_metadata({NAME_KEY: b"metrics", VERSION_KEY: b"7"})
    with pytest.raises(RecordError, match=r"here\.parquet has schema 'metrics' version 7, this code reads version 1"):
        check_schema(newer, "metrics", "here.parquet")


def test_another_kind_or_a_foreign_table_is_refused() -> None:
    with pytest.raises(RecordError, match="holds 'metrics', expected 'tags'"):
        check_schema(schema_of("metrics"), "tags", "x")
    with pytest.raises(RecordError, match="not a shard of this program"):
        check_schema(pa.schema([("a", pa.int64())]), None, "x")


def test_a_schema_that_lies_about_its_columns_is_refused() -> None:
    fields = [field for field in SCHEMAS["metrics"] if field.name != "unit"]
    with pytest.raises(RecordError, match=r"columns are missing \(unit\)"):
        check_schema(pa.schema(fields, SCHEMAS["metrics"].metadata), "metrics", "x")
    fields = [field.with_type(pa.string()) if field.name == "step" else field for field in SCHEMAS["metrics"]]
    with pytest.raises(RecordError, match="column 'step' is string, expected int64"):
        check_schema(pa.schema(fields, SCHEMAS["metrics"].metadata), "metrics", "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy_mask": (True,)}, "12 token_ids but 1 entries of policy_mask"),
        ({"logprobs": (-1.0,)}, "1 logprobs for 6 policy tokens"),
        ({"reward": None}, "reward_valid is True but reward is None"),
        ({"reward_valid": False}, "reward_valid is False but reward is 0.0"),
        ({"reward": math.nan}, "reward is nan"),
        ({"turns": (Turn("o", "a", "a", True, 0, 1, False, {"x": {1, 2}}),)}, "info of turn 0 .* as JSON"),
        ({"turns": (Turn("o", "a", "a", True, 0, 1, False, {"x": math.nan}),)}, "info of turn 0 .* as JSON"),
        ({"task_id": None}, "column 'task_id' of rollouts is None"),
        ({"token_ids": (2**31,) * 12}, "column 'token_ids' of rollouts cannot be stored"),
    ],
)
def test_a_rollout_that_contradicts_itself_is_not_stored(change: dict, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        to_table([dataclasses.replace(rollout(0, 0), **change)])


def test_a_failed_judgement_has_no_state_and_a_good_one_has() -> None:
    with pytest.raises(RecordError, match="exactly when the status is ok"):
        to_table([Tag("r", "k", TagState.ABSENT, None, "j", TagStatus.ERROR)])
    with pytest.raises(RecordError, match="exactly when the status is ok"):
        to_table([Tag("r", "k", None, None, "j", TagStatus.OK)])


def test_an_undefined_metric_is_none_and_never_nan() -> None:
    with pytest.raises(RecordError, match="an undefined metric is None"):
        to_table([Metric(1, "a", math.nan, "s")])


def test_a_task_with_a_missing_field_is_named() -> None:
    with pytest.raises(RecordError, match=r"task 't1': missing fields \['payload'\]"):
        to_table([{"environment": "e", "split": "s", "task_id": "t1", "seed": 1, "content_hash": "h"}], "tasks")


def test_records_of_two_types_do_not_mix() -> None:
    with pytest.raises(RecordError, match="a Timing cannot be stored among metrics"):
        to_table([Metric(1, "a", 1.0, "s"), Timing(1, "a", 1.0, "s")])


def test_equal_records_give_equal_bytes() -> None:
    first, second = step_tables(4), step_tables(4)
    for kind, table in first.items():
        assert encode(table) == encode(second[kind]), kind
        pieces = pa.concat_tables([table.slice(0, 1), table.slice(1)])
        assert encode(table) == encode(pieces), f"{kind} depends on how the table was put together"


def test_gradients_survive_with_their_projection_in_single_precision_and_are_finite() -> None:
    layer = Gradient(5, "webshop", "validation", "layer", "2", 1000, 16, 9, 128, 0.5, None)
    projected = dataclasses.replace(layer, signal="projection", layers="0-3", cosine=-0.25, vector=(0.5, -1.25))
    assert from_table(to_table([layer, projected])) == [layer, projected]
    for broken in ({"norm": math.inf}, {"cosine": math.nan}, {"vector": (math.nan,)}):
        with pytest.raises(RecordError, match="webshop .* at step 5 is not finite"):
            to_table([dataclasses.replace(layer, **broken)])
