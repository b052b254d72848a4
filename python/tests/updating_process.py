"""A process that updates a module in shared memory and is killed while it does: test_update_module.py starts it.

    updating_process.py DAEMON FOLDER once KEY FROM       dies at the tensor "b": its file was cut
    updating_process.py DAEMON FOLDER on-and-on ID ID     writes one version over the other until it is killed
"""

import os
import pathlib
import shutil
import sys

import torch

import tensorcast as tc
import tensorcast.torch

# Two chunks each, and a tensor that is transposed in the module.
SHAPES = {"a": (1536, 1024), "b": (1536, 1024), "rows": (64, 96)}


class Shared(torch.nn.Module):
    """A module with parameters that lie in files."""

    def __init__(self, files):
        super().__init__()
        for name, file in files.items():
            rows, columns = SHAPES[name]
            flat = torch.from_file(str(file), shared=True, size=rows * columns, dtype=torch.bfloat16)
            shown = flat.view(columns, rows).t() if name == "rows" else flat.view(rows, columns)
            self.register_parameter(name, torch.nn.Parameter(shown, requires_grad=False))


def files_of(folder):
    return {name: pathlib.Path(folder) / name for name in SHAPES}


def main():
    daemon, folder, what, one, other = sys.argv[1:]
    with tc.connect(daemon) as store:
        files = files_of(folder)
        if what == "once":
            files["b"] = shutil.copy(files["b"], pathlib.Path(folder) / "cut")
            module = Shared(files)
            os.truncate(files["b"], 0)  # a write to it is a SIGBUS
            tensorcast.torch.update_module(module, one, from_=other, store=store)
        module = Shared(files)
        print("running", flush=True)
        while True:
            tensorcast.torch.update_module(module, one, from_=other, store=store)
            one, other = other, one


if __name__ == "__main__":
    main()
