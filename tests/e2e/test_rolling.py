#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two servers behind HAProxy are restarted one after the other under load: no request fails."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from harness import BUILD, PATIENCE, SLOW, SRC, Frontend, Mixd, Skip, free_ports, main

REQUESTS = 10000 if SLOW == 1 else 4000
STREAMS = 64
TOKENS = 20
# Checks every 0.2 s: many fail to come in time before this one does.
NOTICE = 3


def haproxy_program():
    program = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if not program:
        raise Skip("no haproxy")
    return program


class Haproxy:
    """deploy/haproxy.cfg, with other ports and quicker checks."""

    def __init__(self, servers):
        self.port, self.stats = free_ports(2)
        with open(os.path.join(SRC, "deploy/haproxy.cfg")) as f:
            text = f.read()
        for old, new in (("127.0.0.1:8000", f"127.0.0.1:{self.port}"),
                         ("127.0.0.1:8404", f"127.0.0.1:{self.stats}"),
                         ("127.0.0.1:8080", f"127.0.0.1:{servers[0]}"),
                         ("127.0.0.1:8081", f"127.0.0.1:{servers[1]}"),
                         ("inter 500ms", "inter 200ms")):
            assert text.count(old) == 1, (old, text.count(old))
            text = text.replace(old, new)
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "haproxy.cfg")
        with open(config, "w") as f:
            f.write(text)
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([haproxy_program(), "-db", "-f", config], stdout=self.log,
                                        stderr=self.log)

    def rows(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.stats}/stats;csv", timeout=PATIENCE) as f:
            lines = f.read().decode().lstrip("# ").splitlines()
        names = lines[0].split(",")
        return [dict(zip(names, line.split(","))) for line in lines[1:]]

    def status(self):
        return {r["svname"]: r["status"] for r in self.rows() if r["pxname"] == "mixd"}

    def wait_up(self, *names):
        end = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, "haproxy has ended"
            try:
                status = self.status()
                if all(status[n] == "UP" for n in names):
                    return
            except OSError:
                status = None
            assert time.monotonic() < end, f"not up: {status}"
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)


def serve(port):
    # 20 tokens of 10 ms: 0.2 s a stream, so that many streams run at any moment
    return Frontend(listen=f"127.0.0.1:{port}", step_ns=10_000_000, sequences=STREAMS,
                    notice=NOTICE, drain=PATIENCE)


def roll(servers, ports, proxy, load):
    """Restarts the servers in turn until the load has ended. Returns how often."""
    restarts = 0
    began = time.monotonic()
    while load.poll() is None:
        proxy.wait_up("a", "b")
        which = restarts % 2
        servers[which].stop()  # SIGTERM; it must end well, with every stream that it had
        servers[which] = serve(ports[which])
        restarts += load.poll() is None
        assert time.monotonic() - began < 5 * PATIENCE, "the load does not end"
    return restarts


def check_load(load, proxy, restarts):
    figures = json.loads(load.communicate()[0])
    print(f"{figures['requests']} requests in {figures['seconds']:.0f} s, {figures['errors']} errors, "
          f"{restarts} restarts")
    assert figures["requests"] == REQUESTS and figures["errors"] == 0, figures
    # events came one by one (a step takes 10 ms), not all at the end
    assert figures["gap_ms"]["p50"] > 1, figures["gap_ms"]
    assert restarts >= 2, "no rolling restart within the load: it was too short"
    for r in proxy.rows():
        if r["pxname"] not in ("mixd", "openai") or r["svname"] not in ("FRONTEND", "BACKEND"):
            continue
        assert int(r["hrsp_2xx"]) >= REQUESTS and not int(r["hrsp_5xx"]) and not int(r["hrsp_4xx"]), r
        assert not int(r["eresp"] or 0) and not int(r["econ"] or 0), r


def test_no_request_is_lost():
    haproxy_program()
    ports = free_ports(2)
    servers, others = [], []
    try:
        servers += [serve(p) for p in ports]
        proxy = Haproxy(ports)
        others.append(proxy.process)
        proxy.wait_up("a", "b")
        load = subprocess.Popen(
            [os.path.join(BUILD, "bench/daemon/load"), "--url", f"127.0.0.1:{proxy.port}", "--model", "fake",
             "--streams", str(STREAMS), "--vocab", "4096", "--requests", str(REQUESTS),
             "--prompt-tokens", "16", "--max-tokens", str(TOKENS), "--json"], stdout=subprocess.PIPE, text=True)
        others.append(load)
        check_load(load, proxy, roll(servers, ports, proxy, load))
        proxy.stop()
        for s in servers:
            s.stop()
    finally:
        for p in others + [s.process for s in servers]:
            if p.poll() is None:
                p.kill()
                p.wait()


def test_daemon_gives_notice():
    """mixd says that it is not ready, serves on, then drains; streams that run are not touched."""
    s = Mixd(top=f"shutdown: {{ notice_s: {PATIENCE}, drain_s: {PATIENCE} }}\n", step_ms=50)
    stream = s.stream(prompt="a", max_tokens=200, ignore_eos=True)
    events = iter(stream)
    next(events)
    assert s.get("/readyz")[0] == 200
    s.process.send_signal(signal.SIGTERM)
    s.wait_for(lambda: s.get("/readyz")[0] == 503, "notice")
    assert s.get("/readyz")[2] == {"status": "draining"}
    assert s.get("/health")[0] == 503 and s.get("/livez")[0] == 200
    # a new connection is accepted, and its request served; its connection closes
    status, headers, body = s.post("/v1/completions", {"prompt": "b", "max_tokens": 3})
    assert status == 200 and headers["Connection"].lower() == "close", (status, dict(headers))
    # the second signal ends the notice, not the stream
    s.process.send_signal(signal.SIGTERM)
    s.wait_for(lambda: "draining" in s.errors().split("not ready any more")[1], "drain")
    s.pace.set(0)
    assert sum(1 for _ in events) > 0 and stream.done
    s.stop()


main(sys.modules[__name__])
