"""Fetches what pip has of a peer: its tests come with the source distribution."""

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path

PIP = (sys.executable, "-m", "pip")


def tests_of(package: str, folder: Path) -> Path:
    """Return the folder with the tests of the installed version, within a folder."""
    wanted = f"{package}=={importlib.metadata.version(package)}"
    options = ["--no-deps", "--no-binary", package, "--no-build-isolation", "--dest", str(folder)]
    subprocess.run([*PIP, "download", "--quiet", *options, wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (unpacked,) = folder.glob("*/tests")
    return unpacked.rename(folder / "peer_tests")  # beside our own folder `tests`


def install(packages: tuple[str, ...], folder: Path) -> None:
    """Install packages into a folder, without what they need themselves."""
    options = ["--no-deps", "--target", str(folder)]
    subprocess.run([*PIP, "install", "--quiet", *options, *packages], check=True)
