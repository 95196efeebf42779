#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model on several hosts (cluster): processes of one machine here, which talk over loopback. The same
bits as the ranks of one process, with drafts and the prefix cache too; hosts that do not belong together,
and peers that speak no such protocol; hosts that are killed or stopped; what --check says."""
import http.client
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from harness import BUILD, DEMO, PATIENCE, SRC, Mixd, Process, Skip, Thread, free_ports, main
from network import Network, Relay, in_user_namespace
from test_golden_api import with_tokenizer

TLS = "+tls" in subprocess.run([os.path.join(BUILD, "mixd"), "--version"], capture_output=True, text=True,
                              check=True).stdout
NOTICED_S = 5  # how soon a lost host is to be noticed
MODULES = {"MIXD_MODULE_PATH": os.path.join(BUILD, "mixers/.libs")}


class Worker(Process):
    """Another host than the one that serves."""

    def __init__(self, config, arguments=None, env=None, within=()):
        super().__init__([*within, os.path.join(BUILD, "mixd"), "--config", config, *(arguments or [])],
                         dict(MODULES, **(env or {})))

    def end(self, within=PATIENCE):
        """Its exit status and its log, when it ends by itself."""
        try:
            rc = self.process.wait(within)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        self.process.stdout.close()
        log = self.errors()
        self.log.close()
        return rc, log

    def wait_log(self, text):
        end = time.monotonic() + PATIENCE
        while text not in self.errors():
            assert self.process.poll() is None and time.monotonic() < end, self.errors()
            time.sleep(0.02)


class Cluster:
    """Hosts of one model: server is the first, workers are the others."""

    def __init__(self, path=DEMO, n=2, devices=1, keys="", join_s=60, ip="127.0.0.1", within=(), tls=TLS, **more):
        """within: a command that runs the workers; tls: whether what they say is encrypted."""
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_ports(1)[0]
        self.address, self.within = f"{ip}:{self.port}", within
        self.secret = self.write("secret", "a secret of the tests\n")
        self.top = (f"cluster: {{ hosts: {n}, listen: '{self.address}', secret: {self.secret}, "
                    f"tls: {str(tls).lower()}, join_s: {join_s} }}\n")
        self.keys = f", device: [{', '.join(['cpu'] * devices)}], threads: {devices}{keys}"
        self.path, self.n = path, n
        self.scheduler = {"max_sequences": 8}
        self.more = more
        self.server, self.workers = None, []

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def config(self, name="worker.yaml", top=None, keys=None):
        path = os.path.join(self.folder.name, name)
        return path if os.path.exists(path) else self.write(
            name, f"scheduler: {{ max_sequences: 8 }}\n{top or self.top}"
            f"models: [{{ name: m, path: {self.path}{keys or self.keys} }}]\n")

    def join(self, number=None):
        self.workers.append(Worker(self.config(), ["--worker", "--join", self.address,
                                                   *(["--host", str(number)] if number else [])],
                                   within=self.within))

    def serve(self):
        self.server = Mixd({"m": self.path}, keys=self.keys, top=self.top, **self.scheduler, **self.more)

    def __enter__(self):
        for i in range(1, self.n):
            self.join(i if self.n > 2 else None)
        self.serve()
        return self

    def __exit__(self, kind, value, trace):
        for p in [self.server, *self.workers]:
            if p and p.process.poll() is None:
                p.process.send_signal(signal.SIGCONT)
                p.process.kill()
                p.process.wait()
        self.folder.cleanup()

    def stop(self):
        """All end, and well."""
        self.server.stop()
        for w in self.workers:
            rc, log = w.end()
            assert rc == 0 and "the first host has ended, and so does this one" in log, log


ASK = dict(model="m", max_tokens=16, temperature=1, seed=5, logprobs=1, ignore_eos=True, return_token_ids=True)


def answers(s):
    """Log-probabilities of a prompt; an answer alone, beside others, and behind a cached beginning."""
    prompt = [(7 * i + 3) % 128 for i in range(90)]
    scored = s.complete(model="m", prompt=prompt, max_tokens=0, echo=True, logprobs=1)["choices"][0]
    alone = s.complete(prompt=prompt, **ASK)["choices"][0]
    beside = [t.join()["choices"][0] for t in [Thread(s.complete, prompt=prompt[i:], **ASK) for i in range(6)]][0]
    assert beside["token_ids"] == alone["token_ids"]
    assert beside["logprobs"]["token_logprobs"] == alone["logprobs"]["token_logprobs"]
    longer = s.complete(prompt=prompt + alone["token_ids"] + [5, 6], **ASK)["choices"][0]
    return [x["logprobs"]["token_logprobs"][i:] for i, x in ((1, scored), (0, alone), (0, longer))]


def of_one_process(path, ranks, keys=""):
    s = Mixd({"m": path}, keys=f", device: [{', '.join(['cpu'] * ranks)}]{keys}", max_sequences=8)
    try:
        return answers(s)
    finally:
        s.stop()


def test_the_same_bits():
    """Where each host has one rank, sums are made in the order of the ranks, as in one process."""
    with tempfile.TemporaryDirectory() as folder:
        for name, n, keys in (("qwen2", 2, ""), ("qwen2", 4, ""), ("gla", 2, ""), ("deepseek_v3", 2, ""), ("rwkv7", 2, ""),
                              ("qwen3_5-mtp", 2, ", speculation: { source: mtp, tokens: 3 }"),
                              ("qwen2", 2, ", speculation: { source: ngram, tokens: 4, tree: true }")):
            path = os.path.join(folder, name)
            path = path if os.path.exists(path) else with_tokenizer(name, folder)
            with Cluster(path, n, keys=keys) as c:
                log = c.server.errors()
                assert f"{n} hosts of 1 ranks each" in log, log
                got = answers(c.server)
                c.stop()
            assert got == of_one_process(path, n, keys), (name, n, keys)


def test_the_bundled_model():
    """Attention and linear attention: pages, slots and snapshots."""
    with Cluster() as c:
        before = c.server.metric("mixd_host_sent_bytes_total")
        got = answers(c.server)
        sent = c.server.metric("mixd_host_sent_bytes_total") - before
        steps = c.server.metric("mixd_steps_total")
        assert c.server.metric("mixd_hosts") == 2 and sent > steps * 192 * 4, (sent, steps)
        assert c.server.metric("mixd_host_received_bytes_total") > 0
        assert c.server.metric("mixd_hosts_exchange_seconds_total") > 0
        assert c.server.metric("mixd_rank_exchange_seconds_total") > 0
        c.stop()
    assert got == of_one_process(DEMO, 2)


def test_uneven():
    """Three hosts of the bundled model: their pages and slots have different sizes."""
    with Cluster(n=3) as c:
        got = answers(c.server)
        c.stop()
    assert got == of_one_process(DEMO, 3)


def test_without_encryption():
    with Cluster(tls=False) as c:
        got = answers(c.server)
        c.stop()
    assert got == of_one_process(DEMO, 2)


def test_several_ranks_of_a_host():
    """Ranks of a host are summed first, so the bits are others; pages may be shared by them."""
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer("qwen2", folder)
        for keys in "", ", parallel: { tensor: 2, context: 2 }":
            with Cluster(path, 2, 2, keys=keys) as c:
                got = answers(c.server)
                c.stop()
            want = of_one_process(path, 4, keys)
            assert max(abs(a - b) for x, y in zip(got, want) for a, b in zip(x, y)) < 1e-4


# ---- hosts that do not belong together ----

def refused(c, arguments, env=None, config=None):
    rc, log = Worker(config or c.config(), arguments, env).end()
    assert rc == 1, log
    return log


def test_strangers():
    """None of them keeps the others from joining."""
    c = Cluster()
    with tempfile.TemporaryDirectory():
        try:
            started = Thread(c.serve)
            join = ["--worker", "--join", c.address]
            other = c.write("other", "another secret, as long\n")
            log = refused(c, join, config=c.config("a.yaml", c.top.replace(c.secret, other)))
            assert "its secret is another one" in log, log
            log = refused(c, join, config=c.config("b.yaml", keys=c.keys + ", max_context: 512"))
            assert 'the hosts differ: "max_context: 0" on host 0, "max_context: 512" on host 1' in log, log
            log = refused(c, join, config=c.config("c.yaml", c.top.replace("hosts: 2", "hosts: 3")))
            assert "it is one of 3 hosts, and this one of 2" in log, log
            if TLS:
                log = refused(c, join, config=c.config("d.yaml", c.top.replace("tls: true", "tls: false")))
                assert "it wants TLS, and this host does not (cluster.tls)" in log, log
            draw = random.Random(7)
            for data in b"", b"GET / HTTP/1.1\r\n\r\n", draw.randbytes(128), b"mixdhost" + draw.randbytes(120), \
                    b"mixdhost\1\0\0\0" + bytes(116), draw.randbytes(5000):
                s = socket.create_connection(("127.0.0.1", c.port))
                s.sendall(data)
                s.close()
            silent = socket.create_connection(("127.0.0.1", c.port))
            c.join()
            started.join()
            silent.close()
            log = c.server.errors()
            assert "is refused: its secret is another one" in log and "it is no mixd" in log, log
            assert not TLS or "is refused: it does not want TLS, and this host does (cluster.tls)" in log, log
            assert answers(c.server)
            c.stop()
        finally:
            c.__exit__(None, None, None)


def test_nobody_joins():
    c = Cluster(join_s=1)
    with c.folder:
        rc, log = Worker(c.config()).end()
        assert rc == 1 and "1 of 1 other hosts have not joined in 1 s" in log, log
        rc, log = Worker(c.config(), ["--worker", "--join", c.address]).end()
        assert rc == 1 and "cannot connect" in log, log


def test_a_wait_is_stopped():
    for arguments in [], ["--worker", "--join", "127.0.0.1:9"]:
        c = Cluster()
        with c.folder:
            w = Worker(c.config(), arguments)
            w.wait_log("joining" if arguments else "waiting for 1 other hosts")
            w.process.send_signal(signal.SIGTERM)
            rc, log = w.end(20)
            assert rc == 0, log


# ---- hosts that are lost ----

def read_all(stream, events):
    """Reads a stream to its end, however it ends."""
    try:
        for e in stream:
            events.append(e)
    except (OSError, http.client.HTTPException):
        pass
    return time.monotonic()


def lose(c, act, busy):
    """Has a host lost in the middle of a stream, or while nothing runs. Returns the server's log."""
    events, reader = [], None
    if busy:
        reader = Thread(read_all, c.server.stream(model="m", prompt=[1, 2, 3], max_tokens=100 if "step_ms" in c.more else 1900, ignore_eos=True), events)
        c.server.wait_for(lambda: len(events) > 5, "no tokens come")
    begin = time.monotonic()
    act(c.workers[0].process)
    rc = c.server.process.wait(PATIENCE)
    took = time.monotonic() - begin
    assert took < NOTICED_S + 1 and rc == 1, (took, rc)
    if reader:
        assert reader.join() - begin < NOTICED_S + 1
        assert not any(e["choices"] and e["choices"][0]["finish_reason"] for e in events if "choices" in e)
    log = c.server.errors()
    assert "an engine is lost: exiting to be restarted" in log, log
    return log


def test_a_killed_worker():
    with tempfile.TemporaryDirectory() as folder:
        four = Cluster(with_tokenizer("qwen2", folder), n=4, step_ms=20)
        for c, busy in (four, True), (Cluster(), False):
            with c:
                killed(c, busy)


def killed(c, busy):
    log = lose(c, lambda p: p.send_signal(signal.SIGKILL), busy)
    assert re.search(r"host 1 \(127.0.0.1:\d+\) (has closed the connection|Connection reset)", log), log
    for w in c.workers[1:]:  # they hear of it
        rc, log = w.end(10)
        assert rc == 1 and "the hosts are lost: host 0" in log and "has ended: host 1" in log, log


def test_a_stopped_worker():
    with Cluster() as c:
        log = lose(c, lambda p: p.send_signal(signal.SIGSTOP), True)
        assert "does not answer: it hangs, or the network does" in log, log
        c.workers[0].process.send_signal(signal.SIGCONT)
        rc, log = c.workers[0].end(10)
        assert rc == 1 and "the hosts are lost: host 0" in log, log


def test_a_worker_is_told_to_stop():
    with Cluster() as c:
        log = lose(c, lambda p: p.send_signal(signal.SIGTERM), True)
        assert "has ended: it was stopped by a signal" in log, log
        assert c.workers[0].end(10)[0] == 0


def test_the_first_host_is_lost():
    for sig in signal.SIGKILL, signal.SIGSTOP:
        with Cluster() as c:
            c.server.process.send_signal(sig)
            begin = time.monotonic()
            rc, log = c.workers[0].end(20)
            assert rc == 1 and "the hosts are lost: host 0" in log, log
            assert time.monotonic() - begin < NOTICED_S + 1


def test_a_slow_host_is_waited_for():
    """A step that takes longer than a silent host may be silent."""
    with Cluster(step_ms=5000) as c:
        r = c.server.complete(model="m", prompt=[1, 2, 3], max_tokens=2, ignore_eos=True)
        assert r["usage"]["completion_tokens"] == 2
        c.server.pace.set(0)
        c.stop()


# ---- networks that behave badly ----

class Relayed(Cluster):
    """A cluster whose worker comes by a relay."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.relay = Relay(("127.0.0.1", self.port), draw_seed())

    def __enter__(self):
        self.workers.append(Worker(self.config(), ["--worker", "--join", self.relay.address]))
        self.serve()
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self.relay.__exit__(*error)

    def end_worker(self, says="the hosts are lost: host 0"):
        rc, log = self.workers[0].end(10)
        assert rc == 1 and says in log, log
        return log


def draw_seed():
    return int(os.environ.get("MIXD_TEST_SEED") or random.randrange(1 << 30))


def test_bytes_that_trickle():
    """In pieces of any size, some of them late: the same bits."""
    for tls in {TLS, False}:
        with Relayed(tls=tls) as c:
            c.relay.most = 700
            got = answers(c.server)
            assert c.relay.bytes > 100000, c.relay.bytes
            c.stop()
        assert got == of_one_process(DEMO, 2), tls


def test_a_network_that_stands_still():
    """Shorter than a host may be silent: it only takes longer. Longer: both ends notice."""
    with Relayed() as c:
        asked = Thread(answers, c.server)
        for _ in range(2):
            before = c.relay.bytes
            c.server.wait_for(lambda: c.relay.bytes > before + 20000, "data")  # pylint: disable=cell-var-from-loop
            c.relay.held = True
            time.sleep(2)
            c.relay.let_go()
        assert asked.join() == of_one_process(DEMO, 2)
        log = lose(c, lambda p: setattr(c.relay, "held", True), True)
        assert "does not answer: it hangs, or the network does" in log, log
        c.end_worker()


def test_a_connection_that_breaks():
    """In the middle of a message, one way or the other: the end that notices it first tells the other."""
    with Relayed() as c:
        log = lose(c, lambda p: setattr(c.relay, "cut", True), True)
        assert re.search(r"host [01] \(127.0.0.1:\d+\) (has closed the connection|Connection reset)", log), log
        c.end_worker()


def test_a_changed_bit():
    """What is encrypted cannot be changed: the hosts are lost, and no token of it is sent."""
    if not TLS:
        raise Skip("built without TLS")
    with Relayed() as c:
        want = c.server.complete(model="m", prompt=[1, 2, 3], max_tokens=400, temperature=0, ignore_eos=True,
                                 return_token_ids=True)["choices"][0]["token_ids"]
        events = []
        reader = Thread(read_all, c.server.stream(model="m", prompt=[1, 2, 3], max_tokens=400, temperature=0,
                                                  ignore_eos=True, return_token_ids=True), events)
        c.server.wait_for(lambda: len(events) > 5, "no tokens come")
        c.relay.corrupt = True
        assert c.server.process.wait(PATIENCE) == 1
        reader.join()
        got = [t for e in events if e.get("choices") for t in e["choices"][0].get("token_ids") or []]
        assert 5 <= len(got) < 400 and got == want[:len(got)], (got, want)
        log = c.server.errors()
        assert re.search(r"host 1 \(127.0.0.1:\d+\) sent what was changed on its way \(TLS\)", log), log
        log = c.end_worker()
        assert "sent what was changed on its way (TLS)" in log, log


def test_another_network():
    """Packets that are lost, late and out of order change nothing; a wire that is cut is noticed at both ends."""
    if os.geteuid():
        in_user_namespace("test_another_network")
        return
    network = Network(draw_seed())
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = with_tokenizer("qwen2", folder)
            with Cluster(path, ip=network.ip, within=network.within) as c:
                network.percent = 3
                got = answers(c.server)
                network.percent = 0
                assert got == of_one_process(path, 2)
                assert network.lost > 3, (network.lost, network.seen)
                print(f"      {network.lost} of {network.seen} packets were lost")
                log = lose(c, lambda p: setattr(network, "cut", True), False)
                assert "does not answer: it hangs, or the network does" in log, log
                rc, log = c.workers[0].end(10)
                assert rc == 1 and "the hosts are lost: host 0" in log, log
    finally:
        network.remove()


# ---- launchers, and --check ----

def table_of_launchers():
    """The rows of the table in docs/hosts.md: for each launcher the variables for the number, the count and
    the first host."""
    with open(os.path.join(SRC, "docs/hosts.md"), encoding="utf-8") as f:
        rows = [line.split("|")[2:5] for line in f if re.match(r"\| .* \| `[A-Z_]+` \|", line)]
    return [[re.findall(r"`([A-Z_]+)`", cell) for cell in row] for row in rows]


def test_launchers():
    """As the table in the documentation says, each of its variables once."""
    table = table_of_launchers()
    assert len(table) == 3 and all(len(row) == 3 and all(row) for row in table), table
    for number, count, firsts in table:
        for first in firsts:
            c = Cluster()
            with c.folder:
                config = c.config()
                name = "localhost,x[1-3]" if first.endswith("LIST") else "localhost"
                a, b = [Worker(config, ["--launched"], {number[0]: str(i), count[0]: "2", first: name}) for i in (0, 1)]
                b.wait_log("part of m is loaded")
                a.wait_log("this is host 0 of 2")
                a.process.send_signal(signal.SIGTERM)
                for p in a, b:
                    rc, log = p.end()
                    assert rc == 0, log
                for env, says in (({number[0]: "2"}, f'{number[0]}: "2" is not a number of 0 to 1'),
                                  ({number[0]: "1", count[0]: "3"}, f"{count[0]}: is 3, and cluster.hosts 2"),
                                  ({number[0]: "1"}, f"{firsts[-1]}: is not set")):
                    assert says in refused(c, ["--launched"], env, config)


def check(top, keys=""):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(f"{top}\nmodels: [{{ name: demo, path: {DEMO}{keys} }}]\n")
        f.flush()
        p = subprocess.run([os.path.join(BUILD, "mixd"), "--config", f.name, "--check"], text=True,
                           env=dict(os.environ, **MODULES), capture_output=True, timeout=PATIENCE)
        return p.returncode, p.stdout, p.stderr


def test_check():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("0123456789abcdef")
        f.flush()
        cluster = f"cluster: {{ hosts: 2, secret: {f.name}, tls: {str(TLS).lower()} }}"
        rc, out, err = check(cluster)
        assert rc == 0, err
        assert re.search(r"^    host 1: rank 1, [\d.]+ MiB beside the mapped weights\n    rank 1   mixers ", out, re.M), out
        for top, keys, says in (
                ("cluster: { hosts: 2 }", "", "cluster.secret: several hosts need a file with a secret"),
                ("cluster: { hosts: 2, secret: /nowhere }", "", "/nowhere: cannot be opened"),
                (cluster, ", parallel: { tensor: 1 }",
                 "tensor 1 times context 1 is not the number of devices of all hosts, 2 times 1"),
                (cluster, ", parallel: { context: 2 }", "pages are shared by ranks of one host only"),
                (cluster, ", device: 'cuda:0'", "cluster.hosts: GPUs of several hosts do not communicate yet"),
                (cluster.replace("hosts: 2", "hosts: 7"), "", "6 heads cannot be split over 7 ranks")):
            rc, out, err = check(top, keys)
            assert rc != 0 and says in err, (keys, err)
        if not TLS:
            rc, out, err = check(cluster.replace("tls: false", "tls: true"))
            assert rc != 0 and "cluster.tls: mixd was built without TLS" in err, err
        f.truncate(8)
        rc, out, err = check(cluster)
        assert rc != 0 and "the secret has 8 bytes: must be 16 to 4095" in err, err


if __name__ == "__main__":
    main(sys.modules[__name__])
