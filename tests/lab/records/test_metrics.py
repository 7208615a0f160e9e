"""Metrics on a matrix worked out by hand, and tests between methods against enumeration and known tables."""

import itertools
import math

import numpy as np
import pytest

from sketchogd.lab.records import metrics

A = [
    [0.9, 0.3, 0.2],
    [0.6, 0.8, 0.4],
    [0.7, 0.5, 0.6],
]
INITIAL = [0.1, 0.1, 0.15]


def test_the_matrix_by_hand() -> None:
    # After the last task: .7 .5 .6; on the diagonal: .9 .8 .6; best before the last: .9 (task 0), .8 (task 1).
    assert metrics.average_accuracy(A) == pytest.approx(1.8 / 3)
    assert metrics.learning_accuracy(A) == pytest.approx(2.3 / 3)
    assert metrics.forgetting(A) == pytest.approx((0.2 + 0.3) / 2)
    assert metrics.backward_transfer(A) == pytest.approx((-0.2 - 0.3) / 2)
    # Before its turn task 1 had .3 (from .1) and task 2 had .4 (from .15).
    assert metrics.forward_transfer(A, INITIAL) == pytest.approx((0.2 + 0.25) / 2)
    summary = metrics.summary(A, INITIAL)
    assert summary == metrics.Summary(
        metrics.average_accuracy(A),
        metrics.learning_accuracy(A),
        metrics.forgetting(A),
        metrics.backward_transfer(A),
        metrics.forward_transfer(A, INITIAL),
    )
    assert math.isnan(metrics.summary(A).forward_transfer)


def test_forgetting_is_from_the_best_and_transfer_from_the_diagonal() -> None:
    improved = [[0.5, 0.0, 0.0], [0.9, 0.5, 0.0], [0.6, 0.7, 0.5]]
    # Task 0 rose to .9 and ended at .6; task 1 rose from .5 to .7 with the last task.
    assert metrics.forgetting(improved) == pytest.approx((0.3 - 0.2) / 2)
    assert metrics.backward_transfer(improved) == pytest.approx((0.1 + 0.2) / 2)


def test_a_single_task_has_nothing_to_forget() -> None:
    summary = metrics.summary([[0.8]], [0.1])
    assert (summary.average_accuracy, summary.forgetting, summary.backward_transfer) == (0.8, 0.0, 0.0)
    assert math.isnan(summary.forward_transfer)


def test_tasks_to_come_may_be_missing_except_for_forward_transfer() -> None:
    lower = np.where(np.tril(np.ones((3, 3))) > 0, A, np.nan)
    assert metrics.summary(lower).forgetting == pytest.approx(0.25)
    with pytest.raises(ValueError, match="forward transfer needs"):
        metrics.forward_transfer(lower, INITIAL)
    with pytest.raises(ValueError, match="3 initial accuracies"):
        metrics.forward_transfer(A, [0.1])
    broken = np.array(A)
    broken[2, 0] = np.nan
    with pytest.raises(ValueError, match="missing entries"):
        metrics.average_accuracy(broken)
    for bad in ([0.1, 0.2], [[0.1, 0.2]], np.zeros((0, 0))):
        with pytest.raises(ValueError, match="square"):
            metrics.average_accuracy(bad)


def test_spread_over_seeds() -> None:
    spread = metrics.spread([0.86, 0.88, 0.90])
    assert (spread.mean, spread.std, spread.n) == (pytest.approx(0.88), pytest.approx(0.02), 3)
    assert str(spread) == "0.880±0.020"
    assert metrics.spread([0.5]).std == 0.0
    for bad in ([], [0.1, math.nan]):
        with pytest.raises(ValueError, match="finite"):
            metrics.spread(bad)


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    # Two-sided critical values from the printed tables of Student's distribution.
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (2.776, 4, 0.05), (4.604, 4, 0.01), (2.262, 9, 0.05), (1.960, 100_000, 0.05)],
)
def test_student_agrees_with_the_tables(t: float, degrees: int, p: float) -> None:
    assert metrics.student_p(t, degrees) == pytest.approx(p, rel=1e-3)
    assert metrics.student_p(-t, degrees) == metrics.student_p(t, degrees)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10])
def test_student_is_the_integral_of_its_density(degrees: int) -> None:
    x = np.linspace(0.0, 1.7, 20_001)
    density = (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    density *= math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    inside = 2 * float(np.sum((density[1:] + density[:-1]) / 2)) * (x[1] - x[0])
    assert metrics.student_p(1.7, degrees) == pytest.approx(1 - inside, abs=1e-8)


def test_student_at_its_ends() -> None:
    assert metrics.student_p(0.0, 3) == 1.0
    assert metrics.student_p(math.inf, 4) == pytest.approx(0.0, abs=1e-15)
    with pytest.raises(ValueError, match="degree of freedom"):
        metrics.student_p(1.0, 0)


def test_welch_lies_between_the_tests_it_generalises() -> None:
    a, b = metrics.Spread(0.80, 0.02, 5), metrics.Spread(0.83, 0.02, 5)
    t = 0.03 / (0.02 * math.sqrt(2 / 5))
    assert metrics.welch_p(a, b) == metrics.welch_p(b, a) == pytest.approx(metrics.student_p(t, 8))  # equal variances
    exact = metrics.Spread(0.83, 0.0, 7)
    assert metrics.welch_p(a, exact) == pytest.approx(metrics.student_p(0.03 / 0.02 * math.sqrt(5), 4))  # one sample
    assert metrics.welch_p(a, metrics.Spread(0.80, 0.01, 3)) == 1.0
    for bad in (metrics.Spread(0.8, 0.0, 1), metrics.Spread(0.8, 0.1, 1)):
        with pytest.raises(ValueError, match="two seeds a side"):
            metrics.welch_p(a, bad)
    with pytest.raises(ValueError, match="some spread"):
        metrics.welch_p(exact, exact)


def test_welch_rejects_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    draws = [(generator.normal(0, 1, 5), generator.normal(0, 4, 5)) for _ in range(4000)]
    small = [metrics.welch_p(metrics.spread(list(x)), metrics.spread(list(y))) < 0.1 for x, y in draws]
    assert np.mean(small) == pytest.approx(0.1, abs=0.02)


def test_the_paired_test_by_hand() -> None:
    # Differences 1, 2, 3, 4 (of 100): mean 2.5, deviation 1.29099, t = 2.5 / (1.29099 / 2) = 3.87298.
    result = metrics.paired_test([0.81, 0.82, 0.83, 0.84], [0.80, 0.80, 0.80, 0.80])
    assert result.difference == pytest.approx(0.025)
    assert result.t == pytest.approx(3.872983346)
    assert result.p_t == pytest.approx(0.0304662, rel=1e-4)
    # Of 16 sign patterns only + + + + and − − − − are as far from zero.
    assert result.p_sign_flip == 2 / 16
    mirrored = metrics.paired_test([0.80, 0.80, 0.80, 0.80], [0.81, 0.82, 0.83, 0.84])
    assert (mirrored.t, mirrored.p_t, mirrored.p_sign_flip) == (-result.t, result.p_t, result.p_sign_flip)


def test_sign_flips_are_all_counted() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 6, 9):
        a, b = rng.normal(0.3, 1, n), rng.normal(0, 1, n)
        d = a - b
        flips = [abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in itertools.product((1, -1), repeat=n)]
        assert metrics.paired_test(a, b).p_sign_flip == np.mean(flips)


def test_many_pairs_are_sampled() -> None:
    d = np.array([0.5, -0.4, 0.3, 0.1, -0.2] * 4)
    exact = metrics.paired_test(d, np.zeros(20)).p_sign_flip
    sampled = metrics.paired_test(np.append(d, 0.0), np.zeros(21)).p_sign_flip
    # A 21st difference of zero changes no sum, so the share is the same; five deviations of a share of 100,000.
    assert sampled == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / 100_000))
    assert sampled == metrics.paired_test(np.append(d, 0.0), np.zeros(21)).p_sign_flip


def test_equal_methods_and_equal_differences() -> None:
    same = metrics.paired_test([0.5, 0.6], [0.5, 0.6])
    assert (same.t, same.p_t, same.p_sign_flip) == (0.0, 1.0, 1.0)
    constant = metrics.paired_test([0.8, 0.9, 0.7], [0.7, 0.8, 0.6])
    assert constant.t == math.inf
    assert constant.p_t == pytest.approx(0.0, abs=1e-15)
    assert constant.p_sign_flip == 2 / 8
    for first, second in (([0.5], [0.4]), ([0.5, 0.6], [0.5]), ([0.5, math.nan], [0.5, 0.6])):
        with pytest.raises(ValueError, match=r"pairs|finite"):
            metrics.paired_test(first, second)
