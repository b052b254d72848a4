"""Chromium without a window, and what every test asks of a page in it."""

import importlib.util
import pathlib
import shutil
import tempfile

import pytest

WAIT_SECONDS = 30
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("chromium or chromium-driver is not installed; tools/setup.sh --tests installs both", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed; tools/setup.sh --python --tests installs it")

from selenium.common.exceptions import TimeoutException  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

# Without the cookie the server answers with the login page and status 401, which Chromium logs as an error.
LOGIN = "status of 401"


class Browser:
    """A context manager: at its end Chromium and its profile are gone."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory()
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new",
            "--no-sandbox",  # which a container's root cannot have
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--disable-breakpad",
            "--window-size=1400,900",
            "--hide-scrollbars",
            f"--user-data-dir={self.profile.name}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()
        self.profile.cleanup()

    def js(self, script, *arguments):
        return self.driver.execute_script(f"return {script}", *arguments)

    def open(self, address, live=True):
        self.driver.get(address)
        if live:
            self.until_live()

    def until(self, condition, what):
        """Waits until the condition, a function, gives something true, and returns that."""
        try:
            return WebDriverWait(self.driver, WAIT_SECONDS, poll_frequency=0.05).until(lambda _: condition())
        except TimeoutException:
            pytest.fail(f"{what}; the page: {self.text()[:3000]}; the console: {self.driver.get_log('browser')}")

    def until_live(self):
        self.until(lambda: self.js("document.getElementById('stream')?.textContent") == "Live", "the page is not live")

    def until_text(self, *texts):
        for text in texts:
            self.until(lambda: text in self.text(), f"the page does not show {text!r}")

    def text(self):
        """The text of the page, as it is read: names that are shortened with their titles."""
        return self.js(
            """(document.getElementById('main') ?? document.body).innerText + '\\n' +
            [...document.querySelectorAll('main [title], main title, main [aria-label]')].map(
              (e) => e.getAttribute('title') ?? e.getAttribute('aria-label') ?? e.textContent).join('\\n')"""
        )

    def errors(self):
        """What the console has that is not information; violations of the Content-Security-Policy are among that."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")]

    def accessibility_violations(self):
        """What axe finds, as texts. Colours are judged as they are shown, so both themes have to be asked."""
        source = axe_source()
        # By the driver, which a page's Content-Security-Policy does not hold.
        self.driver.execute_script(source)
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations))"
        )
        return [
            f"{violation['id']}: {violation['help']}: {[node['html'][:200] + ' ' + node['failureSummary'] for node in violation['nodes'][:3]]}"
            for violation in found
        ]

    def set_theme(self, theme):
        self.js("localStorage.setItem('theme', arguments[0])", theme)
        self.driver.refresh()
        self.until_live()


def axe_source():
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None:
        pytest.skip("axe is not installed; tools/setup.sh --python --tests installs it")
    return (pathlib.Path(package.submodule_search_locations[0]) / "axe.min.js").read_text()
