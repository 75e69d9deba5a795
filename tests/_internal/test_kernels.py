"""Compilation of native kernels, and the reason where it is impossible."""

import pytest

from fedjax_het._internal import kernels
from fedjax_het.models._native.convolution import SOURCE


def test_the_error_for_missing_kernels_gives_the_reason(monkeypatch, tmp_path):
    build = lambda: kernels.load.__wrapped__(SOURCE)  # noqa: E731
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
