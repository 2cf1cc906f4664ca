"""Settings of methods: the shipped files load, mistakes are answered, and nothing imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rised.config.settings import Settings
from rised.methods.errors import MethodError
from rised.methods.registry import FOLDERS, build, known_types, piece, piece_class
from rised.methods.settings import MethodSettings, stale_mends

MINIMAL: dict[str, Any] = {"name": "m", "candidate_groups": 4, "selected_groups": 2, "selector": {"type": "random"}}
PAPER = {"grpo_64", "grpo_128", "global_variance", "round_robin_variance", "all_rubric_sd", "rised"}


def shipped(repository: Path) -> dict[str, dict[str, Any]]:
    from rised.config.overlays import compose
    from rised.config.source import plain_value

    files = sorted((repository / "configs/methods").glob("*.yaml"))
    return {path.stem: plain_value(compose([path])) for path in files}


def test_every_shipped_method_loads_under_its_file_name_and_survives_a_round_trip(repository: Path) -> None:
    files = shipped(repository)
    assert set(files) >= PAPER
    for name, document in files.items():
        settings = MethodSettings.model_validate(document["method"])
        assert settings.name == name
        assert MethodSettings.model_validate(settings.model_dump(mode="json")) == settings


def test_the_papers_methods_have_the_papers_scale_and_share_all_regularisers(repository: Path) -> None:
    methods = {n: MethodSettings.model_validate(d["method"]) for n, d in shipped(repository).items() if n in PAPER}
    assert {(m.candidate_groups, m.selected_groups) for m in methods.values()} == {(128, 64)}
    for part in ("advantage", "policy_loss", "kl"):
        assert len({getattr(m, part).model_dump_json() for m in methods.values()}) == 1, part


def test_the_default_loss_is_that_of_the_shipped_methods(repository: Path) -> None:
    default = MethodSettings.model_validate(MINIMAL)
    grpo = MethodSettings.model_validate(shipped(repository)["grpo_64"]["method"])
    for part in ("advantage", "policy_loss", "kl", "teacher", "distillation", "steering"):
        assert getattr(default, part) == getattr(grpo, part), part


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selector": {"type": "profil"}}, "unknown selector type 'profil'.*did you mean 'profile'"),
        ({"selector": {"type": "profile", "lamda": 1}}, "lamda: Extra inputs are not permitted"),
        ({"selector": {"type": "profile", "redundancy_weight": -1}}, "redundancy_weight: .*greater than or equal to 0"),
        ({"selector": {}}, "`type` is required"),
        ({"selector": "random"}, "must be a mapping with the key `type`"),
        ({"selected_groups": 5}, "selected_groups 5 exceeds candidate_groups 4"),
        ({"teacher": {"type": "positive_rubrics"}}, "the two need each other"),
        ({"distillation": {"type": "sampled_gap"}}, "the two need each other"),
        (
            {"policy_loss": {"type": "clipped_surrogate", "reduction": "constant_length"}},
            "constant_length must be given",
        ),
        ({"kl": {"constant_length": 8}}, "constant_length must be given exactly"),
        ({"steering": {"type": "negative_rubrics", "off_ratio": 2.0}}, "off_ratio 2.0 exceeds on_ratio 1.0"),
        ({"selektor": {}}, "Extra inputs"),
    ],
)
def test_a_mistake_is_refused_and_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MethodSettings.model_validate(MINIMAL | change)


def fields_of(model: type[BaseModel]) -> list[tuple[str, Any]]:
    return [(f"{model.__qualname__}.{name}", field) for name, field in model.model_fields.items()]


def test_every_key_is_strict_or_operational_and_described() -> None:
    from rised.learner.settings import LearnerSettings
    from rised.methods.settings import KLSettings

    models: list[type[Settings]] = [MethodSettings, KLSettings, LearnerSettings]
    models += [piece_class(kind, name).Settings for kind in FOLDERS for name in known_types(kind)]
    for label, field in (item for model in models for item in fields_of(model)):
        assert (field.json_schema_extra or {}).get("resume") in ("strict", "operational"), label
        assert field.description, label


def test_every_piece_is_registered_under_the_type_of_its_settings_and_its_file_name() -> None:
    for kind in FOLDERS:
        for name in known_types(kind):
            cls = piece_class(kind, name)
            assert cls.Settings.model_fields["type"].annotation.__args__ == (name,)
            assert cls.__module__ == f"{FOLDERS[kind]}.{name}"
            assert cls.__doc__


def test_settings_and_registry_import_no_torch() -> None:
    code = (
        "import sys; from rised.methods.registry import FOLDERS, known_types; import rised.methods.composition; "
        "import rised.learner.settings; [known_types(k) for k in FOLDERS]; "
        "print(sorted({'torch', 'pydantic'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "['pydantic']\n"


def test_two_pieces_of_one_name_are_a_programming_error() -> None:
    known_types("selector")
    with pytest.raises(MethodError, match="two selector pieces are registered as 'random'"):
        piece("selector", "random")(object)


def test_an_unknown_type_is_refused_at_building_too() -> None:
    class Odd(Settings):
        type: str = "odd"

    with pytest.raises(MethodError, match="unknown steering type 'odd'"):
        build("steering", Odd(), vocabulary=None)


def test_every_shipped_method_says_what_weighs_tokens_of_older_weights(repository: Path) -> None:
    """As shipped the policy gradient's weight is off; a method without one asks for its distillation's."""
    found = {n: stale_mends(MethodSettings.model_validate(d["method"])) for n, d in shipped(repository).items()}
    policy, distillation = "policy_loss.truncated_importance", "distillation.truncated_importance"
    assert found["rised"] == found["grpo_64"] == found["orsd"] == found["gigpo"] == [policy]
    assert found["opsd"] == [distillation], "its policy loss has weight 0"
    assert found["sdar"] == found["grpo_opsd"] == [policy, distillation]
    assert all(keys for keys in found.values())


def test_with_the_weights_set_every_method_may_lag(repository: Path) -> None:
    for name, document in shipped(repository).items():
        method = document["method"]
        for key in stale_mends(MethodSettings.model_validate(method)):
            piece, field = key.split(".")
            method[piece][field] = 2.0
        assert stale_mends(MethodSettings.model_validate(method)) == [], name
