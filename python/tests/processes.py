"""Programs of their own, for tests of what happens between processes."""

import subprocess
import sys
import textwrap


def run_python(*pieces_and_arguments, pieces=1, **options):
    """A program of its own, in so many pieces, with this one's packages."""
    code = "".join(textwrap.dedent(piece) for piece in pieces_and_arguments[:pieces])
    return subprocess.Popen([sys.executable, "-B", "-c", code, *pieces_and_arguments[pieces:]],
                            stdout=subprocess.PIPE, text=True, **options)


# Holds an artifact of the store: arguments are the daemon's address and the key.
HOLDER = """
    import sys, os, time
    import tensorcast as tc
    store = tc.connect(sys.argv[1])
    weights = store.get(sys.argv[2])
    array = memoryview(weights["x"])
    print("holds", flush=True)
    """
