#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples of deploy/: programs that are here accept them, and what they say of mixd is true."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from harness import BUILD, DEMO, PATIENCE, SRC, Mixd, Skip, main

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
DEPLOY = os.path.join(SRC, "deploy")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"


def accept(program, *arguments):
    found = shutil.which(program, path=PATH)
    if not found:
        raise Skip("no " + program)
    p = subprocess.run([found, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       timeout=PATIENCE)
    assert p.returncode == 0, p.stdout


def test_haproxy():
    accept("haproxy", "-c", "-f", os.path.join(DEPLOY, "haproxy.cfg"))


def test_nginx():
    with tempfile.TemporaryDirectory() as folder:
        accept("nginx", "-t", "-c", os.path.join(DEPLOY, "nginx.conf"), "-p", folder)


def test_envoy():
    accept("envoy", "--mode", "validate", "-c", os.path.join(DEPLOY, "envoy.yaml"))


def test_prometheus():
    accept("promtool", "check", "config", os.path.join(DEPLOY, "prometheus.yml"))


KUBERNETES = r'''
import sys, yaml, kubernetes_validate
found = []
for doc in yaml.safe_load_all(open(sys.argv[1])):
    kubernetes_validate.validate(doc, kubernetes_validate.latest_version(), strict=True)
    found.append(doc["kind"])
print(*found)
'''


def test_kubernetes():
    if subprocess.run([PYTHON, "-c", "import yaml, kubernetes_validate"], stderr=subprocess.DEVNULL).returncode:
        raise Skip("no kubernetes-validate in " + PYTHON)
    p = subprocess.run([PYTHON, "-c", KUBERNETES, os.path.join(DEPLOY, "kubernetes/mixd.yaml")],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    assert p.returncode == 0, p.stdout
    assert p.stdout.split() == ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget"], p.stdout


COMPOSE = r'''
import importlib.util, json, os, sys, jsonschema, yaml
# of the specification; without compose itself, whose dependencies are old
folder = os.path.join(importlib.util.find_spec("compose").submodule_search_locations[0], "config")
with open(os.path.join(folder, "compose_spec.json")) as f:
    schema = json.load(f)
with open(sys.argv[1]) as f:
    text = f.read()
jsonschema.validate(yaml.safe_load(text), schema, cls=jsonschema.Draft7Validator)
try:
    jsonschema.validate(yaml.safe_load(text.replace("read_only", "read_olny")), schema, cls=jsonschema.Draft7Validator)
except jsonschema.ValidationError:
    print("valid")
'''


def test_compose():
    """The example follows the schema of the Compose specification."""
    if subprocess.run([PYTHON, "-c", "import yaml, jsonschema, importlib.util as u; assert u.find_spec('compose')"],
                      stderr=subprocess.DEVNULL).returncode:
        raise Skip("no docker-compose in " + PYTHON)
    p = subprocess.run([PYTHON, "-c", COMPOSE, os.path.join(DEPLOY, "compose.yaml")], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    assert p.returncode == 0 and p.stdout == "valid\n", p.stdout


def containerfile():
    with open(os.path.join(DEPLOY, "Containerfile")) as f:
        return re.sub(r"\\\n", " ", f.read())


def test_health_check():
    """The command of Containerfile and compose.yaml says healthy of a server that is ready, and of no other."""
    image = json.loads(re.search(r"HEALTHCHECK .* CMD (\[.*\])", containerfile())[1])
    with open(os.path.join(DEPLOY, "compose.yaml")) as f:
        line = re.search(r"- (exec 3<>.*)", f.read())[1]
    compose = line.replace("$$", "$").replace("8080", "${MIXD_PORT:-8080}")
    assert image[2] == compose, (image[2], compose)
    s = Mixd()

    def healthy(port):
        return subprocess.run(image, env=dict(os.environ, MIXD_PORT=str(port)), stderr=subprocess.DEVNULL,
                              timeout=PATIENCE).returncode == 0
    assert healthy(s.port)
    with socket.socket() as other:  # nobody listens there
        other.bind(("127.0.0.1", 0))
        assert not healthy(other.getsockname()[1])
    stream = s.stream(model="demo", prompt="x", max_tokens=1500, ignore_eos=True)
    next(iter(stream))
    s.process.send_signal(signal.SIGTERM)
    s.wait_for(lambda: not healthy(s.port), "end of readiness")
    stream.close()
    s.stop()


def test_libraries_of_the_container():
    """The second stage installs the packages of all libraries that the programs of this build link, but for
    systemd's, which the image is built without."""
    stages = containerfile().split("\nFROM ")
    if not shutil.which("dpkg-query") or not shutil.which("readelf"):
        raise Skip("no dpkg-query or readelf")
    installed = set(re.search(r"--no-install-recommends (.*?) && rm", stages[-1], re.S)[1].split())
    sonames = set()
    for name in ("mixd", "mixctl", "daemon/.libs/front-grpc.so", "daemon/.libs/events-zmq.so"):
        path = os.path.join(BUILD, name)
        if os.path.exists(path):
            found = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, timeout=PATIENCE).stdout
            sonames |= set(re.findall(r"\(NEEDED\).*\[(.*?)\]", found))
    owners = subprocess.run(["dpkg-query", "-S", *("*/" + s for s in sorted(sonames))], capture_output=True, text=True,
                            timeout=PATIENCE).stdout
    needed = {line.split(":")[0] for line in owners.splitlines() if not line.startswith(("diversion", "libc6"))}
    assert "libjansson4" in needed, (sonames, owners)
    # what every Debian has, or another of the list brings
    assert needed - installed <= {"libsystemd0", "libgcc-s1", "libstdc++6", "libasan8", "libubsan1", "libtsan2"}, needed - installed


def test_configuration_in_the_manifest():
    """mixd takes the ConfigMap's file, and its times fit into the pod's."""
    with open(os.path.join(DEPLOY, "kubernetes/mixd.yaml")) as f:
        text = f.read()
    block = re.search(r"mixd\.yaml: \|\n((?:    .*\n)+)", text)[1]
    config = re.sub(r"(?m)^    ", "", block).replace("POD_IP", "10.0.0.1")
    grace = int(re.search(r"terminationGracePeriodSeconds: (\d+)", text)[1])
    notice, drain = map(int, re.search(r"notice_s: (\d+), drain_s: (\d+)", config).groups())
    assert notice + drain < grace
    period = int(re.search(r"readinessProbe:.*?periodSeconds: (\d+)", text, re.S)[1])
    assert notice >= 2 * period
    assert "/models/model, memory: 24GiB" in config
    config = config.replace("/models/model, memory: 24GiB", DEMO)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "mixd.yaml")
        with open(file, "w") as f:
            f.write(config)
        p = subprocess.run([os.path.join(BUILD, "mixd"), "--check", "--config", file],
                           env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs")),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
        assert p.returncode == 0, p.stdout


main(sys.modules[__name__])
