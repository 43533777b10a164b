"""Whisper's languages, in the order of their tokens, their names and their other codes.

Other codes: ISO 639-2 and 639-3, retired codes, and codes of a macrolanguage's members. Names:
other English ones, the native names in CLDR, and some without diacritics.
"""

import difflib
from collections.abc import Collection

from kvcast.errors import UsageError

_NAMES = {
    "en": "english, eng",
    "zh": "chinese, chi, zho, cmn, mandarin, 中文, 汉语, 漢語, 普通话, 國語, 国语",
    "de": "german, deu, ger, deutsch",
    "es": "spanish, spa, castilian, español, espanol, castellano",
    "ru": "russian, rus, русский",
    "ko": "korean, kor, 한국어, 한국말",
    "fr": "french, fra, fre, français, francais",
    "ja": "japanese, jpn, 日本語, にほんご",
    "pt": "portuguese, por, português, portugues, português brasileiro",
    "tr": "turkish, tur, türkçe, turkce",
    "pl": "polish, pol, polski",
    "ca": "catalan, cat, valencian, català, catala, valencià",
    "nl": "dutch, dut, nld, flemish, nederlands, vlaams",
    "ar": "arabic, ara, arb, العربية",
    "sv": "swedish, swe, svenska",
    "it": "italian, ita, italiano",
    "id": "indonesian, ind, in, bahasa indonesia, indonesia",
    "hi": "hindi, hin, हिन्दी",
    "fi": "finnish, fin, suomi",
    "vi": "vietnamese, vie, tiếng việt, tieng viet",
    "he": "hebrew, heb, iw, עברית, ivrit",
    "uk": "ukrainian, ukr, українська",
    "el": "greek, ell, gre, ελληνικά, ellinika",
    "ms": "malay, may, msa, zsm, bahasa malaysia, melayu, bahasa melayu",
    "cs": "czech, ces, cze, čeština, cestina, český",
    "ro": "romanian, ron, rum, mo, mol, moldavian, moldovan, română, romana, limba română",
    "da": "danish, dan, dansk",
    "hu": "hungarian, hun, magyar",
    "ta": "tamil, tam, தமிழ்",
    "no": "norwegian, nor, nb, nob, norsk, bokmål, norsk bokmål",
    "th": "thai, tha, ไทย",
    "ur": "urdu, urd, اردو",
    "hr": "croatian, hrv, scr, hrvatski",
    "bg": "bulgarian, bul, български",
    "lt": "lithuanian, lit, lietuvių",
    "la": "latin, lat, lingua latina, latina",
    "mi": "maori, mao, mri, māori",
    "ml": "malayalam, mal, മലയാളം",
    "cy": "welsh, cym, wel, cymraeg",
    "sk": "slovak, slk, slo, slovenčina",
    "te": "telugu, tel, తెలుగు",
    "fa": "persian, fas, per, pes, فارسی",
    "lv": "latvian, lav, lvs, latviešu",
    "bn": "bengali, ben, বাংলা",
    "sr": "serbian, srp, scc, српски, srpski",
    "az": "azerbaijani, aze, azj, azərbaycan",
    "sl": "slovenian, slv, slovenščina",
    "kn": "kannada, kan, ಕನ್ನಡ",
    "et": "estonian, est, ekk, eesti",
    "mk": "macedonian, mac, mkd, македонски",
    "br": "breton, bre, brezhoneg",
    "eu": "basque, baq, eus, euskara",
    "is": "icelandic, ice, isl, íslenska",
    "hy": "armenian, arm, hye, հայերեն",
    "ne": "nepali, nep, npi, नेपाली",
    "mn": "mongolian, mon, khk, монгол",
    "bs": "bosnian, bos, bosanski",
    "kk": "kazakh, kaz, қазақ тілі, қазақша",
    "sq": "albanian, alb, sqi, als, shqip",
    "sw": "swahili, swa, swh, kiswahili",
    "gl": "galician, glg, galego",
    "mr": "marathi, mar, मराठी",
    "pa": "punjabi, pan, panjabi, ਪੰਜਾਬੀ",
    "si": "sinhala, sin, sinhalese, සිංහල",
    "km": "khmer, khm, ខ្មែរ",
    "sn": "shona, sna, chishona",
    "yo": "yoruba, yor, èdè yorùbá",
    "so": "somali, som, soomaali",
    "af": "afrikaans, afr",
    "oc": "occitan, oci",
    "ka": "georgian, geo, kat, ქართული",
    "be": "belarusian, bel, беларуская",
    "tg": "tajik, tgk, тоҷикӣ",
    "sd": "sindhi, snd, سنڌي",
    "gu": "gujarati, guj, ગુજરાતી",
    "am": "amharic, amh, አማርኛ",
    "yi": "yiddish, yid, ji, ydd, ייִדיש",
    "lo": "lao, ລາວ",
    "uz": "uzbek, uzb, uzn, o‘zbek",
    "fo": "faroese, fao, føroyskt",
    "ht": "haitian creole, hat, haitian, kreyòl ayisyen",
    "ps": "pashto, pus, pbt, pushto, پښتو",
    "tk": "turkmen, tuk, türkmen dili",
    "nn": "nynorsk, nno, norsk nynorsk",
    "mt": "maltese, mlt, malti",
    "sa": "sanskrit, san, संस्कृत भाषा",
    "lb": "luxembourgish, ltz, letzeburgesch, lëtzebuergesch",
    "my": "myanmar, bur, mya, burmese, မြန်မာ",
    "bo": "tibetan, bod, tib, བོད་སྐད་",
    "tl": "tagalog, fil, tgl, filipino",
    "mg": "malagasy, mlg, plt",
    "as": "assamese, asm, অসমীয়া",
    "tt": "tatar, tat, татар, татарча",
    "haw": "hawaiian, ʻōlelo hawaiʻi, hawaii",
    "ln": "lingala, lin, lingála",
    "ha": "hausa, hau",
    "ba": "bashkir, bak, башҡорт теле, башҡортса",
    "jw": "javanese, jav, jv, jawa, basa jawa",
    "su": "sundanese, sun, basa sunda",
    "yue": "cantonese, 粵語, 粤语, 廣東話, 广东话",  # since large-v3
}  # the English name, then the other names and codes

LANGUAGES = {code: names.split(", ")[0] for code, names in _NAMES.items()}
OTHER_NAMES = {code: tuple(names.split(", ")[1:]) for code, names in _NAMES.items()}

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
}  # codes of countries that are taken for codes of languages

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Codes of languages that seldom put spaces between words; each of their characters is a word."""

CODES_BY_NAME = {name: code for code, names in _NAMES.items() for name in names.split(", ")}

_ALIKE = 0.8  # names at least this similar may be one name misspelled
_LONGEST_CODE = 3


def language_code(language: str, available: Collection[str]) -> str:
    """Return the one of `available` for an ISO 639 code, BCP 47 tag, or English or native name.

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
    """Return whether letters are missing, added or swapped; Sorbian is no misspelled Serbian."""
    edits = difflib.SequenceMatcher(None, wanted, name).get_opcodes()
    return all(edit != "replace" for edit, *_ in edits)


# ruff: noqa: RUF001
