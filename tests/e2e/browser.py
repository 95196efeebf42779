# SPDX-License-Identifier: Apache-2.0
"""What tests of the page share: a browser (Debian's chromium by chromium-driver and selenium), and a proxy
that sees what the browser asks and may answer in the server's place."""
import http.client
import http.server
import json
import shutil
import threading
import time

from harness import PATIENCE, Skip

try:
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys as Key
    from selenium.webdriver.support.ui import Select
except ImportError:
    webdriver = ActionChains = Key = None


def find_browser():
    """The paths of the browser and of its driver."""
    paths = [shutil.which("chromium"), shutil.which("chromedriver")]
    if not webdriver or None in paths:
        raise Skip("there is no chromium, no chromium-driver, or no selenium")
    return paths


class Browser:
    """One for all tests of a file, started by the first."""
    running = None

    @classmethod
    def get(cls):
        if not cls.running:
            cls.running = cls()
        return cls.running

    @classmethod
    def end(cls):
        if cls.running:
            cls.running.driver.quit()
            cls.running = None

    def __init__(self):
        binary, driver = find_browser()
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for a in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                  "--window-size=1280,900", "--lang=en", "--disable-background-networking", "--no-first-run",
                  # nothing but this host has an address
                  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
            options.add_argument(a)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        self.driver.set_script_timeout(PATIENCE)

    def open(self, origin, view="talk", width=1280, height=900, dark=False, wait="ready"):
        """Opens the page afresh, and waits until it says that its server is so."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.look_as(width, height, dark)
        self.origin = origin
        self.driver.get(f"{origin}/#/{view}")
        if wait:
            self.until(lambda: self.text("#state") == wait, f"state {wait}")

    def look_as(self, width, height, dark):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if condition():
                    return
            except Exception as e: # an element that was just replaced
                if type(e).__name__ != "StaleElementReferenceException":
                    raise
            assert time.monotonic() < end, f"no {what}: {self.text('body')[:2000]}"
            time.sleep(0.02)

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css):
        found = self.all(css)
        assert found, f"no {css}"
        return found[0]

    def text(self, css):
        return self.one(css).text

    def shown(self, css):
        return any(e.is_displayed() for e in self.all(css))

    def click(self, css):
        self.one(css).click()

    def fill(self, css, value):
        self.one(css).clear()
        self.one(css).send_keys(value)

    def choose(self, css, value):
        Select(self.one(css)).select_by_value(value)

    def hover(self, element):
        ActionChains(self.driver).move_to_element(element).perform()

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def script(self, text, *args):
        return self.driver.execute_script(text, *args)

    def module(self, name, expression, *args):
        """The value of an expression in which m is a module of the page, and a the arguments."""
        out = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1], a = [...arguments].slice(1, -1);"
            f"import('/page/' + arguments[0]).then(m => done({{value: {expression}}}), e => done({{error: String(e)}}))", name, *args)
        assert "error" not in out, out
        return out["value"]

    def check(self, but=()):
        """Nothing is in the console but lines that contain one of `but`, and no request left the host.
        Returns the addresses that were asked for."""
        lines = [e for e in self.driver.get_log("browser") if not any(b in e["message"] for b in but)]
        assert not lines, lines
        asked = []
        for entry in self.driver.get_log("performance"):
            m = json.loads(entry["message"])["message"]
            if m["method"] == "Network.requestWillBeSent":
                asked.append(m["params"]["request"]["url"])
        away = [u for u in asked if not u.startswith((self.origin + "/", "about:", "data:,"))]
        assert not away, away
        return asked


class Proxy:
    """Hands requests on to a server. seen: (method, path, headers, body) of each. fake: path -> what
    answers instead, f(body) -> (status, type, pieces of the answer) or None."""

    def __init__(self, server):
        proxy = self
        self.server, self.seen, self.fake = server, [], {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_one(self):
                n = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(n)
                proxy.seen.append((self.command, self.path, dict(self.headers), json.loads(body) if body else None))
                f = proxy.fake.get(self.path)
                answer = f(proxy.seen[-1][3]) if f else None
                if answer:
                    self.begin(answer[0], {"Content-Type": answer[1]})
                    for piece in answer[2]:
                        self.piece(piece.encode())
                else:
                    c = http.client.HTTPConnection(proxy.server.host, proxy.server.port, timeout=PATIENCE)
                    c.request(self.command, self.path, body or None, {k: v for k, v in self.headers.items() if k != "Host"})
                    r = c.getresponse()
                    self.begin(r.status, {k: v for k, v in r.headers.items()
                                          if k not in ("Connection", "Transfer-Encoding", "Content-Length")})
                    while data := r.read1(65536):
                        self.piece(data)
                    c.close()
                self.close_connection = True

            do_GET = do_POST = handle_one

            def begin(self, status, headers):
                self.send_response_only(status)
                for k, v in headers.items():
                    self.send_header(k, v)
                self.send_header("Connection", "close")
                self.end_headers()

            def piece(self, data):
                self.wfile.write(data)
                self.wfile.flush()

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass # a browser that left

        self.http = Server(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def bodies(self, path):
        return [body for _, p, _, body in self.seen if p == path]

    def paths(self):
        return [p for _, p, _, _ in self.seen]

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def events(*objects, done=True):
    """A stream of these events."""
    return (200, "text/event-stream", [f"data: {json.dumps(o)}\n\n" for o in objects] + ["data: [DONE]\n\n"] * done)


def chat(*texts):
    """A streamed answer that says these texts."""
    return events(*({"choices": [{"index": 0, "delta": {"content": t}, "finish_reason": None}]} for t in texts),
                  {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
