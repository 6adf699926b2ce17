"""Counts with their nouns and signed percentages."""

import pytest

from penstock.formatting import counted, percent, signed_percent


@pytest.mark.parametrize(
    ("count", "plural", "text"),
    [
        (1, "epochs", "1 epoch"),
        (0, "epochs", "0 epochs"),
        (1234, "epochs", "1,234 epochs"),
        (1, "vertices", "1 vertex"),
        (1, "batches", "1 batch"),
        (1, "classes", "1 class"),
        (1, "flow policies", "1 flow policy"),
        (1, "entries", "1 entry"),
        (1, "'paper' vertices", "1 'paper' vertex"),
    ],
)
def test_counts_agree_with_their_nouns(count, plural, text):
    assert counted(count, plural) == text


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (-0.0, 0, "0 %"),
        (-0.0004, 0, "0 %"),
        (0.0004, 1, "0 %"),
        (0.03, 0, "+3 %"),
        (-0.125, 1, "-12.5 %"),
        (0.10, 1, "+10.0 %"),
    ],
)
def test_a_difference_that_rounds_to_nothing_has_no_sign(share, digits, text):
    assert signed_percent(share, digits) == text


@pytest.mark.parametrize(("share", "text"), [(-0.0004, "0 %"), (0.6249, "62 %"), (-0.2, "-20 %"), (12.7, "1270 %")])
def test_a_share_as_a_percentage(share, text):
    assert percent(share) == text
