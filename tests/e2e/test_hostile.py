#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that hold what others need: connections, descriptors, room for bodies."""
import resource
import socket
import sys
import time

from harness import PATIENCE, SLOW, Mixd, main, server

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def connect(s, data=b""):
    c = socket.create_connection((s.host, s.port), timeout=PATIENCE)
    c.sendall(data)
    return c


def ended(c, seconds):
    """True if the server ends the connection within that time; what it sends before is dropped."""
    c.settimeout(seconds)
    try:
        while c.recv(65536):
            pass
    except socket.timeout:
        return False
    except OSError:
        pass
    return True


def took(f):
    start = time.monotonic()
    f()
    return time.monotonic() - start


# ---- connections ----

@server(max_connections=16, idle_timeout=600, header_timeout=600)
def test_silent_connections_make_room(s):
    """Those that sent nothing, and those that sent a part of a header, for two rounds of clients."""
    held = [connect(s, b"GET /livez HTTP/1.1\r\nHo" if i % 2 else b"") for i in range(32)]
    assert took(lambda: s.get("/livez")) < 10 * SLOW
    for c in held:
        c.close()


@server(max_connections=4, idle_timeout=600, header_timeout=600)
def test_silent_connections_go_before_idle_ones(s):
    kept = s.connect()
    assert s.get("/health", connection=kept)[0] == 200
    sock = kept.sock
    time.sleep(1.5)  # it has been idle for longest
    silent = [connect(s) for _ in range(3)]
    assert s.get("/livez")[0] == 200
    assert any(ended(c, 0.1) for c in silent)
    assert s.get("/health", connection=kept)[0] == 200 and kept.sock is sock
    kept.close()


@server(max_connections=4, idle_timeout=600, header_timeout=2)
def test_unfinished_uploads_make_room_last(s):
    begun = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    held = [connect(s, begun) for _ in range(4)]
    assert took(lambda: s.get("/livez")) < 10 * SLOW
    assert sum(ended(c, 0.1) for c in held) == 1
    for c in held:
        c.close()


@server(idle_timeout=600, header_timeout=1)
def test_a_header_has_a_time_of_its_own(s):
    """Whether nothing comes, or a byte now and then; a connection that was served may be idle."""
    kept = s.connect()
    assert s.get("/health", connection=kept)[0] == 200
    sock = kept.sock
    silent = connect(s)
    start = time.monotonic()
    drip = connect(s, b"GET /health HTTP/1.1\r\n")
    while time.monotonic() - start < PATIENCE:
        try:
            drip.sendall(b"X: y\r\n")
        except OSError:
            break
        time.sleep(0.1)
    assert 0.9 < time.monotonic() - start < 10 * SLOW
    assert ended(silent, PATIENCE)
    assert s.get("/health", connection=kept)[0] == 200 and kept.sock is sock
    kept.close()


@server(idle_timeout=600)
def test_half_closed_connections_are_closed(s):
    """Request and end of stream arrive together: the answer comes, then the end."""
    for method in (b"GET", b"HEAD"):
        clients = []
        for _ in range(50):
            clients.append(connect(s, HEALTH.replace(b"GET", method)))
            clients[-1].shutdown(socket.SHUT_WR)
        for c in clients:
            assert c.recv(12) == b"HTTP/1.1 200"
            assert ended(c, 5 * SLOW), method
    # those that sent only a part of a request, too
    for part in (HEALTH[:20], b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
        clients = [connect(s, part) for _ in range(50)]
        for c in clients:
            c.shutdown(socket.SHUT_WR)
        for c in clients:
            assert ended(c, 5 * SLOW), part
    # and no pipelined request is lost
    for _ in range(20):
        c = connect(s, HEALTH * 20)
        c.shutdown(socket.SHUT_WR)
        data = b""
        while more := c.recv(65536):
            data += more
        assert data.count(b"HTTP/1.1 200") == 20


@server(Mixd, step_ms=50)
def test_whoever_has_the_whole_answer_has_not_left(s):
    for method in (b"GET", b"HEAD"):
        for _ in range(300):
            c = connect(s, HEALTH.replace(b"GET", method))
            data = b""
            while b"\r\n\r\n" not in data or (method == b"GET" and b"}" not in data):
                data += c.recv(65536)
            c.close()
    assert s.metric("mixd_http_disconnects_total") == 0
    # one that leaves before is counted
    body = b'{"prompt": "a", "max_tokens": 1000, "ignore_eos": true}'
    c = connect(s, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    s.wait_metric("vllm:num_requests_running", 1)
    c.close()
    s.wait_metric("mixd_http_disconnects_total", 1)


# ---- bodies ----

def post(path, size):
    """Header and body of that many bytes; any part of it but the last byte is an unfinished body."""
    body = b'{"prompt": "a", "max_tokens": 1'
    return (b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path, size) +
            body + b" " * (size - len(body) - 1) + b"}")


def status(c):
    data = b""
    while more := c.recv(65536):
        data += more
    return int(data[9:12])


LARGEST = 8 << 20


@server(Mixd)
def test_half_sent_bodies_refuse_nobody(s):
    whole = post(b"/v1/completions", LARGEST)
    held = [connect(s, whole[:-1]) for _ in range(8)]
    s.wait_for(lambda: s.metric("mixd_http_received_bytes_total") >= 8 * (LARGEST - 1), "bodies")
    for size in (1000, 60000, 100000, LARGEST, LARGEST):
        assert status(connect(s, post(b"/v1/completions", size))) == 200, size
    # one of them had to make room
    answers = []
    for c in held:
        c.sendall(b"}")
        answers.append(status(c))
    assert sorted(answers) == [200] * 7 + [503], answers


# ---- descriptors ----

def warnings(s, what):
    return [line for line in s.errors().splitlines() if what in line]


@server(idle_timeout=600, header_timeout=600)
def test_a_lack_of_descriptors_is_got_over(s):
    """Silent clients take all; others wait, but not for long, and the log does not fill."""
    pid = s.process.pid
    old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, old[1]))
    held = [connect(s) for _ in range(60)]
    s.wait_for(lambda: warnings(s, "cannot accept"), "warning")
    for _ in range(3):
        assert took(lambda: s.get("/livez")) < 10 * SLOW
    for c in held:
        c.close()
    # busy clients take all: the others wait until one of them is done
    busy = [s.connect() for _ in range(60)]
    for c in busy:
        c.request("GET", "/health")
    for c in busy:
        assert c.getresponse().read()
    assert len(warnings(s, "cannot accept")) == 1, s.errors()


@server(idle_timeout=600, wrap=("prlimit", "--nofile=40:40"))
def test_a_low_limit_of_descriptors_is_said_at_start(s):
    assert len(warnings(s, "max_connections")) == 1, s.errors()
    assert "LimitNOFILE" in warnings(s, "max_connections")[0]


@server(idle_timeout=600, wrap=("prlimit", "--nofile=40:4000"))
def test_the_soft_limit_of_descriptors_is_raised(s):
    assert not warnings(s, "max_connections"), s.errors()
    held = [s.connect() for _ in range(100)]
    for c in held:
        assert s.get("/health", connection=c)[0] == 200
    for c in held:
        c.close()


main(sys.modules[__name__])
