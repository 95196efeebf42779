# SPDX-License-Identifier: Apache-2.0
"""What the tests of gRPC share. Their clients run in an interpreter that has grpcio and its packages
(MIXD_TEST_PYTHON); without one, or without the front end in the build, the tests are skipped."""
import atexit
import os
import re
import subprocess
import sys
import tempfile

from harness import BUILD, PATIENCE, SRC, Mixd, Skip

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
FRONTS = os.path.join(BUILD, "daemon/.libs")

# In front of a client's code: arguments, the channel, and what clients ask REST.
PRELUDE = r'''
import json, os, struct, sys, threading, time, urllib.request
http, address, messages = sys.argv[1:4]
sys.path.insert(0, messages)
import grpc


def rest(path, **body):
    r = urllib.request.Request(http + path, json.dumps(dict(body, model="demo")).encode())
    return json.loads(urllib.request.urlopen(r).read())


def running():
    text = urllib.request.urlopen(http + "/metrics").read().decode()
    return next(float(l.rsplit(" ", 1)[1]) for l in text.splitlines()
                if l.startswith("vllm:num_requests_running{"))


def pace(step_ms):
    """Makes the daemon's steps so long; 0: as long as they take."""
    with open(os.environ["MIXD_TEST_PACE"], "w") as f:
        f.write(str(step_ms))


def is_idle():
    end = time.monotonic() + 60
    while running():
        assert time.monotonic() < end, "a request still runs"
        time.sleep(0.02)


def fails(code, call, *words):
    try:
        list(call) if hasattr(call, "__iter__") else call()
    except grpc.RpcError as e:
        assert e.code() == code, (e.code(), e.details())
        for w in words:
            assert w in e.details(), (w, e.details())
        return e
    raise AssertionError("no error")
'''


def python(code, *arguments):
    return subprocess.Popen([PYTHON, "-c", code, *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def has(modules):
    return not subprocess.run([PYTHON, "-c", "import " + modules], stderr=subprocess.DEVNULL).returncode


def need():
    if not os.path.exists(os.path.join(FRONTS, "front-grpc.so")):
        raise Skip("built without gRPC")
    if not has("grpc, grpc_tools, grpc_health.v1, grpc_reflection.v1alpha"):
        raise Skip("no grpcio in " + PYTHON)


def start(grpc="", **options):
    """A daemon and the address of its gRPC front end; `grpc` is more of that section. Clients may set the
    pace of its steps."""
    s = Mixd(top=f"grpc: {{ listen: 127.0.0.1:0{grpc} }}\n", env={"MIXD_FRONT_PATH": FRONTS}, step_ms=0, **options)
    os.environ["MIXD_TEST_PACE"] = s.pace.file
    atexit.register(s.process.kill)  # of a test that fails; one that has ended is left alone
    return s, re.search(r"grpc: listening on (\S+)", s.errors())[1]


def run(code, http, address, *arguments, protos=()):
    """Runs a client with the code of .proto files; what it prints is this test's."""
    with tempfile.TemporaryDirectory() as folder:
        top = os.path.join(SRC, "proto")
        for f in protos:  # one by one: google.rpc is also a package of others
            subprocess.run([PYTHON, "-m", "grpc_tools.protoc", "-I", top, "--python_out", folder,
                            "--grpc_python_out", folder, os.path.join(top, f)], check=True)
        p = python(PRELUDE + code, http, address, folder, *arguments)
        out, _ = p.communicate(timeout=5 * PATIENCE)
        assert p.returncode == 0, out
        print(out)
