"""Errors of the launcher that say themselves what to do."""

from __future__ import annotations


class StageFailed(RuntimeError):
    """A stage's job ended without its result; the message holds the job, how it ended and the end of its log."""


class Detached(RuntimeError):
    """The launcher was told to go while the job stays."""


class SchedulerAway(StageFailed):
    """Slurm's controller could not be reached with a submission; the job may be there all the same."""
