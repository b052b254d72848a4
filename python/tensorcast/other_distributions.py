"""Warns if a second distribution, such as PyPI's `tensorcast`, lists the files of this package.

pip lets two distributions write the same files. The later installation overwrites files of the earlier one, so the package
may be a mixture of both.
"""

from __future__ import annotations

import os
import sys
import warnings

OURS = "tensorcast-store"
PACKAGE = "tensorcast"


def warn(paths: list[str] | None = None) -> None:
    """Warns of each other distribution in the folders of `paths` (sys.path) that has files of the package."""
    for folder, name in _candidates(sys.path if paths is None else paths):
        if version := _claims(folder, name):
            warnings.warn(
                f"import {PACKAGE}: the distribution {PACKAGE} {version} in {folder} has files of the same package as {OURS}, "
                f"and the distribution that was installed later overwrote files of the other; run `pip uninstall {PACKAGE} {OURS}` "
                f"and install {OURS} again",
                RuntimeWarning,
                stacklevel=3,
            )


def _candidates(paths: list[str]) -> list[tuple[str, str]]:
    """Metadata folders of distributions with the package's name. Lists names and reads no file, because it runs at every
    import.
    """
    found = []
    library = os.path.dirname(os.__file__)  # Python's own, with hundreds of names and no distribution
    for folder in dict.fromkeys(paths):
        if folder in (library, f"{library}/lib-dynload"):
            continue
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # a zip file, or a folder that does not exist
        found += [(folder, name) for name in names if name.startswith(f"{PACKAGE}-") and name.endswith((".dist-info", ".egg-info"))]
    return found


def _claims(folder: str, name: str) -> str | None:
    """The version of the distribution, if it lists a file of the package."""
    import importlib.metadata  # takes milliseconds, so it is imported only when there is such a distribution
    import pathlib

    distribution = importlib.metadata.PathDistribution(pathlib.Path(folder, name))
    files = distribution.files or []
    return distribution.version if any(file.parts[0] == PACKAGE for file in files) else None
