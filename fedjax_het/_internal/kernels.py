"""Native kernels in C++: compiled once per machine, kept in the user's cache folder, and called by XLA."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jaxlib

from fedjax_het._internal import atomic
from fedjax_het._internal.cache_folder import cache_folder, temporary_folder
from fedjax_het._internal.target_platform import target_platform

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-shared", "-fPIC", "-w")
ENABLE_VARIABLE = "FEDJAX_HET_NATIVE"
_HEADERS = Path(__file__).parent  # of all kernels
_PREFIX = "fedjax_het_"  # of the names of foreign calls


class KernelUnavailableError(Exception):
    """The native kernels cannot be compiled or loaded; the message gives the reason."""


def make_check(module: str, **symbols: tuple[str, ...]) -> Callable[[], str | None]:
    """Make a function that explains why functions in C++ are not available; None if they are. It may compile them.

    Args:
        module: `__file__` of the module that calls them.
        **symbols: The functions in each C++ file beside the module, by the name of the file.
    """
    libraries = tuple((Path(module).with_name(f"{name}.cc"), names) for name, names in symbols.items())

    def explain_missing() -> str | None:
        platform = target_platform()
        return _register(libraries) if platform == "cpu" else f"it is for CPUs, and this is a {platform}"

    return explain_missing


def prepare_call(symbol: str, results: Any, **options: Any) -> Callable[..., Any]:
    """Make a function from arrays to results of these shapes, by an available function of a C++ file."""
    return jax.ffi.ffi_call(_PREFIX + symbol, results, **options)


@functools.cache
def _register(libraries: tuple[tuple[Path, tuple[str, ...]], ...]) -> str | None:
    try:
        with ThreadPoolExecutor() as threads:
            compiled = list(threads.map(load, [source for source, _ in libraries]))
    except KernelUnavailableError as reason:
        return str(reason)
    for library, (_, symbols) in zip(compiled, libraries, strict=True):
        for symbol in symbols:
            jax.ffi.register_ffi_target(_PREFIX + symbol, jax.ffi.pycapsule(getattr(library, symbol)), platform="cpu")
    return None


@functools.cache
def load(source: Path) -> ctypes.CDLL:
    """Load the kernels of a file; the first call on a machine compiles them, in up to six seconds.

    Raises:
        KernelUnavailableError: There is no C++17 compiler, compilation fails, or FEDJAX_HET_NATIVE is 0.
    """
    if os.environ.get(ENABLE_VARIABLE) == "0":
        raise KernelUnavailableError(f"{ENABLE_VARIABLE} is 0")
    compiler = find_compiler()
    if compiler is None:
        raise KernelUnavailableError(f"no C++ compiler ({', '.join(COMPILERS)}) on the PATH")
    try:
        path = _private_folder() / f"{source.stem}-{_hash_build(source)}.so"
        if not _is_intact(path):
            _compile(compiler, source, path)
    except OSError as error:
        raise KernelUnavailableError(str(error)) from None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelUnavailableError(f"{path} does not load: {error}") from None


def find_compiler() -> str | None:
    """The path of a C++ compiler, by preference that of the variable CXX; None without one."""
    return next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), *COMPILERS])), None)


def _hash_build(source: Path) -> str:
    """A hash of the source, the library and the processor, for the name of the compiled file."""
    headers = {*_HEADERS.glob("*.h"), *source.parent.glob("*.h")}
    texts = [file.read_text() for file in (source, *sorted(headers))]
    described = "\n".join([*texts, jaxlib.__version__, platform.machine(), *FLAGS, _describe_processor()])
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _describe_processor() -> str:
    """The instruction sets of the processor where the system lists them, else its name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _private_folder() -> Path:
    """The folder of compiled libraries. Only the user may write to it, because they are executed."""
    folder = cache_folder() / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _is_private(folder):
        return folder
    warnings.warn(
        f"{folder}: belongs to another user or is writable by others, so its kernels are not loaded. They are "
        "recompiled in every process. Remove the folder, or set XDG_CACHE_HOME to a folder of your own.",
        stacklevel=2,
    )
    return temporary_folder()


def _is_private(path: Path) -> bool:
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_intact(library: Path) -> bool:
    """Whether a library and its digest belong to the user, and agree: one that was cut short kills the process."""
    digest = library.with_suffix(".sha256")
    if not all(path.is_file() and _is_private(path) for path in (library, digest)):
        return False
    return digest.read_bytes() == _digest(library)


def _digest(library: Path) -> bytes:
    return hashlib.sha256(library.read_bytes()).hexdigest().encode()


def _compile(compiler: str, source: Path, path: Path) -> None:
    """Compile aside, so that another process never loads a part of a library, and store its digest."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        library = Path(folder) / path.name
        command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", f"-I{_HEADERS}", str(source), "-o", str(library)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["?"]
            raise KernelUnavailableError(f"{compiler} failed: {next((x for x in lines if 'error' in x), lines[-1])}")
        library.chmod(0o700)
        atomic.sync(library)
        digest = library.with_suffix(".sha256")
        digest.write_bytes(_digest(library))
        digest.chmod(0o600)
        atomic.sync(digest)
        library.replace(path)
        digest.replace(path.with_suffix(".sha256"))
        atomic.sync(path.parent)
