"""Languages as people, browsers and other programs write them."""

import pytest

from kvcast.errors import UsageError
from kvcast.speech.languages import COUNTRIES, LANGUAGES, OTHER_NAMES, language_code
from kvcast.speech.params import TranscribeParams


@pytest.mark.parametrize(
    ("written", "code"),
    [
        *(("en", "en"), ("EN", "en"), ("English", "en"), ("eng", "en"), ("en-US", "en")),
        *(("en_GB", "en"), ("de-AT-1996", "de"), ("Deutsch", "de"), ("ger", "de"), ("deu", "de")),
        *(("zh-CN", "zh"), ("zh-Hant-TW", "zh"), ("cmn", "zh"), ("中文", "zh"), ("普通话", "zh")),
        *(("yue", "yue"), ("zh-yue", "yue"), ("yue-HK", "yue"), ("廣東話", "yue")),
        *(("pt-BR", "pt"), ("português", "pt"), ("español", "es"), ("castellano", "es")),
        *(("nb", "no"), ("nb-NO", "no"), ("nn-NO", "nn"), ("norsk bokmål", "no")),
        *(("iw", "he"), ("in", "id"), ("ji", "yi"), ("jv", "jw"), ("fil", "tl"), ("mo", "ro")),
        *(("haitian  Creole", "ht"), ("haw", "haw"), ("ARB", "ar"), ("日本語", "ja")),
    ],
)
def test_codes_and_names_are_understood(written: str, code: str):
    assert language_code(written, LANGUAGES) == code


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("englsh", "did you mean english?"),
        ("germna", "did you mean german?"),
        ("espanhol", "did you mean espanol?"),
        ("jp", "did you mean ja, Japanese?"),
        *[
            (other, "give a code such as en, or a name")
            for other in ("sorbian", "irish", "frisian", "kurdish", "dutsch", "ga", "xx-YY", "")
        ],
    ],
)
def test_no_advice_crosses_to_another_language(written: str, advice: str):
    with pytest.raises(UsageError, match="unknown language") as error:
        language_code(written, LANGUAGES)
    assert str(error.value).endswith(f": {advice}")


def test_a_name_belongs_to_one_language():
    names = [name for names in (*OTHER_NAMES.values(), LANGUAGES.values()) for name in names]
    assert len(names) == len(set(names))
    assert {*OTHER_NAMES, *COUNTRIES.values()} <= set(LANGUAGES)
    assert not set(COUNTRIES) & {*names, *LANGUAGES}
    assert all(name == name.lower() for name in names)


def test_auto_is_as_if_no_language_were_given():
    assert TranscribeParams(language=" Auto") == TranscribeParams()
    assert TranscribeParams(language="auto", multilingual=True).multilingual
