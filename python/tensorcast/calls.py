"""Waiting for a call of the native module: from a thread, with Ctrl-C and a progress bar, or from asyncio."""

from __future__ import annotations

import atexit
from typing import Any

from tensorcast import _native
from tensorcast.progress import Bar

# How long a thread waits before it looks for signals and shows progress.
_STEP_SECONDS = 0.05

atexit.register(_native.cancel_all_calls)


def finish(call: _native.Call, progress: str | None = None) -> Any:
    """The result of the call. `progress` names it on a terminal if it takes long; None shows nothing.

    An exception in this thread meanwhile, KeyboardInterrupt above all, cancels the call.
    """
    try:
        if not call.wait(_STEP_SECONDS):
            with Bar(progress) as bar:
                while not call.wait(_STEP_SECONDS):
                    bar.show(call.progress())
    except BaseException:
        call.cancel()
        raise
    return call.result()


async def news(call: _native.Call) -> None:
    """Returns when the call has ended, or has news that nobody took. Cancelling the task cancels the call."""
    import asyncio  # slow to import, and there already where anybody can await this

    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = call.fileno()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    except BaseException:
        call.cancel()
        raise
    finally:
        loop.remove_reader(descriptor)


async def finish_async(call: _native.Call) -> Any:
    """The result of the call, without blocking the loop."""
    await news(call)
    return call.result()
