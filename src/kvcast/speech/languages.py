"""Whisper's languages, in the order of their tokens, their names and their other codes.

Other codes: ISO 639-2 and 639-3, retired codes, and codes of a macrolanguage's members. Names:
other English ones, the native names in CLDR, and some without diacritics.
"""

import difflib
from collections.abc import Collection

from kvcast.errors import UsageError

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "en": ("eng",),
    "zh": ("chi", "zho", "cmn", "mandarin", "中文", "汉语", "漢語", "普通话", "國語", "国语"),
    "de": ("deu", "ger", "deutsch"),
    "es": ("spa", "castilian", "español", "espanol", "castellano"),
    "ru": ("rus", "русский"),
    "ko": ("kor", "한국어", "한국말"),
    "fr": ("fra", "fre", "français", "francais"),
    "ja": ("jpn", "日本語", "にほんご"),
    "pt": ("por", "português", "portugues", "português brasileiro"),
    "tr": ("tur", "türkçe", "turkce"),
    "pl": ("pol", "polski"),
    "ca": ("cat", "valencian", "català", "catala", "valencià"),
    "nl": ("dut", "nld", "flemish", "nederlands", "vlaams"),
    "ar": ("ara", "arb", "العربية"),
    "sv": ("swe", "svenska"),
    "it": ("ita", "italiano"),
    "id": ("ind", "in", "bahasa indonesia", "indonesia"),
    "hi": ("hin", "हिन्दी"),
    "fi": ("fin", "suomi"),
    "vi": ("vie", "tiếng việt", "tieng viet"),
    "he": ("heb", "iw", "עברית", "ivrit"),
    "uk": ("ukr", "українська"),
    "el": ("ell", "gre", "ελληνικά", "ellinika"),
    "ms": ("may", "msa", "zsm", "bahasa malaysia", "melayu", "bahasa melayu"),
    "cs": ("ces", "cze", "čeština", "cestina", "český"),
    "ro": ("ron", "rum", "mo", "mol", "moldavian", "moldovan", "română", "romana", "limba română"),
    "da": ("dan", "dansk"),
    "hu": ("hun", "magyar"),
    "ta": ("tam", "தமிழ்"),
    "no": ("nor", "nb", "nob", "norsk", "bokmål", "norsk bokmål"),
    "th": ("tha", "ไทย"),
    "ur": ("urd", "اردو"),
    "hr": ("hrv", "scr", "hrvatski"),
    "bg": ("bul", "български"),
    "lt": ("lit", "lietuvių"),
    "la": ("lat", "lingua latina", "latina"),
    "mi": ("mao", "mri", "māori"),
    "ml": ("mal", "മലയാളം"),
    "cy": ("cym", "wel", "cymraeg"),
    "sk": ("slk", "slo", "slovenčina"),
    "te": ("tel", "తెలుగు"),
    "fa": ("fas", "per", "pes", "فارسی"),
    "lv": ("lav", "lvs", "latviešu"),
    "bn": ("ben", "বাংলা"),
    "sr": ("srp", "scc", "српски", "srpski"),
    "az": ("aze", "azj", "azərbaycan"),
    "sl": ("slv", "slovenščina"),
    "kn": ("kan", "ಕನ್ನಡ"),
    "et": ("est", "ekk", "eesti"),
    "mk": ("mac", "mkd", "македонски"),
    "br": ("bre", "brezhoneg"),
    "eu": ("baq", "eus", "euskara"),
    "is": ("ice", "isl", "íslenska"),
    "hy": ("arm", "hye", "հայերեն"),
    "ne": ("nep", "npi", "नेपाली"),
    "mn": ("mon", "khk", "монгол"),
    "bs": ("bos", "bosanski"),
    "kk": ("kaz", "қазақ тілі", "қазақша"),
    "sq": ("alb", "sqi", "als", "shqip"),
    "sw": ("swa", "swh", "kiswahili"),
    "gl": ("glg", "galego"),
    "mr": ("mar", "मराठी"),
    "pa": ("pan", "panjabi", "ਪੰਜਾਬੀ"),
    "si": ("sin", "sinhalese", "සිංහල"),
    "km": ("khm", "ខ្មែរ"),
    "sn": ("sna", "chishona"),
    "yo": ("yor", "èdè yorùbá"),
    "so": ("som", "soomaali"),
    "af": ("afr",),
    "oc": ("oci",),
    "ka": ("geo", "kat", "ქართული"),
    "be": ("bel", "беларуская"),
    "tg": ("tgk", "тоҷикӣ"),
    "sd": ("snd", "سنڌي"),
    "gu": ("guj", "ગુજરાતી"),
    "am": ("amh", "አማርኛ"),
    "yi": ("yid", "ji", "ydd", "ייִדיש"),
    "lo": ("ລາວ",),
    "uz": ("uzb", "uzn", "o‘zbek"),
    "fo": ("fao", "føroyskt"),
    "ht": ("hat", "haitian", "kreyòl ayisyen"),
    "ps": ("pus", "pbt", "pushto", "پښتو"),
    "tk": ("tuk", "türkmen dili"),
    "nn": ("nno", "norsk nynorsk"),
    "mt": ("mlt", "malti"),
    "sa": ("san", "संस्कृत भाषा"),
    "lb": ("ltz", "letzeburgesch", "lëtzebuergesch"),
    "my": ("bur", "mya", "burmese", "မြန်မာ"),
    "bo": ("bod", "tib", "བོད་སྐད་"),
    "tl": ("fil", "tgl", "filipino"),
    "mg": ("mlg", "plt"),
    "as": ("asm", "অসমীয়া"),
    "tt": ("tat", "татар", "татарча"),
    "haw": ("ʻōlelo hawaiʻi", "hawaii"),
    "ln": ("lin", "lingála"),
    "ha": ("hau",),
    "ba": ("bak", "башҡорт теле", "башҡортса"),
    "jw": ("jav", "jv", "jawa", "basa jawa"),
    "su": ("sun", "basa sunda"),
    "yue": ("粵語", "粤语", "廣東話", "广东话"),
}

COUNTRIES = {
    "jp": "ja",
    "cn": "zh",
    "tw": "zh",
    "kr": "ko",
    "ua": "uk",
    "cz": "cs",
    "dk": "da",
    "gr": "el",
    "vn": "vi",
    "ir": "fa",
    "us": "en",
    "gb": "en",
    "il": "he",
    "rs": "sr",
    "ge": "ka",
}
"""Codes of countries that are taken for codes of languages."""


LANGUAGES = {
    "en": "english",
    "zh": "chinese",
    "de": "german",
    "es": "spanish",
    "ru": "russian",
    "ko": "korean",
    "fr": "french",
    "ja": "japanese",
    "pt": "portuguese",
    "tr": "turkish",
    "pl": "polish",
    "ca": "catalan",
    "nl": "dutch",
    "ar": "arabic",
    "sv": "swedish",
    "it": "italian",
    "id": "indonesian",
    "hi": "hindi",
    "fi": "finnish",
    "vi": "vietnamese",
    "he": "hebrew",
    "uk": "ukrainian",
    "el": "greek",
    "ms": "malay",
    "cs": "czech",
    "ro": "romanian",
    "da": "danish",
    "hu": "hungarian",
    "ta": "tamil",
    "no": "norwegian",
    "th": "thai",
    "ur": "urdu",
    "hr": "croatian",
    "bg": "bulgarian",
    "lt": "lithuanian",
    "la": "latin",
    "mi": "maori",
    "ml": "malayalam",
    "cy": "welsh",
    "sk": "slovak",
    "te": "telugu",
    "fa": "persian",
    "lv": "latvian",
    "bn": "bengali",
    "sr": "serbian",
    "az": "azerbaijani",
    "sl": "slovenian",
    "kn": "kannada",
    "et": "estonian",
    "mk": "macedonian",
    "br": "breton",
    "eu": "basque",
    "is": "icelandic",
    "hy": "armenian",
    "ne": "nepali",
    "mn": "mongolian",
    "bs": "bosnian",
    "kk": "kazakh",
    "sq": "albanian",
    "sw": "swahili",
    "gl": "galician",
    "mr": "marathi",
    "pa": "punjabi",
    "si": "sinhala",
    "km": "khmer",
    "sn": "shona",
    "yo": "yoruba",
    "so": "somali",
    "af": "afrikaans",
    "oc": "occitan",
    "ka": "georgian",
    "be": "belarusian",
    "tg": "tajik",
    "sd": "sindhi",
    "gu": "gujarati",
    "am": "amharic",
    "yi": "yiddish",
    "lo": "lao",
    "uz": "uzbek",
    "fo": "faroese",
    "ht": "haitian creole",
    "ps": "pashto",
    "tk": "turkmen",
    "nn": "nynorsk",
    "mt": "maltese",
    "sa": "sanskrit",
    "lb": "luxembourgish",
    "my": "myanmar",
    "bo": "tibetan",
    "tl": "tagalog",
    "mg": "malagasy",
    "as": "assamese",
    "tt": "tatar",
    "haw": "hawaiian",
    "ln": "lingala",
    "ha": "hausa",
    "ba": "bashkir",
    "jw": "javanese",
    "su": "sundanese",
    "yue": "cantonese",  # since large-v3
}

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Codes of languages that seldom put spaces between words; each of their characters is a word."""

CODES_BY_NAME = {name: code for code, name in LANGUAGES.items()} | {
    name: code for code, names in OTHER_NAMES.items() for name in names
}

_ALIKE = 0.8
"""Names at least this similar may be one name misspelled."""

_LONGEST_CODE = 3


def language_code(language: str, available: Collection[str]) -> str:
    """Turn a code or a name, in any case, into one of the `available` codes.

    Codes are ISO 639 codes or BCP 47 tags: `de`, `deu`, `de-AT`. Names are English or native.

    Raises UsageError for an unknown language, suggesting the right spelling of a misspelled name,
    and for one that the model does not support.
    """
    wanted = " ".join(language.lower().split())
    code = _of_name(wanted) or _of_tag(wanted)
    if code is None:
        raise UsageError(f"unknown language {language!r}: {_advice(wanted)}")
    if code not in available:
        name = LANGUAGES[code].title()
        if list(available) == ["en"]:
            raise UsageError(f"this model knows English only, not {name}: use a multilingual one")
        raise UsageError(f"this model does not know {name}: use another one, such as large-v3")
    return code


def _of_tag(tag: str) -> str | None:
    """Return the code of a language tag (BCP 47), or None; regions and scripts do not matter."""
    language, *subtags = tag.replace("_", "-").split("-")
    extended = [subtag for subtag in subtags[:1] if len(subtag) == 3]  # zh-yue
    codes = [_of_name(subtag) for subtag in (*extended, language)]
    return next((code for code in codes if code is not None), None)


def _of_name(name: str) -> str | None:
    return name if name in LANGUAGES else CODES_BY_NAME.get(name)


def _advice(wanted: str) -> str:
    if (code := COUNTRIES.get(wanted)) is not None:
        return f"did you mean {code}, {LANGUAGES[code].title()}?"
    names = [name for name in CODES_BY_NAME if len(name) > _LONGEST_CODE]
    nearest = difflib.get_close_matches(wanted, names, n=2, cutoff=_ALIKE)
    meant = [name for name in nearest if _is_misspelled(wanted, name)]
    if len({CODES_BY_NAME[name] for name in meant}) == 1:
        return f"did you mean {meant[0]}?"
    return "give a code such as en, or a name"


def _is_misspelled(wanted: str, name: str) -> bool:
    """Return whether letters are missing, added or swapped; another letter makes another language.

    Sorbian is no misspelling of Serbian.
    """
    edits = difflib.SequenceMatcher(None, wanted, name).get_opcodes()
    return all(edit != "replace" for edit, *_ in edits)


# ruff: noqa: RUF001
