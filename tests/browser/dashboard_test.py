"""The dashboard of a real cluster in Chromium: what each page shows is what the commands print with --json."""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse

import pytest
from browser import LOGIN, WAIT_SECONDS, Browser

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/tests"))
from cluster import BINARY, Cluster  # noqa: E402

HOSTILE = "<img src=x onerror=globalThis.injected=true>"
MODEL_SIZE = "40MiB"


class Hosts(Cluster):
    """Nodes that stand for hosts of their own, the first of which sends slowly; and a dashboard beside it."""

    def __init__(self, names):
        super().__init__(host_pool="256MiB")
        self._names = names  # of nodes "a", "b"
        self._places = {}  # zone and rack by node

    def _start(self, name, command, *settings):
        if command == "daemon":
            zone, rack = self._places.get(name, (f"zone-{name}", f"rack-{name}"))
            settings = [setting for setting in settings if not setting.startswith("daemon.name=")]
            settings += [
                f"daemon.name={self._names[name]}",
                f"daemon.host_id=host-{name}",
                "daemon.tcp_listen=127.0.0.1:0",
                "security.insecure=true",
                f"daemon.labels=[zone={zone}, rack={rack}]",
            ]
            settings += ["daemon.limits.send=8MiB"] if name == "a" else []
        super()._start(name, command, *settings)

    def add(self, name):
        self._start(
            name,
            "daemon",
            f"daemon.state_dir={self.folder}/{name}",
            f"daemon.global_store=unix:{self.folder}/store.sock",
            f"daemon.host_pool={self._host_pool}",
            f"daemon.device_runtime={self._device_runtime}",
        )
        self._await_socket(name, f"{name}/daemon.sock")

    def command(self, *arguments, node="a"):
        return [str(BINARY), *arguments, "--daemon", self.address(node)]

    def json(self, *arguments, node="a"):
        done = subprocess.run(self.command(*arguments, "--json", node=node), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def key(self, name):
        return self.json("key", "resolve", name)["key"]

    def environment(self):
        # The token's socket is in this folder, but for root.
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}

    def start_dashboard(self):
        """Starts it and returns the address that it prints."""
        log = open(self.folder / "dashboard.log", "w")
        dashboard = subprocess.Popen(
            self.command("dashboard", "--listen", "127.0.0.1:0"), stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment()
        )
        self.processes["dashboard"] = dashboard
        for line in dashboard.stdout:
            found = re.search(r"https?://\S+/login\?token=\S+", line)
            if found:
                return found.group()
        raise RuntimeError(f"the dashboard did not start: {(self.folder / 'dashboard.log').read_text()}")

    def new_token(self, site):
        command = [str(BINARY), "dashboard", "token", "--listen", urllib.parse.urlsplit(site).netloc, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=self.environment()).stdout)["token"]

    def put(self, key, seed, size=MODEL_SIZE):
        model = self.folder / "model.safetensors"
        made = [str(BINARY), "make-model", str(model), "--size", size, "--seed", str(seed)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        return self.json("put", str(model), "--key", key, "--keep", "2")

    def change(self, key):
        """Publishes the last model once more with a few other bytes, as a difference from the version before."""
        model = self.folder / "model.safetensors"
        with open(model, "r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(b"\x3f" * 10)
        return self.json("put", str(model), "--key", key, "--keep", "2", "--base", "auto", "--require-difference")


@pytest.fixture(scope="module")
def cluster():
    with Hosts({"a": "node-a", "b": HOSTILE}) as running:
        running.put("llama/prod", seed=1)
        running.put("llama/prod", seed=2)
        running.json("key", "bind", HOSTILE, running.key("llama/prod")["artifact_id"])
        yield running


@pytest.fixture(scope="module")
def address(cluster):
    return cluster.start_dashboard()


@pytest.fixture(scope="module")
def logged_in(address):
    with Browser() as browser:
        browser.open(address)
        browser.site = address.partition("/login")[0]
        yield browser


@pytest.fixture
def browser(logged_in):
    """Fails a test in which the console had an error."""
    logged_in.errors()
    yield logged_in
    assert logged_in.errors() == []
    assert logged_in.js("globalThis.injected") is None


def test_printed_address_logs_in_once(browser, address):
    assert "token" not in browser.js("location.href")
    browser.driver.get(address)  # the token is used up, and the cookie holds
    assert "This token is wrong" in browser.js("document.body.innerText")
    assert LOGIN in "".join(browser.errors())
    browser.open(browser.site)


def test_pasted_address_asks_for_token_and_comes_back(cluster, browser):
    pasted = f"{browser.site}/nodes?zone=zone-b"
    with Browser() as other:
        other.open(pasted, live=False)
        assert "tensorcast dashboard token" in other.js("document.body.innerText")
        assert other.accessibility_violations() == []
        other.driver.find_element("css selector", "input[name=token]").send_keys(cluster.new_token(browser.site) + "\n")
        other.until_live()
        assert other.js("location.href") == pasted
        other.until_text(HOSTILE, "zone=zone-b")
        assert all(LOGIN in error for error in other.errors())


def test_cluster_shows_what_status_says(cluster, browser):
    browser.open(browser.site)
    status = cluster.json("status")["cluster"]
    browser.until_text("zone-a", "rack-b", status["metadata_store"], status["store_epoch"])
    facts = dict(browser.js("[...document.querySelectorAll('.facts div')].map((e) => [e.children[0].textContent, e.children[1].textContent])"))
    assert facts["nodes"] == "2"
    assert facts["keys"] == status["keys"]
    assert facts["artifacts"] == status["artifacts"]


def test_nodes_show_what_node_ls_says(cluster, browser):
    browser.open(f"{browser.site}/nodes")
    for node in cluster.json("node", "ls")["nodes"]:
        browser.until_text(node["name"], node["grpc_address"], node["node_id"][:8], f"zone={node['labels']['zone']}")


def test_keys_and_artifacts_show_what_key_ls_and_ls_say(cluster, browser):
    browser.open(f"{browser.site}/keys")
    for key in cluster.json("key", "ls")["keys"]:
        browser.until_text(key["name"], key["artifact_id"])
    browser.open(f"{browser.site}/artifacts")
    for artifact in cluster.json("ls")["artifacts"]:
        browser.until_text(artifact["artifact_id"])
        browser.open(f"{browser.site}/artifact?artifact={artifact['artifact_id']}")
        browser.until_text("node-a", "40.1 MiB", artifact["origins"][0]["objects"][0]["uri"])
        browser.open(f"{browser.site}/artifacts")


def test_transfer_is_seen_live_and_then_as_timeline(cluster, browser):
    browser.open(f"{browser.site}/transfers")
    get = subprocess.Popen(cluster.command("get", "llama/prod", "--lane", "tcp", "--pin", node="b"), stdout=subprocess.DEVNULL)
    progress = "document.querySelector('section:nth-of-type(2) .bar span')?.textContent ?? ''"
    seen = browser.until(lambda: "MiB of 40.1 MiB" in browser.js(progress) and browser.js(progress), "the transfer is not seen")
    browser.until(lambda: browser.js(progress) != seen, "the page does not follow the transfer")
    rates = "[...document.querySelectorAll('svg.graph text.rate')].map((e) => e.textContent)"
    browser.until(lambda: any("MiB/s" in rate for rate in browser.js(rates)), "no edge has a rate")
    # The put of the fixture may have ended less than 10 s ago, and is then in the graph too.
    boxes = "[...document.querySelectorAll('svg.graph .box title')].map((e) => e.textContent).sort()"
    browser.until(lambda: browser.js(boxes) == [HOSTILE, "node-a"], "the graph does not show the transfer alone")
    assert get.wait(WAIT_SECONDS) == 0
    browser.until_text("No transfer runs.")
    browser.js("document.querySelector('section:last-of-type tbody a').click()")
    browser.until_live()

    explained = cluster.json("explain", "last", node="b")
    hop = explained["analysis"]["bounding_hop"]
    browser.open(f"{browser.site}/transfer?{urllib.parse.urlencode({'node': HOSTILE, 'transfer': explained['transfer']['transfer_id']})}")
    browser.until_text(f"Bounding hop: {hop['from']} to {hop['to']}", hop["why"], explained["analysis"]["bound"]["why"], "bounding hop", "node-a (tcp)")


def test_key_shows_how_far_nodes_are_behind(cluster, browser):
    cluster.json("get", "llama/prod", node="b")
    key = cluster.key("llama/prod")
    browser.open(f"{browser.site}/key?name=llama%2Fprod")
    browser.until_text(key["artifact_id"], key["earlier"][0]["artifact_id"], "node-a", HOSTILE, "current")


def test_key_shows_differences_that_are_kept(cluster, browser):
    cluster.put("policy", seed=3, size="4MiB")
    published = cluster.change("policy")["difference"]
    browser.open(f"{browser.site}/key?name=policy")
    browser.until_text("Differences that are kept", published["artifact_id"][:14])
    rows = browser.js("""[...document.querySelectorAll("table[aria-label='Differences that are kept'] tbody tr")].map((row) => [...row.cells].map((cell) => cell.innerText))""")
    assert [row[:2] for row in rows] == [["1", "2"]]


def test_node_shows_what_replica_ls_and_its_status_say(cluster, browser):
    cluster.json("get", "llama/prod", node="b")
    browser.open(f"{browser.site}/node?{urllib.parse.urlencode({'node': HOSTILE})}")
    for replica in cluster.json("replica", "ls", node="b")["replicas"]:
        browser.until_text(replica["replica_id"], replica["artifact_id"])
    status = cluster.json("status", node="b")["daemon"]
    browser.until_text(status["node"]["node_id"], status["global_store"], "256 MiB", "llama/prod", *(t["transfer_id"] for t in status["recent_transfers"]))
    browser.open(f"{browser.site}/node?node=node-a")
    browser.until_text("Pulls by other nodes", "send 8.00 MiB/s")


def test_tasks_show_what_replication_ls_says(cluster, browser):
    cluster.json("replicate", "llama/prod", "--to", f"{cluster.json('node', 'ls')['nodes'][0]['node_id']}:gpu:0")
    browser.open(f"{browser.site}/tasks")
    for task in cluster.json("replication", "ls")["tasks"]:
        browser.until_text(task["task_id"], task["node_name"], task["artifact_id"], "gpu:0", "done")


def test_every_page_of_real_cluster_is_accessible(cluster, browser):
    for page in ("/", "/nodes", "/node?node=node-a", "/keys", "/key?name=llama/prod", "/artifacts", "/transfers", "/tasks"):
        browser.open(browser.site + page)
        assert browser.accessibility_violations() == [], page
