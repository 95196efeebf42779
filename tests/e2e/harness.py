# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: a server on a free port, requests, and a runner.

By default the server is bench/daemon/frontend_server: the real REST front end, tokenizer and scheduler on
an engine that computes nothing, so that a test is quick and can choose how long a step takes. A
test that means the whole daemon asks for Mixd.

A test file defines functions named test_*; main() runs them, each with a fresh server from the
keyword arguments of its @server(...) decorator. Exit status 77 means skipped.
"""
import http.client
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback


def run_in_test_python():
    """Starts this program again in the interpreter that MIXD_TEST_PYTHON names, which has the packages that
    tests import; without it they would skip what needs one, each time and unseen."""
    other = os.environ.get("MIXD_TEST_PYTHON")
    again = os.environ.pop("MIXD_TEST_PYTHON_RUNS", None)
    if other and not again and os.path.abspath(other) != sys.executable and os.path.exists(sys.argv[0]):
        os.execvpe(other, [other, *sys.argv], dict(os.environ, MIXD_TEST_PYTHON_RUNS="1"))


run_in_test_python()

SRC = os.path.abspath(os.environ.get("srcdir", os.path.join(os.path.dirname(__file__), "../..")))
BUILD = os.path.abspath(os.environ.get("builddir", os.path.join(SRC, "build")))
DEMO = os.path.join(SRC, "models/demo")
ATTENTION = os.path.join(SRC, "models/demo-attention")
DEMO_DRAFT = os.path.join(SRC, "models/demo-draft")
# How many times slower than usual the server is: sanitizers.
SLOW = 5 if os.environ.get("MIXD_TEST_SLOW") else 1
# Seconds; how long anything may take before it counts as hanging, on a machine that does much else.
PATIENCE = 120 * SLOW


class Skip(Exception):
    """The test cannot run here."""


def sanitizer_report(log):
    """What a sanitizer wrote into a server's log, and the rest of it; empty if none did."""
    found = re.search(r".*((Address|Leak|Thread|UndefinedBehavior)Sanitizer|: runtime error: )", log)
    return log[found.start():] if found else ""


def check_sanitizers(log):
    """Fails if a sanitizer wrote into a server's log."""
    assert not sanitizer_report(log), log


class Thread(threading.Thread):
    """Started at once; join() returns what the function returned, or raises what it raised."""

    def __init__(self, function, *args, **kw):
        super().__init__(daemon=True)
        self.call, self.result, self.error = (function, args, kw), None, None
        self.start()

    def run(self):
        function, args, kw = self.call
        try:
            self.result = function(*args, **kw)
        except BaseException as e:
            self.error = e

    def join(self):
        super().join()
        if self.error:
            raise self.error
        return self.result


def make_pair(folder, name, host, issuer=None):
    """NAME.pem and NAME.key: a certificate of the issuer, or one that signs itself."""
    signer = ["-CA", issuer + ".pem", "-CAkey", issuer + ".key"] if issuer else []
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                    "-nodes", "-keyout", name + ".key", "-out", name + ".pem", "-days", "2",
                    "-subj", "/CN=" + host, "-addext", f"subjectAltName=DNS:{host},IP:127.0.0.1", *signer],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def free_ports(n):
    """n ports in a row that nobody has, from below those that the kernel gives to others meanwhile; any if
    these begin too low."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        end = int(f.read().split()[0])
    for _ in range(1000):
        first = random.randrange(10000, (end if end > 12000 else 65536) - n)
        sockets = [socket.socket() for _ in range(n)]
        try:
            for i, s in enumerate(sockets):
                s.bind(("", first + i))
            return list(range(first, first + n))
        except OSError:
            pass
        finally:
            for s in sockets:
                s.close()
    raise AssertionError(f"no {n} ports in a row")


class Process:
    """A server process that has said where it listens."""
    tls = None  # the ssl.SSLContext of clients; None: plain HTTP

    def __init__(self, command, env=None):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log,
                                        env=dict(os.environ, **(env or {})))
        self.host, self.port = "127.0.0.1", None

    def wait_line(self, prefix, timeout=PATIENCE):
        """The rest of the first line on stdout that begins with prefix."""
        end = time.monotonic() + timeout
        data = b""
        fd = self.process.stdout.fileno()
        while time.monotonic() < end:
            if select.select([fd], [], [], 0.1)[0]:
                more = os.read(fd, 4096)
                if not more:
                    break
                data += more
                for line in data.decode().splitlines():
                    if line.startswith(prefix):
                        return line[len(prefix):]
        raise AssertionError(f"no line {prefix!r} from the server: {data!r} {self.errors()}")

    def errors(self):
        """What the server has written on stderr. The server shares the file's position, so that it stays
        as it is: a seek would have the server's next line overwrite the first."""
        data = b""
        while more := os.pread(self.log.fileno(), 1 << 20, len(data)):
            data += more
        return data.decode(errors="replace")

    def stop(self, sig=signal.SIGTERM):
        """Ends the server and checks that it ended well."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            rc = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server does not end: {self.errors()}")
        self.process.stdout.close()
        errors = self.errors()
        self.log.close()
        check_sanitizers(errors)
        assert rc == 0, f"the server ended with {rc}: {errors}"
        for line in errors.splitlines():
            assert "<3>" not in line and " error " not in line.lower(), line

    def wait_ready(self):
        end = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, f"the server has ended: {self.errors()}"
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                pass
            assert time.monotonic() < end, f"not ready: {self.errors()}"
            time.sleep(0.01)

    # ---- requests ----

    def connect(self, timeout=PATIENCE):
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, body); body is parsed if it is JSON. Objects are sent as JSON."""
        c = connection or self.connect()
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        c.request(method, path, body, headers)
        r = c.getresponse()
        data = r.read()
        if not connection:
            c.close()
        if r.headers.get("Content-Type", "").startswith("application/json") and data:
            data = json.loads(data)
        return r.status, r.headers, data

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def complete(self, path="/v1/completions", **fields):
        """The answer to a request that must succeed."""
        status, _, body = self.post(path, fields)
        assert status == 200, (status, body)
        return body

    def text(self, **fields):
        return self.complete(**fields)["choices"][0]["text"]

    def stream(self, path="/v1/completions", **fields):
        return Stream(self, path, fields)

    def metric(self, name):
        """The value of a sample without labels, or the sum over its labels."""
        _, _, text = self.get("/metrics")
        total = None
        for line in text.decode().splitlines():
            if line.startswith("#") or not line.split("{")[0].split(" ")[0] == name:
                continue
            total = (total or 0) + float(line.rsplit(" ", 1)[1])
        return total

    def wait_for(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"no {what}: {self.errors()}"
            time.sleep(0.01)

    def wait_metric(self, name, value):
        end = time.monotonic() + PATIENCE
        while (now := self.metric(name)) != value:
            assert time.monotonic() < end, f"{name} is {now}, not {value}"
            time.sleep(0.01)


class Frontend(Process):
    """bench/daemon/frontend_server; options as keyword arguments: step_ns=1000 is --step-ns 1000.
    wrap is a program that starts it, with its arguments."""

    def __init__(self, wait=True, wrap=(), **options):
        options.setdefault("tokenizer", DEMO)
        command = [*wrap, os.path.join(BUILD, "bench/daemon/frontend_server")]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        super().__init__(command)
        self.host, port = self.wait_line("listening on ").rsplit(":", 1)
        self.port = int(port)
        self.model = options.get("name", "fake")
        if wait:
            self.wait_ready()


class Pace:
    """How long the steps of a daemon take that runs with `env`: a test that looks at a running request
    makes them long, for the request would be over before on a fast machine, and then short again. Holds
    for models with layers of attention, as the bundled ones are (paced.c)."""

    def __init__(self, step_ms):
        self.folder = tempfile.TemporaryDirectory()
        modules, paced = os.path.join(BUILD, "mixers/.libs"), os.path.join(BUILD, "tests/e2e/.libs/paced.so")
        assert os.path.exists(paced), "missing: make tests/e2e/paced.la"
        for name in os.listdir(modules):
            if name.endswith("-cpu.so"):
                path = paced if name == "attention-cpu.so" else os.path.join(modules, name)
                os.symlink(path, os.path.join(self.folder.name, name))
        self.file = os.path.join(self.folder.name, "step_ms")
        self.env = {"MIXD_MODULE_PATH": self.folder.name, "MIXD_TEST_PACE": self.file, "builddir": BUILD}
        self.set(step_ms)

    def set(self, step_ms):
        """0: as long as they take."""
        with open(self.file + ".new", "w") as f:
            f.write(str(step_ms))
        os.replace(self.file + ".new", self.file)


class Mixd(Process):
    """The daemon itself on the bundled model, or on `models` (name -> folder); other keyword
    arguments are keys of its configuration's scheduler section; keys is more of every model's, http
    of its http section, env of the environment, top of the configuration's top level, tls the
    context of its clients. With step_ms each step takes that long, until pace.set() says otherwise."""

    def __init__(self, models=None, keys="", http="", env=None, top="", tls=None, step_ms=None, **scheduler):
        self.tls = tls
        models = models or {"demo": DEMO}
        self.folder = tempfile.TemporaryDirectory()
        if step_ms is not None:
            self.pace = Pace(step_ms)
            env = dict(env or {}, **self.pace.env)
        config = os.path.join(self.folder.name, "mixd.yaml")
        section = ", ".join(f"{k}: {v}" for k, v in scheduler.items())
        with open(config, "w") as f:
            listen = "" if "listen:" in http else "listen: 127.0.0.1:0"
            f.write(f"http: {{ {listen}{http} }}\n"
                    f"scheduler: {{ {section} }}\n"
                    f"{top}"
                    "models:\n" +
                    "".join(f"  - {{ name: {name}, path: {path}, aliases: [gpt-{name}]{keys} }}\n"
                            for name, path in models.items()))
        modules = os.path.join(BUILD, "mixers/.libs")
        self.config = config
        super().__init__([os.path.join(BUILD, "mixd"), "--config", config],
                         dict({"MIXD_MODULE_PATH": modules}, **(env or {})))
        self.model = next(iter(models))
        end = time.monotonic() + PATIENCE
        while not self.port:
            found = re.search(r'http(?:: |","msg":")listening on \S*?:(\d+)', self.errors())
            assert found or self.process.poll() is None, self.errors()
            assert time.monotonic() < end, f"mixd does not listen: {self.errors()}"
            self.port = int(found[1]) if found else None
            time.sleep(0.01)
        self.wait_ready()


class Stream:
    """A streamed answer: iterate over its events as they come; comments are counted."""

    def __init__(self, server, path, fields):
        self.connection = server.connect()
        body = json.dumps(dict(fields, stream=True))
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        self.status, self.headers = self.response.status, self.response.headers
        self.comments = 0
        self.done = False

    def __iter__(self):
        assert self.status == 200, (self.status, self.response.read())
        for line in self.response:
            line = line.decode().rstrip("\n")
            if line.startswith(":"):
                self.comments += 1
            elif line == "data: [DONE]":
                self.done = True
            elif line:
                assert line.startswith("data: "), line
                assert not self.done, "an event after [DONE]"
                yield json.loads(line[6:])

    def close(self):
        self.connection.close()

    def abort(self):
        """Leaves as a client does that dies; no matter if the server has just ended the stream and closed it."""
        try:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.connection.close()


def server(kind=Frontend, **options):
    """The server that a test wants."""
    def mark(f):
        f.server_class, f.server_options = kind, options
        return f
    return mark


def check_error(answer, status, code=None, param=None, contains=""):
    """An error of OpenAI's shape."""
    got, headers, body = answer
    assert got == status, (got, str(body)[:2000])
    assert set(body) == {"error"}, body
    e = body["error"]
    assert isinstance(e["message"], str) and isinstance(e["type"], str), e
    assert e["code"] is None or isinstance(e["code"], str), e
    assert code is None or e["code"] == code, e
    assert param is None or e["param"] == param, e
    assert contains in e["message"], e
    if status == 503:
        assert int(headers["Retry-After"]) >= 1, dict(headers)
    return e


def brief(text, most=40, width=300):
    """A traceback as reports show it, which cut long ones at a place of their own choice: its first and last
    lines, none too long. It may end with the log of a server, or with the traceback of another program."""
    lines = [line if len(line) <= width else line[:width] + " ..." for line in text.splitlines()]
    if len(lines) > most:
        lines[most // 2:-(most // 2)] = [f"... {len(lines) - most} lines, see above ..."]
    return "\n".join(lines)


def main(module):
    """Runs the tests of a module. The last lines say again what failed, behind all that servers logged."""
    tests = [(n, f) for n, f in vars(module).items() if n.startswith("test_")]
    chosen = sys.argv[1:]
    failures, skipped = [], 0
    for name, f in tests:
        if chosen and name not in chosen:
            continue
        s = None
        start = time.monotonic()
        try:
            if hasattr(f, "server_options"):
                s = f.server_class(**f.server_options)
                f(s)
                s.stop()
            else:
                f()
            print(f"ok    {name} ({time.monotonic() - start:.2f} s)")
        except Skip as e:
            skipped += 1
            print(f"skip  {name}: {e}")
        except BaseException:
            failures.append((name, traceback.format_exc()))
            print(f"FAIL  {name}\n{failures[-1][1]}")
            if s:
                print(s.errors() if not s.log.closed else "")
        finally:
            if s and s.process.poll() is None:
                s.process.kill()
                s.process.wait()
        sys.stdout.flush()
    if not tests:
        sys.exit("no tests")
    for name, text in failures:
        print(f"FAIL  {name}\n{brief(text)}")
    sys.exit(1 if failures else 77 if skipped == len(tests) else 0)
