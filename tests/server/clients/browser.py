"""Headless Chromium, driven over DevTools' pipe: JSON messages that end in a NUL, on its file descriptors 3 and 4."""

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")


def program():
    """None: there is no Chromium."""
    return next((p for p in map(shutil.which, PROGRAMS) if p), None)


class Browser:
    """One page. Everything that fails in it, a script, a file, the policy for content, is in `complaints`."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="lathe-browser-")
        to_read, self.to = os.pipe()
        self.from_, to_write = os.pipe()

        def pipes():
            # Past 3 and 4 first, since they may be what dup2 overwrites.
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                   "--no-first-run", "--disable-extensions", "--disable-component-update", "--disable-sync",
                   "--disable-background-networking", "--window-size=1100,800", f"--user-data-dir={self.folder}"]
        self.process = subprocess.Popen(
            [program(), *options, "about:blank"], preexec_fn=pipes, close_fds=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.ids, self.answers, self.complaints = itertools.count(1), {}, []
        self.news = threading.Condition()
        self.session = None
        threading.Thread(target=self.read, daemon=True).start()
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def read(self):
        rest = b""
        while piece := os.read(self.from_, 1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            for message in map(json.loads, whole):
                with self.news:
                    if "id" in message:
                        self.answers[message["id"]] = message
                    elif message["method"] == "Runtime.exceptionThrown":
                        self.complaints.append(str(message["params"]["exceptionDetails"])[:500])
                    elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                        entry = message["params"]["entry"]
                        self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
                    self.news.notify_all()
        with self.news:
            self.answers[0] = {}
            self.news.notify_all()

    def call(self, method, **parameters):
        n = next(self.ids)
        message = {"id": n, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.news:
            if not self.news.wait_for(lambda: n in self.answers or 0 in self.answers, 120) or n not in self.answers:
                raise AssertionError(f"no answer to {method}")
            answer = self.answers.pop(n)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def reload(self):
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.until("!window.isOld && document.readyState === 'complete'")

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{expression}: {r['exceptionDetails']['exception'].get('description')}")
        return r["result"].get("value")

    def until(self, condition, seconds=60):
        """Waits until a JavaScript condition holds."""
        end = time.monotonic() + seconds
        while True:
            try:
                if self.evaluate(condition):
                    return
            except AssertionError:
                pass  # the page is between two documents
            if time.monotonic() > end:
                shown = self.evaluate("document.body.innerText")
                raise AssertionError(f"{condition} does not come true; {self.complaints}; the page: {shown[-1000:]}")
            time.sleep(0.02)

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key, code, modifiers=0):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def names(self):
        """(role, name) of everything that a screen reader is told."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]]

    def picture(self, path):
        import base64

        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        shutil.rmtree(self.folder, ignore_errors=True)
