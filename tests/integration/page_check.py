"""The live page in a headless Chromium against a cluster under load, on a desktop's and a phone's size.

    TANDEM_BUILD=... python3 tests/integration/page_check.py [--shots FOLDER]

Run by `./dev check page`, which installs Chromium. The browser is driven over its debugging pipe (file descriptors 3 and 4),
so no port and no driver is needed. Screenshots stay in FOLDER (default: build/check/page).
"""
import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

from harness import ROOT, SCRATCH, cluster, get, in_threads, request, run, wait_for

SHOTS = os.path.join(ROOT, "build", "check", "page")
if "--shots" in sys.argv:
    at = sys.argv.index("--shots")
    SHOTS = sys.argv[at + 1]
    del sys.argv[at:at + 2]
EVIL = "<b>d1"  # a node's name: shown as text, or the page is broken


class Browser:
    """Chromium with one page. Answers are matched by id; everything else is kept as an event."""

    def __init__(self):
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        assert path, "chromium is not installed: ./dev check page installs it"
        to_r, self.to = os.pipe()
        self.back, from_w = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_r, from_w)]

        def place():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)
        argv = [path, "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-extensions",
                "--disable-background-networking", "--no-first-run", "--no-proxy-server", "--hide-scrollbars",
                "--disable-dev-shm-usage", f"--user-data-dir={tempfile.mkdtemp(dir=SCRATCH)}"]
        if os.geteuid() == 0:
            argv.append("--no-sandbox")
        self.log = open(os.path.join(SCRATCH, "chromium.log"), "wb")
        self.proc = subprocess.Popen([*argv, "about:blank"], pass_fds=(3, 4), preexec_fn=place, stdin=subprocess.DEVNULL,
                                     stdout=self.log, stderr=self.log)
        for fd in (to_r, from_w, *ends):
            os.close(fd)
        self.last, self.events, self.answers, self.session = 0, [], {}, None
        self.wake = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self):
        rest = b""
        while True:
            got = os.read(self.back, 1 << 16)
            if not got:
                return
            *whole, rest = (rest + got).split(b"\0")
            with self.wake:
                for raw in whole:
                    m = json.loads(raw)
                    if "id" in m:
                        self.answers[m["id"]] = m
                    else:
                        self.events.append(m)
                self.wake.notify_all()

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.wake:
            done = self.wake.wait_for(lambda: self.last in self.answers, 30)
        assert done, f"no answer to {method}"
        answer = self.answers.pop(self.last)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r["exceptionDetails"]
        return r["result"].get("value")

    def until(self, expression, what, seconds=20):
        wait_for(lambda: self.js(expression), seconds, f"{what}: {expression}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {url!r} && document.readyState === 'complete'", "the page")

    def view(self, width, height, scale=1, mobile=False, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def shot(self, name, whole=True):
        os.makedirs(SHOTS, exist_ok=True)
        png = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(os.path.join(SHOTS, name + ".png"), "wb") as f:
            f.write(base64.b64decode(png))

    def key(self, name, code, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      text=text if kind == "keyDown" else "")

    def fill(self, selector, text):
        self.js(f"document.querySelector({selector!r}).focus(); document.querySelector({selector!r}).select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.key("Delete", 46)

    def complaints(self):
        """Exceptions, console errors and warnings, failed requests: what a user would find in the console."""
        bad = []
        for e in list(self.events):
            p = e.get("params", {})
            if e["method"] == "Runtime.exceptionThrown":
                bad.append(p["exceptionDetails"])
            elif e["method"] == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
                bad.append(p["args"])
            elif e["method"] == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
                bad.append(p["entry"])
            elif e["method"] == "Network.loadingFailed" and not p.get("canceled"):
                bad.append(p)
        return bad

    def close(self):
        self.proc.terminate()
        try:
            self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        self.log.close()


class Load:
    """Requests of mixed sizes until stopped."""

    def __init__(self, port):
        self.port, self.stop_it, self.n = port, threading.Event(), 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stop_it.is_set():
            self.n += 1
            in_threads([lambda i=i: request(self.port, "POST", "/v1/completions",
                                            {"prompt": "hello world " * (4 + 9 * i), "max_tokens": 6 + 6 * i, "ignore_eos": True},
                                            {"X-Request-ID": f"load{self.n}-{i}"}) for i in range(5)])

    def stop(self):
        self.stop_it.set()
        self.thread.join()


CLUSTER = cluster(prefill=2, decode=1, time_scale=1, node=["--fault", "step.pause=delay:us=4000"])
CLUSTER.node("decode", EVIL)
ADMIN = LOAD = BROWSER = None


def setup():
    global ADMIN, LOAD, BROWSER
    CLUSTER.nodes[EVIL].start()
    CLUSTER.start()
    CLUSTER.wait_ready(2, 2)
    ADMIN = CLUSTER.router.port("admin")
    LOAD = Load(CLUSTER.router.port("http"))
    BROWSER = Browser()


ROWS = "[...document.querySelectorAll('#requests button')].map(b => b.textContent)"


def test_the_page_shows_the_cluster_and_keeps_up_with_it():
    b = BROWSER
    b.view(1280, 900)
    b.open(f"http://127.0.0.1:{ADMIN}/")
    b.until("document.querySelector('#state').textContent === 'ready'", "the state")
    b.until("document.querySelectorAll('#nodes tr').length === 4", "four nodes")
    b.until("document.querySelectorAll('#transfers tr').length >= 2", "transfers")
    names = b.js("[...document.querySelectorAll('#nodes td:first-child')].map(e => e.textContent)")
    assert names == ["prefill-0", "prefill-1", EVIL, "decode-0"], names
    assert b.js("document.querySelectorAll('#nodes b').length") == 0
    tiles = "[...document.querySelectorAll('.tile')].map(e => e.innerText).join('\\n')"
    b.until(f"/[1-9]\\d* tokens.s/.test({tiles})", "tokens")
    for want in ("Time to first token", "Time per output token", "KV in use", "ms", "tokens/s", "running", "%", "B/s"):
        assert want in b.js(tiles), (want, b.js(tiles))
    seen = b.js(tiles), b.js("document.querySelector('#when').textContent"), b.js(ROWS)
    b.until(f"document.querySelector('#when').textContent !== {json.dumps(seen[1])}", "the time")
    b.until(f"{tiles} !== {json.dumps(seen[0])}", "the figures")
    b.until(f"JSON.stringify({ROWS}) !== {json.dumps(json.dumps(seen[2], separators=(',', ':')))}", "the requests")
    b.until("document.querySelectorAll('.spark .curve')[2].getAttribute('d').split('L').length > 5", "a curve")


def rows_become(fits, what):
    """What is typed reaches the page a moment later."""
    wait_for(lambda: fits(BROWSER.js(ROWS)), 10, f"the rows: {what}")


def test_requests_are_filtered():
    b = BROWSER
    b.until("parseInt(document.querySelector('#shown').textContent.split('fit, ')[1]) > 40", "enough requests", 60)
    b.js("document.querySelector('#pause').click()")
    choose = "const s = document.querySelector('#f-state'); s.value = '{}'; s.dispatchEvent(new Event('input'))"
    b.fill("#f-text", "-3")
    rows_become(lambda rows: rows and all("-3" in r for r in rows), "by id")
    b.fill("#f-text", EVIL)
    rows_become(lambda rows: any("-3" not in r for r in rows), "by node")
    assert b.js(f"[...document.querySelectorAll('#requests tr')].every(r => r.textContent.includes({EVIL!r}))")
    b.fill("#f-text", "nothing has this")
    b.until("document.querySelector('#requests').innerText === 'no request fits the filter'", "none")
    b.fill("#f-text", "")
    rows_become(lambda rows: len(rows) == 25, "all")
    b.js("{" + choose.format("failed") + "}")
    rows_become(lambda rows: rows == [], "none has failed")
    b.js("{" + choose.format("ok") + "}")
    rows_become(lambda rows: len(rows) == 25, "finished")
    b.fill("#f-slow", "100000")
    rows_become(lambda rows: rows == [], "none is so slow")
    b.fill("#f-slow", "0.5")
    rows_become(lambda rows: len(rows) == 25, "all are slower")
    b.fill("#f-slow", "")
    b.js("document.querySelector('#more').click()")
    rows_become(lambda rows: len(rows) > 25, "more")
    b.js("document.querySelector('#pause').click()")


def test_a_request_opens_by_keyboard_with_its_waterfall():
    b = BROWSER
    b.until(f"{ROWS}.some(r => r.endsWith('-4'))", "a long request")
    b.js("document.querySelector('#f-state').value = 'ok'; document.querySelector('#f-state').dispatchEvent(new Event('input'))")
    b.fill("#f-text", "-4")
    b.until(f"{ROWS}.length === 25 && {ROWS}.every(r => r.endsWith('-4'))", "as many long ones as are shown", 60)
    b.js("[...document.querySelectorAll('#requests button')].at(-1).focus()")
    name = b.js("document.activeElement.textContent")
    b.until(f"{ROWS}.length === 26 && {ROWS}[25] === {name!r}", "newer ones to be shown, and still the one that has the focus", 60)
    assert b.js("document.activeElement.textContent") == name
    b.key("Enter", 13, "\r")
    b.until("document.querySelector('#detail').open", "the dialog")
    assert b.js("document.querySelector('#d-title').textContent") == "Request " + name
    lanes = b.js("[...document.querySelectorAll('#d-wf .lane')].slice(1).map("
                 "e => [e.title, e.querySelector('.bar')?.getBoundingClientRect().width ?? 0])")
    assert len(lanes) >= 8, lanes
    drawn = [title for title, width in lanes if width > 0]  # a stage that took no microsecond has none
    assert all(any(title.startswith(want + " ") for title in drawn) for want in ("tokenise", "prefill", "decode")), lanes
    assert all((width > 0) == (not title.split(",")[0].endswith(" 0 us")) for title, width in lanes), lanes
    words = b.js("document.querySelector('#d-wf').innerText")
    for want in ("tokenise", "prefill queue", "transfer", "decode", "0 ms"):
        assert want in words, words
    text = b.js("document.querySelector('#d-tries').innerText")
    assert "chosen" in text and "among 4 pairs" in text and EVIL in text, text
    b.shot("desktop-request", whole=False)
    newest = b.js(ROWS + "[0]")
    b.until(f"{ROWS}[0] !== {newest!r}", "newer ones below the dialog", 60)
    b.key("Escape", 27)
    b.until("!document.querySelector('#detail').open", "the dialog to close")
    assert b.js("document.activeElement.textContent") == name
    b.js("document.activeElement.blur()")
    b.until(f"{ROWS}.length === 25", "the row to go with the focus")
    b.fill("#f-text", "")
    b.shot("desktop-light")
    b.view(1280, 900, dark=True)
    b.shot("desktop-dark")


def test_everything_that_can_be_used_has_a_name():
    tree = BROWSER.call("Accessibility.getFullAXTree")["nodes"]
    need = {"button", "textbox", "searchbox", "combobox", "spinbutton", "image", "img", "table", "dialog", "form"}
    seen = set()
    for n in tree:
        role = n.get("role", {}).get("value")
        if role in need and not n.get("ignored"):
            seen.add(role)
            assert n.get("name", {}).get("value"), n
    assert {"button", "searchbox", "combobox", "table"} <= seen, seen


def test_it_fits_a_phone():
    b = BROWSER
    b.view(390, 844, scale=2, mobile=True, dark=True)
    b.open(f"http://127.0.0.1:{ADMIN}/ui")
    b.until("document.querySelectorAll('#requests button').length > 5", "requests")
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert b.js(wide) <= 0, b.js(wide)
    small = b.js("[...document.querySelectorAll('.tile, td, th, button, label, .note')].filter(e => e.offsetParent && "
                 "parseFloat(getComputedStyle(e).fontSize) < 11).map(e => e.className + e.textContent)")
    assert not small, small
    b.shot("phone-dark", whole=False)
    b.js("document.querySelector('#h-nodes').scrollIntoView()")
    b.shot("phone-nodes", whole=False)
    b.js("document.querySelector('#h-requests').scrollIntoView()")
    b.shot("phone-requests", whole=False)
    b.js("document.querySelector('#requests button').click()")
    b.until("document.querySelector('#detail').open", "the dialog")
    assert b.js("document.querySelector('#detail').scrollWidth - document.querySelector('#detail').clientWidth") <= 0
    b.shot("phone-request", whole=False)
    b.view(390, 844, scale=2, mobile=True)
    b.key("Escape", 27)
    b.until("!document.querySelector('#detail').open", "the dialog to close")
    b.js("scrollTo(0, 0)")
    b.shot("phone-light", whole=False)


def test_a_drained_node_is_shown():
    b = BROWSER
    b.view(1280, 900)
    a = request(ADMIN, "POST", "/drain", {"node": "prefill-1", "why": "test"})
    assert a.status == 200, a.body
    b.until("/drain/.test(document.querySelectorAll('#nodes tr')[1].innerText)", "the drain")
    assert request(ADMIN, "POST", "/drain", {"node": "prefill-1", "undo": True}).status == 200
    b.until("/ready/.test(document.querySelectorAll('#nodes tr')[1].innerText)", "the node's return")


def test_nothing_complained_and_the_policy_holds():
    b = BROWSER
    assert b.complaints() == [], b.complaints()[:3]
    ours = f"http://127.0.0.1:{ADMIN}/"
    asked = [e["params"]["request"]["url"] for e in b.events if e["method"] == "Network.requestWillBeSent"]
    assert len(asked) > 10 and all(u.startswith((ours, "data:", "about:")) for u in asked), asked
    b.js("const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.head.append(s)")
    assert b.js("window.broken === undefined")
    assert "content-security-policy" in request(ADMIN, "GET", "/").headers


def test_a_router_that_is_gone_is_said_and_its_return_is_seen():
    b = BROWSER
    LOAD.stop()
    assert CLUSTER.router.stop() == 0
    b.until("/unreachable/.test(document.querySelector('#state').textContent)", "the router's absence")
    argv = CLUSTER.router.argv
    argv[argv.index("--admin-port") + 1] = str(ADMIN)
    CLUSTER.router.start()
    wait_for(lambda: get(ADMIN, "/livez")[0] == 200, 30, "the router")
    b.until("document.querySelector('#state').textContent === 'ready'", "the router's return", 30)


if __name__ == "__main__":
    try:
        setup()
        run(globals())
    finally:
        if BROWSER:
            BROWSER.close()
        if LOAD:
            LOAD.stop()
        CLUSTER.stop()
