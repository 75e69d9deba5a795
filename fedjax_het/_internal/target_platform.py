"""The platform that programs are traced and compiled for: that of JAX's default devices, or another one that is named.

Convolutions, native kernels, block sizes and layouts depend on it. To compile for a TPU on a machine without one, the
program is traced inside `tracing_for("tpu")`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_named: ContextVar[str | None] = ContextVar("platform", default=None)


def target_platform() -> str:
    """The platform that is traced for, "cpu", "gpu" or "tpu", as `jax.default_backend` names them."""
    return _named.get() or jax.default_backend()


@contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """Trace the programs of this context for a platform, whichever devices this process has."""
    token = _named.set(platform)
    try:
        yield
    finally:
        _named.reset(token)
