"""A process with live weights that test_live_weights.py tells what to do, a line each:

    commit ID SECONDS    prints the pause, or the name of the error and its text
    show                 prints the artifact id, the sum of the tensors, and the address of the first

    live_process.py DAEMON KEY
"""

import sys

import tensorcast as tc

daemon, key = sys.argv[1:]
with tc.connect(daemon) as store, store.get(key, live=True, progress=False) as weights:
    arrays = weights.numpy()  # held all the time: the memory of each array is that of the next version
    print("holds", flush=True)
    for line in sys.stdin:
        what, *arguments = line.split()
        try:
            if what == "commit":
                print("committed", weights.commit(arguments[0], timeout=float(arguments[1])), flush=True)
            else:
                total = sum(int(array.view("u2").astype("u8").sum()) for array in arrays.values())
                address = next(iter(arrays.values())).__array_interface__["data"][0]
                print(weights.artifact_id, total, address, flush=True)
        except tc.Error as error:
            print(type(error).__name__, " ".join(str(error).split()), flush=True)
