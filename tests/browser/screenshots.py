#!/usr/bin/env python3
"""Takes the pictures of the dashboard in docs/pictures: a cluster of six nodes on this machine, in both themes.

screenshots.py FOLDER
"""

import pathlib
import subprocess
import sys
import urllib.parse

from browser import Browser
from dashboard_test import Hosts

NAMES = {name: f"node-{name}" for name in "abcdef"}
PLACES = {name: (f"zone-{number // 4}", f"rack-{number // 2}") for number, name in enumerate(NAMES)}


class Fleet(Hosts):
    """Six nodes in two zones."""

    def __enter__(self):
        self._places = PLACES
        super().__enter__()
        for name in "cdef":
            self.add(name)
        return self


def take(browser, folder, name, height):
    for theme in ("light", "dark"):
        browser.driver.set_window_size(1280, height)
        browser.set_theme(theme)
        browser.driver.save_screenshot(str(folder / f"dashboard-{name}-{theme}.png"))


def main():
    folder = pathlib.Path(sys.argv[1])
    with Fleet(NAMES) as fleet, Browser() as browser:
        for seed in (1, 2):
            fleet.put("llama/prod", seed)
        address = fleet.start_dashboard()
        browser.open(address)
        site = address.partition("/login")[0]
        gets = [subprocess.Popen(fleet.command("get", "llama/prod", node=name), stdout=subprocess.DEVNULL) for name in "bcdef"]
        if any(get.wait() for get in gets):
            sys.exit("a get failed")
        browser.open(site)
        browser.until_text("rack-2")
        take(browser, folder, "cluster", 480)
        last = fleet.json("explain", "last", node="f")["transfer"]["transfer_id"]
        browser.open(f"{site}/transfer?{urllib.parse.urlencode({'node': 'node-f', 'transfer': last})}")
        browser.until_text("Bounding hop")
        take(browser, folder, "transfer", 1010)


if __name__ == "__main__":
    main()
