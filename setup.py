"""The packages, found on disk; every other setting is in pyproject.toml.

Three top-level folders make one package: ``tvm_scan/`` is tvm_scan, ``schedules/`` is
tvm_scan.schedules, ``meta/`` is tvm_scan.meta. setuptools can map folders to packages from
pyproject.toml, but then every subpackage has to be listed by hand; here they are found.
"""

from setuptools import find_packages, setup

FOLDERS = {"tvm_scan": "tvm_scan", "tvm_scan.schedules": "schedules", "tvm_scan.meta": "meta"}

packages = [
    name
    for package, folder in FOLDERS.items()
    for name in [package, *(f"{package}.{sub}" for sub in find_packages(folder))]
]

setup(packages=packages, package_dir=FOLDERS)
