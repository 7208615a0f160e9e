"""The sentences on top of the page: what they say follows from the numbers, and they doubt what may be chance."""

import pytest

from sketchogd.lab.pages.conclusion import conclusion


def group(label, accuracy, nbytes, *, std=0.001, n=5, stores=False, benchmark="own", method=None):
    row = {"accuracy": accuracy, "accuracy_std": std, "n": n, "nbytes": nbytes, "method": method or label}
    return {"label": label, "benchmark": benchmark, "keeps_examples": stores, "row": row}


SGD = group("SGD", 0.6, 0)


def test_the_best_without_examples_is_compared_with_nothing_and_with_examples():
    said, more = conclusion([SGD, group("A", 0.8, 2_000_000), group("Replay", 0.9, 5_000_000, stores=True)])
    assert said == (
        "On own, A ends highest of the methods that keep no examples: average accuracy 0.800 ± 0.001 with 2 MB kept, "
        "0.200 above SGD, which keeps nothing (0.600 ± 0.001); Replay, which keeps examples, reaches 0.900 ± 0.001 "
        "with 5 MB kept."
    )
    assert more == []


@pytest.mark.parametrize(("lead", "doubted"), [(0.0126, True), (0.0127, False)])
def test_a_lead_within_two_standard_errors_is_doubted(lead, doubted):
    """Deviations of .01 over 5 seeds on both sides: two standard errors are 2 √(2 · .0001 / 5) = .012649."""
    said, _ = conclusion([group("A", 0.8, 10, std=0.01), group("B", 0.8 + lead, 10, std=0.01)])
    assert ("may be chance" in said) is doubted


def test_where_protection_does_not_help_it_is_said():
    said, _ = conclusion([SGD, group("A", 0.5, 10)])
    assert said.startswith(
        "On own, no method that keeps no examples ends above SGD, which keeps nothing (0.600 ± 0.001)"
    )
    assert "A comes closest (0.500 ± 0.001)" in said


def test_several_benchmarks_have_a_sentence_each_below_one_for_all():
    groups = [group("A", 0.8, 10, benchmark=name) for name in ("x", "y", "z")]
    groups += [group("B", 0.9 if name == "z" else 0.7, 10, benchmark=name) for name in ("x", "y", "z")]
    said, more = conclusion(groups)
    assert said == "A has the highest average accuracy on 2 of 3 benchmarks; on z it is B."
    assert [sentence.split(" ends highest")[0] for sentence in more] == ["On x, A", "On y, A", "On z, B"]


def test_where_every_benchmark_has_another_winner_no_method_is_put_first():
    groups = [group(name, 0.8, 10, benchmark=benchmark) for name, benchmark in (("A", "x"), ("B", "y"))]
    said, _ = conclusion(groups)
    assert said == "Which method has the highest average accuracy differs by benchmark: A on x; B on y."
    said, _ = conclusion([*groups, group("Replay", 0.9, 10, benchmark="x", stores=True)])
    assert said.startswith("Which of the methods that keep no examples has the highest average accuracy differs by")


def test_methods_that_keep_examples_win_only_among_themselves():
    said, _ = conclusion([group("Replay", 0.9, 10, stores=True), group("A-GEM", 0.8, 10, stores=True)])
    assert said.startswith("On own, Replay ends highest: average accuracy 0.900")


def test_one_method_alone_is_compared_with_nothing():
    said, _ = conclusion([group("A", 0.8, 1_600_000, n=1)])
    assert said == "On own, A ends at an average accuracy of 0.800 with 1.6 MB kept."
