"""Tests use several CPU devices, so sharded layouts are tested; `tests` is importable from anywhere."""

import sys
from collections import Counter
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
with install_import_hook("fedjax_het.geometry", "beartype.beartype"):  # shapes are checked at every call
    from fedjax_het.cli import collect_garbage_rarely
    from fedjax_het.cli.configuration import build
    from fedjax_het.data.sources import _decode_cache
from tests.compilation import use_quick_compilation

use_quick_compilation()
jax.config.update("jax_num_cpu_devices", 4)

MAX_CASES = 2  # of one extended test that run in CI, unless it is marked every_case; the others are slow
MAPPINGS = Path("/proc/self/maps")
MAX_MAPPINGS = 30_000  # Linux allows 65,530 per process; beyond that the compiler crashes


def pytest_configure(config):
    """Keep compiled programs for the next run; `--cache-clear` deletes them."""
    if not jax.config.jax_compilation_cache_dir and hasattr(config, "cache"):
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("programs")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases of an extended test beyond the first ones as slow."""
    num_cases = Counter()
    for item in items:
        if not item.get_closest_marker("extended") or item.get_closest_marker("every_case"):
            continue
        test = item.nodeid.partition("[")[0]
        num_cases[test] += 1
        if num_cases[test] > MAX_CASES:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    collect_garbage_rarely()


@pytest.fixture(autouse=True, scope="session")
def decoded_data_and_features_stay_out_of_the_user_s_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        for module in (_decode_cache, build):
            patch.setattr(module, "cache_folder", lambda: folder)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from tests.scheduling import ByAlgorithm

    return ByAlgorithm(config, log)


def pytest_runtest_teardown(item, nextitem):
    """Compiled programs live as long as the process: clear them before memory mappings run out."""
    if MAPPINGS.exists() and len(MAPPINGS.read_bytes().splitlines()) > MAX_MAPPINGS:
        jax.clear_caches()
