"""The chat page in a real browser: headless Chromium through its own driver."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from specllama.errors import EngineError
from specllama.options import GenerationParams
from specllama.serving import page
from tests.serving.conftest import Client, Serve
from tests.serving.fakes import Script

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no browser: apt-get install chromium chromium-driver",
)

WORDS = tuple((f"word{n} ", "model" if n % 3 else "") for n in range(400))


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_window_size(1100, 760)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of one server, as a person sees and uses it."""

    def __init__(self, browser: webdriver.Chrome, client: Client) -> None:
        self.browser = browser
        self._wait = WebDriverWait(browser, 15, poll_frequency=0.05)
        browser.get(client.url + "/")

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def say(self, text: str) -> None:
        self.find("#message").send_keys(text, Keys.ENTER)

    def wait_for(self, selector: str) -> WebElement:
        """An element that is to be seen."""
        return self._wait.until(
            lambda _: next((e for e in self.all(selector) if e.is_displayed()), None)
        )

    def wait_for_end(self) -> None:
        self.wait_for("#send")

    def complaints(self) -> list[str]:
        """What the browser's console says of scripts and of the content security policy."""
        return [
            entry["message"]
            for entry in self.browser.get_log("browser")
            if "Failed to load resource" not in entry["message"]
        ]


@needs_chromium
class TestPage:
    def test_send_and_stream(self, browser: webdriver.Chrome, serve: Serve) -> None:
        shown = Page(browser, serve(Script(tokens=WORDS[:60], token_s=0.02)))
        assert shown.wait_for("#models").text == "fake · draft fake-draft"
        shown.say("Hello")
        shown.wait_for(".assistant .drafted")
        assert shown.find(".user").text == "Hello"
        early = len(shown.find(".assistant").text)
        shown.wait_for_end()
        reply = shown.find(".assistant")
        assert early < len(reply.text)
        assert reply.text.split() == [text.strip() for text, _ in WORDS[:60]]
        drafted = " ".join(span.text for span in shown.all(".assistant .drafted")).split()
        assert drafted == [text.strip() for text, source in WORDS[:60] if source]
        assert shown.complaints() == []

    def test_figures(self, browser: webdriver.Chrome, serve: Serve) -> None:
        shown = Page(browser, serve(Script(tokens=WORDS[:30], token_s=0.02)))
        shown.say("Hello")
        shown.wait_for(".assistant .drafted")
        shown.wait_for_end()
        assert re.fullmatch(r"\d+\.\d", shown.find("#rate").text)
        assert shown.find("#per-round").text == "3.00"
        assert shown.find("#accepted").text == "95 % of 21"
        (depth,) = shown.all("#depths li")
        assert depth.text.split() == ["1", "95", "%"]

    def test_a_lossy_rule_is_told(self, browser: webdriver.Chrome, serve: Serve) -> None:
        client = serve(Script(inexact="Not exact: words may be others."))
        shown = Page(browser, client)
        shown.say("Hello")
        assert shown.wait_for("#inexact").text == "Not exact: words may be others."
        client.pool.script = Script()
        shown.wait_for_end()
        shown.say("Hello")
        shown.wait_for_end()
        assert not shown.find("#inexact").is_displayed()

    @pytest.mark.parametrize("by", ["button", "key"])
    def test_stop(self, browser: webdriver.Chrome, serve: Serve, by: str) -> None:
        client = serve(Script(tokens=WORDS, token_s=0.02))
        shown = Page(browser, client)
        shown.say("Hello")
        shown.wait_for(".assistant .drafted")
        if by == "button":
            shown.wait_for("#stop").click()
        else:
            shown.find("#message").send_keys(Keys.ESCAPE)
        shown.wait_for_end()
        client.pool.wait_until_idle()
        assert client.pool.tickets[0].cancelled.is_set()
        assert shown.find(".assistant").text.endswith("(stopped)")
        client.pool.script = Script()
        shown.say("Again")
        shown.wait_for_end()
        assert [role for role, _ in client.pool.prompts[-1]] == ["user", "assistant", "user"]
        assert client.pool.prompts[-1][1][1].startswith("word0 ")

    def test_errors_are_shown(self, browser: webdriver.Chrome, serve: Serve) -> None:
        client = serve(Script(tokens=(), error=EngineError("llama.cpp refused.")))
        shown = Page(browser, client)
        shown.say("Hello")
        assert shown.wait_for("#error").text == "llama.cpp refused."
        assert shown.all(".turn") == [], "what failed is not part of the conversation"
        assert shown.find("#message").get_property("value") == "Hello"
        client.pool.script = Script()
        shown.find("#message").send_keys(Keys.ENTER)
        shown.wait_for(".assistant")
        shown.wait_for_end()
        assert shown.find(".assistant").text == "Hello world"
        assert not shown.find("#error").is_displayed()

    def test_the_key_is_asked_for(self, browser: webdriver.Chrome, serve: Serve) -> None:
        shown = Page(browser, serve(api_key="secret"))
        key = shown.wait_for("#key")
        assert "API key" in shown.wait_for("#error").text
        assert browser.switch_to.active_element == key
        key.send_keys("secret")
        shown.say("Hello")
        shown.wait_for(".assistant .drafted")
        shown.wait_for_end()
        assert shown.find("#models").text.startswith("fake")

    @pytest.mark.parametrize("width", [360, 1000])
    def test_it_fits(self, browser: webdriver.Chrome, serve: Serve, width: int) -> None:
        size = {"width": width, "height": 640, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        shown = Page(browser, serve(Script(tokens=(("x" * 500, ""), *WORDS[:200]))))
        shown.find("summary").click()
        shown.say("Hello")
        shown.wait_for(".assistant .drafted")
        shown.wait_for_end()
        root = "return [document.documentElement.scrollWidth, innerWidth]"
        assert browser.execute_script(root) == [width, width]
        assert shown.find("#send").rect["x"] + shown.find("#send").rect["width"] <= width
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_settings_are_sent(self, browser: webdriver.Chrome, serve: Serve) -> None:
        client = serve()
        shown = Page(browser, client)
        shown.find("summary").click()
        assert shown.find("#n-max").get_attribute("placeholder") == str(
            GenerationParams().draft_max
        )
        for field, value in (("temperature", "0"), ("max-tokens", "2"), ("n-max", "0")):
            shown.find(f"#{field}").send_keys(value)
        shown.find("#system").send_keys("Be brief.")
        shown.say("Hello")
        shown.wait_for(".assistant .note")
        (params,) = client.pool.params
        assert (params.sampling.temperature, params.max_tokens, params.drafter) == (0, 2, "none")
        assert client.pool.prompts[0][0] == ("system", "Be brief.")


def test_nothing_comes_from_elsewhere(client: Client) -> None:
    """No address but the server's own in any file, and a policy that would refuse it."""
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for file in (Path(page.__file__).parent / "static").iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"https?://|//cdn|@import|\bon\w+=|innerHTML|eval\(", text), file.name
