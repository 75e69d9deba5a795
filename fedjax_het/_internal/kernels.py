"""Kernels of ours in C++: compiled once a machine, kept in the user's cache folder, and called by XLA."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jax
import jaxlib

from fedjax_het._internal.cache_folder import cache_folder

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-shared", "-fPIC", "-w")
ENABLE_VARIABLE = "FEDJAX_HET_NATIVE"


class KernelUnavailableError(Exception):
    """Why there is no library here."""


def register(source: Path, targets: Mapping[str, str]) -> str | None:
    """Hand the functions of a source file, {symbol: target}, to XLA on CPUs. None, or why they cannot be had."""
    try:
        compiled = load(source)
    except KernelUnavailableError as reason:
        return str(reason)
    for symbol, target in targets.items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(compiled, symbol)), platform="cpu")
    return None


@functools.cache
def load(source: Path) -> ctypes.CDLL:
    """The compiled kernels of a file. The first call on a machine compiles them, in some five seconds.

    Raises Unavailable without a C++17 compiler, where compilation fails, and where FEDJAX_HET_NATIVE is 0.
    """
    if os.environ.get(ENABLE_VARIABLE) == "0":
        raise KernelUnavailableError(f"{ENABLE_VARIABLE} is 0")
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), *COMPILERS])), None)
    if compiler is None:
        raise KernelUnavailableError(f"no C++ compiler ({', '.join(COMPILERS)}) on the PATH")
    path = cache_folder() / f"{source.stem}-{_hash_build(source)}.so"
    if not path.exists():
        _compile(compiler, source, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelUnavailableError(f"{path} does not load: {error}") from None


def _hash_build(source: Path) -> str:
    """Another source, library or processor is another file."""
    texts = [file.read_text() for file in (source, *sorted(source.parent.glob("*.h")))]
    described = "\n".join([*texts, jaxlib.__version__, platform.machine(), *FLAGS, _describe_processor()])
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _describe_processor() -> str:
    """What it can do, where the system lists that, else its name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, source: Path, path: Path) -> None:
    """Into a temporary file first, so that processes that compile at once do not meet half a library."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["?"]
                raise KernelUnavailableError(
                    f"{compiler} failed: {next((x for x in lines if 'error' in x), lines[-1])}"
                )
            made.replace(path)
    except OSError as error:
        raise KernelUnavailableError(str(error)) from None
