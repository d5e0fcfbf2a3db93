"""A headless Chromium that a test drives by the DevTools protocol over a pipe (descriptors 3 and 4): no port, no library."""

import base64
import json
import os
import select
import shutil
import subprocess
import time


def program():
    """The path of Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    def __init__(self, profile, width=1240, height=1500):
        browser_reads, self._write = os.pipe()
        self._read, browser_writes = os.pipe()

        def place():
            # Away from 3 and 4 first: one of the ends may be one of them.
            ours = [os.dup(browser_reads), os.dup(browser_writes)]
            ours = [fd if fd > 4 else os.dup(fd) for fd in ours]
            os.dup2(ours[0], 3)
            os.dup2(ours[1], 4)

        self._process = subprocess.Popen(
            [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            + ["--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"]
            + [f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        self._rest = b""
        self._id = 0
        self.events = []  # so far
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method, patience=60.0, **params):
        """The result of a command; raises what the browser objects."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + patience
        while True:
            answer = self._next(end)
            if answer.get("id") == self._id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def _next(self, end):
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            self._rest += os.read(self._read, 1 << 16)
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def prefer(self, scheme):
        """Sets prefers-color-scheme: "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        png = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(png))
