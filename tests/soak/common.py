# SPDX-License-Identifier: Apache-2.0
"""What hostile and soak share: a daemon of a given build folder, raw sockets, and a probe of /health."""
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
MIB = 1 << 20
harness = None


def use_build(folder):
    """Has the harness start the programs of a build folder."""
    global harness
    os.environ["srcdir"], os.environ["builddir"] = TOP, os.path.abspath(folder)
    sys.path.insert(0, os.path.join(TOP, "tests/e2e"))
    import harness as h
    harness = h
    return h


def start(http="", scheduler="", models=None, more=""):
    """A daemon with these keys; models: name -> (folder, keys)."""
    h = harness

    class Daemon(h.Mixd):
        def __init__(self):
            self.folder = tempfile.TemporaryDirectory()
            self.config = os.path.join(self.folder.name, "mixd.yaml")
            with open(self.config, "w") as f:
                f.write(f"http: {{ listen: 127.0.0.1:0{http} }}\nscheduler: {{ {scheduler} }}\n{more}models:\n")
                for name, (path, keys) in (models or {"demo": (h.DEMO, "")}).items():
                    f.write(f"  - {{ name: {name}, path: {path}{keys} }}\n")
            h.Process.__init__(self, [os.path.join(h.BUILD, "mixd"), "--config", self.config], environment())
            self.model = next(iter(models or {"demo": 0}))
            self.wait_for(lambda: re.search(r"listening on \S*:(\d+)", self.errors()), "address")
            self.port = int(re.search(r"listening on \S*:(\d+)", self.errors())[1])
            self.wait_ready()
    return Daemon()


def environment():
    return {"MIXD_MODULE_PATH": os.path.join(harness.BUILD, "mixers/.libs")}


def end(server):
    """Ends a server, whatever state it is in."""
    server.process.terminate()
    try:
        server.process.wait(20)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
    server.process.stdout.close()


def planned(server):
    """Bytes of --check's total, and whether it counts bodies and answers; else it is the sum of the models'."""
    r = subprocess.run([os.path.join(harness.BUILD, "mixd"), "--check", "--config", server.config], text=True,
                       env=dict(os.environ, **environment()), stdout=subprocess.PIPE, check=True)
    totals = [float(t) * MIB for t in re.findall(r"  total +([0-9.]+) MiB", r.stdout)]
    whole = "\nprocess\n" in r.stdout
    return totals[-1] if whole else sum(totals), whole


def sanitized():
    """True if the build has a sanitizer, whose memory is its own."""
    return bool(os.environ.get("MIXD_TEST_SLOW"))


def rss(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) * 1024


def cpu_seconds(server):
    """Processor time that a server has used."""
    with open(f"/proc/{server.process.pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def descriptors(server):
    """What a server's descriptors are: files, and the states of its sockets."""
    states, folder = {}, f"/proc/{server.process.pid}"
    with open(f"{folder}/net/tcp") as f:
        for line in list(f)[1:]:
            w = line.split()
            states[w[9]] = (f"tcp port {int(w[1].split(':')[1], 16)} to {int(w[2].split(':')[1], 16)} "
                            f"state {w[3]} queues {w[4]}")
    out = []
    for fd in sorted(os.listdir(f"{folder}/fd"), key=int):
        try:
            target = os.readlink(f"{folder}/fd/{fd}")
        except OSError:
            continue
        inode = re.match(r"socket:\[(\d+)\]", target)
        out.append(f"{fd}: {states.get(inode[1], target) if inode else target}")
    return "; ".join(out)


class Peak:
    """The largest resident memory of a server while it is watched."""

    def __init__(self, server):
        self.server, self.bytes, self.stopped = server, rss(server), False
        self.first = self.bytes
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped and self.server.process.poll() is None:
            try:
                self.bytes = max(self.bytes, rss(self.server))
            except (OSError, TypeError):
                return
            time.sleep(0.02)

    def stop(self):
        self.stopped = True
        self.thread.join()
        return self.bytes


def connect(port, receive=None, timeout=60):
    """A socket to the server; receive: bytes of its buffer."""
    s = socket.socket()
    if receive:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    s.settimeout(timeout)
    s.connect(("127.0.0.1", port))
    return s


def request(path, body, **headers):
    """A POST as bytes."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    more = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def status_of(data):
    """The status of an answer's first bytes, None if there is none."""
    m = re.match(rb"HTTP/1\.[01] (\d+)", data)
    return int(m[1]) if m else None


# ---- measured by a process of its own, so that the load's client does not disturb it ----

def probe_health(port, path, out, stop):
    """(time, seconds) of one request after another on one connection."""
    import http.client
    c = None
    while not stop.is_set():
        began = time.monotonic()
        try:
            c = c or http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            c.request("GET", path)
            c.getresponse().read()
        except OSError:
            c = None
        out.append((began, time.monotonic() - began))
        time.sleep(0.005)


def read_stream(port, fields, out, stop):
    """Times at which the bytes of a stream came; begins anew when it ends."""
    while not stop.is_set():
        s = connect(port)
        s.sendall(request("/v1/completions", dict(fields, stream=True, ignore_eos=True)))
        while not stop.is_set():
            data = s.recv(65536)
            out.append((time.monotonic(), len(data)))
            if not data or b"[DONE]" in data:
                break
        s.close()
        out.append((time.monotonic(), 0))


class Watch:
    """Runs one of the two functions above in a process; times() ends it."""

    def __init__(self, function, *args):
        context = multiprocessing.get_context("fork")
        self.stop_event, (self.reader, writer) = context.Event(), context.Pipe(False)
        self.process = context.Process(target=self.run, args=(function, args, writer), daemon=True)
        self.process.start()
        writer.close()

    def run(self, function, args, writer):
        out = []
        try:
            function(*args, out, self.stop_event)
        finally:
            writer.send(out)

    def times(self):
        self.stop_event.set()
        out = self.reader.recv()
        self.process.join()
        return out


def worst_probe(out, begin=0, end=float("inf")):
    """Longest of the probes that were under way in a span of time, in ms."""
    return max((d * 1e3 for t, d in out if t + d >= begin and t <= end), default=0)


def gaps(out, begin=0, end=float("inf")):
    """Milliseconds between arrivals in a span of time, not across two streams."""
    return sorted((b[0] - a[0]) * 1e3 for a, b in zip(out, out[1:])
                  if a[1] and b[1] and b[0] >= begin and a[0] <= end)
