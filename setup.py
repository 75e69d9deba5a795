"""The packages of the wheel: those of fedjax_het, and configs/ as fedjax_het.configs."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["fedjax_het*"]), "fedjax_het.configs"],
    package_dir={"fedjax_het.configs": "configs"},
)
