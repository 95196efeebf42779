#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bounds of gRPC's connections: pings that are allowed and pings that are not, sizes of messages and
of metadata, compression. Pings are sent as plain HTTP/2 frames, and by the real client."""
import socket
import struct
import sys
import time

from grpc_harness import need, run, start
from harness import PATIENCE, main

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4
ENHANCE_YOUR_CALM = 11


def literal(name, value):
    """A header of HPACK without indexing; name is an index of the static table or a text."""
    if isinstance(name, int):
        head = bytes([name]) if name < 15 else bytes([15, name - 15])
    else:
        head = bytes([0, len(name)]) + name.encode()
    return head + bytes([len(value)]) + value.encode()


class Connection:
    """Frames of HTTP/2. goaway: (code, text) once the server has ended the connection."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.address, self.data = address, b""
        self.goaway, self.acks, self.frames = None, 0, []
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS)

    def send(self, kind, payload=b"", flags=0, stream=0):
        self.socket.sendall(struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) +
                            struct.pack(">I", stream) + payload)

    def watch(self, service):
        """Opens a call that stays open: the health of a model."""
        head = b"\x83\x86" + literal(4, "/grpc.health.v1.Health/Watch") + literal(1, self.address)
        head += literal(31, "application/grpc") + literal("te", "trailers")
        self.send(HEADERS, head, END_HEADERS, 1)
        message = b"\x0a" + bytes([len(service)]) + service.encode()
        self.send(DATA, struct.pack(">BI", 0, len(message)) + message, END_STREAM, 1)

    def read(self, seconds):
        """Takes what comes for so long, or until the connection ends."""
        end = time.monotonic() + seconds
        while not self.goaway and (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                more = self.socket.recv(65536)
            except socket.timeout:
                return
            except OSError:
                more = b""
            assert more or self.goaway, "the connection ended without a word"
            self.data += more
            while len(self.data) >= 9:
                n = int.from_bytes(self.data[:3], "big")
                if len(self.data) < 9 + n:
                    break
                kind, flags, payload = self.data[3], self.data[4], self.data[9:9 + n]
                self.data = self.data[9 + n:]
                self.frames.append((kind, flags))
                self.acks += kind == PING and flags & ACK
                if kind == SETTINGS and not flags & ACK:
                    self.send(SETTINGS, flags=ACK)
                elif kind == PING and not flags & ACK:
                    self.send(PING, payload, ACK)
                elif kind == GOAWAY:
                    self.goaway = struct.unpack(">I", payload[4:8])[0], payload[8:].decode()

    def ping(self):
        self.send(PING, b"12345678")


def test_pings():
    """With the floor at one second: five pings 1.3 s apart are answered, with a call and without; pings ten
    times a second end the connection, and it says why."""
    need()
    s, address = start(", min_ping_s: 1")
    idle, busy = Connection(address), Connection(address)
    busy.watch("demo")
    for _ in range(5):
        for c in idle, busy:
            c.ping()
            c.read(0.65)
    for c in idle, busy:
        c.read(0.2)
        assert c.goaway is None and c.acks == 5, (c.goaway, c.acks)
    # of the call: the headers and one message, and no end
    assert [k for k, _ in busy.frames if k in (DATA, HEADERS)] == [HEADERS, DATA], busy.frames
    assert not any(flags & END_STREAM for kind, flags in busy.frames if kind in (DATA, HEADERS)), busy.frames
    # who has a call is told the same
    for c in idle, busy:
        for _ in range(6):
            if not c.goaway:
                c.ping()
                c.read(0.1)
        c.read(PATIENCE)  # a busy server says it later
        assert c.goaway and c.goaway[0] == ENHANCE_YOUR_CALM and "ping" in c.goaway[1], c.goaway
        c.socket.close()
    s.stop()


CLIENT = r'''
from grpc_health.v1 import health_pb2, health_pb2_grpc
options = [("grpc.keepalive_time_ms", 1500), ("grpc.keepalive_timeout_ms", 60000),
           ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]
channel = grpc.insecure_channel(address, options)
stub = health_pb2_grpc.HealthStub(channel)
watch = stub.Watch(health_pb2.HealthCheckRequest(service="demo"))
assert next(watch).status == 1
threading.Timer(7.5, watch.cancel).start()
try:
    raise AssertionError(next(watch))
except grpc.RpcError as e:
    assert e.code() == grpc.StatusCode.CANCELLED, e
states = []
note = states.append
channel.subscribe(note)
time.sleep(4)  # without a call
assert set(states) <= {grpc.ChannelConnectivity.READY}, states
assert stub.Check(health_pb2.HealthCheckRequest()).status == 1
channel.unsubscribe(note)
channel.close()
'''


def test_the_clients_keep_alive():
    """A real client that pings while a call is silent, and while there is none."""
    need()
    s, address = start(", min_ping_s: 1")
    run(CLIENT, f"http://127.0.0.1:{s.port}", address)
    s.stop()


SIZES = r'''
from mixd.v1 import inference_pb2 as pb, inference_pb2_grpc
from kserve import grpc_predict_v2_pb2 as oip, grpc_predict_v2_pb2_grpc
channel = grpc.insecure_channel(address)
stub = inference_pb2_grpc.InferenceStub(channel)
most = 65536


def tokenize(n):
    """A request of n bytes."""
    text = "a" * (n - 3 - len(pb.TokenizeRequest(model="demo").SerializeToString()) - 1)
    m = pb.TokenizeRequest(model="demo", text=text)
    assert m.ByteSize() == n, m.ByteSize()
    return lambda: stub.Tokenize(m)


tokenize(most)()
full = grpc.StatusCode.RESOURCE_EXHAUSTED
fails(full, tokenize(most + 1))
tokenize(most)()
infer = oip.ModelInferRequest(model_name="demo", raw_input_contents=[b"\0" * most])
fails(full, lambda: grpc_predict_v2_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer))
# The library (1.51) ends the connection of metadata that is too large, so this client has its own.
with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as other:
    fails(full, inference_pb2_grpc.InferenceStub(other).Complete(
        pb.CompleteRequest(model="demo"), metadata=[("x-long", "y" * (32 << 10))]))
small = pb.TokenizeRequest(model="demo", text="a" * 4000)
fails(grpc.StatusCode.UNIMPLEMENTED, lambda: stub.Tokenize(small, compression=grpc.Compression.Gzip))
assert len(stub.Tokenize(small).ids) > 100
'''


def test_sizes():
    """Of messages (http.max_body_bytes) and metadata; a refused message leaves the connection usable."""
    need()
    s, address = start(http=", max_body_bytes: 64KiB")
    run(SIZES, f"http://127.0.0.1:{s.port}", address,
        protos=("mixd/v1/inference.proto", "kserve/grpc_predict_v2.proto"))
    s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
