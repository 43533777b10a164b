import pytest

from kvcast.bench.recording import normalise, word_error
from kvcast.errors import UsageError


def test_normalisation_is_what_the_documentation_says():
    assert (
        normalise("Mr. Dashwood,  it\u2019s ill-disposed_!") == "mister dashwood its ill disposed"
    )
    assert normalise("Don't — Mrs. Smith") == "dont missus smith"


def test_case_and_marks_are_no_errors():
    assert word_error("and mister john had then leisure", "And Mr. John had, then, leisure.") == 0


def test_errors_are_counted_over_the_words_of_the_reference():
    # One substitution, one deletion, one insertion.
    assert word_error("a b c d e f", "a x c d e g f g") == pytest.approx(3 / 6)
    assert word_error("one two three four", "") == 1


def test_a_reference_without_words_is_refused():
    with pytest.raises(UsageError, match="no words"):
        word_error("...", "anything")
