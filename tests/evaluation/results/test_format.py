"""No number on a page has more digits than its error allows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.evaluation.results.format import as_text, csv_of, interval, place, rounded, told_apart, uncertain

FINITE = st.floats(-1e9, 1e9, allow_nan=False)
ERRORS = st.floats(1e-9, 1e9)


@given(value=FINITE, error=ERRORS)
def test_a_number_is_rounded_to_one_or_two_digits_of_its_error(value, error):
    at = place(error)
    kept = error * 10.0**at  # the error in units of the last place
    assert 3.5 <= kept < 35.6
    said = float(rounded(value, at).replace(",", ""))
    assert abs(said - value) <= 0.5001 * 10.0**-at + 1e-6 * abs(value) * 1e-6


@pytest.mark.parametrize(
    ("write", "numbers", "said"),
    [
        (uncertain, (58.2248, 1.2444), "58.2 ± 1.2"),
        (uncertain, (1.67208, 0.012198), "1.672 ± 0.012"),
        (uncertain, (12345.6, 1234.0), "12,300 ± 1,200"),
        (uncertain, (12345.6, None), "12,300"),
        (uncertain, (0.0, None), "0"),
        (uncertain, (None, 1.0), "not finite"),
        (uncertain, (math.inf, 1.0), "not finite"),
        (interval, (-2.18509, -2.69752, -1.66996), "−2.2 % [−2.7, −1.7]"),
        (interval, (5.4821, 5.4013, 5.5631), "+5.48 % [+5.40, +5.56]"),
        (interval, (-0.04, -0.5, 0.42), "+0.0 % [−0.5, +0.4]"),
        (interval, (None, -1.0, 1.0), "not finite"),
        (interval, (1.0, 1.0, 1.0), "+1.00 % [+1.00, +1.00]"),
    ],
)
def test_a_number_beside_its_error_or_within_its_interval(write, numbers, said):
    assert write(*numbers) == said


def test_parts_that_read_alike_say_in_what_their_own_parts_differ():
    def combined(threshold, order="uncertainty"):
        return {
            "use": "combination",
            "order": {"use": order},
            "stopping_rule": {"use": "uncertainty", "threshold": threshold},
        }

    words = "order = uncertainty, stopping_rule = uncertainty"
    said = told_apart([combined(0.3), combined(0.1), combined(0.3, "random"), {"use": "ancestral", "steps": 4}])
    assert said[:2] == [f"{words}, stopping_rule.threshold = 0.3", f"{words}, stopping_rule.threshold = 0.1"]
    assert said[2:] == ["order = random, stopping_rule = uncertainty", "steps = 4"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1", " =1"])
def test_no_text_of_a_csv_is_a_formula(text):
    assert csv_of([{"a": text, text: -1.5}]).decode().count("'" + text) == 2
    assert as_text(text) == f"'{text}"


def test_other_values_of_a_csv_are_as_they_are():
    for value in ("a=b", "", -1, -0.5, None, "–1"):
        assert as_text(value) == value
