#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mixctl, and the admin socket under clients that mean no good."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from harness import ATTENTION, BUILD, DEMO, PATIENCE, Mixd, Skip, Thread, check_error, main, make_pair, server

MIXCTL = os.path.join(BUILD, "mixctl")
FRONTS = os.path.join(BUILD, "daemon/.libs")
NIGHT = "It was a dark and stormy night"
ADMIN = dict(top="admin: { socket: admin.sock }\n", max_sequences=8)


def at(s):
    """The socket: relative paths begin at the folder of the configuration."""
    return os.path.join(s.folder.name, "admin.sock")


def start(path, *args, **kw):
    return subprocess.Popen([MIXCTL, "--socket", path, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **kw)


def finish(p, rc=0):
    out, err = p.communicate(timeout=PATIENCE)
    assert p.returncode == rc, (p.args, p.returncode, out, err)
    assert (not err) == (rc == 0), (p.args, err)
    return out if rc == 0 else err


def ctl(s, *args, rc=0):
    """What mixctl prints; for a status that is not 0, what it says on standard error."""
    return finish(start(at(s), *args), rc)


def ask(s, *args):
    return json.loads(ctl(s, "--json", *args))


def write(s, *models, more=""):
    with open(s.config, "w") as f:
        f.write(f"http: {{ listen: 127.0.0.1:0{more} }}\nscheduler: {{ max_sequences: 8 }}\n"
                "admin: { socket: admin.sock }\nmodels:\n" + "".join(f"  - {{ {m} }}\n" for m in models))


def open_stream(s, id=None, n=400, **fields):
    """A stream that has begun."""
    connection = s.connect()
    body = dict(model="demo", prompt=NIGHT, max_tokens=n, ignore_eos=True, temperature=0, stream=True)
    connection.request("POST", "/v1/completions", json.dumps(dict(body, **fields)),
                       dict({"Content-Type": "application/json"}, **({"X-Request-Id": id} if id else {})))
    r = connection.getresponse()
    assert r.status == 200, (r.status, r.read())
    assert r.readline().startswith(b"data: {")
    return r


@server(Mixd, **ADMIN)
def test_status_and_models(s):
    text = ctl(s, "status")
    assert re.match(rf"mixd \S+, process {s.process.pid}, up \d+ s: ready\n0 requests are served\n", text), text
    assert "model demo: ready, 0 running, 0 waiting, 0 finished, 0 tokens\n" in text, text
    s.text(prompt=NIGHT, max_tokens=5, ignore_eos=True)
    v = ask(s, "status")
    m = v["models"][0]
    assert v["ready"] and not v["draining"] and not v["reloading"] and v["retired"] == [], v
    assert (m["name"], m["state"], m["finished"], m["output_tokens"]) == ("demo", "ready", 1, 5), m
    assert m["pages"] > 0 and m["slots"] == 8 and m["host_bytes"] > 0 and len(m["gaps"]["counts"]) > 2, m
    assert len(m["gaps"]["counts"]) == len(m["gaps"]["bounds"]) + 1
    text = ctl(s, "models")
    assert re.match(r"demo: ready; aliases gpt-demo; on cpu, context 2048, \d+\.\d MiB of weights\n$", text), text


@server(Mixd, **ADMIN)
def test_top(s):
    stop = []

    def load():
        while not stop:
            s.text(prompt=NIGHT, max_tokens=40, ignore_eos=True)
    clients = [Thread(load) for _ in range(3)]
    s.wait_for(lambda: ask(s, "status")["models"][0]["finished"] > 3, "first answers")
    top = ask(s, "top", "--once")
    m = top["models"][0]
    assert 0.9 < top["interval_s"] < PATIENCE and m["tokens_per_s"] > 0 and m["steps_per_s"] > 0, top
    assert 0 < m["gap_p50_s"] <= m["gap_p99_s"] <= m["gap_max_s"], m
    assert m["slots"] == 8 and 0 <= m["slots_used"] <= 8 and m["pages"] > 0, m
    text = ctl(s, "top", "--once")
    assert re.search(r"^MODEL +STATE +RUNNING +WAITING +REQ/S +TOKENS/S .*PAGES +SLOTS", text, re.M), text
    assert re.search(r"^demo +ready +\d+ +\d+ +[\d.]+ +[\d.]+ ", text, re.M), text
    p = start(at(s), "--json", "top")  # goes on, a line a second
    lines = [json.loads(p.stdout.readline()) for _ in range(2)]
    assert all(line["models"][0]["name"] == "demo" for line in lines)
    p.terminate()
    p.communicate()
    stop.append(True)
    for c in clients:
        c.join()
    s.wait_for(lambda: ask(s, "status")["requests"] == 0, "idle server")
    m = ask(s, "top", "--once")["models"][0]
    assert m["tokens_per_s"] == 0 and m["gap_max_s"] == 0, m  # of the last second, not of all time


def test_reload():
    s = Mixd(**ADMIN)
    demo = f"name: demo, path: {DEMO}"
    write(s, demo, f"name: other, path: {ATTENTION}")
    assert ctl(s, "reload") == "applied: models[demo].aliases\nmodels added: other\n"
    assert s.text(model="other", prompt=NIGHT, max_tokens=2, ignore_eos=True)  # in force when it returns
    assert ctl(s, "reload") == "nothing has changed\n"
    write(s, demo, more=", threads: 3")
    assert ask(s, "reload") == dict(ok=True, applied="", added="", removed="other", replaced="",
                                    read="", restart="http.threads")
    write(s, demo, "name: other, path: /no/such/folder")
    error = ctl(s, "reload", rc=1)
    assert re.match(rf"mixctl: {re.escape(s.config)}:6: models\[other\]: .*/no/such/folder", error), error
    assert [m["name"] for m in ask(s, "status")["models"]] == ["demo"]
    write(s, demo)
    several = [start(at(s), "reload") for _ in range(5)]
    for p in several:
        finish(p)
    s.process.terminate()
    assert s.process.wait(PATIENCE) == 0, s.errors()


def test_reload_of_files():
    """Keys and certificates: what was read again is named, and a faulty pair refuses the whole reload."""
    with tempfile.TemporaryDirectory() as d:
        cert, key, other, keys = (os.path.join(d, f) for f in ("one.pem", "one.key", "two.key", "keys.yaml"))
        make_pair(d, "one", "one.test")
        make_pair(d, "two", "two.test")
        with open(keys, "w") as f:
            f.write("[]\n")
        os.chmod(keys, 0o600)
        grpc = os.path.exists(os.path.join(FRONTS, "front-grpc.so"))
        tls = f"tls: {{ cert: {cert}, key: {key} }}"
        context = ssl.create_default_context(cafile=cert)
        s = Mixd(http=", " + tls, tls=context, env={"MIXD_FRONT_PATH": FRONTS}, max_sequences=8,
                 top=ADMIN["top"] + f"keys: {keys}\n" + grpc * f"grpc: {{ listen: 127.0.0.1:0, {tls[:-2]}, client_ca: {cert} }} }}\n")
        again = "read again: keys, http.tls" + grpc * ", grpc.tls" + "\n"
        assert ctl(s, "reload") == again
        shutil.copy(key, key + ".good")
        shutil.copy(other, key)
        with open(s.config) as f:
            text = f.read()
        with open(s.config, "w") as f:
            f.write(text + "log: { level: debug }\n")
        error = ctl(s, "reload", rc=1)
        assert error.startswith(f"mixctl: {cert}: not usable with the key {key}: "), error
        os.unlink(key)
        error = ctl(s, "reload", rc=1)
        assert error.startswith(f"mixctl: {key}: cannot be opened"), error
        assert "applied" not in s.errors() and "of TLS stay" not in s.errors(), s.errors()
        os.replace(key + ".good", key)
        assert ctl(s, "reload") == "applied: log.level\n" + again
        # other names wait for a restart, but must be usable; until then those of the start are read
        with open(s.config, "w") as f:
            f.write(text.replace(key, other))
        assert "not usable with the key " + other in ctl(s, "reload", rc=1)
        with open(s.config, "w") as f:
            f.write(text.replace(key, other).replace(cert, os.path.join(d, "two.pem")))
        lines = ctl(s, "reload").splitlines(True)
        assert again in lines and "for a restart wait: http.tls.cert, http.tls.key" in lines[-1], lines
        s.process.terminate()  # stop() would not have errors in the log
        assert s.process.wait(PATIENCE) == 0, s.errors()


@server(Mixd, step_ms=50, **ADMIN)
def test_old_models_are_shown_until_they_are_gone(s):
    write(s, f"name: demo, path: {DEMO}", f"name: other, path: {ATTENTION}")
    ctl(s, "reload")
    r = open_stream(s, model="other", n=1500)
    write(s, f"name: demo, path: {DEMO}")
    ctl(s, "reload")
    assert ask(s, "status")["retired"] == [{"name": "other", "requests": 1}]
    assert "model other: the old one finishes 1 requests\n" in ctl(s, "status")
    r.close()
    s.wait_for(lambda: ask(s, "status")["retired"] == [], "end of the old model")


@server(Mixd, models={"demo": DEMO, "other": ATTENTION}, step_ms=50, **ADMIN)
def test_drain(s):
    r = open_stream(s)
    p = start(at(s), "drain", "gpt-demo")  # an alias does
    s.wait_for(lambda: ask(s, "status")["models"][0]["state"] == "draining", "drain")
    e = check_error(s.post("/v1/completions", dict(model="demo", prompt="x")), 503, "model_draining")
    assert "'demo'" in e["message"]
    assert s.text(model="other", prompt=NIGHT, max_tokens=2, ignore_eos=True)
    assert s.get("/readyz")[0] == 200  # the other one serves
    assert p.poll() is None, "drain returned while a request ran"
    s.pace.set(0)
    assert r.read().rstrip().endswith(b"data: [DONE]")
    assert finish(p) == ""
    ctl(s, "drain", "demo")  # already
    ctl(s, "undrain", "demo")
    assert s.text(model="demo", prompt=NIGHT, max_tokens=2, ignore_eos=True)
    assert "does not drain" in ctl(s, "undrain", "demo", rc=1)
    assert 'no model is called "nobody"' in ctl(s, "drain", "nobody", rc=1)
    # all
    s.pace.set(50)
    r = open_stream(s)
    p = start(at(s), "drain")
    s.wait_for(lambda: s.get("/readyz")[0] == 503, "drain of all")
    check_error(s.post("/v1/completions", dict(model="other", prompt="x")), 503, "shutting_down")
    assert "not ready: draining" in ctl(s, "status")
    s.pace.set(0)
    assert r.read().rstrip().endswith(b"data: [DONE]")
    finish(p)
    assert "the whole server drains" in ctl(s, "drain", "demo", rc=1)
    ctl(s, "undrain")
    s.wait_ready()
    assert s.text(model="other", prompt=NIGHT, max_tokens=2, ignore_eos=True)
    # who waits is told if somebody takes it back
    s.pace.set(50)
    r = open_stream(s, n=1500)
    p = start(at(s), "drain")
    s.wait_for(lambda: s.get("/readyz")[0] == 503, "drain of all")
    ctl(s, "undrain")
    assert "takes requests again" in finish(p, rc=1)
    r.close()


@server(Mixd, step_ms=50, **ADMIN)
def test_cancel(s):
    r = open_stream(s, "mine", n=1500)
    # an answer in one piece
    whole = Thread(s.post, "/v1/completions", dict(prompt=NIGHT, max_tokens=1500, ignore_eos=True),
                   headers={"X-Request-Id": "whole"})
    # one that is cancelled in the queue counts as waiting
    s.wait_metric("vllm:num_requests_running", 2)
    requests = {q["id"]: q for q in ask(s, "requests")["requests"]}
    assert set(requests) == {"mine", "whole"}, requests
    assert requests["mine"]["stream"] and not requests["whole"]["stream"]
    assert requests["mine"]["model"] == "demo" and requests["mine"]["prompt_tokens"] > 3
    assert re.search(r"^mine  demo, [\d.]+ s, \d+ prompt tokens, \d+ output tokens, streamed$", ctl(s, "requests"), re.M)
    assert 'no request with the id "mine2" runs' in ctl(s, "cancel", "mine2", rc=1)
    assert ask(s, "cancel", "mine") == {"ok": True, "cancelled": 1}
    last = json.loads(r.read().decode().replace("data: [DONE]", "").strip().split("data: ")[-1])
    assert last["error"]["code"] == "request_cancelled", last
    ctl(s, "cancel", "whole")
    check_error(whole.join(), 403, "request_cancelled", contains="operator")
    s.wait_for(lambda: ask(s, "requests") == {"all": 0, "requests": []}, "end of both")
    assert 'reason="api",phase="running"} 2' in s.get("/metrics")[2].decode()
    assert 'no request with the id' in ctl(s, "cancel", "mine", rc=1)


@server(Mixd, **ADMIN)
def test_log(s):
    s.get("/livez")
    assert " debug " not in s.errors()
    ctl(s, "log", "debug")
    s.get("/livez")
    s.wait_for(lambda: re.search(r" debug +http: request .*route=/livez", s.errors()), "line of level debug")
    assert "must be error, warning, info or debug" in ctl(s, "log", "loud", rc=1)
    ctl(s, "log", "info")
    n = s.errors().count(" debug ")
    s.get("/livez")
    assert s.errors().count(" debug ") == n


def test_errors():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "none.sock")
        e = finish(start(path, "status"), 3)
        assert "No such file" in e and "mixd does not run" in e, e
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        e = finish(start(path, "status"), 3)
        assert "nobody listens there" in e, e
        for args in ([], ["nonsense"], ["status", "x"], ["cancel"], ["drain", "a", "b"], ["--nonsense"]):
            e = finish(start(path, *args), 2)
            assert "mixctl" in e, e
        assert "usage: mixctl" in finish(start(path, "--help"))
        assert finish(start(path, "--version")).startswith("mixctl ")
        assert finish(subprocess.Popen([MIXCTL, "status"], env=dict(os.environ, MIXD_SOCKET=path), text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE), 3).count(path)
        # a server that does not go on keeps nobody waiting
        with socket.socket(socket.AF_UNIX) as hung:
            os.unlink(path)
            hung.bind(path)
            hung.listen(1)
            e = finish(start(path, "status"), 3)
            assert "mixd does not answer" in e, e
        # what a dead process left is replaced; a living one is left alone, and so is a file
        s = Mixd(top=f"admin: {{ socket: {path} }}\n", max_sequences=8)
        assert os.stat(path).st_mode & 0o7777 == 0o660
        finish(start(path, "status"))
        check = [os.path.join(BUILD, "mixd"), "--config", s.config]
        env = dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs"))
        p = subprocess.run(check, env=env, capture_output=True, text=True, timeout=PATIENCE)
        assert p.returncode == 1 and f"{path}: admin.socket: another process listens there" in p.stderr, p.stderr
        finish(start(path, "status"))
        s.stop()
        assert not os.path.exists(path)
        with open(path, "w"):
            pass
        p = subprocess.run(check, env=env, capture_output=True, text=True, timeout=PATIENCE)
        assert p.returncode == 1 and "something else than a socket" in p.stderr, p.stderr
        # the folder of the service manager
        s = Mixd(env={"RUNTIME_DIRECTORY": d}, max_sequences=8)
        auto = os.path.join(d, "admin.sock")
        s.wait_for(lambda: f"admin: listening on {auto}" in s.errors(), "socket")
        finish(start(auto, "status"))
        s.stop()


def test_permission():
    if os.geteuid() != 0:
        raise Skip("another user is needed")
    with tempfile.TemporaryDirectory(dir="/tmp") as d:
        os.chmod(d, 0o755)
        path = os.path.join(d, "admin.sock")
        s = Mixd(top=f"admin: {{ socket: {path} }}\n", max_sequences=8)
        finish(start(path, "status"))

        def other(groups=(), gid=65534):
            """What another user is told."""
            out, into = os.pipe()
            if not (child := os.fork()):
                try:
                    os.setgroups(groups)
                    os.setgid(gid)
                    os.setuid(65534)
                    c = socket.socket(socket.AF_UNIX)
                    c.settimeout(PATIENCE)
                    c.connect(path)
                    with contextlib.suppress(BrokenPipeError):  # who is refused is not heard
                        c.sendall(b'{"command":"status"}\n')
                    os.write(into, c.recv(4096))
                except OSError as e:
                    os.write(into, str(e).encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            os.close(into)
            with os.fdopen(out) as f:
                return f.read()
        assert "Permission denied" in other(), other()
        assert '"version"' in other(groups=[os.getegid()])  # in the group of mixd
        assert '"version"' in other(gid=os.getegid())
        os.chmod(path, 0o666)  # the mode is not all: the peer is asked for
        assert "permission denied: only root" in other(), other()
        s.stop()


def connect(s):
    c = socket.socket(socket.AF_UNIX)
    c.connect(at(s))  # which waits while others are before it
    c.settimeout(PATIENCE)
    return c


def lines(c, n):
    """The next n lines, parsed."""
    f = c.makefile("rb")
    return [json.loads(f.readline()) for _ in range(n)]


@server(Mixd, **ADMIN)
def test_hostile_clients(s):
    # several commands at once, faulty ones among them, and the end of what is sent
    c = connect(s)
    c.sendall(b'{"command":"status"}\nnonsense\n{"command":"relaod"}\n[]\n{"command":"drain","nodel":"x"}\n'
              b'{"command":"log"}\n{"command":"cancel","id":7}\n\n{"command":"status"}\n')
    c.shutdown(socket.SHUT_WR)
    a = lines(c, 9)
    assert a[0]["version"] == a[8]["version"] and c.recv(1) == b""
    for i, text in enumerate(("not valid JSON", 'did you mean "reload"?', "must be an object", "takes no member but model",
                              'needs "level"', '"id" must be a string', "not valid JSON")):
        assert text in a[1 + i]["error"], a[1 + i]
    # a line without an end
    c = connect(s)
    c.sendall(b"x" * 4200)
    assert "too long" in lines(c, 1)[0]["error"]
    try:
        assert c.recv(1) == b""
    except ConnectionResetError:
        pass  # what it had sent was not read to the end
    # a line in pieces
    c = connect(s)
    for byte in b'{"command":"requests"}\n':
        c.sendall(bytes([byte]))
    assert lines(c, 1) == [{"all": 0, "requests": []}]
    # somebody who asks without end and never reads, while others do their work
    deaf = connect(s)
    deaf.setblocking(False)
    try:
        for _ in range(100000):
            deaf.send(b'{"command":"status"}\n')
    except BlockingIOError:
        pass
    assert ask(s, "status")["ready"] and s.text(prompt=NIGHT, max_tokens=2, ignore_eos=True)
    before = s.metric("process_resident_memory_bytes")
    # more than are served: others wait, and are served when those have left
    many = [connect(s) for _ in range(16)]
    late = start(at(s), "status")
    time.sleep(0.3)
    assert late.poll() is None
    assert s.text(prompt=NIGHT, max_tokens=2, ignore_eos=True)
    for c in (deaf, *many):
        c.close()
    assert "ready" in finish(late)
    assert s.metric("process_resident_memory_bytes") < before + (32 << 20)
    # whoever leaves while it waits stops nothing
    for _ in range(40):
        c = connect(s)
        c.sendall(b'{"command":"reload"}\n')
        c.close()
    finish(start(at(s), "reload"))


@server(Mixd, step_ms=50, **ADMIN)
def test_end_while_somebody_waits(s):
    """A drain that waits and a top that looks do not hold up the end of the server."""
    r = open_stream(s, n=1500)
    waits, looks = start(at(s), "drain"), start(at(s), "top")
    assert looks.stdout.readline()  # it has found the server
    s.wait_for(lambda: s.get("/readyz")[0] == 503, "drain")
    r.close()
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(PATIENCE) == 0
    waits.communicate(timeout=PATIENCE)
    assert "mixd has closed the connection" in finish(looks, rc=3)


if __name__ == "__main__":
    main(sys.modules[__name__])
