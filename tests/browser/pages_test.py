"""The pages by themselves: documents of any size and with any name, from a double of the server."""

import documents
import pytest
from browser import Browser
from document_server import DocumentServer
from selenium.webdriver.common.keys import Keys

HOSTILE = "<img src=x onerror=globalThis.injected=true>"
PATHS = {
    "zones": "/",
    "nodes": "/nodes",
    "node": "/node?node=n",
    "keys": "/keys",
    "key": "/key?name=n",
    "artifacts": "/artifacts",
    "artifact": "/artifact?artifact=n",
    "transfers": "/transfers",
    "transfer": "/transfer?node=receiver&transfer=t",
    "tasks": "/tasks",
}
MAX_BYTES = 2 << 20
MAX_ROWS = 500


@pytest.fixture(scope="module")
def browser():
    with Browser() as running:
        yield running


@pytest.fixture
def errors(browser):
    """Fails a test in which the console had an error."""
    browser.errors()
    yield
    assert browser.errors() == []


def served(views):
    """A double that always gives these documents."""
    return DocumentServer({view: lambda _, document=document: document for view, document in views.items()})


def test_hostile_names_are_text(browser, errors):
    with served(documents.every_view(HOSTILE)) as server:
        for path in PATHS.values():
            browser.open(server.address + path)
            assert HOSTILE in browser.text(), path
            assert browser.js("document.querySelectorAll('main img, main script').length") == 0, path
            assert browser.js("globalThis.injected") is None, path


def test_hostile_names_in_addresses_are_text(browser, errors):
    with served(documents.every_view("n")) as server:
        for address in (f"/node?node={HOSTILE}", f"/key?name={HOSTILE}", f"/nodes?zone={HOSTILE}&q={HOSTILE}"):
            browser.open(server.address + address)
            assert HOSTILE in browser.text(), address
            assert browser.js("globalThis.injected") is None, address


def test_empty_pages_say_what_to_do(browser, errors):
    with served(documents.empty_views()) as server:
        for view, path in PATHS.items():
            browser.open(server.address + path)
            empty = browser.js("[...document.querySelectorAll('main p.empty')].map((e) => e.textContent)")
            assert all(empty), view
            assert empty or view == "transfer", view
            for cell in browser.js("[...document.querySelectorAll('main td, main th, main dd')].map((e) => e.innerText + e.innerHTML)"):
                assert cell, view


def test_labels_and_contrast_in_both_themes(browser, errors):
    with served(documents.every_view("node-a")) as server:
        for theme in ("light", "dark"):
            browser.open(server.address)
            browser.set_theme(theme)
            for path in PATHS.values():
                browser.open(server.address + path)
                assert browser.accessibility_violations() == [], f"{path} {theme}"


def test_ten_thousand_nodes_are_few_rows_and_bytes(browser, errors):
    racks = documents.zones()
    page = {"nodes": [documents.node(f"node-{number:05}") for number in range(100)], "total": 10_000, "next_page_token": "node-00099"}
    with DocumentServer({"zones": lambda _: racks, "nodes": lambda _: page, "transfers": lambda _: documents.swarm(128)}) as server:
        sizes = {}
        for path in ("/", "/?zone=zone-3", "/nodes", "/transfers"):
            before = server.bytes_sent
            browser.open(server.address + path)
            sizes[path] = (browser.js("document.querySelectorAll('tr').length"), server.bytes_sent - before, browser.js("document.querySelectorAll('main *').length"))
            assert sizes[path][0] <= MAX_ROWS, sizes
            assert sizes[path][1] <= MAX_BYTES, sizes
        print("rows, bytes and elements of a fleet of 10,000 nodes:", sizes)
        browser.open(server.address)
        browser.until_text("10,000", "zone-7", "1,250", "1 late")


def test_swarm_of_many_nodes_is_drawn_as_racks(browser, errors):
    with served({"transfers": documents.swarm(128)}) as server:
        browser.open(f"{server.address}/transfers")
        assert "Swarm of 7 racks" in browser.text() or "racks" in browser.js("document.querySelector('svg.graph').getAttribute('aria-label')")
        assert browser.js("document.querySelectorAll('svg.graph .box').length") <= 40
    with served({"transfers": documents.swarm(6)}) as server:
        browser.open(f"{server.address}/transfers")
        assert browser.js("[...document.querySelectorAll('svg.graph .box text')].map((e) => e.textContent).sort()") == [
            *(f"node-00{number}" for number in range(6)),
            "seed",
        ]
        assert "954 MiB/s" in browser.js("[...document.querySelectorAll('svg.graph text.rate')].map((e) => e.textContent)")


def test_patch_changes_page_and_keeps_focus(browser, errors):
    with served(documents.every_view("n")) as server:
        browser.open(f"{server.address}/nodes")
        browser.js("document.querySelector('tbody a').focus()")
        before = server.bytes_sent
        server.send([{"op": "replace", "path": "/nodes/0/draining", "value": True}, {"op": "add", "path": "/nodes/-", "value": documents.node("second")}])
        browser.until_text("draining", "second")
        assert browser.js("document.activeElement.textContent") == "n"
        assert server.bytes_sent - before < 1500
        server.send([{"op": "remove", "path": "/nodes/1"}])
        browser.until(lambda: "second" not in browser.text(), "the node that left is still there")


def test_stale_page_says_since_when_and_recovers(browser):
    with served(documents.every_view("n")) as server:
        browser.open(f"{server.address}/nodes")
        server.go_away()
        browser.until(lambda: "Stale since" in browser.js("document.getElementById('stream').textContent"), "no word of the loss")
        assert "id-of-n"[:8] in browser.text()
        server.go_away(False)
        browser.until_live()
    browser.errors()  # the refused requests


def test_page_that_was_left_asks_no_more(browser):
    with served(documents.every_view("n")) as server:
        browser.open(f"{server.address}/nodes")
        browser.js("document.querySelector('nav a[href=\"/tasks\"]').click()")
        browser.until_text("failed attempts")
        for _ in range(2):
            server.go_away()
            browser.until(lambda: "Stale" in browser.js("document.getElementById('stream').textContent"), "no word of the loss")
            server.go_away(False)
            browser.until_live()
        assert set(server.asked[1:]) == {"tasks"}
    browser.errors()  # the refused requests


def test_address_keeps_filter_sort_and_page(browser, errors):
    asked = []
    fleet = documents.zones(1, 250, 4)
    with DocumentServer({"zones": lambda _: fleet, "nodes": lambda query: asked.append(query) or {"nodes": [], "total": 0}}) as server:
        browser.open(f"{server.address}/?page_sort=-rack&page=1")
        assert browser.js("document.querySelector('tbody tr a').textContent") == "rack-149"
        browser.js("document.querySelector('a[rel=next]').click()")
        browser.until(lambda: browser.js("location.search") == "?page_sort=-rack&page=2", "the page is not in the address")
        browser.open(f"{server.address}/nodes?zone=zone-0&state=late")
        browser.driver.find_element("css selector", "input[data-query=q]").send_keys("gpu-7")
        browser.until(lambda: browser.js("location.search") == "?zone=zone-0&state=late&q=gpu-7", "the filter is not in the address")
        browser.until(lambda: asked[-1].get("q") == "gpu-7", "the server was not asked")
        assert {"view": "nodes", "zone": "zone-0", "state": "late"}.items() <= asked[-1].items()
        assert browser.js("document.activeElement.dataset.query") == "q"


def test_keyboard_reaches_everything(browser, errors):
    with served(documents.every_view("n")) as server:
        browser.open(server.address)
        body = browser.driver.find_element("css selector", "body")
        reached = []
        for _ in range(12):
            browser.driver.switch_to.active_element.send_keys(Keys.TAB)
            reached.append(browser.js("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"))
            assert browser.js("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
        assert reached[:6] == ["Skip to the content", "TensorCast", "Cluster", "Artifacts and keys", "Transfers", "Tasks"]
        assert "Racks" in reached
        body.send_keys("4")
        browser.until_text("Tasks", "failed attempts")
        assert browser.js("location.pathname") == "/tasks"
        assert browser.js("document.activeElement.id") == "main"
        browser.driver.switch_to.active_element.send_keys("/")
        assert browser.js("document.activeElement.dataset.query") == "artifact"
        browser.js("document.activeElement.blur()")
        body.send_keys("?")
        assert browser.js("document.getElementById('help').open")
        body.send_keys(Keys.ESCAPE)
        assert not browser.js("document.getElementById('help').open")


def test_theme_is_remembered(browser, errors):
    with served(documents.every_view("n")) as server:
        browser.open(server.address)
        browser.set_theme("light")
        light = browser.js("getComputedStyle(document.documentElement).backgroundColor")
        browser.js("document.getElementById('theme').click()")
        browser.open(f"{server.address}/tasks")
        assert browser.js("document.documentElement.dataset.theme") == "dark"
        assert browser.js("getComputedStyle(document.documentElement).backgroundColor") != light


def test_units_read_as_people_do(browser, errors):
    with served(documents.every_view("n")) as server:
        browser.open(server.address)
        for call, text in {
            "bytes('0')": "0 B",
            "bytes(1023)": "1023 B",
            "bytes('42076672')": "40.1 MiB",
            "bytes(1<<30)": "1.00 GiB",
            "rate(1.5e9)": "1.40 GiB/s",
            "duration(0.0191)": "19.1 ms",
            "duration(6.918)": "6.92 s",
            "duration(65)": "1 m 05 s",
            "duration(90061)": "1 d 01 h",
            "seconds('1.5s')": 1.5,
            "percent(0.034)": "3.4 %",
            "plural(1, 'node')": "1 node",
            "place({kind: 'LOCATION_KIND_GPU', device: 3})": "gpu:3",
            "short('tc2:tnl5drahkp4u263mtf')": "tc2:tnl5drahkp",
        }.items():
            got = browser.driver.execute_async_script(f"import('/units.js').then((units) => arguments[0](units.{call}))")
            assert got == text, call
