"""Every call of a store in asyncio."""

import asyncio
import inspect

import numpy as np
import pytest

import tensorcast as tc

# The members of a store without a form for asyncio: those that call no daemon, and those that have `async for`.
WITHOUT = {"close", "follow", "options", "watch"}
NAMES = [name for name, member in inspect.getmembers(tc.Store, inspect.isfunction)
         if not name.startswith("_") and not name.endswith("_async") and name not in WITHOUT]


def test_asyncio_gets_puts_and_watches(store, cluster):
    async def work():
        async with await tc.connect_async(cluster.address("a")) as connected:
            await connected.put_async({"x": np.arange(3)}, key="core/async")
            many = await asyncio.gather(*(connected.get_async("core/async") for _ in range(20)))
            assert all(weights["x"].numpy()[2] == 2 for weights in many)
            async with connected.watch("core/async") as watch:
                async for key in watch:
                    assert key.name == "core/async"
                    break
            with pytest.raises(tc.NotFoundError):
                await connected.get_async("core/nothing")
            async with await connected.get_async("core/async") as weights:
                assert list(weights) == ["x"]
            assert weights.closed
        with pytest.raises(tc.ClosedError):
            await connected.keys_async()

    asyncio.run(work())


@pytest.mark.parametrize("name", NAMES)
def test_call_has_a_form_for_asyncio(name):
    form = getattr(tc.Store, f"{name}_async")
    assert inspect.iscoroutinefunction(form) and form.__name__ == f"{name}_async"
    assert inspect.signature(form) == inspect.signature(getattr(tc.Store, name))
    assert "Steps" not in str(inspect.signature(form)) and "asyncio" in form.__doc__
    assert getattr(tc.Store, name).__doc__


def test_asyncio_administers(store):
    async def work():
        put = await store.put_async({"x": np.frombuffer(b"for asyncio alone", np.uint8)}, key="asyncio/one")
        assert (await store.resolve_async("asyncio/one")).artifact_id == put.artifact_id
        await store.bind_async("asyncio/two", put.artifact_id)
        assert [key.name for key in await store.keys_async("asyncio/")] == ["asyncio/one", "asyncio/two"]
        await store.pin_async("asyncio/two")
        assert (await store.replicas_async("asyncio/one"))[0].pinned
        await store.unpin_async("asyncio/two")
        with pytest.raises(tc.FailedPreconditionError, match="asyncio/two"):
            await store.rm_async("asyncio/one")
        await store.unbind_async("asyncio/two")
        await store.rm_async("asyncio/one")
        assert put.artifact_id not in [artifact.artifact_id for artifact in await store.ls_async()]
        status, explanation = await asyncio.gather(store.status_async(), store.explain_async())
        assert status.name == "a" and explanation.hops

    asyncio.run(work())


def test_closing_a_store_ends_an_asynchronous_watch(cluster):
    async def work():
        store = await tc.connect_async(cluster.address("a"))

        async def follow():
            return [key async for key in store.watch("asyncio/none/")]

        following = asyncio.ensure_future(follow())
        await asyncio.sleep(0)  # the watch has begun
        store.close()
        assert await asyncio.wait_for(following, 30) == []

    asyncio.run(work())
