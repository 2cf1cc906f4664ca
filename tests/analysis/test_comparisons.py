"""Tests of differences, their correction, and the factorial's effects, each against an independent computation."""

from __future__ import annotations

import statistics as stdlib
from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from analysis import comparisons, factorial
from analysis import statistics as st


def outcomes(rate: float, seeds: int = 3, tasks: int = 40, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {e: (rng.random((seeds, tasks)) < rate).astype(float) for e in ("alfworld", "webshop")}


def naive_holm(p_values: list[float]) -> list[float]:
    """Smallest level at which each hypothesis is rejected, found by running the procedure at every candidate level."""
    count = len(p_values)
    found = []
    for i in range(count):
        for level in sorted({min(1.0, p * k) for p in p_values for k in range(1, count + 1)} | {1.0}):
            order = sorted(range(count), key=lambda j: p_values[j])
            rejected = set()
            for rank, j in enumerate(order):
                if p_values[j] * (count - rank) > level:
                    break
                rejected.add(j)
            if i in rejected:
                found.append(level)
                break
        else:
            found.append(1.0)
    return found


def test_holm_agrees_with_the_procedure_run_at_every_level() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        values = [float(p) for p in rng.random(6).round(3) / 4]
        assert comparisons.holm(values) == pytest.approx(naive_holm(values), abs=1e-12)


def test_holm_leaves_missing_comparisons_out_of_the_family() -> None:
    assert comparisons.holm([0.01, None, 0.04]) == [0.02, None, 0.04]
    assert comparisons.holm([]) == []
    assert comparisons.holm([0.6, 0.7]) == [1.0, 1.0]


def test_the_sign_flip_test_agrees_with_scipys_permutation_test() -> None:
    rng = np.random.default_rng(4)
    differences = rng.normal(0.25, 1.0, 60)
    found = comparisons.sign_flip_test({"e": differences}, flips=20_000)
    reference = stats.permutation_test(
        (differences,),
        lambda d, axis: np.mean(d, axis=axis),
        permutation_type="samples",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
        vectorized=True,
    )
    assert found.p == pytest.approx(reference.pvalue, abs=0.012)


def test_sign_flips_of_a_small_panel_approach_the_exact_share() -> None:
    differences = np.array([0.5, 0.25, 1.0, -0.25, 0.75])
    flips = [abs(np.mean(np.array(signs) * differences)) for signs in product((1, -1), repeat=5)]
    exact = np.mean([value >= abs(differences.mean()) - 1e-12 for value in flips])
    assert comparisons.sign_flip_test({"e": differences}, flips=40_000).p == pytest.approx(exact, abs=0.01)


def test_environments_weigh_alike_in_the_sign_flip_test_whatever_their_size() -> None:
    rng = np.random.default_rng(2)
    small, large = np.full(12, 1.0), rng.choice([-1.0, 1.0], 400)
    alone = comparisons.sign_flip_test({"a": small}).p
    pooled = comparisons.sign_flip_test({"a": np.concatenate([small, large])}).p
    assert alone < 0.01 < pooled
    assert comparisons.sign_flip_test({"a": small, "b": large}).p < 0.01


def test_equal_outcomes_give_p_1_and_a_p_is_never_0() -> None:
    assert comparisons.sign_flip_test({"e": np.zeros(20)}).p == 1.0
    found = comparisons.sign_flip_test({"e": np.ones(100)}, flips=500)
    assert found.p == found.smallest == 1 / 501
    assert comparisons.sign_flip_test({"e": np.array([])}).reason == "an environment has no tasks in common"


def test_the_seed_test_agrees_with_scipys_exact_permutation_test() -> None:
    rng = np.random.default_rng(7)
    for sizes in ((2, 2), (3, 3), (3, 4), (2, 5)):
        first, second = rng.normal(0.6, 0.1, sizes[0]), rng.normal(0.5, 0.1, sizes[1])
        reference = stats.permutation_test(
            (first, second), lambda a, b: abs(np.mean(a) - np.mean(b)), alternative="greater", n_resamples=np.inf
        )
        assert comparisons.seed_test(first, second).p == pytest.approx(reference.pvalue, abs=1e-12)


@pytest.mark.parametrize(("sizes", "smallest"), [((2, 2), 1 / 3), ((3, 3), 1 / 10), ((3, 4), 1 / 35)])
def test_the_smallest_p_of_few_seeds_is_that_of_runs_that_do_not_overlap(
    sizes: tuple[int, int], smallest: float
) -> None:
    first, second = np.arange(sizes[0]) + 100.0, np.arange(sizes[1]) * 1.0
    found = comparisons.seed_test(first, second)
    assert found.p == found.smallest == pytest.approx(smallest)


def test_one_run_cannot_be_tested_over_seeds() -> None:
    found = comparisons.seed_test(np.array([0.5]), np.array([0.4, 0.3]))
    assert found.p is None and found.reason == "n = 1 seed"


def test_many_runs_are_dealt_out_at_random_and_agree_with_the_t_test() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(0.5, 0.1, 14), rng.normal(0.56, 0.1, 14)
    found = comparisons.seed_test(first, second)
    assert found.p == pytest.approx(stats.ttest_ind(first, second).pvalue, abs=0.02)


def test_a_task_without_a_valid_rollout_in_one_method_leaves_the_contrast() -> None:
    first = {"e": np.array([[1.0, np.nan, 0.0], [1.0, np.nan, 1.0]])}
    second = {"e": np.array([[0.0, 1.0, np.nan]])}
    found = comparisons.task_contrast({"a": first, "b": second}, {"a": 1.0, "b": -1.0})
    assert found["e"].tolist() == [1.0]
    with pytest.raises(ValueError, match="needs one panel"):
        comparisons.task_contrast({"a": first, "b": {"e": np.zeros((1, 2))}}, {"a": 1.0, "b": -1.0})


def test_drawing_seeds_too_widens_the_interval_where_seeds_differ() -> None:
    rng = np.random.default_rng(5)
    first = {"e": (rng.random((4, 300)) < np.array([[0.2], [0.4], [0.6], [0.8]])).astype(float)}
    second = {"e": (rng.random((4, 300)) < 0.5).astype(float)}
    both = comparisons.two_level_interval(first, second, draws=400)
    tasks = st.paired_difference(first, second, draws=400).over_tasks
    assert both.high - both.low > 2 * (tasks.high - tasks.low)
    assert comparisons.two_level_interval(outcomes(0.5, 2), outcomes(0.4, 2)).reason == "n = 2 < 3 seeds"


def test_means_stds_and_intervals_agree_with_the_standard_library_and_scipys_bootstrap() -> None:
    values = [0.41, 0.38, 0.47, 0.44]
    assert st.mean_std(values) == st.MeanStd(pytest.approx(stdlib.mean(values)), pytest.approx(stdlib.stdev(values)), 4)
    tasks = outcomes(0.4, 1, 120)["alfworld"]
    found = st.task_interval({"e": tasks}, draws=6000)
    reference = stats.bootstrap((tasks[0],), np.mean, n_resamples=6000, method="percentile", rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.012)
    seeds = st.seed_interval(values, draws=6000)
    means = np.sort([np.mean(chosen) for chosen in product(values, repeat=4)])
    exact = np.percentile(means, [2.5, 97.5], method="inverted_cdf")
    assert (seeds.low, seeds.high) == pytest.approx(tuple(exact), abs=0.008)


# ---- the factorial


def cells(rng: np.random.Generator, seeds: int = 3, tasks: int = 30) -> dict[str, dict[str, np.ndarray]]:
    return {
        method: {e: (rng.random((seeds, tasks)) < 0.3 + 0.1 * sum(cell)).astype(float) for e in ("a", "b")}
        for cell, method in factorial.CELLS.items()
    }


def test_effects_are_the_coefficients_of_the_half_coded_linear_model() -> None:
    found = cells(np.random.default_rng(0))
    rows, values = [], []
    for cell, method in factorial.CELLS.items():
        x = [0.5 if present else -0.5 for present in cell]
        sets = [chosen for size in range(4) for chosen in combinations(range(3), size)]
        rows.append([float(np.prod([x[i] for i in chosen])) for chosen in sets])
        values.append(st.overall(found[method]))
    reference = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0][1:]
    estimates = [effect.estimate for effect in factorial.estimate_effects(found, draws=50)]
    assert estimates == pytest.approx(list(reference), abs=1e-12)


def test_a_main_effect_is_the_difference_of_two_means_of_four_cells() -> None:
    found = cells(np.random.default_rng(1))
    rate = {cell: st.overall(found[method]) for cell, method in factorial.CELLS.items()}
    for i, name in enumerate(factorial.FACTORS):
        expected = np.mean([v for c, v in rate.items() if c[i]]) - np.mean([v for c, v in rate.items() if not c[i]])
        effect = {e.name: e for e in factorial.estimate_effects(found, draws=50)}[name]
        assert effect.estimate == pytest.approx(expected)
        assert np.mean(list(effect.by_environment.values())) == pytest.approx(effect.estimate)
        assert effect.over_tasks.low < effect.estimate < effect.over_tasks.high


def test_an_interaction_is_a_difference_of_differences() -> None:
    values = {cell: 0.0 for cell in factorial.CELLS} | {(True, True, s): 0.4 for s in (False, True)}
    found = {m: {"e": np.full((2, 5), values[cell])} for cell, m in factorial.CELLS.items()}
    effects = {e.name: e.estimate for e in factorial.estimate_effects(found, draws=20)}
    assert effects["selection × teacher"] == pytest.approx(0.4)
    assert effects["selection"] == effects["teacher"] == pytest.approx(0.2)
    assert effects["steering"] == effects["selection × teacher × steering"] == pytest.approx(0.0)


def test_no_effect_is_estimated_from_fewer_than_eight_cells() -> None:
    found = cells(np.random.default_rng(2))
    del found["rised_no_teacher"]
    with pytest.raises(ValueError, match="cells are missing: rised_no_teacher"):
        factorial.estimate_effects(found)


def test_the_methods_of_the_cells_have_just_the_components_of_their_cell(
    repository: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    from stages.setup import load_run

    monkeypatch.chdir(Path(str(repository)))
    for cell, method in factorial.CELLS.items():
        settings = load_run(Path("configs/experiments/laptop_ablation.yaml"), method, 0).method.model_dump()
        present = (
            settings["selector"]["type"] == "profile",
            settings["teacher"]["type"] == "positive_rubrics",
            settings["steering"]["type"] == "negative_rubrics",
        )
        assert present == cell, method
