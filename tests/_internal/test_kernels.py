"""Compilation of native kernels, and the reason if it is impossible."""

from pathlib import Path

import pytest

import fedjax_het
from fedjax_het._internal import kernels

SOURCES = sorted(Path(fedjax_het.__file__).parent.rglob("*.cc"))


@pytest.mark.skipif(kernels.find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_kernels_compile_where_there_is_a_compiler(source, monkeypatch):
    """Elsewhere, XLA computes the same without a word, and the tests of the kernels are skipped."""
    monkeypatch.delenv(kernels.ENABLE_VARIABLE, raising=False)
    assert kernels.load(source)


def test_the_error_for_missing_kernels_gives_the_reason(monkeypatch, tmp_path):
    build = lambda: kernels.load.__wrapped__(SOURCES[0])  # noqa: E731
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "COMPILERS", ("no-such-compiler",))
        patch.delenv("CXX", raising=False)
        with pytest.raises(kernels.KernelUnavailableError, match="no-such-compiler"):
            build()
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho out of luck >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(kernels.KernelUnavailableError, match="out of luck"):
        build()
    assert not list(tmp_path.rglob("*.so"))
    monkeypatch.setenv(kernels.ENABLE_VARIABLE, "0")
    with pytest.raises(kernels.KernelUnavailableError, match=kernels.ENABLE_VARIABLE):
        build()


@pytest.fixture
def build(monkeypatch, tmp_path):
    """A function that loads a small library as a new process would, and the folder of the library."""
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(kernels.ENABLE_VARIABLE, raising=False)
    folder = tmp_path / "cache" / "fedjax_het" / "kernels"
    try:
        assert kernels.load.__wrapped__(source).answer() == 42
    except kernels.KernelUnavailableError as reason:
        pytest.skip(str(reason))
    return lambda: kernels.load.__wrapped__(source), folder


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_library_that_was_cut_short_is_compiled_anew(build, size):
    load, folder = build
    (library,) = folder.glob("*.so")
    content = library.read_bytes()
    # A new file: this process maps the old one and would crash if it were cut.
    library.unlink()
    library.write_bytes(content[:size])
    library.chmod(0o700)
    assert load().answer() == 42
    assert library.stat().st_size > 5000


@pytest.mark.parametrize("suffix", ["*.so", "*.sha256"])
def test_a_library_that_others_may_write_is_compiled_anew(build, suffix, monkeypatch):
    load, folder = build
    (path,) = folder.glob(suffix)
    path.chmod(0o722)
    compiled = []
    monkeypatch.setattr(kernels, "_compile", lambda *given: compiled.append(given))
    load()
    assert compiled


def test_a_folder_that_others_may_write_is_not_used(build):
    load, folder = build
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="writable by others"):
        loaded = load()
    assert loaded.answer() == 42 and not loaded._name.startswith(str(folder))


def test_a_folder_of_another_user_is_not_used(build, monkeypatch):
    load, _ = build
    user = kernels.os.geteuid()
    monkeypatch.setattr(kernels.os, "geteuid", lambda: user + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert load().answer() == 42
