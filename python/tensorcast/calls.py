"""Waits for calls of the native module: in a thread, with Ctrl-C and a progress bar, or in asyncio.

Each public method is written once, as a generator that yields native calls and receives their results. `forms` makes a
blocking function and a coroutine function of it.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar

from tensorcast import _native
from tensorcast.progress import Bar

# The interval at which a waiting thread checks for signals and shows progress.
_STEP_SECONDS = 0.05

_T = TypeVar("_T")
_P = ParamSpec("_P")

# A call, or a call and the title of its progress bar (None: no bar).
Step = _native.Call | tuple[_native.Call, str | None]
Steps = Generator[Step, Any, _T]

atexit.register(_native.cancel_all_calls)

_C = TypeVar("_C", bound="Closing")


class Closing:
    """A context manager: the end of a `with` or `async with` block calls close()."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self: _C) -> _C:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def finish(call: _native.Call, progress: str | None = None) -> Any:
    """Waits for the call and returns its result. `progress` is the title of a bar for long calls; None: no bar.

    An exception in this thread during the wait, such as KeyboardInterrupt, cancels the call.
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


async def news(call: _native.Call, bar: Bar | None = None) -> None:
    """Returns when the call has ended or has news to take. Cancelling the task cancels the call."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    descriptor = call.fileno()
    loop.add_reader(descriptor, ready.set)
    try:
        while not ready.is_set():
            if bar is None or not bar.enabled:
                await ready.wait()
                continue
            try:
                await asyncio.wait_for(ready.wait(), _STEP_SECONDS)
            except asyncio.TimeoutError:
                bar.show(call.progress())
    except BaseException:
        call.cancel()
        raise
    finally:
        loop.remove_reader(descriptor)


async def finish_async(call: _native.Call, progress: str | None = None) -> Any:
    """Waits for the call without blocking the event loop, and returns its result."""
    with Bar(progress) as bar:
        await news(call, bar)
    return call.result()


def _parts(step: Step) -> tuple[_native.Call, str | None]:
    return step if isinstance(step, tuple) else (step, None)


def run(steps: Steps[_T]) -> _T:
    """Runs steps in this thread."""
    try:
        step = next(steps)
        while True:
            try:
                result = finish(*_parts(step))
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: _T = end.value
        return value


async def _run_async(steps: Steps[_T]) -> _T:
    try:
        step = next(steps)
        while True:
            try:
                result = await finish_async(*_parts(step))
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: _T = end.value
        return value


def forms(steps: Callable[_P, Steps[_T]]) -> tuple[Callable[_P, _T], Callable[_P, Coroutine[Any, Any, _T]]]:
    """Makes the blocking function NAME and the coroutine function NAME_async from the steps `_NAME`."""

    def blocking(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return run(steps(*args, **kwargs))

    async def for_asyncio(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await _run_async(steps(*args, **kwargs))

    name = steps.__name__.removeprefix("_")
    for made, suffix, doc in ((blocking, "", steps.__doc__), (for_asyncio, "_async", f"The form of {name} for asyncio.")):
        functools.update_wrapper(made, steps)
        del made.__dict__["__wrapped__"]  # it would show the signature of the steps
        made.__name__ = name + suffix
        made.__qualname__ = steps.__qualname__.replace(steps.__name__, made.__name__)
        made.__doc__ = doc
        setattr(made, "__signature__", _signature(steps))
    return blocking, for_asyncio


def _signature(steps: Callable[..., Any]) -> inspect.Signature:
    """The signature of the steps, with the type of their result: "calls.Steps[Key]" becomes "Key"."""
    signature = inspect.signature(steps)
    returned = str(signature.return_annotation).removeprefix("calls.Steps[").removesuffix("]")
    return signature.replace(return_annotation=returned)
