#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""http.tls: what clients must speak and show, certificates that change, and clients that never
finish a handshake."""
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from harness import Frontend, Mixd, PATIENCE, Stream, Thread, check_error, main, make_pair

folder = tempfile.TemporaryDirectory()
for pair in ("one", "one.test"), ("two", "two.test"), ("client", "client.test"), ("stranger", "stranger.test"):
    make_pair(folder.name, *pair)


def at(name):
    return os.path.join(folder.name, name)


def context(ca="one.pem", pair=None, newest=None, oldest=None):
    """A client's: it trusts `ca`, shows the certificate `pair`, and speaks versions up to `newest`."""
    c = ssl.create_default_context(cafile=at(ca))
    if pair:
        c.load_cert_chain(at(pair + ".pem"), at(pair + ".key"))
    if oldest:
        c.set_ciphers("DEFAULT@SECLEVEL=0")
        c.minimum_version = oldest
    if newest:
        c.maximum_version = newest
    return c


class Https(Frontend):
    def __init__(self, tls=None, **options):
        self.tls = tls or context()
        super().__init__(tls_cert=at("one.pem"), tls_key=at("one.key"), **options)


def refused(s, tls):
    """True if the server refuses the client in its handshake, or at once after it (TLS 1.3: the
    client is done before the server has seen its certificate)."""
    try:
        with socket.create_connection((s.host, s.port), PATIENCE) as plain:
            with tls.wrap_socket(plain, server_hostname="127.0.0.1") as c:
                c.sendall(b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n")
                return c.recv(100) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def hello(n=None):
    """The first n bytes of a client's first message, or all of them."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context().wrap_bio(into, out, server_hostname="one.test").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()[:n]


def cpu_seconds(s):
    with open(f"/proc/{s.process.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_clients():
    s = Https()
    r = subprocess.run(["curl", "-sS", "--cacert", at("one.pem"), "--resolve", f"one.test:{s.port}:127.0.0.1",
                        f"https://one.test:{s.port}/v1/models"], capture_output=True, timeout=PATIENCE)
    assert r.returncode == 0, r
    assert json.loads(r.stdout)["data"][0]["id"] == "fake", r.stdout
    c = context()
    c.set_alpn_protocols(["h2", "http/1.1"])
    with c.wrap_socket(socket.create_connection((s.host, s.port)), server_hostname="127.0.0.1") as t:
        assert t.selected_alpn_protocol() == "http/1.1"
    # a large body and a large answer, over one connection that stays
    connection = s.connect()
    for n in 10, 200000, 3:
        body = {"prompt": [7] * (n if n < 1000 else 1000), "max_tokens": 4, "user": "u" * n}
        assert s.post("/v1/completions", body, connection=connection)[0] == 200
    assert len(s.post("/tokenize", {"prompt": "word " * 40000}, connection=connection)[2]["tokens"]) > 40000
    connection.close()
    stream = s.stream(prompt=[5, 6], max_tokens=50, stream_options={"include_usage": True})
    assert list(stream)[-1]["usage"]["completion_tokens"] == 50 and stream.done
    assert s.metric("mixd_http_tls_connections_total") >= 5
    s.stop()


def test_oldest_version():
    s = Https(tls_min_version=12)
    assert not refused(s, context(newest=ssl.TLSVersion.TLSv1_2))
    assert refused(s, context(oldest=ssl.TLSVersion.TLSv1, newest=ssl.TLSVersion.TLSv1_1))
    s.stop()
    s = Https(tls_min_version=13)
    assert refused(s, context(newest=ssl.TLSVersion.TLSv1_2))
    assert not refused(s, context())
    s.stop()


def test_client_certificates():
    s = Https(context(pair="client"), tls_client_ca=at("client.pem"))
    assert s.get("/version")[0] == 200
    for newest in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
        assert not refused(s, context(pair="client", newest=newest))
        assert refused(s, context(newest=newest)), "a client without a certificate was served"
        assert refused(s, context(pair="stranger", newest=newest)), "a stranger was served"
    s.stop()


def test_plain_http():
    """Who speaks HTTP to the port is told what is wrong."""
    s = Https()
    with socket.create_connection((s.host, s.port), PATIENCE) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000)
        answer = b""
        while more := c.recv(4096):
            answer += more
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "tls_required", answer
    assert s.get("/version")[0] == 200
    s.stop()


def test_guards_hold():
    """What is checked of plain requests is checked of these: framing, clients that leave, slow ones."""
    s = Https(step_ns=20000000, idle_timeout=1, header_timeout=1)

    def raw(data):
        t = s.tls.wrap_socket(socket.create_connection((s.host, s.port), PATIENCE),
                              server_hostname="127.0.0.1")
        t.sendall(data)
        return t
    with raw(b"GET /version HTTP/1.1\r\nHost: a\nX: y\r\n\r\n") as t:
        assert b" 400 " in t.recv(4096).split(b"\r\n")[0]
    t = s.stream(prompt=[1], max_tokens=2000)
    assert next(iter(t))
    t.abort()
    s.wait_metric("running", 0)
    s.wait_metric("cancelled_total", 1)
    with raw(b"GET /version HTTP/1.1\r\nHo") as t:
        try:
            assert t.recv(100) == b""
        except (ssl.SSLError, ConnectionError):
            pass
    s.stop()


def test_reload():
    """SIGHUP: new connections get the new certificate, open ones and their streams go on; a faulty file
    changes nothing."""
    def use(name):
        for suffix in "pem", "key":
            os.replace(shutil.copy(at(f"{name}.{suffix}"), at("new")), at("server." + suffix))
    use("one")
    s = Mixd(http=f", tls: {{ cert: {at('server.pem')}, key: {at('server.key')} }}", tls=context(), step_ms=50)
    kept = s.connect()
    assert s.get("/version", connection=kept)[0] == 200
    stream = s.stream(prompt="Once", max_tokens=300, ignore_eos=True)
    events = iter(stream)
    next(events)
    use("two")
    s.process.send_signal(signal.SIGHUP)
    s.wait_for(lambda: "http: read the files of TLS again" in s.errors(), "new files")
    assert refused(s, context("one.pem"))
    assert not refused(s, context("two.pem"))
    assert s.get("/version", connection=kept)[0] == 200
    s.pace.set(0)
    assert list(events)[-1]["choices"][0]["finish_reason"] == "length" and stream.done
    with open(at("server.key"), "w") as f:
        f.write("no key")
    s.process.send_signal(signal.SIGHUP)
    s.wait_for(lambda: "configuration not reloaded" in s.errors(), "refused files")
    assert "server.key" in s.errors()
    use("one")
    shutil.copy(at("two.key"), at("server.key"))  # a key of another certificate
    with open(s.config) as f:
        text = f.read()
    with open(s.config, "w") as f:
        f.write("log: { level: debug }\n" + text)
    s.process.send_signal(signal.SIGHUP)
    s.wait_for(lambda: s.errors().count("configuration not reloaded") == 2, "refused pair")
    assert f"{at('server.pem')}: not usable with the key {at('server.key')}" in s.errors()
    assert "applied" not in s.errors(), "one half of a faulty reload"
    assert not refused(s, context("two.pem"))
    # the same file with the pair that fits
    use("one")
    s.process.send_signal(signal.SIGHUP)
    s.wait_for(lambda: "applied: log.level; read again: http.tls" in s.errors(), "reload")
    assert not refused(s, context("one.pem"))
    s.process.terminate()  # stop() would not have errors in the log
    assert s.process.wait(PATIENCE) == 0, s.errors()


def test_open_to_others_is_warned_of():
    """Only what lacks TLS or keys, and only where other machines can come."""
    def warnings(listen, tls="", client=None):
        s = Mixd(http=f"listen: [{listen}]{tls}", tls=client)
        errors = s.errors()
        s.stop()
        return errors.count(" is open to other machines "), errors
    pair = f'cert: {at("one.pem")}, key: {at("one.key")}'
    assert warnings("'127.0.0.1:0'")[0] == 0
    n, log = warnings("'127.0.0.1:0', '0.0.0.0:0'")
    assert n == 1 and "other machines without TLS and without keys" in log, log
    n, log = warnings("'127.0.0.1:0', '0.0.0.0:0'", f", tls: {{ {pair} }}", context())
    assert n == 1 and "other machines without keys: " in log, log
    assert warnings("'127.0.0.1:0', '0.0.0.0:0'", f', tls: {{ {pair}, client_ca: {at("client.pem")} }}',
                    context(pair="client"))[0] == 0


def test_half_handshakes():
    """Clients that begin to shake hands and stop: they cost no time, make room for others, and are cut."""
    s = Https(max_connections=8, header_timeout=3, idle_timeout=600)
    part = hello(100)
    idle = []
    for i in range(8):
        c = socket.create_connection((s.host, s.port), PATIENCE)
        c.sendall(part if i % 2 else hello())
        idle.append(c)
    before = cpu_seconds(s)
    time.sleep(2)
    spent = cpu_seconds(s) - before
    assert spent < 0.5, f"{spent:.2f} s of processor time for handshakes that wait"
    assert s.get("/version")[0] == 200  # though all connections are taken
    for c in idle:
        try:
            while c.recv(4096):
                pass
        except ConnectionError:
            pass
        c.close()
    s.wait_metric("mixd_http_connections", 1)
    s.stop()


def test_handshake_chaos():
    """Broken handshakes of every kind, while others are served."""
    s = Https(max_connections=64, header_timeout=2)
    seed = int(os.environ.get("MIXD_TEST_SEED", "7"))
    good = hello()

    def broken(random):
        data = bytearray(good)
        kind = random.randrange(6)
        if kind == 0:
            data = random.randbytes(random.randrange(1, 600))
        elif kind == 1:
            data = data[:random.randrange(len(data))]
        elif kind == 2:
            for _ in range(random.randrange(1, 9)):
                data[random.randrange(5, len(data))] ^= 1 << random.randrange(8)
        elif kind == 3:
            data += random.randbytes(random.randrange(1, 2000))
        elif kind == 4:
            data = b"\x15\x03\x03\x00\x02\x02" + random.randbytes(1)
        c = socket.create_connection((s.host, s.port), PATIENCE)
        try:
            for _ in range(random.randrange(1, 3)):
                c.sendall(data)
            if kind == 5:
                c.recv(10)
            if random.random() < 0.3:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        except ConnectionError:
            pass
        c.close()

    def many(n):
        r = random.Random(n)
        for _ in range(60):
            broken(r)
    threads = [Thread(many, seed * 100 + i) for i in range(4)]
    for i in range(20):
        assert s.text(prompt=[i + 1], max_tokens=3)
    for t in threads:
        t.join()
    # all are gone but the one that asks
    s.wait_metric("mixd_http_connections", 1)
    assert s.metric("mixd_http_tls_unused_total") >= 240
    assert s.text(prompt=[3], max_tokens=3)
    # and the server ends while some are under way
    left = [socket.create_connection((s.host, s.port), PATIENCE) for _ in range(5)]
    for c in left:
        c.sendall(good[:50])
    s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
