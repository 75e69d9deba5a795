"""The folder of caches."""

from pathlib import Path

from fedjax_het._internal.cache_folder import cache_folder


def test_a_user_without_a_home_has_a_folder_for_the_process(monkeypatch):
    def find_no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", find_no_home)
    assert cache_folder().is_dir()
    assert cache_folder() == cache_folder()
    assert cache_folder().stat().st_mode & 0o077 == 0
