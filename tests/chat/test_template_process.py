"""A chat template that does more than format text ends in one line, not in harm or a hang."""

import json
import os
from pathlib import Path

import pytest

import kvcast.chat.templates
from kit.small_tokenizers import user
from kvcast.chat.template_process import _Renderer
from kvcast.chat.templates import ChatTemplate
from kvcast.errors import KvcastError

ESCAPES = {
    "class": "{{ ''.__class__ }}",
    "class by item": "{{ ''['__class__'] }}",
    "class by filter": "{{ ''|attr('__class__') }}",
    "class in parts": "{{ ''|attr('__cla' ~ 'ss__') }}",
    "class by escape": "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "format": "{{ '{0.__class__}'.format(messages) }}",
    "format by map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format by filter": "{{ ('{0.__class__}'|attr('format'))(1) }}",
    "mapped attribute": "{{ messages|map(attribute='__class__')|list }}",
    "mapped filter": "{{ ['']|map('attr', '__class__')|list }}",
    "sorted attribute": "{{ messages|sort(attribute='__class__.__name__') }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "globals of a cycler": "{{ cycler.__init__.__globals__.os.system('id') }}",
    "globals of a joiner": "{{ joiner.__init__.__globals__ }}",
    "globals of a namespace": "{{ namespace.__init__.__globals__ }}",
    "globals of lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "the template itself": "{{ self.__init__.__globals__ }}",
    "the context": "{{ self._TemplateReference__context }}",
    "a macro's code": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "a generator's frame": "{{ (messages|map('length')).gi_frame }}",
    "a generator's code": "{{ (messages|map('length')).gi_code }}",
    "an undefined's base": "{{ nothing.__class__ }}",
    "change of messages": "{{ messages.append(1) }}",
    "change of a message": "{{ messages[0].update({'a': 1}) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends '/etc/passwd' %}",
    "import of Python": "{{ __import__('os') }}",
    "open": "{{ open('/etc/passwd').read() }}",
}

FLOODS = {
    "text": "{{ 'a' * 10**10 }}",
    "list": "{{ [0] * 10**10 }}",
    "range": "{{ range(10**9)|list }}",
    "centred": "{{ 'a'|center(10**11) }}",
    "padded": "{{ 'a'.ljust(10**11) }}",
    "formatted": "{{ '{:>99999999999}'.format(1) }}",
    "formatted with %": "{{ '%99999999999d' % 1 }}",
    "doubled": "{% set ns = namespace(x='aaaa') %}"
    "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "replaced": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "written": "{% for i in range(99999) %}{{ 'a' * 10**5 }}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "nesting": "{{ " + "(" * 10**5 + " }}",
}

HANGS = {
    "nested": "{% set ns = namespace(x='aaaa') %}"
    "{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{{ (9 ** (9**9)) is odd }}",
}


def failure(source: str) -> str:
    """Return the error line of a template."""
    with pytest.raises(KvcastError) as error:
        ChatTemplate(source=source, constants={}).render(user("Hello"))
    line = str(error.value)
    assert line.startswith("the chat template failed: ")
    assert "\n" not in line
    assert len(line) < 450
    return line


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_outside_the_sandbox_is_reached(name: str):
    """In this process: the sandbox itself holds, whatever else would."""
    values = {"messages": user("Hello"), "tools": None, "documents": None}
    answer = _Renderer(ESCAPES[name], 1000).answer(json.dumps(values).encode())
    assert list(answer) == ["failed"]


@pytest.mark.parametrize("name", ["class", "format", "globals of a cycler", "mapped attribute"])
def test_reaching_outside_is_called_so(name: str):
    assert "it reaches outside its sandbox" in failure(ESCAPES[name])


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.skipif(os.name == "nt", reason="Windows limits no process's memory; time is limited")
def test_memory_and_text_have_limits(name: str):
    failure(FLOODS[name])


@pytest.mark.parametrize("name", HANGS)
def test_time_has_a_limit(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kvcast.chat.templates, "SECONDS", 1.0)
    told = failure(HANGS[name])
    # On a fast processor nested lists fill the memory before the time is over.
    filled = name == "nested" and "it takes too much memory" in told
    assert filled or "it takes more than 1 seconds" in told


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% for %}", "line 1: "),
        ("\n{{ 1 +* }}", "line 2: "),
        ("{{ messages[0].content.nothing.more }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_a_damaged_template_is_told_from_a_dangerous_one(source: str, told: str):
    assert told in failure(source)


def test_modules_of_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "jinja2.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    template = ChatTemplate(source="{{ messages[0].content }}", constants={})
    assert template.render(user("Hello")) == "Hello"
