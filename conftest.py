"""Fixtures that several folders of tests share: models, and where they are kept."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from typing_extensions import override
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from kit.marks import slow, soak

# Whoever tests shares the cores, with other workers or other programs: more threads, or ones that
# wait by spinning, take them from others, and small models are slower with them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# AOTInductor's wrapper code; g++ takes longer to optimise it than the kernels.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")

from kit.dimensions import BERGAMOT, CROSS_BIASED_T5, SHALLOW, SMALL, SMALL_T5, T5GEMMA2
from kit.models import Subject, opened, share, speech, text
from kvcast.checkpoints.source import locate, open_checkpoint
from kvcast.models.executor import TorchModel

pytest_plugins = ["kit.costs", "kit.errors"]

# A busy machine makes inputs slowly, which is no failure of the tested code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Whoever changes something else is not stopped by an example that nobody had drawn before.
settings.register_profile("same examples", settings.get_profile("any machine"), derandomize=True)
settings.load_profile("same examples")


def pytest_configure(config: pytest.Config) -> None:
    """Show the values of helpers' asserts, too; draw other examples where tests run for hours."""
    folders = {each.name for each in (config.rootpath / "tests").iterdir() if each.is_dir()}
    pytest.register_assert_rewrite(*folders.difference(sys.modules, sys.stdlib_module_names))
    if "soak" in config.option.markexpr:
        settings.load_profile("any machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of hours unless requested, also where `-m` selects everything else."""
    if "soak" not in config.option.markexpr:
        by_hand = [item for item in items if item.get_closest_marker("soak")]
        if by_hand:
            config.hook.pytest_deselected(items=by_hand)
            items[:] = [item for item in items if not item.get_closest_marker("soak")]


_LONGEST = (
    "tests/text/test_smollm2.py",
    "tests/text/test_smollm2_calibrated.py",
    "tests/cluster/test_serving_on_nodes.py",
    "tests/runtimes/executorch",
    "tests/runtimes/native/test_compilers.py",
    "tests/runtimes/native/test_sanitizers.py",
    "tests/runtimes/native/test_build.py",
    "tests/cluster/test_on_nodes.py",
    "tests/cluster/test_serving_here.py",
    "tests/cluster/test_lease_on_nodes.py",
    "tests/install/test_base_install.py",
    "tests/install/test_docs.py",
    "tests/mutation/test_mutation.py",
    "tests/server/page/test_transcribing_page.py",
    "tests/server/test_load.py",
    "tests/text/test_demos.py",
    "tests/whisper/test_accuracy.py",
    "tests/whisper/test_languages.py",
    "tests/whisper/test_live_speech.py",
    "tests/whisper/test_ten_minutes.py",
    "tests/whisper/test_transcripts_equal_openai.py",
    "tests/whisper/test_words_equal_openai.py",
)
"""Files to begin with, since at the end they would leave other cores idle for half a minute."""


class _Together(LoadFileScheduling):
    """Gives files to workers, and all that import ExecuTorch to one: importing takes seconds.

    The longest come first; then, as in xdist, files with the most tests.
    """

    @override
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return str(Path(file).parent) if "/executorch/" in file else file

    @override
    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = next((scope for scope in _LONGEST if scope in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    for scope in _LONGEST:
        if not (config.rootpath / scope).exists():
            raise pytest.UsageError(f"conftest.py names {scope}, which does not exist")
    return _Together(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, and collect rarely.

    An export makes millions of objects that live until its end.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_unconfigure() -> None:
    """Free everything at the end; some libraries report leaks."""
    gc.unfreeze()


_GROWTH = 1 << 30
_kept = 2 << 30
"""Bytes of this process that freeing memory does not give back."""


@pytest.fixture(autouse=True, scope="module")
def _memory_of_other_modules() -> None:
    """Free the memory of previous modules: after a module's last test its models are still alive.

    Some are in reference cycles, which are rarely collected, and malloc keeps fragmented memory.
    Collecting cycles among all imported objects takes half a second.
    """
    global _kept
    process = psutil.Process()
    if process.memory_info().rss > _kept + _GROWTH:
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        _kept = max(_kept, process.memory_info().rss)


_T5GEMMA2 = replace(
    T5GEMMA2, vocab_size=300, source_vocab_size=300, decoder=replace(T5GEMMA2.decoder, positions=32)
)
_SUBJECTS = {
    "whisper": (SMALL, speech),
    "shallow whisper": (SHALLOW, speech),
    "t5": (SMALL_T5, text),
    "cross-biased t5": (CROSS_BIASED_T5, text),
    "shallow t5": (replace(CROSS_BIASED_T5, decoder_layers=1), text),
    "t5gemma2": (_T5GEMMA2, text),
    "bergamot": (BERGAMOT, text),
}


@pytest.fixture(
    scope="session",
    params=[
        *((model, "eager") for model in ("whisper", "t5", "cross-biased t5")),
        *((model, "onnx") for model in ("whisper", "t5")),
        *((model, "native") for model in ("whisper", "t5", "bergamot")),
        *(
            slow(subject)
            for subject in (
                # Compiling takes long.
                ("shallow whisper", "aoti"),
                ("cross-biased t5", "onnx"),
                ("cross-biased t5", "native"),
                ("t5gemma2", "native"),
                ("t5gemma2", "eager"),
                ("bergamot", "eager"),
            )
        ),
        # test_targets.py has a T5 with real weights there.
        soak(("shallow t5", "aoti")),
    ],
    ids=" ".join,
)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Random encoder-decoder models on each runtime."""
    model, runtime = request.param
    dimensions, source = _SUBJECTS[model]
    return Subject(dimensions, opened(dimensions, runtime=runtime), source)


@pytest.fixture(scope="session")
def demo_programs() -> TorchModel:
    """Whisper tiny.en with its real weights."""
    checkpoint = open_checkpoint(locate("demo"))
    return TorchModel.from_tensors(checkpoint.dimensions, checkpoint.tensors)


@pytest.fixture(autouse=True, scope="session")
def _shared_folders(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[None]:
    """Share one worker's exports with all workers of this run, and leave the user's cache alone.

    If KVCAST_TEST_BUNDLES names a folder, all runs with the same folder share it. The native
    library stays in pytest's cache until its sources change: compiling takes half a minute.
    """
    own = tmp_path_factory.getbasetemp()
    run = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    run = Path(os.environ.get("KVCAST_TEST_BUNDLES", run))
    share(run)
    if cache := getattr(pytestconfig, "cache", None):  # there is none with -p no:cacheprovider
        library = cache.mkdir("native")
        library.chmod(0o700)  # or kvcast would load nothing from it
        (run / "kvcast-cache").mkdir(exist_ok=True)
        with suppress(FileExistsError):  # another worker was faster
            (run / "kvcast-cache" / "native").symlink_to(library)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVCAST_CACHE", str(run / "kvcast-cache"))
        yield
