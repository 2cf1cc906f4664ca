"""What the policy reads: instructions, first observation and database replies, in the full and the compact style.

The full style gives AgentBench's protocol in our own words; the compact style is ours, for small models.
"""

from __future__ import annotations

from collections.abc import Sequence

from rised.environments.dbbench.backend import Execution, cell_text
from rised.environments.dbbench.records import Record
from rised.environments.dbbench.sql import quote_name

COMPACT_SYSTEM = "database"
FULL_SYSTEM = """You operate a MySQL database with SQL to answer a question or to carry out a change.
Explain first how you understand the problem and what you are going to do. In every turn, either operate or answer.
To operate, write exactly:
Action: Operation
```sql
SELECT * FROM table WHERE condition;
```
The SQL stands on one line, in MySQL's dialect. One statement is executed per turn, the one in the first SQL block, and
its raw output is your next input.
When you are done and sure of the result, write exactly:
Action: Answer
Final Answer: ["ANSWER1", "ANSWER2", ...]
The answer must be correct to the letter. If the question asks for a change of the database, make the change first; the
content of the final answer is then free.
A reply that fits neither pattern ends the task as failed."""
CUT_MARK = "[TRUNCATED]"
MAX_ERROR_CHARS = 70


def first_observation(record: Record, style: str) -> str:
    """The task as the policy sees it at the start."""
    if style == "compact":
        tables = ". ".join(
            f"table {quote_name(table.table_name)}, columns {', '.join(map(quote_name, table.column_names))}"
            for table in record.table
        )
        return f"{tables}. {record.description}"
    parts = []
    if record.evidence:
        parts.append(f"Evidence about the question: {record.evidence}")
    if record.add_description:
        parts.append(f"Additional table information about the question: {record.add_description}")
    parts.append(f"Question: {record.description}")
    return "\n".join(parts)


def full_reply(execution: Execution, limit_chars: int) -> str:
    """Rows as a Python list of tuples, or the error's text; cut at the limit."""
    text = execution.error if execution.error is not None else str(list(execution.rows))
    return text if len(text) <= limit_chars else text[:limit_chars] + CUT_MARK


def compact_reply(execution: Execution, kind: str, limit_chars: int, max_rows: int) -> str:
    """``result: a; b`` (cells parted by commas), ``result: empty``, ``ok`` after a modification, ``error: …``."""
    if execution.error is not None:
        return f"error: {execution.error[:MAX_ERROR_CHARS]}"
    if not execution.rows:
        return "result: empty" if kind == "SELECT" else "ok"
    shown = "; ".join(_row_text(row) for row in execution.rows[:max_rows])
    if len(execution.rows) > max_rows:
        shown += "; ..."
    return f"result: {shown}"[:limit_chars]


def _row_text(row: Sequence[str | int | float | bytes | None]) -> str:
    return ", ".join(map(cell_text, row))
