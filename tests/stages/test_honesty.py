"""What keeps a comparison fair: panels, quotas, shared prompts, full counts, paired validation without steering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_experiments import make_experiment

import stages.evaluate
import stages.train
from rised.config import ConfigError
from rised.environments.base import Task
from rised.records.digest import reproducible_digest
from rised.records.schemas import from_table
from rised.records.shards import RunReader
from rised.records.types import Rollout, Selection, Tag, TagState, TagStatus
from rised.rubrics.base import DETECTORS
from rised.rubrics.blocks import avoid_block
from rised.rubrics.judge_rules import RuleJudge
from rised.rubrics.vocabulary import Polarity, load_vocabulary
from stages.loop import (
    draw_tasks,
    prompt_groups,
    quotas,
    rollout_metrics,
    training_plans,
    validation_plans,
    validation_rollout,
)
from stages.setup import PANEL_PER_GROUP, load_run, panel, read_tasks

ENVIRONMENT = "dbbench"
STEERED = tuple(r.id for r in load_vocabulary().applicable(ENVIRONMENT, Polarity.NEGATIVE)[:2])
UPDATES = 3


def task(environment: str, index: int) -> Task:
    return Task(environment, "train", f"task-{index}", index, {}, f"hash-{index}")


def digest(run: Path) -> dict[str, str]:
    return {path: value for path, value in reproducible_digest(run).items() if path != "config.yaml"}


@pytest.fixture(scope="module", autouse=True)
def _at_the_root(repository: Path) -> None:
    """Settings name paths relative to the root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        yield


@pytest.fixture(scope="module")
def broken_rubric() -> str:
    """A rubric of the environment whose detector will be made to fail."""
    judge = RuleJudge(load_vocabulary())
    return judge.rubrics_of(ENVIRONMENT)[0]


@pytest.fixture(scope="module")
def steered_run(tiny_experiment, broken_rubric: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RISED, three updates, validated at each, with steering forced on after the first and a failing detector."""
    out = tmp_path_factory.mktemp("steered") / "run"
    config = load_run(tiny_experiment.config, "rised", 0, ["validation.every=1"])
    assert config.updates == UPDATES

    def fail(rollout: Rollout) -> None:
        raise KeyError("no such column")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DETECTORS[ENVIRONMENT], broken_rubric, fail)
        patch.setattr(stages.train.Method, "steering_for_next_step", lambda self, window: {ENVIRONMENT: STEERED})
        stages.train.train(config, read_tasks(tiny_experiment.tasks), tiny_experiment.warm_start, out)
    return out


def rollouts_of(run: Path, kind: str, step: int) -> list[Rollout]:
    return from_table(RunReader(run).scan(kind, steps=[step]))


def metrics_of(run: Path, step: int) -> dict[str, float | None]:
    return {row["name"]: row["value"] for row in RunReader(run).scan("metrics", steps=[step]).to_pylist()}


# ---- who runs where does not matter


def test_another_number_of_environment_workers_gives_identical_rollouts(tiny_experiment, tmp_path: Path) -> None:
    tasks = read_tasks(tiny_experiment.tasks)
    digests = []
    for workers in (1, 3):
        overrides = ["updates=1", f"rollout.environment_workers={workers}"]
        config = load_run(tiny_experiment.config, "rised", 0, overrides)
        stages.train.train(config, tasks, tiny_experiment.warm_start, tmp_path / str(workers))
        digests.append(digest(tmp_path / str(workers)))
    assert digests[0] == digests[1]
    assert any(path.startswith("rollouts/") for path in digests[0])


# ---- tasks


@given(
    size=st.integers(1, 12),
    counts=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_the_cursor_draws_every_task_once_an_epoch(size: int, counts: list[int], seed: int) -> None:
    tasks = [task("dbbench", index) for index in range(size)]
    drawn: list[str] = []
    for count in counts:
        drawn += [t.task_id for t in draw_tasks(tasks, len(drawn), count, 0, seed)]
    assert len(drawn) == sum(counts)
    epochs = [drawn[start : start + size] for start in range(0, len(drawn), size)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch), "a task comes again before every other one came"
    assert all(set(epoch) == {t.task_id for t in tasks} for epoch in epochs if len(epoch) == size)


@given(size=st.integers(4, 60), position=st.integers(0, 200), seed=st.integers(0, 3), data=st.data())
def test_no_task_comes_twice_in_a_step(size: int, position: int, seed: int, data: st.DataObject) -> None:
    """Also where one permutation of the panel ends and the next begins: equal tasks would be played alike."""
    most = data.draw(st.integers(1, size // PANEL_PER_GROUP))
    count = data.draw(st.integers(1, most))
    drawn = draw_tasks([task("dbbench", index) for index in range(size)], position, count, most, seed)
    assert len({t.task_id for t in drawn}) == count


def test_epochs_seeds_and_environments_have_orders_of_their_own() -> None:
    def order(environment: str, epoch: int, seed: int) -> tuple[str, ...]:
        tasks = [task(environment, index) for index in range(20)]
        return tuple(t.task_id for t in draw_tasks(tasks, 20 * epoch, 20, 0, seed))

    orders = {order(e, epoch, seed) for e in ("dbbench", "webshop") for epoch in (0, 1) for seed in (0, 1)}
    assert len(orders) == 8
    assert order("dbbench", 1, 1) == order("dbbench", 1, 1)


@given(total=st.integers(0, 200), count=st.integers(1, 5), step=st.integers(0, 1000))
def test_quotas_are_even_and_the_remainder_goes_round(total: int, count: int, step: int) -> None:
    names = [f"e{index}" for index in range(count)]
    shares = quotas(total, names, step)
    assert list(shares) == names
    assert sum(shares.values()) == total
    assert max(shares.values()) - min(shares.values()) <= 1
    round_trip = Counter()
    for later in range(step, step + count):
        round_trip.update(quotas(total, names, later))
    assert total == 0 or set(round_trip.values()) == {total}


def test_validation_samples_at_its_own_temperature(tiny_experiment) -> None:
    config = load_run(tiny_experiment.config, "rised", 0, ["rollout.temperature=0.9", "validation.temperature=0.6"])
    settings = validation_rollout(config)
    assert settings.temperature == 0.6
    assert settings.model_copy(update={"temperature": 0.9}) == config.rollout, "and as training does else"


def test_both_evaluations_are_played_at_the_temperature_of_validation(
    tiny_policy: Path, repository: Path, tmp_path: Path
) -> None:
    """Greedily here: then two rollouts of a task are the same, while those of training differ."""
    text = "extends: [tiny.yaml]\nexperiment: cool\nvalidation: {temperature: 0.0, rollouts_per_task: 2}\nupdates: 1\n"
    cool = make_experiment(tmp_path, repository, tiny_policy, "cool", text)
    cool.train(tmp_path / "run", "grpo_64")
    for folder, step in ((cool.warm_start, 0), (tmp_path / "run", 1)):
        groups = prompt_groups(rollouts_of(folder, "validation", step), [])
        assert [len({r.token_ids for r in group.rollouts}) for group in groups] == [1] * 6, folder
        assert all(len(group.rollouts) == 2 for group in groups)
    assert len({r.token_ids for r in rollouts_of(tmp_path / "run", "rollouts", 1)}) > 3


def test_plans_follow_from_seed_step_and_cursor_alone_and_share_prompts_in_a_group(tiny_experiment) -> None:
    vocabulary = load_vocabulary()
    config = load_run(tiny_experiment.config, "rised", 1)
    panels = {ENVIRONMENT: panel(read_tasks(tiny_experiment.tasks), ENVIRONMENT, "train")}

    def plans(step: int) -> Sequence:
        return training_plans(config, panels, {ENVIRONMENT: 3}, {ENVIRONMENT: STEERED}, vocabulary, 3, step, "run")

    assert plans(4) == plans(4)
    assert len(plans(4)) == 3 * config.rollouts_per_group
    assert len({plan.seed for plan in [*plans(4), *plans(5)]}) == 2 * len(plans(4)), "no two episodes share a draw"
    for group in {plan.group_id for plan in plans(4)}:
        members = [plan for plan in plans(4) if plan.group_id == group]
        assert [plan.rollout_index for plan in members] == list(range(config.rollouts_per_group))
        assert len({(plan.task.task_id, plan.steering_text) for plan in members}) == 1


def test_no_held_out_task_is_ever_trained_on(tiny_experiment, steered_run: Path) -> None:
    tasks = {t.task_id: t for t in read_tasks(tiny_experiment.tasks)}
    steps = range(1, UPDATES + 1)
    trained = {tasks[r.task_id].content_hash for step in steps for r in rollouts_of(steered_run, "rollouts", step)}
    held_out = {tasks[r.task_id].content_hash for r in rollouts_of(steered_run, "validation", UPDATES)}
    assert trained and held_out
    assert not trained & held_out


# ---- what a step holds


def test_a_groups_rollouts_share_their_prompt_and_differ_in_their_draws(steered_run: Path) -> None:
    for step in range(1, UPDATES + 1):
        groups = prompt_groups(rollouts_of(steered_run, "rollouts", step), [])
        assert len(groups) == 3
        for group in groups:
            prompts = {r.token_ids[: r.policy_mask.index(True)] for r in group.rollouts}
            assert len(prompts) == 1
            assert len({(r.task_id, r.system_prompt, r.turns[0].observation) for r in group.rollouts}) == 1
            assert len({r.seed for r in group.rollouts}) == len(group.rollouts) == 4
            assert len({r.token_ids for r in group.rollouts}) > 1, "a random policy says different things"


def test_every_step_holds_exactly_what_its_plan_demands(tiny_experiment, steered_run: Path) -> None:
    config = load_run(tiny_experiment.config, "rised", 0)
    reader = RunReader(steered_run)
    rubrics = RuleJudge(load_vocabulary()).rubrics_of(ENVIRONMENT)
    held_out = config.environments[ENVIRONMENT].validation_tasks
    episodes = config.method.candidate_groups * config.rollouts_per_group
    assert reader.steps() == list(range(UPDATES + 1))
    for step in range(1, UPDATES + 1):
        expected = dict(reader.manifest(step).expected)
        assert expected == {"rollouts": episodes, "validation": held_out}
        counts = {kind: reader.scan(kind, steps=[step]).num_rows for kind in ("rollouts", "validation", "tags")}
        assert counts == expected | {"tags": episodes * len(rubrics)}
        selections: list[Selection] = from_table(reader.scan("selections", steps=[step]))
        assert len(selections) == config.method.candidate_groups
        assert sorted(s.order for s in selections if s.selected) == list(range(config.method.selected_groups))
        assert {s.group_id for s in selections} == {r.group_id for r in rollouts_of(steered_run, "rollouts", step)}
        metrics = metrics_of(steered_run, step)
        assert metrics["rollout/count"] == episodes
        assert metrics["tags/count"] == episodes * len(rubrics)
        assert metrics["method/selected_groups"] == config.method.selected_groups
        assert metrics["validation/tasks/dbbench"] == held_out


def test_a_failing_detector_is_counted_and_never_an_absence(steered_run: Path, broken_rubric: str) -> None:
    for step in range(1, UPDATES + 1):
        tags: list[Tag] = from_table(RunReader(steered_run).scan("tags", steps=[step]))
        failed = [tag for tag in tags if tag.rubric_id == broken_rubric]
        assert len(failed) == 12
        assert {(tag.state, tag.status) for tag in failed} == {(None, TagStatus.ERROR)}
        assert all("no such column" in tag.reason for tag in failed)
        assert metrics_of(steered_run, step)["tags/errors"] == sum(tag.status is TagStatus.ERROR for tag in tags) >= 12


def test_tag_errors_are_counted_in_the_metrics(steered_run: Path) -> None:
    rollouts = rollouts_of(steered_run, "rollouts", 1)[:2]
    tags = [
        Tag(rollouts[0].rollout_id, "a", TagState.ABSENT, None, "judge", TagStatus.OK),
        Tag(rollouts[0].rollout_id, "b", None, None, "judge", TagStatus.ERROR, "timed out"),
        Tag(rollouts[1].rollout_id, "b", None, None, "judge", TagStatus.ERROR, "timed out"),
    ]
    found = {metric.name: metric.value for metric in rollout_metrics(rollouts, tags, 1)}
    assert (found["tags/count"], found["tags/errors"]) == (3.0, 2.0)


# ---- validation


def test_steering_reaches_the_training_rollouts_it_is_meant_for(steered_run: Path) -> None:
    text = avoid_block(STEERED, load_vocabulary(), "compact")
    assert {r.steering_text for r in rollouts_of(steered_run, "rollouts", 1)} == {""}
    for step in range(2, UPDATES + 1):
        rollouts = rollouts_of(steered_run, "rollouts", step)
        assert {(r.steering_text, r.steering_rubrics) for r in rollouts} == {(text, STEERED)}
        assert all(text in r.system_prompt for r in rollouts)
        assert metrics_of(steered_run, step)["rollout/steered"] == len(rollouts)


def test_steering_never_reaches_validation(tiny_policy: Path, steered_run: Path) -> None:
    from transformers import AutoTokenizer

    text = avoid_block(STEERED, load_vocabulary(), "compact")
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    (original,) = {r.system_prompt for r in rollouts_of(steered_run, "rollouts", 1)}
    for step in range(UPDATES + 1):
        for rollout in rollouts_of(steered_run, "validation", step):
            assert rollout.system_prompt == original
            assert (rollout.steering_text, rollout.steering_rubrics, rollout.steering_text_hash) == ("", (), "")
            said = tokenizer.decode(list(rollout.token_ids))
            assert original.split()[0] in said, "the decoded prompt is what is searched"
            assert text not in said
    steered = tokenizer.decode(list(rollouts_of(steered_run, "rollouts", 2)[0].token_ids))
    assert text in steered, "and the search would have found it"


def test_validation_draws_the_same_numbers_at_every_step_method_and_seed(tiny_experiment, steered_run: Path) -> None:
    seeds = [{r.task_id: r.seed for r in rollouts_of(steered_run, "validation", step)} for step in range(UPDATES + 1)]
    assert seeds[0] and all(other == seeds[0] for other in seeds)
    assert len(set(seeds[0].values())) == len(seeds[0])
    panels = {ENVIRONMENT: panel(read_tasks(tiny_experiment.tasks), ENVIRONMENT, "validation")}
    for method, seed, step in (("grpo_64", 0, 2), ("rised", 1, 60)):
        config = load_run(tiny_experiment.config, method, seed, ["validation.rollouts_per_task=2"])
        plans = validation_plans(config, panels, step, f"tiny/{method}/seed-{seed}")
        assert {p.task.task_id: p.seed for p in plans if p.rollout_index == 0} == seeds[0]
        assert len({p.seed for p in plans}) == 2 * len(seeds[0]), "the rollouts of one task differ"


def test_the_initial_and_the_last_evaluation_have_more_rollouts_per_task_and_keep_the_pairing(
    tiny_experiment, tmp_path: Path
) -> None:
    tasks, more = read_tasks(tiny_experiment.tasks), ["validation.rollouts_per_task_at_ends=3", "validation.every=1"]
    config = load_run(tiny_experiment.config, "grpo_64", 0, ["updates=2", *more])
    with pytest.raises(ConfigError, match="rollouts_per_task_at_ends was None and is 3"):
        stages.train.train(config, tasks, tiny_experiment.warm_start, tmp_path / "refused")
    stages.evaluate.evaluate(config, tasks, tmp_path / "warm_start")
    stages.train.train(config, tasks, tmp_path / "warm_start", tmp_path / "run")
    steps = [rollouts_of(tmp_path / "run", "validation", step) for step in range(3)]
    per_task = [Counter(rollout.task_id for rollout in rollouts) for rollouts in steps]
    assert [set(counts.values()) for counts in per_task] == [{3}, {1}, {3}]
    seeds = [{(r.task_id, r.rollout_index): r.seed for r in rollouts} for rollouts in steps]
    assert seeds[0] == seeds[2] and seeds[1].items() <= seeds[0].items(), "the same draws, and more of them"


def test_an_unchanged_policy_validates_the_same_at_every_step(tiny_experiment, tmp_path: Path) -> None:
    """Only the policy separates two validations: where it did not learn, they are the same to the token."""
    config = load_run(tiny_experiment.config, "grpo_64", 0, ["updates=1", "learner.learning_rate=1.0e-30"])
    stages.train.train(config, read_tasks(tiny_experiment.tasks), tiny_experiment.warm_start, tmp_path / "run")
    before, after = (
        [(r.task_id, r.token_ids, r.reward) for r in rollouts_of(tmp_path / "run", "validation", step)]
        for step in (0, 1)
    )
    assert before == after
