"""Compile the kernels beside this file once a machine, and keep them in the user's cache folder."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import jaxlib

from fedjax_het.cache import cache_folder

FOLDER = Path(__file__).parent
SOURCES = tuple(FOLDER / name for name in ("convolution.cc", "direct.h", "winograd.h", "toom_cook.h", "tiles.h"))
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-shared", "-fPIC", "-w")
SWITCH = "FEDJAX_HET_NATIVE"


class Unavailable(Exception):
    """Why there is no library here."""


@functools.cache
def load() -> ctypes.CDLL:
    """The compiled kernels. The first call on a machine compiles them, in some five seconds.

    Raises Unavailable without a C++17 compiler, where compilation fails, and where FEDJAX_HET_NATIVE is 0.
    """
    if os.environ.get(SWITCH) == "0":
        raise Unavailable(f"{SWITCH} is 0")
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), *COMPILERS])), None)
    if compiler is None:
        raise Unavailable(f"no C++ compiler ({', '.join(COMPILERS)}) on the PATH")
    path = cache_folder() / f"convolution-{_identity()}.so"
    if not path.exists():
        _compile(compiler, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} does not load: {error}") from None


def _identity() -> str:
    """Another source, library or processor is another file."""
    described = "\n".join(
        [*(source.read_text() for source in SOURCES), jaxlib.__version__, platform.machine(), *FLAGS, _processor()]
    )
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def _processor() -> str:
    """What it can do, where the system lists that, else its name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, path: Path) -> None:
    """Into a temporary file first, so that processes that compile at once do not meet half a library."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *FLAGS, f"-I{jax.ffi.include_dir()}", str(SOURCES[0]), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"{compiler} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
            made.replace(path)
    except OSError as error:
        raise Unavailable(str(error)) from None
