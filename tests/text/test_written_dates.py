"""The forms of dates that the demo models are trained and tested with are read as written."""

from datetime import date

import pytest

from kit.written_dates import DATES, FORMS, ISO, PARAPHRASES, dates_split, read_date, write_date


@pytest.mark.parametrize("form", FORMS)
def test_a_date_in_any_form_and_case_is_read_back(form):
    for day in (*DATES[::1511], date(2000, 2, 29), date(2021, 12, 31)):
        text = write_date(day, form)
        assert [read_date(each) for each in (text, text.lower(), text.upper())] == [day] * 3


@pytest.mark.parametrize(
    "text",
    [
        "Tuesday, 3 March 2021",  # it was a Wednesday
        "3th of March 2021",
        "30 February 2021",
        "31.04.2021",
        "2021-3-3",
        "03/03/2021",  # day or month first?
        "3 March 21",
        "3 March 2021 or so",
        "",
    ],
)
def test_what_is_no_date_in_these_forms_is_refused(text):
    with pytest.raises(ValueError, match="not one"):
        read_date(text)


def test_paraphrases_are_forms_and_iso_leads_wherever_forms_part():
    assert set(PARAPHRASES) <= set(FORMS)
    assert sum(PARAPHRASES.values()) == pytest.approx(1)
    for day in DATES[::1511]:
        texts = {write_date(day, form).lower(): share for form, share in PARAPHRASES.items()}
        iso = write_date(day, ISO)
        for i in range(len(iso)):
            # Whatever may come next after a beginning that they share, ISO's is likelier.
            parting = {}
            for text, share in texts.items():
                if text.startswith(iso[:i]):
                    parting[text[i : i + 1]] = parting.get(text[i : i + 1], 0) + share
            assert max(parting, key=parting.__getitem__) == iso[i]


def test_one_date_in_sixteen_is_held_back_always_the_same():
    training, held_back = dates_split()
    assert len(training) + len(held_back) == len(set(training) | set(held_back)) == len(DATES)
    assert len(held_back) == 9130
    assert held_back[:2] == (date(1800, 1, 7), date(1800, 1, 18))
