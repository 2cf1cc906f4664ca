"""Settings of the rubrics room: which vocabulary, which judge, who serves it, how long the window of recent tags is.

Light on purpose (pydantic only), so that a configuration can be checked without importing a judge.
"""

from __future__ import annotations

from typing import Any, Literal

from rised.config.settings import Settings, operational, strict
from rised.models.server_settings import ServerSettings

ResponseFormat = Literal["json_schema", "none"]


class RuleJudgeSettings(Settings):
    """The judge that decides with detectors from the transcript and the environment's log; needs no model."""

    type: Literal["rules"] = strict("rules", description="judge by the detectors of rised.rubrics.detectors")


class ChatSettings(Settings):
    """A language model behind an OpenAI-compatible server, and how it is asked. What shapes a reply is strict."""

    model: str = strict(min_length=1, description="the model, by the name under which it is served")
    revision: str = strict("main", min_length=1, description="revision of the model's weights")
    temperature: float = strict(0.0, ge=0, description="sampling temperature of the judge; 0 is greedy")
    seed: int = strict(0, ge=0, description="seed that is sent with every request")
    max_reply_tokens: int = strict(3072, gt=0, description="longest reply of the judge, in tokens")
    response_format: ResponseFormat = strict(
        "json_schema", description="whether the server enforces the schema of the reply; `none` for servers that cannot"
    )
    extra_body: dict[str, Any] = strict(
        {}, description="further fields of the request, e.g. `chat_template_kwargs: {enable_thinking: false}`"
    )
    transcript_characters: int = strict(
        60_000, ge=1_000, description="longest transcript shown; a longer one is shortened, never in its last turns"
    )
    final_turns: int = strict(3, ge=1, description="last turns that are always shown whole")
    reasks: int = strict(1, ge=0, description="how often an unreadable reply is asked for again, with the reason")
    endpoint: str | None = operational(
        None, description="URL of the server (`http://host:port/v1`), or the file that stages.serve_judge writes"
    )
    api_key_env: str | None = operational(None, description="environment variable that holds the server's key")
    use_proxy: bool = operational(False, description="whether proxies named by the environment are used")
    streaming: bool = operational(
        True, description="tag each rollout the moment its episode ends, not when all of the batch have ended"
    )
    cache: str | None = operational(
        None, description="folder of replies by content, shared by runs (`results/cache/judge`); null: ask every time"
    )
    concurrency: int = operational(64, gt=0, description="requests in flight, of all processes of a run together")
    deadline_s: float = operational(300.0, gt=0, description="deadline of one request")
    max_attempts: int = operational(5, gt=0, description="requests for one verdict before it counts as an error")
    backoff_s: float = operational(1.0, ge=0, description="first wait before another attempt; doubles, with jitter")
    max_backoff_s: float = operational(60.0, ge=0, description="longest wait before another attempt")
    rest_s: float = operational(15.0, gt=0, description="how long a replica that failed is left out")
    wait_for_server_s: float = operational(
        3600.0, ge=0, description="how long an absent server is waited for, also while it is requeued"
    )
    max_reply_bytes: int = operational(1_000_000, gt=0, description="an answer of more bytes is cut off, an error")
    max_failed_share: float = operational(
        0.5,
        ge=0,
        le=1,
        description="stop when more of a batch's rollouts got no answer from the server than this share",
    )


class LlmJudgeSettings(ChatSettings):
    """The judge that is a language model. What shapes a verdict is strict and in the judge's id."""

    type: Literal["llm"] = strict(description="judge by a language model behind an OpenAI-compatible server")
    prompt: str = strict(
        "data/prompts/judge_v2.md", min_length=1, description="prompt file, relative to the repository root"
    )


JudgeSettings = RuleJudgeSettings | LlmJudgeSettings
"""The judges that a configuration may name, told apart by ``type``."""


class RubricSettings(Settings):
    """Everything that tagging needs."""

    vocabulary: str = strict(
        "data/vocabulary.yaml", description="vocabulary file, relative to the repository root", min_length=1
    )
    judge: JudgeSettings = strict(RuleJudgeSettings(), description="who tags the rollouts", discriminator="type")
    tag_training: Literal["always", "when_needed"] = strict(
        "always",
        description="tag training rollouts always, or only where the method decides by tags: a judge model costs",
    )
    window_steps: int = strict(5, description="steps of tags that the recent window keeps per environment", ge=1)


class JudgeServerSettings(ServerSettings):
    """How ``stages.serve_judge`` serves the judge's model. Operational throughout: it shapes no verdict.

    The words of ``command`` and ``arguments`` may hold {python}, {model} (the name that clients use), {weights},
    {revision}, {host}, {port} and {tensor_parallel}.
    """

    command: list[str] = operational(
        [
            *("{python}", "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", "{weights}", "--served-model-name", "{model}", "--revision", "{revision}"),
            *("--tensor-parallel-size", "{tensor_parallel}", "--host", "{host}", "--port", "{port}"),
        ],
        min_length=1,
        description="the server's command, word by word, with placeholders",
    )
    weights: str | None = operational(None, description="local directory of the weights; null: the judge's `model`")
    bind: str = operational("0.0.0.0", min_length=1, description="address that the servers listen at")
    advertise: str | None = operational(None, description="host in the endpoint file; null: this host's own name")
    first_port: int = operational(8000, gt=0, lt=65536, description="ports are free ones of the 1024 from here on")
    health_path: str = operational(
        "/health", pattern=r"^/", description="route that answers 200 when a server is ready"
    )
