#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line of mixd: one model without a configuration, no configuration at all, what the
README prints."""
import os
import re
import signal
import subprocess
import sys
import tempfile

from harness import BUILD, DEMO, PATIENCE, SRC, Mixd, main

MIXD = os.path.join(BUILD, "mixd")
ENV = dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs"))


def run(*args, cwd=None):
    r = subprocess.run([MIXD, *args], env=ENV, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)
    return r.returncode, r.stdout, r.stderr


class Model(Mixd):
    """mixd --model; its standard output goes to a file."""

    def __init__(self, *args, cwd=None):
        self.folder = tempfile.TemporaryDirectory()
        self.log = tempfile.TemporaryFile()
        self.out = open(os.path.join(self.folder.name, "out"), "w+")
        self.process = subprocess.Popen([MIXD, *args], env=ENV, cwd=cwd, stdout=self.out, stderr=self.log)
        self.process.stdout = self.out  # for stop()
        self.host, self.port = "127.0.0.1", None

        def listens():
            found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self.errors())
            assert found or self.process.poll() is None, self.errors()
            self.port = int(found[1]) if found else None
            return found
        self.wait_for(listens, "address")
        self.wait_ready()

    def printed(self):
        with open(self.out.name) as f:
            return f.read()


def test_one_model_without_a_configuration():
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(DEMO, os.path.join(folder, 'a "demo"'))
        s = Model("--model", './a "demo"/', "--port", "0", "--name", 'the "model"', "--device", "cpu", cwd=folder)
        assert s.get("/v1/models")[2]["data"][0]["id"] == 'the "model"'
        assert s.complete(model='the "model"', prompt="x", max_tokens=2)["usage"]["completion_tokens"] == 2
        # a reload has nothing to read, and does no harm
        s.process.send_signal(signal.SIGHUP)
        s.wait_for(lambda: "nothing to reload" in s.errors(), "answer to SIGHUP")
        # where to look, once it is ready, as a comment of the YAML
        s.wait_for(lambda: f"\n# ready: http://127.0.0.1:{s.port}/\n" in s.printed(), "address")
        yaml = s.printed()
        s.stop()
    # the YAML that it printed is a configuration as it stands, whereever it is stored
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "mixd.yaml")
        with open(config, "w") as f:
            f.write(yaml)
        rc, out, err = run("--config", config, "--check", cwd="/")
        assert rc == 0 and out.startswith('model the "model" (mixd, 8 layers'), (yaml, out, err)
        assert "127.0.0.1:0" in yaml, yaml


def test_check_of_one_model():
    rc, out, err = run("--model", DEMO, "--check")
    assert rc == 0 and "total" in out and 'name: "demo"' in out and 'listen: "127.0.0.1:8080"' in out, (out, err)
    assert "  tool calls none, reasoning none\n" in out, out
    rc, out, err = run("--model", "Org/no-such-model", "--check", cwd="/")
    assert rc == 1 and "hf download Org/no-such-model" in err, err


def test_check_names_the_parsers():
    """Those of the configuration."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write("http: { listen: 127.0.0.1:0 }\nmodels:\n  - name: demo\n    path: %s\n"
                "    tool_parser: mistral_args\n    reasoning_parser: think\n" % DEMO)
        f.flush()
        rc, out, err = run("--config", f.name, "--check")
        assert rc == 0 and "  tool calls mistral_args, reasoning think\n" in out, (out, err)


def test_version():
    """It says what the build has: the same as configure found."""
    rc, out, err = run("--version")
    assert rc == 0 and not err, (rc, err)
    with open(os.path.join(BUILD, "config.h")) as f:
        defined = dict(re.findall(r"^#define (\w+) (.*)$", f.read(), re.M))
    lines = out.splitlines()
    assert lines[0] == "mixd " + defined["PACKAGE_VERSION"].strip('"'), out
    parts = {"x86-64": "MX_X86_64", "tls": "HAVE_GNUTLS", "keys": "HAVE_GNUTLS", "grpc": "HAVE_GRPC",
             "zmq": "HAVE_ZMQ", "systemd": "HAVE_SYSTEMD", "cuda": "HAVE_CUDA"}
    said = dict((name, sign == "+") for sign, name in re.findall(r"([+-])([a-z][a-z0-9-]*)(?= |$)", lines[1]))
    assert said == {name: macro in defined for name, macro in parts.items()}, (out, said)
    assert ("-fsanitize=" in lines[2]) == ("-fsanitize=" in defined["SANITIZERS"]), out


def test_wrong_command_lines():
    for args, words in ((["--model", DEMO, "--port", "70000"], "--port"),
                        (["--model", DEMO, "--port", "http"], "--port"),
                        (["--model", DEMO, "--device", "tpu"], "no device"),
                        (["--model", ""], "--model"),
                        (["--port", "80"], "--port: goes with --model"),
                        (["--name", "x", "--config", "f"], "--name: goes with --model"),
                        (["--model", DEMO, "--config", "f"], "exclude"),
                        (["--model", "a", "-m", "b"], '--model is given twice: "a" and "b"'),
                        (["--config", "a", "-c", "a"], "--config is given twice"),
                        (["--model", DEMO, "--name", "a", "--name", "b"], "--name is given twice"),
                        (["--model", DEMO, "--port", "1", "--port", "2"], "--port is given twice"),
                        (["--model", DEMO, "--device", "cpu", "--device", "cpu"], "--device is given twice"),
                        (["model"], 'unexpected argument "model"')):
        rc, out, err = run(*args)
        assert rc == 2 and words in err and not out, (args, rc, out, err)


def default_config():
    """Where mixd looks for its configuration."""
    return re.search(r"\(default (\S*/mixd\.yaml)\)", run("--help")[1])[1]


def test_the_manual_page_has_every_option():
    with open(os.path.join(SRC, "conf/mixd.8"), encoding="utf-8") as f:
        items = [line for line in f if line.startswith(".It Fl")]
    options = set(re.findall(r"--([a-z]+)", run("--help")[1]))
    assert len(options) >= 8, options
    for option in options:
        assert any(re.search(rf" -{option}\b", line) for line in items), option


def test_no_configuration_at_all():
    if os.path.exists(default_config()):
        return  # this host has one
    for args in ([], ["--check"]):
        rc, out, err = run(*args)
        assert rc == 2 and not out, (rc, out, err)
        for word in (f"no configuration file {default_config()}", "mixd --model DIR", "mixd --config FILE",
                     "mixd.yaml.example"):
            assert word in err, err
    # a file that was named and is missing is another matter
    rc, out, err = run("--config", "/no/such/file")
    assert rc == 1 and "/no/such/file: cannot be opened" in err and "--model" not in err, err


def test_the_configuration_of_the_readme():
    """As printed, in the folder of the README, where its paths begin."""
    with open(os.path.join(SRC, "README.md"), encoding="utf-8") as f:
        blocks = re.findall(r"```yaml\n(.*?)```", f.read(), re.S)
    assert len(blocks) == 1, blocks
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(SRC, "models"), os.path.join(folder, "models"))
        config = os.path.join(folder, "mixd.yaml")
        with open(config, "w") as f:
            f.write(blocks[0])
        rc, out, err = run("--check", "--config", config, cwd="/")
        assert rc == 0 and "room for" in out, (out, err)


def test_the_example_configuration():
    """conf/mixd.yaml, with the bundled model's path here as make install writes the installed one."""
    with open(os.path.join(SRC, "conf/mixd.yaml"), encoding="utf-8") as f:
        text = f.read().replace("/usr/local/share/mixd", SRC)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(text)
        f.flush()
        rc, out, err = run("--check", "--config", f.name)
        assert rc == 0 and "room for" in out, (out, err)


if __name__ == "__main__":
    main(sys.modules[__name__])
