"""How a teacher's settings name its writer and its verifier: pieces of their own, chosen by ``type``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from rised.config.settings import Chosen, Settings
from rised.methods.registry import piece_settings, settings_class

WriterSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "bundle_writer")),
    Chosen(partial(settings_class, "bundle_writer")),
]
VerifierSettings = Annotated[
    SerializeAsAny[Settings],
    BeforeValidator(partial(piece_settings, "verifier")),
    Chosen(partial(settings_class, "verifier")),
]
