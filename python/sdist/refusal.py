"""A build backend that builds nothing. pip calls it if no wheel fits the interpreter, and shows its error.

Every version of Python 3 must be able to read this file.
"""

import platform
import sys

GLIBC = "2.36"  # the version that the wheels need; make.py writes the build's version


def _numbers(version):
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def why(version=sys.version_info, implementation=sys.implementation.name, abi=getattr(sys, "abiflags", ""),
        system=platform.system(), machine=platform.machine(), libc=platform.libc_ver()):
    """Returns a description of this interpreter, and the remedy."""
    here = "{} {}.{} on {} {}".format(implementation, version[0], version[1], system, machine)
    if system != "Linux" or machine != "x86_64":
        return here, "install it on Linux x86-64"
    if implementation != "cpython" or "t" in abi:
        return here + (" without the GIL" if "t" in abi else ""), "use CPython with the GIL"
    if tuple(version[:2]) < (3, 11):
        return here, "use Python 3.11 or later, such as `python3.12 -m venv`: 3.10 has been without support since October 2026"
    if libc[0] != "glibc" or _numbers(libc[1]) < _numbers(GLIBC):
        return "{} with {}".format(here, " ".join(libc).strip() or "another C library"), "use Debian 12, or a system with a glibc at least as new"
    return here, "take a newer pip (`pip install --upgrade pip`), which knows the wheels of this platform, or run `make wheel`"


def _refuse(*_, **__):
    cause, remedy = why()
    raise SystemExit("install tensorcast-store: its wheels are for CPython 3.11 and later on Linux x86-64 with glibc {} or later, "
                     "and this is {}; {}".format(GLIBC, cause, remedy))


get_requires_for_build_wheel = prepare_metadata_for_build_wheel = build_wheel = _refuse
