#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mixd --check: checkpoints that do not fit together are refused with both numbers, at start too."""
import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

from harness import ATTENTION, BUILD, DEMO, PATIENCE, main, make_pair


def run(path=DEMO, check=True, keys="", top="", http="", fronts=os.path.join(BUILD, "daemon/.libs")):
    """(exit status, output) of mixd on one model, with more keys of it, of the configuration and of its
    http section."""
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "mixd.yaml")
        with open(config, "w") as f:
            f.write(f"http: {{ listen: '127.0.0.1:0'{http} }}\n{top}models: [{{ name: demo, path: {path}{keys} }}]\n")
        r = subprocess.run([os.path.join(BUILD, "mixd"), "--config", config] + ["--check"] * check,
                           env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs"),
                                    MIXD_FRONT_PATH=fronts),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           timeout=PATIENCE)
        return r.returncode, r.stdout


@contextlib.contextmanager
def changed(change, model=DEMO):
    """A copy of a bundled model that change(folder) was applied to."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "demo")
        os.mkdir(path)
        for name in os.listdir(model):
            if name.endswith(".safetensors"):
                os.symlink(os.path.join(model, name), os.path.join(path, name))
            elif os.path.isfile(os.path.join(model, name)):
                shutil.copy(os.path.join(model, name), path)
        change(path)
        yield path


def expect_refused(change, *words, model=DEMO):
    """change(folder) damages a copy of a bundled model."""
    with changed(change, model) as path:
        for check in (True, False):
            rc, text = run(path, check)
            assert rc == 1, (rc, text)
            for word in words:
                assert word in text, (word, text)


def edit(path, name, f):
    path = os.path.join(path, name)
    with open(path, encoding="utf-8") as file:
        o = json.load(file)
    f(o)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(o, file)


def keep(path, wanted):
    """Rewrites the model's tensors: those only whose names wanted(name) likes."""
    path = os.path.join(path, "model.safetensors")
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out, parts, at = {}, [], 0
    for name, t in header.items():
        if name == "__metadata__" or not wanted(name):
            continue
        begin, end = t["data_offsets"]
        out[name] = t | dict(data_offsets=[at, at + end - begin])
        parts.append(data[begin:end])
        at += end - begin
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    os.unlink(path)  # a link to the bundled file
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def test_the_bundled_model_passes():
    rc, text = run()
    assert rc == 0 and "total" in text and "room for 64 sequences of 2048 tokens" in text, text
    assert "layers 0 hyena, 1 gla, 2 mamba, 3 attention, 4 hyena" in text, text
    for line in ("hyena              2 layers, 3072 bytes a token", "gla                2 layers, 0 bytes a token",
                 "mamba              2 layers, 0 bytes a token", "attention          2 layers, 1024 bytes a token"):
        assert f"  mixer {line}" in text, text
    sizes = {k: float(re.search(rf"^  {k} +([0-9.]+) MiB", text, re.M)[1]) for k in
             ("answers", "bodies", "work on short ones", "work on long ones", "connections",
              "grammars", "resident at start")}
    total = float(re.search(r"^  total +([0-9.]+) MiB  models and requests", text, re.M)[1])
    assert sizes["answers"] == 64 and sizes["bodies"] == 2 * 64, text
    assert abs(sum(sizes.values()) - total) < 0.4, text
    rc, text = run(ATTENTION)
    assert rc == 0 and "layers 0-8 attention" in text and "9 layers, 2304 bytes a token" in text, text


def test_memory_of_mixers_is_part_of_the_plan():
    """The mixer of modules_reaching.c, 9 layers of it, says how much it allocates for itself;
    attention allocates nothing."""
    def change(path):
        edit(path, "config.json", lambda c: c.update(
            model_type="mixd", mixd_layers=[{"mixer": "reaching"}] * c["num_hidden_layers"]))
        keep(path, lambda name: ".self_attn." not in name)

    modules = os.path.join(BUILD, "tests/mixers/modules/.libs")
    with changed(change, ATTENTION) as path:
        rc, text = run(path, top=f"modules: ['{modules}']\n")
    assert rc == 0 and "layers 0-8 reaching" in text and "mixers' own" in text, text
    assert "mixers' own" not in run(ATTENTION)[1]


def test_more_layers_than_the_configuration_says():
    expect_refused(lambda p: edit(p, "config.json", lambda c: c.update(num_hidden_layers=2)),
                   "model.layers.2.", "num_hidden_layers is 2", model=ATTENTION)
    expect_refused(lambda p: edit(p, "config.json", lambda c: c.update(num_hidden_layers=2)),
                   "mixd_layers", "has 8 entries for num_hidden_layers 2")


def test_a_token_beyond_the_vocabulary():
    token = dict(id=4096, content="<far>", single_word=False, lstrip=False, rstrip=False,
                 normalized=False, special=True)
    expect_refused(lambda p: edit(p, "tokenizer.json", lambda t: t["added_tokens"].append(token)),
                   "tokenizer.json", '"<far>" has id 4096', "vocab_size is 4096")


def test_a_damaged_tokenizer_is_named():
    expect_refused(lambda p: edit(p, "tokenizer.json", lambda t: t["model"].update(type="Nothing")),
                   "tokenizer.json: model", '"Nothing" is not supported')


def test_more_memory_than_the_host_has():
    for check in (True, False):
        rc, text = run(check=check, keys=", memory: 900TiB")
        assert rc == 1 and "beside the mapped weights, and this host" in text, text

def test_files_and_modules():
    """What a start needs beside the models: files of TLS that fit, and the module of gRPC."""
    have_grpc = os.path.exists(os.path.join(BUILD, "daemon/.libs/front-grpc.so"))
    with tempfile.TemporaryDirectory() as d:
        for name in "one", "two":
            make_pair(d, name, name + ".test")
        at = lambda name: os.path.join(d, name)

        def refused(cert, key, *words, ca=""):
            tls = f"tls: {{ cert: {at(cert)}, key: {at(key)}{ca and ', client_ca: ' + at(ca)} }}"
            for check in True, False:
                for section in dict(http=", " + tls), dict(top=f"grpc: {{ listen: 127.0.0.1:0, {tls} }}\n"):
                    rc, text = run(check=check, **section)
                    assert rc == 1, (rc, section, check, text)
                    assert all(w in text for w in words) and "listening" not in text, (words, text)
        refused("one.pem", "two.key", at("one.pem"), "not usable with the key " + at("two.key"))
        refused("one.pem", "none.key", at("none.key"), "cannot be opened")
        refused("one.pem", "one.key", at("one.key"), "has no usable certificate", ca="one.key")
        if have_grpc:
            tls = f"tls: {{ cert: {at('one.pem')}, key: {at('one.key')}, client_ca: {at('two.pem')} }}"
            rc, text = run(http=", " + tls, top=f"grpc: {{ listen: 127.0.0.1:0, {tls} }}\n")
            assert rc == 0, text
        for check in True, False:
            rc, text = run(check=check, top="grpc: { listen: 127.0.0.1:0 }\n", fronts=d)
            assert rc == 1 and "front-grpc.so" in text, text

def test_an_address_that_is_taken():
    """The address is named with the cause, and files of TLS are not suspected."""
    have_grpc = os.path.exists(os.path.join(BUILD, "daemon/.libs/front-grpc.so"))
    with tempfile.TemporaryDirectory() as d, socket.create_server(("127.0.0.1", 0)) as taken:
        make_pair(d, "one", "one.test")
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        tls = f"tls: {{ cert: {d}/one.pem, key: {d}/one.key, client_ca: {d}/one.pem }}"
        for section in [f"admin: {{ listen: {address} }}\n",
                        f"grpc: {{ listen: {address}, {tls} }}\n"][:1 + have_grpc]:
            rc, text = run(check=False, top=section)
            assert rc == 1 and f"{address}: cannot listen: Address already in use\n" in text, text


if __name__ == "__main__":
    main(sys.modules[__name__])
