"""Importing a family's file registers its checks."""

import importlib
import pkgutil

import tests.golden


def load_all() -> None:
    for module in pkgutil.iter_modules(tests.golden.__path__):
        if module.name.startswith("family_"):
            importlib.import_module(f"tests.golden.{module.name}")
