"""What the tests of the page share: small real runs, and a browser to look with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip


@dataclass
class Browser:
    driver: webdriver.Chrome

    def open(self, page: Path, before: str = "", width: int = 1280, dark: bool = False) -> None:
        """Wait until all is drawn; `before` is run before the page's own scripts."""
        cdp = self.driver.execute_cdp_cmd
        self.driver.get("about:blank")
        self.errors(), self.requests()  # of pages before
        cdp(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        cdp("Emulation.setEmulatedMedia", {"features": [scheme]})
        script = cdp("Page.addScriptToEvaluateOnNewDocument", {"source": before})["identifier"]
        try:
            self.driver.get(page.resolve().as_uri())
        finally:
            cdp("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})
        WebDriverWait(self.driver, 180).until(lambda _: self.run("return document.documentElement.dataset.ready"))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str = "body") -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def errors(self) -> list[str]:
        """What the console complained of since the page was opened, or since the last call."""
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """All that was asked for since then."""
        events = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        told = "the page is looked at with Chromium: install chromium and chromedriver"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(told)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options, Service(driver))
    yield Browser(chrome)
    chrome.quit()
