"""How AppWorld's replies are read: which code a reply asks to run, and what is said of one that asks for none."""

from __future__ import annotations

import pytest

from rised.environments.appworld.replies import MAX_CODE_CHARS, Reply, read_reply

CODE = "print(1)"


@pytest.mark.parametrize(
    "reply",
    [
        "```python\nprint(1)\n```",
        "I look first.\n```python\nprint(1)\n```\nThen I go on.",
        "```py\nprint(1)\n```",
        "```Python\nprint(1)\n```",
        "``` python \nprint(1)\n``` ",
        "```\nprint(1)\n```",
        "```print(1)```",
        "```python print(1)```",
        "```python\nprint(1)```",
        "  ```python\nprint(1)\n  ```",
        "<think>```python\nprint(2)\n```</think>\n```python\nprint(1)\n```",
        '```json\n{"a": 1}\n```\n```python\nprint(1)\n```',
        "```\nsome notes\n```\n```python\nprint(1)\n```",
    ],
)
def test_one_closed_block_is_the_code(reply: str) -> None:
    assert read_reply(reply) == Reply(CODE, blocks=1)


@pytest.mark.parametrize(
    "reply", ["```python\nprint(1)", "so:\n```python\nprint(1)\n", "```\nprint(1)", "```python print(1)"]
)
def test_a_block_without_closing_fence_reaches_to_the_end_and_is_noted(reply: str) -> None:
    assert read_reply(reply) == Reply(CODE, blocks=1, closed=False)


def test_of_several_blocks_the_first_runs_and_the_rest_counts_as_invented() -> None:
    reply = read_reply("```python\nprint(1)\n```\nand\n```python\nprint(2)\n```")
    assert reply == Reply(CODE, blocks=2, invents=True)


@pytest.mark.parametrize(
    ("tail", "invents"),
    [
        ("Output:\n7", True),
        ("**Output**: 7", True),
        ("Execution successful.", True),
        ("Observation: 7 notes", True),
        ("```\n7\n```\nOutput as expected", True),
        ("This prints the output.", False),
        ("I then read what it prints.", False),
        ("", False),
    ],
)
def test_text_behind_the_code_that_writes_an_output_is_noted(tail: str, invents: bool) -> None:
    assert read_reply(f"```python\nprint(1)\n```\n{tail}") == Reply(CODE, blocks=1, invents=invents)


def test_text_before_the_code_may_speak_of_outputs() -> None:
    assert not read_reply("Output: 7, as the last turn said.\n```python\nprint(1)\n```").invents


@pytest.mark.parametrize(
    "reply", ["print(1)", "\nprint(1)\n", "x = 3", "import json", "for n in range(3):\n    print(n)", "d['a'] += 1"]
)
def test_bare_code_that_acts_is_run(reply: str) -> None:
    assert read_reply(reply) == Reply(reply.strip())


@pytest.mark.parametrize(
    "reply",
    ["I am done.", "done", "Done", "42", "yes, no", "note: done", "'all is well'", "I call apis.spotify.login()"],
)
def test_prose_is_not_run_even_where_it_happens_to_parse(reply: str) -> None:
    assert read_reply(reply) == Reply(None, "the reply has no code block")


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "the reply is empty"),
        (" \n", "the reply is empty"),
        ("<think>print(1)</think>", "the reply is empty"),
        ("```python\n\n```", "the code block is empty"),
        ("```python", "the code block is empty"),
        ("```bash\nls\n```", "the block is marked 'bash', not python"),
        ("```json\n{}\n```", "the block is marked 'json', not python"),
        ("```python\n" + "x" * (MAX_CODE_CHARS + 1) + "\n```", f"the code is longer than {MAX_CODE_CHARS} characters"),
        ("x" * (MAX_CODE_CHARS + 1), f"the reply is longer than {MAX_CODE_CHARS} characters"),
    ],
)
def test_a_reply_without_code_says_why(reply: str, problem: str) -> None:
    read = read_reply(reply)
    assert (read.code, read.problem) == (None, problem)


def test_code_keeps_its_indentation_its_blank_lines_and_its_unicode() -> None:
    code = "if True:\n    x = 'é\\n'\n\n    print(x)"
    assert read_reply(f"```python\n{code}\n```").code == code


def test_backticks_within_a_line_of_code_do_not_close_the_block() -> None:
    code = "print('a ```fence``` in a text')\nprint(2)"
    assert read_reply(f"```python\n{code}\n```") == Reply(code, blocks=1)


def test_deeply_nested_bare_text_is_prose_and_not_a_crash() -> None:
    assert read_reply("(" * 50_000).code is None
