"""The output in a notebook: tables, and the progress of long calls."""

import asyncio
import html
import os
import sys
import textwrap
import types

import numpy as np
import pytest

from tensorcast import calls, progress


def test_values_are_tables_with_escaped_texts(store):
    hostile = "<script>alert(1)</script>"
    put = store.put({hostile: np.arange(3), "b": np.ones((2, 3))}, key=f"notebooks/{hostile}")
    with store.get(put.artifact_id) as weights:
        shown = weights._repr_html_()
        assert "<table>" in shown and "<td>(2, 3)</td>" in shown
        assert hostile not in shown and html.escape(hostile) in shown
    assert "closed" in weights._repr_html_()
    assert put.artifact_id in put._repr_html_() and "<table>" in put._repr_html_()
    keys = store.keys("notebooks/")
    for value in (keys, keys[0], store.resolve(keys[0].name)):
        assert "<table>" in value._repr_html_() and hostile not in value._repr_html_()


def test_table_of_many_rows_says_how_many_there_are(store):
    store.put({f"layers.{i}": np.ones(1) for i in range(1000)}, key="notebooks/many")
    with store.get("notebooks/many") as weights:
        assert weights._repr_html_().count("<tr>") == 201 and "800 more" in weights._repr_html_()


# Runs in a kernel: the progress of a long transfer, as the bar gets it.
CELL = """
    from tensorcast import progress
    progress._SILENT_SECONDS = 0.0
    with progress.Bar("get <llama>") as bar:
        bar.show((1 << 20, 4 << 20, 0, ""))
        bar.show((2 << 20, 4 << 20, 0, "space"))
    """


def test_notebook_shows_progress_and_clears_it(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        shown = []
        answer = client.execute_interactive(textwrap.dedent(CELL), timeout=60, allow_stdin=False, output_hook=shown.append)
        assert answer["content"]["status"] == "ok", answer
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    outputs = [(message["msg_type"], message["content"]["data"]["text/html"]) for message in shown
               if message["msg_type"] in ("display_data", "update_display_data")]
    assert [kind for kind, _ in outputs] == ["display_data", "update_display_data", "update_display_data"]
    assert "get &lt;llama&gt;" in outputs[0][1] and 'value="0.2500"' in outputs[0][1] and "1.0 MiB of 4.0 MiB" in outputs[0][1]
    assert "waits for space" in outputs[1][1] and outputs[2][1] == ""
    assert len({message["content"]["transient"]["display_id"] for message in shown if "transient" in message["content"]}) == 1


def test_terminal_shows_progress_and_clears_it(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.Bar("get llama") as bar:
        bar.show((1 << 20, 4 << 20, 0, ""))
    written = capsys.readouterr().err
    assert "get llama [#######" in written and written.endswith("\r\x1b[K")


def test_program_without_a_terminal_shows_no_progress(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    with progress.Bar("get llama") as bar:
        assert not bar.enabled
        bar.show((1 << 20, 4 << 20, 0, ""))
    assert capsys.readouterr() == ("", "")


class SlowCall:
    """A native call that ends after its progress was read this many times."""

    def __init__(self, steps):
        self.steps = steps
        self.descriptor = os.eventfd(0)

    def wait(self, _):
        return self.steps == 0

    def progress(self):
        self.steps -= 1
        if self.steps == 0:
            os.eventfd_write(self.descriptor, 1)
        return (1 << 20, 4 << 20, 0, "")

    def fileno(self):
        return self.descriptor

    def result(self):
        os.close(self.descriptor)
        return "ended"


@pytest.mark.parametrize("wait", [calls.finish, lambda *step: asyncio.run(calls.finish_async(*step))], ids=["thread", "asyncio"])
@pytest.mark.parametrize("title, expected", [("get llama", ["get llama"] * 3 + ["cleared"]), (None, [])])
def test_call_that_takes_long_shows_its_progress(monkeypatch, wait, title, expected):
    drawn = []

    class Surface:
        def draw(self, what, share, told):
            drawn.append(what)

        def clear(self):
            drawn.append("cleared")

    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_surface", Surface)
    if title is None:
        call = SlowCall(1)
        call.progress()
    else:
        call = SlowCall(3)
    assert wait(call, title) == "ended" and drawn == expected
