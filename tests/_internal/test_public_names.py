"""Names that `dir` lists."""

import inspect

import pytest

import fedjax_het as fh

MODULES = [name for name in fh.__all__ if inspect.ismodule(getattr(fh, name))]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_lists_what_it_defines_and_no_imports(name):
    module = getattr(fh, name)
    names = dir(module)
    assert names and not any(name.startswith("_") for name in names)
    assert not any(inspect.ismodule(getattr(module, name)) for name in names)
    assert not {"jax", "np", "annotations", "validate_arguments", "Annotated"} & set(names)


def test_the_package_lists_its_public_names():
    assert dir(fh) == sorted(fh.__all__)
    assert dir(fh.personalization) == [
        *("AlphaRule", "Mix", "MixedModel", "Order", "fine_tuned", "kept_model", "last_own_model", "mixed_model"),
        *("mixture", "mixture_training", "moreau_gradient", "summed_heads"),
    ]
    assert {"Array", "ClientView", "State"} <= set(dir(fh.types)) and "PARTICIPATIONS" in dir(fh.participation)
