"""Settings that every model server has, whoever asks it: the judge's and the policy's. No torch here."""

from __future__ import annotations

from rised.config import Settings, operational


class ServerSettings(Settings):
    """How server processes of a model are started and kept alive.

    The words of ``command`` and ``arguments`` may hold placeholders, which the subclass names.
    """

    command: list[str] = operational(min_length=1, description="the server's command, word by word, with placeholders")
    arguments: list[str] = operational([], description="further words of the command")
    python: str | None = operational(
        None,
        description="interpreter that {python} stands for, where vLLM has an environment of its own; null: this one",
    )
    environment: dict[str, str] = operational({}, description="environment variables of the server")
    replicas: int = operational(1, gt=0, description="servers side by side")
    tensor_parallel: int = operational(1, gt=0, description="GPUs of one replica")
    use_gpus: bool = operational(True, description="whether each replica gets a slice of the visible GPUs")
    start_timeout_s: float = operational(1800.0, gt=0, description="longest time until all replicas are ready")
    health_every_s: float = operational(10.0, gt=0, description="seconds between two health checks")
    health_timeout_s: float = operational(10.0, gt=0, description="deadline of one health check")
    unhealthy_checks: int = operational(3, gt=0, description="failed checks in a row until a replica is replaced")
    max_restarts: int = operational(5, ge=0, description="restarts of one replica; then it stays out")
    stop_grace_s: float = operational(20.0, ge=0, description="seconds from SIGTERM to SIGKILL of a replica")
