"""Lists the files of the tree: those that git tracks, or all of them in a tree without git."""

import pathlib
import subprocess

SUFFIXES = {".h", ".cc"}


def tracked_sources(root: pathlib.Path) -> list[pathlib.PurePosixPath]:
    """The C++ files: paths relative to `root`, sorted."""
    return [path for path in tracked_files(root) if path.suffix in SUFFIXES]


def tracked_files(root: pathlib.Path) -> list[pathlib.PurePosixPath]:
    """All files: paths relative to `root`, sorted."""
    names = _git_files(root)
    if names is None:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        names = [name for name in names if not name.startswith("build/")]
    paths = (pathlib.PurePosixPath(name) for name in names)
    return sorted(path for path in paths if (root / path).is_file())


def _git_files(root: pathlib.Path) -> list[str] | None:
    command = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in listed.stdout.split("\0") if name]
