"""The packages of the wheel: experiments/ and configs/ become fedjax_het.experiments and fedjax_het.configs."""

from setuptools import find_packages, setup

_INSIDE = find_packages(include=["experiments*", "configs*"], exclude=["experiments.benchmarks*"])

setup(
    packages=[*find_packages(include=["fedjax_het*"]), *(f"fedjax_het.{name}" for name in _INSIDE)],
    package_dir={"fedjax_het.experiments": "experiments", "fedjax_het.configs": "configs"},
)
