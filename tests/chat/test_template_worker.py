"""A template's process renders one conversation after another, within limits, and ends."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import kvcast.chat.templates
from kit.errors import one_line
from kit.small_tokenizers import user
from kvcast.chat.template_process import _Renderer
from kvcast.chat.templates import ChatTemplate, TemplateWorker
from kvcast.errors import KvcastError

ECHO = "{{ messages[0].content }}"
LIMITED = pytest.mark.skipif(os.name == "nt", reason="Windows limits no process's memory")
UNIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def template(source: str = ECHO) -> ChatTemplate:
    return ChatTemplate(source=source, constants={})


def pid_of(rendering: ChatTemplate) -> int | None:
    process = rendering._worker._process
    return None if process is None else process._process.pid


def test_one_process_serves_many_conversations():
    echo = template()
    assert pid_of(echo) is None, "it is started when it is needed"
    assert echo.render(user("first")) == "first"
    pid = pid_of(echo)
    texts = [f"{i}\n🙂\u2028" for i in range(50)]
    assert [echo.render(user(text)) for text in texts] == texts
    assert pid_of(echo) == pid


def test_a_conversation_leaves_nothing_to_the_next():
    keeping = template(
        "{% if seen is defined or ns is defined %}seen{% endif %}{% set seen = 1 %}"
        "{% set ns = namespace(n=messages[0].content) %}{% macro m() %}{{ seen }}{% endmacro %}"
        "{% set c = cycler(1, 2) %}{{ c.next() }}{{ ns.n }}{{ bos_token }}"
    )
    assert [keeping.render(user(text)) for text in ("a", "b", "c")] == ["1a", "1b", "1c"]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.__class__ }}", "outside its sandbox"),
        pytest.param("{{ [0] * 10**10 }}", "too much memory", marks=LIMITED),
        ("{% for i in range(99999) %}{{ 'a' * 10**5 }}{% endfor %}", "more than 16,000,000"),
    ],
)
def test_one_that_failed_serves_no_more_and_the_next_does(source: str, told: str):
    at_times = template("{% if messages[0].content == 'bad' %}" + source + "{% endif %}" + ECHO)
    assert at_times.render(user("good")) == "good"
    first = pid_of(at_times)
    with pytest.raises(KvcastError, match=told):
        at_times.render(user("bad"))
    assert not psutil.pid_exists(first)
    assert at_times.render(user("good")) == "good"
    assert pid_of(at_times) != first


def test_a_refusal_is_no_failure():
    refusing = template("{{ raise_exception('no ' ~ messages[0].content) }}")
    for text in ("one", "two"):
        with pytest.raises(KvcastError, match=f"refuses the conversation: no {text}"):
            refusing.render(user(text))
    assert pid_of(refusing) is not None


def test_one_that_takes_too_long_is_ended_and_the_next_serves(monkeypatch: pytest.MonkeyPatch):
    spin = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    at_times = template("{% if messages[0].content == 'bad' %}" + spin + "{% endif %}" + ECHO)
    assert at_times.render(user("good")) == "good"
    first = pid_of(at_times)
    monkeypatch.setattr(kvcast.chat.templates, "SECONDS", 0.5)
    with pytest.raises(KvcastError, match=r"it takes more than 0\.5 seconds"):
        at_times.render(user("bad"))
    assert not psutil.pid_exists(first)
    monkeypatch.undo()
    assert at_times.render(user("good")) == "good"


def test_one_that_was_killed_while_it_waited_is_replaced():
    echo = template()
    echo.render(user("before"))
    process = psutil.Process(pid_of(echo))
    process.kill()
    process.wait()
    assert echo.render(user("after")) == "after"


@pytest.mark.parametrize(
    "garbage", ["print('{}')", "print('[]')", "print('{\"last\": false}')", "print('x' * 10**7)"]
)
def test_an_answer_that_is_none_is_one_line(garbage: str, monkeypatch, tmp_path):
    program = tmp_path / "spoilt.py"
    program.write_text(f"import time\n{garbage}\nimport sys; sys.stdout.flush(); time.sleep(600)")
    monkeypatch.setattr(kvcast.chat.templates, "_PROGRAM", program)
    monkeypatch.setattr(kvcast.chat.templates, "LONGEST", 1000)
    line = one_line(KvcastError, template().render, user("hello"))
    assert "its process ended with status" in line


def test_threads_share_it():
    echo = template()
    texts = [str(i) * 1000 for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        rendered = list(pool.map(lambda text: echo.render(user(text)), texts))
    assert rendered == texts


@UNIX
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads
def test_a_forked_process_gets_one_of_its_own():
    echo = template()
    echo.render(user("before"))
    pid = pid_of(echo)
    with echo._worker._lock:  # as if a thread were rendering
        child = os.fork()
    if child == 0:
        code = 1
        try:
            same = pid_of(echo)
            told = echo.render(user("in the child"))
            code = 0 if (same, told) == (None, "in the child") and pid_of(echo) != pid else 2
            echo._worker.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert echo.render(user("after")) == "after"
    assert pid_of(echo) == pid


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_it_has_no_files_of_ours(tmp_path):
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        echo = template()
        echo.render(user("hello"))
        pid = pid_of(echo)
        assert sorted(map(int, os.listdir(f"/proc/{pid}/fd"))) == [0, 1, 2]  # noqa: PTH208
        told = Path(f"/proc/{pid}/limits").read_text().splitlines()
        limits = {line[:26].strip(): line[26:47].strip() for line in told}
    assert limits["Max address space"] == str(1 << 30)
    assert limits["Max cpu time"] == "20"
    assert limits["Max file size"] == limits["Max processes"] == "0"


@LIMITED
def test_processor_time_is_limited_for_each_conversation():
    """One whose time is half gone answers and ends; the next conversation has all of it."""
    spin = "{% for i in range(150) %}{% for j in range(1000) %}{% endfor %}{% endfor %}"
    worker = TemplateWorker(spin + ECHO, {"CPU": 1}, 1000)
    used, process = 0.0, None
    # Until the time of two processes is gone, however many conversations that are.
    while used < 2:
        assert worker.render({"messages": user("hello")}, 60) == {"text": "hello"}
        if worker._process is None:
            break
        pid = worker._process._process.pid
        process = process or psutil.Process(pid)
        assert pid == process.pid, "it ended without saying that it would"
        times = process.cpu_times()
        used = times.user + times.system
    assert worker._process is None, f"it goes on after {used} s"
    assert used < 0.75, "an earlier one should have been the last"
    assert worker.render({"messages": user("next")}, 60) == {"text": "next"}
    worker.close()


def test_only_a_few_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kvcast.chat.templates, "MOST", 2)
    templates = [template() for _ in range(5)]
    for i, echo in enumerate(templates):
        assert echo.render(user(str(i))) == str(i)
    assert [pid_of(echo) is not None for echo in templates] == [False] * 3 + [True] * 2
    templates[3].render(user("again"))
    templates[0].render(user("again"))
    assert [pid_of(echo) is not None for echo in templates] == [True, False, False, True, False]


def test_it_goes_with_its_template():
    echo = template()
    echo.render(user("hello"))
    process = psutil.Process(pid_of(echo))
    del echo
    gc.collect()
    assert not process.is_running()


PROGRAM = """
import os, signal, sys
from kvcast.chat.templates import ChatTemplate
echo = ChatTemplate(source="{{ messages[0].content }}", constants={})
print(echo.render([{"content": "hello"}]), echo._worker._process._process.pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_it_ends_with_the_interpreter(end: str):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, end], capture_output=True, text=True
    )
    told, pid = done.stdout.split()
    assert told == "hello"
    assert done.stderr == ""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(30)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_ctrl_c_is_the_callers():
    echo = template()
    echo.render(user("hello"))
    pid = pid_of(echo)
    os.kill(pid, signal.SIGINT)
    assert echo.render(user("still there")) == "still there"
    assert pid_of(echo) == pid


def test_an_interrupt_leaves_no_answer_for_the_next(monkeypatch: pytest.MonkeyPatch):
    echo = template()
    echo.render(user("hello"))
    process = echo._worker._process
    monkeypatch.setattr(process, "_line", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        echo.render(user("lost"))
    assert echo.render(user("next")) == "next"
    assert threading.active_count() < 50


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
    line = one_line(KvcastError, template(source).render, user("Hello"))
    assert line.startswith("the chat template failed: ")
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
    assert template().render(user("Hello")) == "Hello"
