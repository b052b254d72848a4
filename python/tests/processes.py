"""Separate programs, for tests across processes."""

import subprocess
import sys
import textwrap


def run_python(*pieces_and_arguments, pieces=1, **options):
    """Starts a separate program from these pieces of source, with the packages of this process."""
    code = "".join(textwrap.dedent(piece) for piece in pieces_and_arguments[:pieces])
    return subprocess.Popen([sys.executable, "-B", "-c", code, *pieces_and_arguments[pieces:]],
                            stdout=subprocess.PIPE, text=True, **options)


# Holds a lease on an artifact. The arguments are the daemon's address and the key.
HOLDER = """
    import sys, os, time
    import tensorcast as tc
    store = tc.connect(sys.argv[1])
    weights = store.get(sys.argv[2])
    array = memoryview(weights["x"])
    print("holds", flush=True)
    """
