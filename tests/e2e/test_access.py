#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The log of requests: one line each, as text or JSON, with what log.access asks for."""
import json
import os
import re
import signal
import subprocess
import sys

from harness import BUILD, PATIENCE, Mixd, Thread, main, server

JSON = "log: { format: json }\n"


def lines(s):
    """The requests' lines of a log in JSON. Every line of such a log is an object."""
    found = [json.loads(line) for line in s.errors().splitlines()]
    return [line for line in found if line.get("msg") == "request"]


def line_of(s, id):
    """The line of the request with that id: the only one."""
    s.wait_for(lambda: any(line["id"] == id for line in lines(s)), f"line of {id}")
    found = [line for line in lines(s) if line["id"] == id]
    assert len(found) == 1, found
    return found[0]


def ask(s, id, connection=None, **fields):
    return s.post("/v1/completions", dict(dict(prompt="Call me", max_tokens=8, seed=1), **fields),
                  headers={"X-Request-Id": id}, connection=connection)


@server(Mixd, top=JSON)
def test_the_fields_of_a_completion(s):
    text = "The old man looked at the sea and thought of the winter that was to come. " * 4
    usage = ask(s, "first", prompt=text)[2]["usage"]
    line = line_of(s, "first")
    assert line["level"] == "info" and line["module"] == "http", line
    assert re.fullmatch(r"127\.0\.0\.1:\d+", line["client"]), line
    for name, value in dict(method="POST", route="/v1/completions", status=200, model="demo",
                            prompt_tokens=usage["prompt_tokens"], cached_tokens=0, output_tokens=8,
                            finish="length").items():
        assert line[name] == value, (name, line)
    assert 0 <= line["queue_ms"] <= line["first_token_ms"] <= line["total_ms"], line
    assert not {"code", "error", "left"} & set(line), line
    # what the prefix cache had; two choices, an alias, another reason
    body = ask(s, "second", prompt=text, n=2, model="gpt-demo", ignore_eos=True, stop=["e", "a", "o"])[2]
    line = line_of(s, "second")
    assert line["cached_tokens"] > 0 and line["model"] == "demo", line
    assert line["finish"] == ",".join(dict.fromkeys(c["finish_reason"] for c in body["choices"])), line
    assert line["output_tokens"] == body["usage"]["completion_tokens"], (line, body)


@server(Mixd, top=JSON, step_ms=50)
def test_streams_and_clients_that_leave(s):
    body = json.dumps(dict(prompt="Call me", max_tokens=2000, ignore_eos=True, stream=True))
    c = s.connect()
    c.request("POST", "/v1/completions", body, {"X-Request-Id": "left"})
    r = c.getresponse()
    r.readline()
    r.close()
    c.close()
    line = line_of(s, "left")
    assert line["status"] == 200 and line["left"] == "early" and line["finish"] == "cancelled", line
    assert 1 <= line["output_tokens"] < 2000 and line["first_token_ms"] > 0, line
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps(dict(json.loads(body), max_tokens=3)),
              {"X-Request-Id": "stream"})
    c.getresponse().read()
    c.close()
    line = line_of(s, "stream")
    assert line["status"] == 200 and line["output_tokens"] == 3 and "left" not in line, line


@server(Mixd, top=JSON)
def test_errors_have_their_code_and_probes_no_line(s):
    for path in ("/health", "/readyz", "/livez", "/metrics"):
        assert s.get(path, headers={"X-Request-Id": "probe"})[0] == 200
    ask(s, "unknown", model='no "such"\n')
    line = line_of(s, "unknown")
    assert line["status"] == 404 and line["code"] == "model_not_found" and 'no "such"' in line["error"], line
    s.get("/nowhere", headers={"X-Request-Id": "nowhere"})
    line = line_of(s, "nowhere")
    assert line["route"] == "other" and line["method"] == "GET" and line["level"] == "info", line
    assert not [line for line in lines(s) if line["id"] == "probe"]


@server(Mixd, top=JSON)
def test_ids_of_traces(s):
    """The trace id of a W3C traceparent is the request's id, unless the client names the request."""
    trace, rest = "4bf92f3577b34da6a3ce929d0e0e4736", "-00f067aa0ba902b7-01"
    for headers, id in (({"traceparent": f"00-{trace}{rest}"}, trace),
                        ({"traceparent": f"42-{trace}{rest}-more"}, trace),
                        ({"traceparent": f"00-{trace}{rest}", "X-Request-Id": "mine"}, "mine"),
                        ({"traceparent": f"00-{trace}{rest}", "X-Request-Id": "a b"}, trace),
                        ({"traceparent": f"00-{'0' * 32}{rest}"}, None),
                        ({"traceparent": f"ff-{trace}{rest}"}, None),
                        ({"traceparent": f"00-{trace.upper()}{rest}"}, None),
                        ({"traceparent": f"00-{trace}"}, None), ({"traceparent": ""}, None)):
        given = s.get("/version", headers=headers)[1]["X-Request-Id"]
        assert given == id or (id is None and given != trace and len(given) == 24), (headers, given)
        s.wait_for(lambda: any(line["id"] == given for line in lines(s)), f"line of {given}")


def test_what_log_access_asks_for():
    """off: no line. errors: of those only. A reload changes it. A log in text has the same fields."""
    s = Mixd(top="log: { access: off }\n")

    def logged(id):
        return [line for line in s.errors().splitlines() if f" http: request id={id} " in line]

    def access(what):
        with open(s.config) as f:
            text = f.read()
        with open(s.config, "w") as f:
            f.write(re.sub("access: [a-z]+", f"access: {what}", text))
        n = s.errors().count("reloaded")
        s.process.send_signal(signal.SIGHUP)
        s.wait_for(lambda: s.errors().count("reloaded") > n, "reload")

    # a request on the same connection comes after the line of the one before
    c = s.connect()
    ask(s, "good0", c), ask(s, "bad0", c, max_tokens=-7), s.get("/version", connection=c)
    access("errors")
    ask(s, "good1", c), ask(s, "bad1", c, max_tokens=-7), s.get("/version", connection=c)
    assert logged("bad1"), s.errors()
    access("all")
    ask(s, "good2", c)
    s.wait_for(lambda: logged("good2"), "line")
    assert not logged("good0") and not logged("bad0") and not logged("good1"), s.errors()
    assert re.search(r' info +http: request id=bad1 client=127\.0\.0\.1:\d+ method=POST route=/v1/completions '
                     r'status=400 total_ms=[0-9.]+ code=\w+ error=".*max_tokens.*"$', logged("bad1")[0]), s.errors()
    assert re.search(r" status=200 model=demo prompt_tokens=\d+ cached_tokens=0 output_tokens=8 queue_ms=[0-9.]+ "
                     r"first_token_ms=[0-9.]+ total_ms=[0-9.]+ finish=length$", logged("good2")[0]), s.errors()
    c.close()
    s.stop()


def test_a_5xx_is_logged_with_its_cause_whatever_log_access_says():
    s = Mixd(top="log: { access: off, format: json }\n", queue=1, max_sequences=1, step_tokens=64, step_ms=50)
    fields = dict(prompt="Call me", max_tokens=300, ignore_eos=True)
    running = [Thread(s.post, "/v1/completions", fields, headers={"X-Request-Id": f"r{i}"}) for i in range(2)]
    s.wait_for(lambda: s.metric("vllm:num_requests_running") == 1 and s.metric("vllm:num_requests_waiting") == 1, "queue")
    assert ask(s, "full")[0] == 503
    line = line_of(s, "full")
    assert line["level"] == "warning" and line["status"] == 503, line
    assert line["code"] == "server_overloaded" and "queue is full" in line["error"], line
    s.pace.set(0)
    for t in running:
        assert t.join()[0] == 200
    # and so has a probe that came before the model was loaded
    others = [line for line in lines(s) if line["id"] != "full"]
    assert all(line["route"] == "/readyz" and "is loading" in line["error"] for line in others), others
    assert all(line["level"] == "info" for line in others), others
    s.stop()


class Unread(Mixd):
    """mixd whose log goes into a pipe, of which only the first lines are read."""

    def __init__(self, **kw):
        super().__init__(**kw)
        self.stop()
        self.process = subprocess.Popen([os.path.join(BUILD, "mixd"), "--config", self.config], stderr=subprocess.PIPE,
                                        env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs")))
        for line in self.process.stderr:
            found = re.search(rb"listening on 127.0.0.1:(\d+)", line)
            if found:
                self.port = int(found[1])
            if b"mixd: ready" in line:
                break


def test_a_log_that_nobody_reads_stops_nobody():
    """64 KiB of lines fill the pipe: requests go on, and lost lines are counted."""
    s = Unread()
    c = s.connect()
    id = "x" * 128
    for _ in range(600):
        assert s.get("/version", connection=c, headers={"X-Request-Id": id})[0] == 200
    lost = s.metric("mixd_log_lines_lost_total")
    assert 10 < lost < 600, lost
    c.close()
    s.process.terminate()
    rest = s.process.stderr.read().decode()
    assert s.process.wait(PATIENCE) == 0
    assert rest.endswith("\n") and rest.count(" http: request id=") + lost >= 600, rest[-500:]


main(sys.modules[__name__])
