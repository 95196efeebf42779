#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reload under load: models come, go and change while requests run, and none of them fails."""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from harness import ATTENTION, BUILD, DEMO, PATIENCE, SLOW, SRC, Mixd, Skip, Thread, check_error, free_ports, main, server

NIGHT = "It was a dark and stormy night"


def host_memory():
    """Bytes that this process may use, as mixd sees it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    groups = ["/sys/fs/cgroup"]
    with open("/proc/self/cgroup") as f:
        groups += ["/sys/fs/cgroup" + line[3:].strip() for line in f if line.startswith("0::")]
    for group in groups:
        try:
            with open(os.path.join(group, "memory.max")) as f:
                limits.append(int(f.read()))
        except (OSError, ValueError):
            pass
    return min(limits)


def write(s, *models, top="", queue=1024):
    """Replaces the configuration; a model is the inside of its braces."""
    text = (f"http: {{ listen: 127.0.0.1:0 }}\nscheduler: {{ max_sequences: 8, queue: {queue} }}\n{top}models:\n" +
            "".join(f"  - {{ {m} }}\n" for m in models))
    with open(s.config + ".new", "w") as f:
        f.write(text)
    os.replace(s.config + ".new", s.config)


def reload(s, expect=" reloaded "):
    """Sends SIGHUP and waits for the line that says how it went."""
    before = s.errors().count(expect)
    s.process.send_signal(signal.SIGHUP)
    s.wait_for(lambda: s.errors().count(expect) > before, f"line with {expect!r}")
    return [line for line in s.errors().splitlines() if expect in line][-1]


def names(s):
    return {m["id"] for m in s.get("/v1/models")[2]["data"]}


class Load:
    """Clients that ask without pause, streams and whole answers in turn, for one of the names that are
    given at that moment. Each answer must be complete."""

    def __init__(self, s, n, *models):
        self.s, self.models, self.over, self.answers = s, models, False, 0
        self.threads = [Thread(self.run, i) for i in range(n)]

    def run(self, i):
        k = i
        while not self.over:
            k += 1
            model = self.models[k % len(self.models)]
            ask = dict(model=model, prompt=f"{NIGHT} {i}", max_tokens=24, ignore_eos=True, temperature=0)
            if k % 2:
                stream = self.s.stream(**ask)
                events = list(stream)
                assert stream.done and events[-1]["choices"][0]["finish_reason"] == "length", events[-3:]
            else:
                status, _, body = self.s.post("/v1/completions", ask)
                assert status == 200, (status, body)
                assert body["usage"]["completion_tokens"] == 24, body
            self.answers += 1

    def during(self, what):
        """Runs what, and waits until answers came before and after it."""
        for step in (None, what):
            if step:
                step()
            n = self.answers
            self.s.wait_for(lambda: self.answers >= n + len(self.threads) or self.failed(), "answers")
        return self

    def failed(self):
        return any(t.error for t in self.threads)

    def end(self):
        self.over = True
        for t in self.threads:
            t.join()
        assert self.answers


def gone(s, n):
    s.wait_for(lambda: s.errors().count("has finished its requests and is gone") == n, "end of the old model")


DEMO_MODEL = f"name: demo, path: {DEMO}"


@server(Mixd, max_sequences=8)
def test_models_come_and_go_under_load(s):
    load = Load(s, 4, "demo")
    other = f"name: other, path: {ATTENTION}, aliases: [more]"
    load.during(lambda: (write(s, DEMO_MODEL, other), reload(s, "models added: other")))
    assert names(s) == {"demo", "other", "more"}
    assert s.text(model="more", prompt=NIGHT, max_tokens=2, ignore_eos=True)
    assert 'model_name="other"' in s.get("/metrics")[2].decode()
    more = Load(s, 2, "other", "more")
    more.during(lambda: None)
    more.end()
    load.during(lambda: (write(s, DEMO_MODEL), reload(s, "models removed: other")))
    assert names(s) == {"demo"}
    check_error(s.post("/v1/completions", dict(model="other", prompt="x")), 404, "model_not_found")
    assert 'model_name="other"' not in s.get("/metrics")[2].decode()
    load.end()
    gone(s, 1)


@server(Mixd, max_sequences=8)
def test_a_model_is_replaced_under_load(s):
    """The name changes its weights between two requests; those that run end with the old ones."""
    ask = dict(model="demo", prompt=NIGHT, max_tokens=24, ignore_eos=True, temperature=0)
    old = s.text(**ask)
    stream = s.stream(**dict(ask, max_tokens=400))
    events = iter(stream)
    first = next(events)
    load = Load(s, 4, "demo", "gpt-demo")
    change = f"name: demo, path: {ATTENTION}, aliases: [gpt-demo]"
    load.during(lambda: (write(s, change), reload(s, "models replaced: demo")))
    new = s.text(**ask)
    assert new != old
    text = "".join(e["choices"][0]["text"] for e in [first, *events])
    assert text.startswith(old), (text[:100], old)  # this one began with the old weights
    back_and_forth = 3 if SLOW == 1 else 1
    for i in range(back_and_forth):
        back = i % 2 == 0
        path = DEMO if back else ATTENTION
        load.during(lambda: (write(s, f"name: demo, path: {path}, aliases: [gpt-demo]"),
                             reload(s, "models replaced: demo")))
        assert s.text(**ask) == (old if back else new)
    load.end()
    gone(s, 1 + back_and_forth)
    s.wait_for(lambda: s.metric("vllm:num_requests_running") == 0, "idle models")


@server(Mixd, max_sequences=8)
def test_a_link_leads_elsewhere(s):
    """The folder behind a symbolic link changes, and nothing else."""
    link = os.path.join(s.folder.name, "current")
    os.symlink(DEMO, link)
    write(s, f"name: demo, path: {link}")
    reload(s, "models replaced: demo")
    ask = dict(model="demo", prompt=NIGHT, max_tokens=24, ignore_eos=True, temperature=0)
    old = s.text(**ask)
    assert "models" not in reload(s)
    os.symlink(ATTENTION, link + ".new")
    os.replace(link + ".new", link)
    reload(s, "models replaced: demo")
    assert s.text(**ask) != old
    gone(s, 2)
    write(s, f"name: demo, path: {DEMO}, speculation: {{ source: draft, model: {link} }}")
    reload(s, "models replaced: demo")
    assert "models" not in reload(s)
    os.symlink(DEMO, link + ".new")
    os.replace(link + ".new", link)
    reload(s, "models replaced: demo")
    assert s.text(**ask) == old
    gone(s, 4)


@server(Mixd, max_sequences=8, step_ms=50)
def test_a_removed_model_ends_its_stream(s):
    """A stream that runs when its model is removed goes on to its end; the model lives until then."""
    write(s, DEMO_MODEL, f"name: other, path: {ATTENTION}")
    reload(s, "models added: other")
    stream = s.stream(model="other", prompt=NIGHT, max_tokens=400, ignore_eos=True, temperature=0,
                      return_token_ids=True)
    events = iter(stream)
    first = next(events)
    write(s, DEMO_MODEL)
    reload(s, "models removed: other")
    check_error(s.post("/v1/completions", dict(model="other", prompt="x")), 404, "model_not_found")
    assert "is gone" not in s.errors(), s.errors()
    s.pace.set(0)
    choices = [e["choices"][0] for e in [first, *events]]  # one a token unless this client lags
    assert stream.done and choices[-1]["finish_reason"] == "length"
    assert sum(len(c["token_ids"]) for c in choices) == 400, choices
    gone(s, 1)


@server(Mixd, max_sequences=8)
def test_aliases_move_at_once(s):
    """An alias that moves from one model to another is never missing."""
    write(s, DEMO_MODEL + ", aliases: [a]", f"name: other, path: {ATTENTION}")
    reload(s, "models added: other")
    load = Load(s, 4, "a")
    for first, second in (("", ", aliases: [a]"), (", aliases: [a]", "")) * 3:
        load.during(lambda: (write(s, DEMO_MODEL + first, f"name: other, path: {ATTENTION}{second}"),
                             reload(s, "applied: models")))
    load.end()


@server(Mixd, max_sequences=8)
def test_what_is_applied_in_place(s):
    origin = {"Origin": "https://chat.example"}
    assert "Access-Control-Allow-Origin" not in s.get("/v1/models", headers=origin)[1]
    write(s, DEMO_MODEL, top="log: { level: debug }\nshutdown: { drain_s: 7 }\n", queue=5)
    text = open(s.config).read().replace("0 }", "0, threads: 3, cors: {origins: ['https://chat.example']} }", 1)
    open(s.config, "w").write(text)
    line = reload(s)
    assert re.search(r" warning mixd: reloaded \S+; applied: http.cors.origins, log.level, scheduler.queue, "
                     r"shutdown.drain_s, models\[demo\].aliases; for a restart wait: http.threads$", line), line
    assert s.get("/v1/models", headers=origin)[1]["Access-Control-Allow-Origin"] == "https://chat.example"
    # the queue: 8 sequences and 5 places, whoever needs more is told so
    check_error(s.post("/v1/completions", dict(prompt="x", n=14, max_tokens=1)), 400, "invalid_value",
                contains="more than the 13 that fit this server's queue")
    assert len(s.complete(prompt="x", n=13, max_tokens=1)["choices"]) == 13
    assert reload(s).endswith("for a restart wait: http.threads")  # applied already
    s.process.terminate()
    s.wait_for(lambda: "draining: up to 7 s" in s.errors(), "new drain time")


def refused(s, expect):
    """A reload that must change nothing: the reason in the log."""
    before, old = names(s), s.text(prompt=NIGHT, max_tokens=8, temperature=0)
    line = reload(s, "configuration not reloaded: the old one stays in force")
    assert " error " in line
    reason = [l for l in s.errors().splitlines() if " error " in l][-2]
    assert re.search(expect, reason), reason
    assert names(s) == before and s.text(prompt=NIGHT, max_tokens=8, temperature=0) == old


def end(s):
    """Ends a server whose log has errors."""
    s.process.terminate()
    assert s.process.wait(PATIENCE) == 0, s.errors()


def test_a_faulty_file_changes_nothing():
    s = Mixd(max_sequences=8)
    load = Load(s, 2, "demo")
    at = re.escape(s.config)
    write(s, DEMO_MODEL, "name: other, pth: x", top="log: { level: debug }\n")
    refused(s, at + r":\d+:\d+: models\[1\]\.pth: .*did you mean")
    write(s, DEMO_MODEL, "name: other, path: /no/such/folder", top="log: { level: debug }\n")
    refused(s, at + r":\d+: models\[other\]: .*/no/such/folder")
    # one of two new models is faulty: neither comes
    write(s, DEMO_MODEL, f"name: fine, path: {ATTENTION}", f"name: bad, path: {ATTENTION}, dtype: f16")
    refused(s, at + r":\d+: models\[bad\]: dtype")
    assert s.get("/readyz")[0] == 200
    assert " debug " not in s.errors()
    load.end()
    end(s)


def test_not_enough_memory_for_old_and_new():
    """The new model fits alone, but not beside the old one: it is refused before anything is loaded."""
    s = Mixd(max_sequences=8)
    loaded = s.metric("process_resident_memory_bytes")
    write(s, f"name: demo, path: {DEMO}, memory: {host_memory() - (6 << 20)}")
    refused(s, r"models\[demo\]: memory: the new models need [\d.]+ MiB beside [\d.]+ MiB of the loaded ones "
               r"and [\d.]+ MiB of requests, and this host \(or its cgroup\) has [\d.]+ MiB")
    assert s.metric("process_resident_memory_bytes") < loaded + (256 << 20)
    end(s)


def greeting(port):
    """True if ZeroMQ answers at a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as c:
            return c.recv(1) == b"\xff"
    except OSError:
        return False


def test_ports_of_events():
    """A model keeps its port when others come and go; one that is loaded anew publishes where the old did."""
    fronts = os.path.join(BUILD, "daemon/.libs")
    if not os.path.exists(os.path.join(fronts, "events-zmq.so")):
        raise Skip("built without ZeroMQ")
    first = free_ports(2)[0]
    top = f"kv_events: {{ endpoint: 'tcp://*:{first}' }}\n"
    s = Mixd(models={"one": DEMO}, top=top, env={"MIXD_FRONT_PATH": fronts}, max_sequences=8, step_ms=50)
    one, two = f"name: one, path: {DEMO}", f"name: two, path: {ATTENTION}"
    s.wait_for(lambda: greeting(first), "publisher")
    assert not greeting(first + 1)
    write(s, two, one, top=top)  # before it in the file
    reload(s, "models added: two")
    s.wait_for(lambda: greeting(first) and greeting(first + 1), "publisher of the second")
    stream = s.stream(model="two", prompt=NIGHT, max_tokens=2000, ignore_eos=True)
    next(iter(stream))
    write(s, one, two + ", max_context: 1024", top=top)
    reload(s, "models replaced: two")
    # within a second or two, though the old one has a request still
    s.wait_for(lambda: greeting(first) and greeting(first + 1), "publisher of the new second")
    stream.abort()
    gone(s, 1)
    write(s, two + ", max_context: 1024", top=top)
    reload(s, "models removed: one")
    s.wait_for(lambda: not greeting(first) and greeting(first + 1), "end of the first")
    write(s, two + ", max_context: 1024", f"name: three, path: {DEMO}", top=top)
    reload(s, "models added: three")
    s.wait_for(lambda: greeting(first) and greeting(first + 1), "publisher of the third")
    s.stop()


class Early(Mixd):
    """A server whose models are still being loaded when it is to reload."""

    def wait_ready(self):
        write(self, DEMO_MODEL, f"name: other, path: {ATTENTION}")
        self.process.send_signal(signal.SIGHUP)
        super().wait_ready()


def test_a_reload_waits_for_the_start():
    for _ in range(3):
        s = Early(max_sequences=8)
        s.wait_for(lambda: names(s) == {"demo", "other"}, "new model")
        log = s.errors()
        assert log.index("demo: ready in") < log.index("other: loading beside"), log
        assert s.text(model="other", prompt=NIGHT, max_tokens=2, ignore_eos=True)
        s.stop()


@server(Mixd, max_sequences=8)
def test_reloads_one_after_another(s):
    """Signals that come while a reload runs are not lost; the last file counts."""
    load = Load(s, 2, "demo")
    for i in range(10):
        write(s, DEMO_MODEL, f"name: other{i}, path: {ATTENTION}")
        s.process.send_signal(signal.SIGHUP)
        time.sleep(0.02 * SLOW)
    s.wait_for(lambda: names(s) == {"demo", "other9"}, "last model")
    load.end()
    s.process.send_signal(signal.SIGHUP)  # the end may come in the middle of one


GRPC = r'''
import sys, threading
address, messages = sys.argv[1:3]
sys.path.insert(0, messages)
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mixd.v1 import inference_pb2 as pb, inference_pb2_grpc

channel = grpc.insecure_channel(address)
stub = inference_pb2_grpc.InferenceStub(channel)
over, counts = threading.Event(), [0, 0]

def watch():
    for r in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="other")):
        print("watch", r.status, flush=True)

def load(i):
    ask = pb.CompleteRequest(model="demo", prompts=[pb.Prompt(text="It was a dark and stormy night")],
                             sampling=pb.Sampling(temperature=0), stopping=pb.Stopping(max_tokens=24, ignore_eos=True))
    while not over.is_set():
        if not list(stub.Complete(ask)) or not stub.Tokenize(pb.TokenizeRequest(model="demo", text="a b")).ids:
            print("nothing", flush=True)
        counts[i] += 1

threading.Thread(target=watch, daemon=True).start()
threads = [threading.Thread(target=load, args=[i]) for i in range(2)]
threading.excepthook = lambda a: print("failed", a.exc_value, flush=True)
for t in threads:
    t.start()
for line in sys.stdin:
    n = list(counts)
    while any(t.is_alive() for t in threads) and not all(b > a + 1 for a, b in zip(n, counts)):
        over.wait(0.01)
    models = sorted(m.name for r in [stub.ListModels(pb.ListModelsRequest())] for m in r.models)
    print("models", *models, flush=True)
over.set()
for t in threads:
    t.join()
'''


def test_grpc_follows():
    """The same by gRPC: no call fails, and health, its watch and the list of models follow."""
    fronts = os.path.join(BUILD, "daemon/.libs")
    python = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
    modules = "import grpc, grpc_tools, grpc_health.v1"
    if not os.path.exists(os.path.join(fronts, "front-grpc.so")) or \
            subprocess.run([python, "-c", modules], stderr=subprocess.DEVNULL).returncode:
        raise Skip("no gRPC here, or no grpcio")
    top = "grpc: { listen: 127.0.0.1:0 }\n"
    s = Mixd(top=top, env={"MIXD_FRONT_PATH": fronts}, max_sequences=8)
    address = re.search(r"grpc: listening on (\S+)", s.errors())[1]
    protos = os.path.join(SRC, "proto")
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([python, "-m", "grpc_tools.protoc", "-I", protos, "--python_out", d, "--grpc_python_out", d,
                        os.path.join(protos, "mixd/v1/inference.proto")], check=True)
        p = subprocess.Popen([python, "-c", GRPC, address, d], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert p.stdout.readline() == "watch 3\n"  # SERVICE_UNKNOWN

        def step(*models):
            write(s, *models, top=top)
            reload(s)
            p.stdin.write("\n")
            p.stdin.flush()
            seen = [p.stdout.readline()]
            while not seen[-1].startswith("models"):
                assert seen[-1].startswith("watch"), seen
                seen.append(p.stdout.readline())
            return seen
        other = f"name: other, path: {ATTENTION}"
        seen = step(DEMO_MODEL, other)
        assert seen[-1] == "models demo other\n", seen
        watched = seen[:-1] or [p.stdout.readline()]
        assert watched == ["watch 1\n"], watched  # SERVING
        seen = step(f"name: demo, path: {ATTENTION}", other)
        assert seen == ["models demo other\n"], seen  # the other one is as it was
        seen = step(DEMO_MODEL)
        assert seen[-1] == "models demo\n", seen
        watched = seen[:-1] or [p.stdout.readline()]
        assert watched == ["watch 3\n"], watched
        out, _ = p.communicate(timeout=PATIENCE)
        assert p.returncode == 0 and not out, out
    gone(s, 3)
    s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
