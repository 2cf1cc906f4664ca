"""DBBench's SQLite backend: MySQL's meaning on TEXT columns, one statement at a time, and confinement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rised.environments.base import EnvironmentFault
from rised.environments.dbbench.backend import _FULL_DATABASES, _MAX_PAGES, SqliteBackend
from rised.environments.dbbench.judging import answers_equal, combined_hash, hashes_equal, table_hash
from rised.environments.dbbench.records import Column, Table, TableInfo, load_records
from rised.environments.dbbench.sql import read_statement

TABLE = Table(
    table_name="staff list",
    table_info=TableInfo(
        columns=(Column(name="name"), Column(name="home city"), Column(name="pay")),
        rows=(("anna", "Paris", "90"), ("ben", "oslo", "120"), ("carl", "Paris", "1000"), ("dora", None, "")),
    ),
)


@pytest.fixture
def backend() -> Iterator[SqliteBackend]:
    made = SqliteBackend(max_vm_steps=500_000, max_rows=100)
    made.open([TABLE])
    yield made
    made.close()


def test_a_text_column_beside_a_number_compares_as_a_number(backend: SqliteBackend) -> None:
    assert backend.execute("SELECT name FROM `staff list` WHERE pay > 95").rows == (("ben",), ("carl",))
    assert backend.execute("SELECT name FROM `staff list` WHERE pay BETWEEN 80 AND 130").rows == (("anna",), ("ben",))
    assert backend.execute("SELECT name FROM `staff list` WHERE pay IN (120, 7)").rows == (("ben",),)
    assert backend.execute("SELECT name FROM `staff list` WHERE pay > '95'").rows == ()


def test_text_sorts_as_text_until_a_number_is_made_of_it(backend: SqliteBackend) -> None:
    assert backend.execute("SELECT MAX(pay) FROM `staff list`").rows == (("90",),)
    assert backend.execute("SELECT MAX(pay + 0) FROM `staff list`").rows == ((1000,),)


def test_equality_ignores_case_as_mysqls_default_collation_does(backend: SqliteBackend) -> None:
    assert len(backend.execute("SELECT * FROM `staff list` WHERE `home city` = 'PARIS'").rows) == 2


def test_an_update_under_a_numeric_condition_changes_the_rows_that_mysql_would(backend: SqliteBackend) -> None:
    done = backend.execute("UPDATE `staff list` SET pay = pay + 5, `home city` = 'rome' WHERE pay < 200 AND pay > 0")
    assert (done.error, done.changed) == (None, 2)
    assert backend.contents(TABLE)[:2] == [("anna", "rome", "95"), ("ben", "rome", "125")]  # type: ignore[index]


def test_double_quotes_are_strings_and_unknown_backticked_names_are_errors(backend: SqliteBackend) -> None:
    assert backend.execute('SELECT name FROM `staff list` WHERE `home city` = "oslo"').rows == (("ben",),)
    assert backend.execute("SELECT `salary` FROM `staff list`").error_class == "no_such_column"
    assert backend.execute("SELECT name FROM staff").error_class == "no_such_table"


def test_mysqls_schema_statements_describe_the_table(backend: SqliteBackend) -> None:
    assert backend.execute("SHOW TABLES").rows == (("staff list",),)
    described = backend.execute("DESCRIBE `staff list`")
    assert described.rows == (("name", "TEXT"), ("home city", "TEXT"), ("pay", "TEXT"))
    assert backend.execute("SHOW COLUMNS FROM `staff list`").rows == described.rows


@pytest.mark.parametrize("sql", ["SHOW TABLE", "SELECT DATE_ADD(", "SELECT DATE_ADD(pay, INTERVAL"])
def test_malformed_statements_that_upset_the_parser_are_ordinary_errors(backend: SqliteBackend, sql: str) -> None:
    statement = read_statement(sql)
    assert (statement.count, statement.kind, statement.sqlite) == (1, sql.split()[0], None)
    assert backend.execute(sql).error_class == "syntax"


def test_any_failure_of_description_or_translation_falls_back_to_the_raw_text(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TypeError("sqlglot")

    read_statement.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("rised.environments.dbbench.sql._compare_as_mysql", fail)
        assert backend.execute("SELECT COUNT(*) FROM `staff list`").rows == ((4,),)
        patch.setattr("rised.environments.dbbench.sql._describe", fail)
        assert backend.execute("SELECT name FROM `staff list` LIMIT 1").rows == (("anna",),)
    read_statement.cache_clear()


@pytest.mark.parametrize("sql", ["SHOW CREATE TABLE `staff list`", "SHOW INDEX FROM `staff list`", "SHOW DATABASES"])
def test_statements_without_a_translation_are_errors(backend: SqliteBackend, sql: str) -> None:
    execution = backend.execute(sql)
    assert execution.error and execution.error_class == "syntax" and execution.rows == ()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM `staff list`; SELECT 1",
        "SELECT 1; DELETE FROM `staff list`",
        "DELETE FROM `staff list` WHERE FROM; DELETE FROM `staff list`",
    ],
)
def test_several_statements_in_one_block_run_nothing(backend: SqliteBackend, sql: str) -> None:
    execution = backend.execute(sql)
    assert execution.error_class == "several_statements"
    assert len(backend.contents(TABLE) or []) == 4


def test_semicolons_inside_texts_and_at_the_end_are_no_second_statement(backend: SqliteBackend) -> None:
    assert backend.execute("SELECT 'a;b';").rows == (("a;b",),)
    assert backend.execute("SELECT name FROM `staff list` LIMIT 1 ;  ").rows == (("anna",),)


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH DATABASE '{path}' AS other",
        "VACUUM INTO '{path}'",
        "PRAGMA writable_schema = ON",
        "PRAGMA temp_store_directory = '/'",
        "SELECT load_extension('{path}')",
        "SELECT random()",
        "SELECT datetime('now')",
        "SELECT NOW()",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "CREATE TRIGGER x AFTER INSERT ON `staff list` BEGIN SELECT 1; END",
        "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 0, '')",
    ],
)
def test_files_extensions_settings_chance_and_clock_are_out_of_reach(
    backend: SqliteBackend, sql: str, tmp_path: Path
) -> None:
    target = tmp_path / "leak.db"
    execution = backend.execute(sql.format(path=target))
    assert execution.error is not None and execution.rows == ()
    assert not target.exists()
    assert backend.execute("SELECT COUNT(*) FROM `staff list`").rows == ((4,),)


def test_an_endless_recursive_query_is_stopped_by_its_instruction_budget() -> None:
    backend = SqliteBackend(max_statement_s=3600)
    backend.open([TABLE])
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r"
    first, second = backend.execute(endless), backend.execute(endless)
    assert first.error_class == "limit" and first == second
    assert backend.execute("SELECT 1").rows == ((1,),)
    backend.close()


def test_the_clock_stops_a_statement_that_the_budget_lets_through() -> None:
    backend = SqliteBackend(max_vm_steps=10**12, max_statement_s=0.05)
    backend.open([TABLE])
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r"
    assert backend.execute(endless).error_class == "limit"
    backend.close()


def test_huge_results_are_cut_and_huge_values_refused(backend: SqliteBackend) -> None:
    many = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 5000) SELECT n FROM r"
    execution = backend.execute(many)
    assert execution.error is None and len(execution.rows) == 100 and execution.cut
    assert backend.execute("SELECT hex(zeroblob(90000000))").error_class == "limit"


def test_a_result_of_many_long_cells_is_cut_before_it_fills_the_memory(backend: SqliteBackend) -> None:
    cells = ", ".join(["printf('%.*c', 99000, 'x')"] * 40)
    rows = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 500)"
    execution = backend.execute(f"{rows} SELECT {cells} FROM r")
    assert (len(execution.rows), execution.cut, execution.error) == (2, True, None)


def test_a_statement_that_would_fill_the_memory_is_stopped() -> None:
    backend = _with_budget(50_000_000)
    growing = (
        "WITH RECURSIVE r(n, x) AS (SELECT 1, hex(zeroblob(20000)) UNION SELECT n + 1, CONCAT(substr(x, 1, 39000), n) "
        "FROM r LIMIT 20000) SELECT COUNT(*) FROM r"
    )
    assert backend.execute(growing).error_class == "limit"
    assert backend.execute("SELECT COUNT(*) FROM `staff list`").rows == ((4,),)
    backend.close()


def _with_budget(max_vm_steps: int) -> SqliteBackend:
    backend = SqliteBackend(max_vm_steps=max_vm_steps)
    backend.open([TABLE])
    return backend


def test_a_table_that_grows_without_end_hits_the_size_limit() -> None:
    backend = _with_budget(10**9)
    doubled = "INSERT INTO `staff list` SELECT replace(hex(zeroblob(2000)), '0', 'x'), 'y', pay FROM `staff list`"
    results = [backend.execute(doubled) for _ in range(14)]
    assert results[-1].error_class == "limit"
    assert backend.contents(TABLE) is not None
    backend.close()


def test_a_process_full_of_full_databases_still_serves_another_episode() -> None:
    full = [_with_budget(10**9) for _ in range(_FULL_DATABASES)]
    fresh = SqliteBackend()
    try:
        for backend in full:
            doubled = "INSERT INTO `staff list` SELECT hex(zeroblob(2000)), 'y', pay FROM `staff list`"
            while (execution := backend.execute(doubled)).error is None:
                pass
            assert execution.error is not None and "is full" in execution.error
        fresh.open([TABLE])
        assert fresh.execute("SELECT COUNT(*) FROM `staff list`").rows == ((4,),)
    finally:
        for backend in (*full, fresh):
            backend.close()


def test_the_benchmarks_tables_take_a_small_part_of_the_size_limit(shared_dir: Path) -> None:
    records = load_records(shared_dir / "data" / "dbbench_standard.jsonl")
    tables = max((record.table for record in records), key=lambda tables: len(str(tables)))
    cells = [cell or "" for table in tables for row in table.table_info.rows for cell in row]
    assert sum(map(len, cells)) * 20 < _MAX_PAGES * 4_096


def test_a_destroyed_table_has_no_contents_and_a_fresh_episode_has_them_again(backend: SqliteBackend) -> None:
    assert backend.execute("DROP TABLE `staff list`").error is None
    assert backend.contents(TABLE) is None
    backend.open([TABLE])
    assert len(backend.contents(TABLE) or []) == 4


def test_a_closed_backend_says_what_to_do() -> None:
    with pytest.raises(EnvironmentFault, match="call reset"):
        SqliteBackend().execute("SELECT 1")


def reproduced(path: Path) -> dict[str, int]:
    """How many recorded answers and table hashes the recorded gold SQL gives, by kind."""
    backend = SqliteBackend()
    right = {"INSERT": 0, "UPDATE": 0, "SELECT": 0}
    for record in load_records(path):
        backend.open(record.table)
        assert record.gold_sql is not None
        execution = backend.execute(record.gold_sql)
        if record.is_modification:
            contents = [backend.contents(table) for table in record.table]
            value = combined_hash(table_hash(rows) for rows in contents if rows is not None)
            right[record.kind] += hashes_equal(value, record.answer_md5 or "")
        else:
            right["SELECT"] += answers_equal(str(list(execution.rows)), record.label)
    backend.close()
    return right


def test_the_recorded_gold_sql_reproduces_the_answers_and_hashes_of_the_excerpt(excerpts_dir: Path) -> None:
    assert reproduced(excerpts_dir / "dbbench_standard.jsonl") == {"INSERT": 2, "UPDATE": 2, "SELECT": 4}


def test_the_recorded_gold_sql_reproduces_at_least_230_of_the_300_standard_answers(shared_dir: Path) -> None:
    right = reproduced(shared_dir / "data" / "dbbench_standard.jsonl")
    assert right["INSERT"] == 100 and right["UPDATE"] >= 98
    assert sum(right.values()) >= 230
