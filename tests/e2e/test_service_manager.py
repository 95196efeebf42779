#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What systemd sees of mixd: readiness, status, watchdog, reload, drain, passed sockets, sandbox.

The service manager's side is played here: a datagram socket for NOTIFY_SOCKET, LISTEN_FDS.
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from harness import Pace, check_sanitizers

TOP = os.path.abspath(os.environ.get("srcdir", "."))
BUILD = os.path.abspath(os.environ.get("builddir", "."))
MIXD = os.path.join(BUILD, "mixd")
SLOW = 5 if os.environ.get("MIXD_TEST_SLOW") else 1


class Manager:
    """Starts mixd as a service manager would and collects what it is told."""

    def __init__(self, tmp, watchdog_us=0, listen=None, drain_s=60 * SLOW,
                 listen_key="127.0.0.1:0", model="", stderr=None, step_ms=None):
        self.tmp = tmp
        self.listen_key = listen_key
        self.messages = []
        self.streams = []
        self.cond = threading.Condition()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(os.path.join(tmp, "notify"))
        threading.Thread(target=self.listen, daemon=True).start()
        self.known_port = listen.getsockname()[1] if listen else None
        self.drain_s = drain_s
        self.config = os.path.join(tmp, "mixd.yaml")
        self.write_config(aliases=["first"], level="info", model=model)
        env = dict(os.environ, NOTIFY_SOCKET=os.path.join(tmp, "notify"))
        env["MIXD_MODULE_PATH"] = os.path.join(BUILD, "mixers", ".libs")
        if step_ms is not None:
            self.pace = Pace(step_ms)
            env.update(self.pace.env)
        command = '"$0" "$@"'
        if watchdog_us:
            env["WATCHDOG_USEC"] = str(watchdog_us)
            command = "WATCHDOG_PID=$$ exec " + command
        if listen:
            env["LISTEN_FDS"] = "1"
            command = "LISTEN_PID=$$ exec " + command
        if not command.startswith(("LISTEN", "WATCHDOG")):
            command = "exec " + command
        self.log = open(os.path.join(tmp, "log"), "w+")

        def pass_socket():
            if listen:
                os.dup2(listen.fileno(), 3)
                os.set_inheritable(3, True)

        self.process = subprocess.Popen(
            ["sh", "-c", command, MIXD, "--config", self.config],
            env=env, stderr=stderr or self.log, close_fds=False, preexec_fn=pass_socket)

    def write_config(self, aliases, level, faulty=False, http="", model=""):
        with open(self.config, "w") as f:
            f.write(f"http: {{ listen: '{self.listen_key}'{http} }}\n"
                    f"log: {{ level: {level} }}\n"
                    f"shutdown: {{ drain_s: {self.drain_s} }}\n"
                    f"models: [{{ name: demo, path: {TOP}/models/demo, aliases: {json.dumps(aliases)}{model} }}]\n"
                    + ("nonsense: 1\n" if faulty else ""))

    def listen(self):
        while True:
            try:
                data = self.sock.recv(65536).decode()
            except OSError:
                return
            with self.cond:
                self.messages += [(time.monotonic(), line) for line in data.split("\n")]
                self.cond.notify_all()

    def lines(self):
        with self.cond:
            return [line for _, line in self.messages]

    def wait_for(self, line, times=1, seconds=60):
        deadline = time.monotonic() + seconds * SLOW
        with self.cond:
            while True:
                seen = [text for _, text in self.messages]
                if seen.count(line) >= times or self.process.poll() is not None \
                        or time.monotonic() > deadline:
                    break
                self.cond.wait(0.1)
        if seen.count(line) < times:
            raise AssertionError(f"no {line!r} (x{times}) in {seen}\n{self.logged()}")

    def logged(self):
        self.log.flush()
        with open(self.log.name) as f:
            return f.read()

    @property
    def port(self):
        """Where it listens: the passed socket, or what the log says once it is ready."""
        if not self.known_port:
            found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.logged())
            assert found, self.logged()
            self.known_port = int(found[1])
        return self.known_port

    def request(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        r = c.getresponse()
        answer = r.status, r.read()
        c.close()
        return answer

    def stream(self, max_tokens):
        """An open stream that has sent its first event."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        c.request("POST", "/v1/completions",
                  json.dumps(dict(model="demo", prompt="Once upon a time", max_tokens=max_tokens,
                                  stream=True, ignore_eos=True)), {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200, r.read()
        first = b"\n"
        while first == b"\n" or first.startswith(b":"):  # a slow server says that it is alive
            first = r.readline()
        assert first.startswith(b"data: {"), first
        self.streams.append((c, r))
        return r

    def end(self):
        if self.log.closed:
            return
        for c, r in self.streams:
            r.close()
            c.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(60 * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        log = self.logged()
        self.sock.close()
        self.log.close()
        check_sanitizers(log)
        assert code in (0, -signal.SIGKILL), f"mixd ended with {code}\n{log}"


class ServiceManager(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.mkdtemp(prefix="mixd-")
        self.addCleanup(shutil.rmtree, self.tmp)

    def start(self, **kw):
        m = Manager(self.tmp, **kw)
        self.addCleanup(m.end)
        return m

    def test_ready_after_load_then_watchdog(self):
        m = self.start(watchdog_us=3_000_000)  # fed four times as often
        m.wait_for("READY=1")
        self.assertEqual(m.request("GET", "/readyz")[0], 200)
        self.assertTrue(any(line.startswith("STATUS=") for line in m.lines()))
        m.wait_for("WATCHDOG=1", times=4)
        with m.cond:
            fed = [t for t, line in m.messages if line == "WATCHDOG=1"]
        self.assertLess(max(b - a for a, b in zip(fed, fed[1:])), 3)

    def test_reload_takes_aliases_and_log_level(self):
        m = self.start()
        m.wait_for("READY=1")
        ask = dict(model="second", prompt="x", max_tokens=1)
        self.assertEqual(m.request("POST", "/v1/completions", ask)[0], 404)
        m.write_config(aliases=["second"], level="warning")
        m.process.send_signal(signal.SIGHUP)
        m.wait_for("READY=1", times=2)
        lines = m.lines()
        at = lines.index("RELOADING=1")
        self.assertTrue(any(line.startswith("MONOTONIC_USEC=") for line in lines[at:at + 2]))
        self.assertEqual(m.request("POST", "/v1/completions", ask)[0], 200)
        self.assertEqual(m.request("POST", "/v1/completions", dict(ask, model="first"))[0], 404)
        # a faulty file changes nothing, is reported, and readiness stays
        m.write_config(aliases=["third"], level="info", faulty=True)
        m.process.send_signal(signal.SIGHUP)
        m.wait_for("READY=1", times=3)
        self.assertIn("nonsense", m.logged())
        self.assertEqual(m.request("POST", "/v1/completions", ask)[0], 200)

    def test_reload_names_the_keys_that_wait_for_a_restart(self):
        m = self.start()
        m.wait_for("READY=1")
        ask = dict(model="second", prompt="x", max_tokens=1)
        m.write_config(aliases=["second"], level="info", http=", threads: 3", model=", memory: 1GiB")
        m.process.send_signal(signal.SIGHUP)
        m.wait_for("READY=1", times=2)
        self.assertEqual(m.request("POST", "/v1/completions", ask)[0], 200)
        line = next(line for line in m.logged().splitlines() if "reloaded" in line)
        self.assertRegex(line, r" warning mixd: reloaded .*mixd\.yaml; applied: models\[demo\]\.aliases; "
                               r"models replaced: demo; for a restart wait: http\.threads$")
        # the comparison is with what runs: an edit that is taken back waits for nothing
        m.write_config(aliases=["second"], level="info")
        m.process.send_signal(signal.SIGHUP)
        m.wait_for("READY=1", times=3)
        lines = [line for line in m.logged().splitlines() if "reloaded" in line]
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[1], r" info +mixd: reloaded .*mixd\.yaml; models replaced: demo$")

    def test_passed_socket_and_another_address(self):
        for port, differs in (("1", True), ("0", False)):
            with self.subTest(port=port), socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                s.listen(16)
                tmp = tempfile.mkdtemp(dir=self.tmp)
                m = Manager(tmp, listen=s, listen_key=f"127.0.0.1:{port}")
                self.addCleanup(m.end)
                m.wait_for("READY=1")
                warnings = [line for line in m.logged().splitlines() if " warning http: http.listen" in line]
                self.assertEqual(len(warnings), differs, m.logged())
                if differs:
                    self.assertIn("http.listen (127.0.0.1:1) has no effect", warnings[0])
                    self.assertIn(f"passed 127.0.0.1:{m.port};", warnings[0])
                m.end()

    def test_drain_ends_streams_properly(self):
        m = self.start()
        m.wait_for("READY=1")
        r = m.stream(max_tokens=400 // SLOW)
        m.process.send_signal(signal.SIGTERM)
        m.wait_for("STOPPING=1")
        rest = r.read().decode()
        self.assertIn('"finish_reason":"length"', rest.replace(" ", ""))
        self.assertTrue(rest.endswith("data: [DONE]\n\n"), rest[-200:])
        self.assertEqual(m.process.wait(60 * SLOW), 0)
        with self.assertRaises(OSError):
            m.request("GET", "/health")

    def test_second_signal_ends_at_once_with_an_error_event(self):
        m = self.start(step_ms=20)
        m.wait_for("READY=1")
        streams = [m.stream(max_tokens=2000) for _ in range(8)]
        m.process.send_signal(signal.SIGTERM)
        m.wait_for("STOPPING=1")
        began = time.monotonic()
        m.process.send_signal(signal.SIGTERM)
        ends = [r.read().decode() for r in streams]
        m.process.wait(60 * SLOW)
        self.assertLess(time.monotonic() - began, 20 * SLOW)  # not when the drain would end
        for text in ends:
            self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-300:])
            self.assertIn('"error"', text)

    def test_deadline_ends_what_is_left(self):
        m = self.start(drain_s=0.3)
        m.wait_for("READY=1")
        streams = [m.stream(max_tokens=2000) for _ in range(8)]
        m.process.send_signal(signal.SIGTERM)
        for r in streams:
            text = r.read().decode()
            self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-300:])
        self.assertEqual(m.process.wait(60 * SLOW), 0)

    def test_passed_socket(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen(16)
            m = self.start(listen=s)
            # the socket is the manager's: a request sent before mixd is up waits, and is answered
            status, body = m.request("GET", "/version")
            self.assertEqual(status, 200)
            self.assertIn(b"version", body)
            m.wait_for("READY=1")
            self.assertEqual(m.request("GET", "/readyz")[0], 200)

    def test_refused_model_ends_with_one_line(self):
        m = self.start()
        m.process.kill()
        m.end()
        os.unlink(os.path.join(self.tmp, "notify"))
        broken = os.path.join(self.tmp, "broken")
        shutil.copytree(os.path.join(TOP, "models/demo"), broken, copy_function=shutil.copyfile)
        with open(os.path.join(broken, "config.json")) as f:
            config = json.load(f)
        config["hidden_act"] = "relu6"
        with open(os.path.join(broken, "config.json"), "w") as f:
            json.dump(config, f)
        path = os.path.join(self.tmp, "broken.yaml")
        with open(path, "w") as f:
            f.write(f"http: {{ listen: '127.0.0.1:0' }}\nmodels: [{{ name: b, path: {broken} }}]\n")
        env = dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs"))
        for args in ([], ["--check"]):
            r = subprocess.run([MIXD, "--config", path, *args], env=env, capture_output=True,
                               text=True, timeout=60 * SLOW)
            self.assertEqual(r.returncode, 1)
            errors = [line for line in r.stderr.splitlines() if " error " in line]
            self.assertEqual(len(errors), 1, r.stderr)
            self.assertIn("hidden_act", errors[0])

    def test_progress_of_loading(self):
        """As status text, and on a terminal as a bar in one line that the log takes the place of."""
        text = r"\d+ %, \d+\.\d of \d+\.\d GB(, \d+\.\d\d GB/s, \d+ s left)?"
        leader, follower = os.openpty()
        many = "".join(f" }}, {{ name: demo{i}, path: {TOP}/models/demo, memory: 100MiB" for i in range(5))
        m = Manager(self.tmp, model=many, stderr=follower, step_ms=100)  # takes some ticks
        self.addCleanup(m.end)
        os.close(follower)
        shown = b""
        while b"mixd: ready" not in shown:
            shown += os.read(leader, 65536)
        m.wait_for("READY=1")
        states = [line for line in m.lines() if line.startswith("STATUS=loading")]
        self.assertGreater(len(states), 0)
        for line in states:
            self.assertRegex(line, rf"^STATUS=loading models: {text}$")
        self.assertTrue(len(states) < 9 or "GB/s" in states[-1], states)
        shown = shown.decode()
        bars = re.findall(rf"\r\x1b\[Kloading (\[#*\.*\]) {text}(?=\r)", shown)
        self.assertGreater(len(bars), 0)
        self.assertTrue(all(len(bar) == 22 for bar, _ in bars), bars)
        # no line of the log stands behind a bar
        for line in shown.splitlines(keepends=True):
            if line.endswith("\n"):
                self.assertNotIn("loading [", line.split("\r\x1b[K")[-1])
        threading.Thread(target=self.read_all, args=(leader,), daemon=True).start()
        m.end()

    @staticmethod
    def read_all(fd):
        try:
            while os.read(fd, 65536):
                pass
        except OSError:
            os.close(fd)

    def exposure(self, gpu):
        """What systemd-analyze says of the unit, with or without the drop-in for GPU hosts."""
        folder = tempfile.mkdtemp(dir=self.tmp)
        path = os.path.join(folder, "mixd.service")
        with open(os.path.join(TOP, "systemd/mixd.service.in")) as f:
            unit = f.read().replace("@sbindir@/mixd", "/bin/true").replace("@sysconfdir@", "/etc")
        with open(path, "w") as f:
            f.write(unit)
        if gpu:
            os.mkdir(path + ".d")
            shutil.copyfile(os.path.join(TOP, "systemd/mixd-gpu.conf"), os.path.join(path + ".d", "gpu.conf"))
        r = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=20", path],
                           capture_output=True, text=True)
        if "nrecognized option" in r.stderr:
            self.skipTest("systemd-analyze is too old")
        self.assertEqual(r.returncode, 0, r.stdout[-300:] + r.stderr)
        self.assertNotIn("ignoring", r.stderr)
        self.assertEqual("char-nvidia*:rw" in r.stdout, gpu)
        return re.search(r"Overall exposure level for mixd.service: ([0-9.]+)", r.stdout)[1]

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not here")
    def test_sandbox_rates_ok(self):
        """Exposure below 2.0 ("OK" is below 5.0), and the manual page tells it as it is."""
        figures = self.exposure(gpu=False), self.exposure(gpu=True)
        version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True).stdout
        with open(os.path.join(TOP, "conf/mixd.8")) as f:
            told = re.search(r"exposure of ([0-9.]+) for the\nunit and ([0-9.]+) with the drop-in\n\.Pq systemd 252", f.read())
        if "systemd 252" in version:
            self.assertEqual(figures, told.groups())


def built_with_systemd():
    with open(os.path.join(BUILD, "config.h")) as f:
        return "#define HAVE_SYSTEMD 1" in f.read()


if __name__ == "__main__":
    if not os.path.exists(MIXD) or not built_with_systemd():
        sys.exit(77)
    unittest.main(verbosity=2)
