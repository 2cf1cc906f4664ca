"""What an episode's process may answer, checked: after model-written code ran in it, any answer may be forged.

A forged log can mislead the rubrics of its own episode, but whoever reads it finds the fields and types of a real one.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, StrictBool, TypeAdapter, ValidationError

from rised.environments.appworld.channel import ChannelFault

MAX_STATE_BYTES = 16_000_000
"""Of the saved databases of one episode, as JSON."""
MAX_LOG_BYTES = 1_000_000


def _short(text: Any) -> str:
    return _string(text)[:300]


def _string(text: Any) -> str:
    """Any text: pydantic's own strings hold no lone surrogates, which code may print."""
    if not isinstance(text, str):
        raise ValueError("not a string")
    return text


_String = Annotated[Any, AfterValidator(_string)]
_Text = Annotated[Any, AfterValidator(_short)]
_Names = Annotated[list[_Text], Field(max_length=64)]
_Number = Annotated[int, Strict(), Field(gt=-(2**63), lt=2**63)]
_Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
_FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=100)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Call(_Answer):
    """One logged API call; see ``environment`` for the fields."""

    app: _Text
    api: _Text
    method: _Text | None
    status: _Number | None
    unknown_parameters: _Names
    needs_token: StrictBool
    has_token: StrictBool
    unseen_ids: _Names
    page_index: _Number | None = None
    page_limit: _Number | None = None
    count: _Number | None = None
    about_app: _Text | None = None
    about_api: _Text | None = None
    claims: _Text | None = None


class Execution(_Answer):
    """The answer to ``execute``."""

    output: _String
    output_chars: _Count
    error_type: _Text | None
    error: _Text | None
    calls: Annotated[list[Call], Field(max_length=64)]
    call_count: _Count
    completed: StrictBool


_EXECUTION, _STATE = TypeAdapter(Execution), TypeAdapter(dict[_FileName, Annotated[str, Strict()]])
_T = TypeVar("_T")


def read_execution(answer: Any, output_limit_chars: int) -> dict[str, Any]:
    """The answer to ``execute`` as plain values, without fields that a call does not have. ChannelFault if forged."""
    execution = _checked(_EXECUTION, answer)
    values = execution.model_dump(exclude_unset=True)
    return values | {"output": execution.output[:output_limit_chars]}


def read_state(answer: Any) -> dict[str, str]:
    """The answer to ``state``: name of a file -> its text. ChannelFault if forged."""
    return _checked(_STATE, answer)


def _checked(adapter: TypeAdapter[_T], answer: Any) -> _T:
    try:
        return adapter.validate_python(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ChannelFault(f"answered what is no answer: {where}: {first['msg']}") from None
