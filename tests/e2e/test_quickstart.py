#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart in a copy of the tree whose configure and make only pretend: what it builds, what it
says meanwhile, and the completion at its end, which comes from the mixd of this build."""
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile

from harness import BUILD, DEMO, PATIENCE, SRC, Skip, free_ports, main

CONFIGURE = """#!/bin/sh
echo "$*" >>"$TOLD/configure"
echo >Makefile
"""
# Eight objects, of which a few are built a second.
MAKE = """#!/bin/sh
echo "$*" >>"$TOLD/make"
case "$*" in
-n*) for i in 1 2 3 4 5 6 7 8; do echo "gcc -c -o $i.o $i.c"; done; exit ;;
esac
[ -z "$FAIL" ] || { echo "no rule to make that"; exit 2; }
for i in 1 2 3 4 5 6 7 8; do echo "  CC       $i.o"; echo "  CCLD     $i"; sleep $DELAY; done
ln -sf "$BUILT/mixd" .
ln -sfn "$BUILT/mixers" mixers
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, stat.S_IRWXU)


class Tree:
    """A tree with the real tools/quickstart."""

    def __init__(self, folder):
        self.top, self.told = os.path.join(folder, "top"), os.path.join(folder, "told")
        os.makedirs(os.path.join(self.top, "models"))
        os.mkdir(self.told)
        os.symlink(DEMO, os.path.join(self.top, "models/demo"))
        write(os.path.join(self.top, "configure.ac"), "")
        os.utime(os.path.join(self.top, "configure.ac"), (1, 1))
        write(os.path.join(self.top, "configure"), CONFIGURE)
        write(os.path.join(self.top, "tools/install-deps"), "#!/bin/sh\n")
        write(os.path.join(folder, "bin/make"), MAKE)
        shutil.copy(os.path.join(SRC, "tools/quickstart"), os.path.join(self.top, "tools"))
        self.env = dict(os.environ, PATH=os.path.join(folder, "bin") + ":" + os.environ["PATH"], BUILT=BUILD,
                        TOLD=self.told, FAIL="", DELAY="0.3")

    def run(self, *args, **env):
        port = str(free_ports(1)[0])
        return subprocess.run([os.path.join(self.top, "tools/quickstart"), "--once", "--port", port, *args],
                              env=dict(self.env, **env), capture_output=True, text=True, timeout=PATIENCE)

    def was_told(self, program):
        with open(os.path.join(self.told, program)) as f:
            return f.read().splitlines()


def need_curl():
    if not shutil.which("curl"):
        raise Skip("no curl")


def test_progress_and_a_completion():
    need_curl()
    with tempfile.TemporaryDirectory() as folder:
        t = Tree(folder)
        r = t.run()
        assert r.returncode == 0, (r.stdout, r.stderr)
        assert re.search(r"^building [0-8]/8 objects, \d+ s$", r.stdout, re.M), r.stdout
        assert re.search(r"^built in \d+ s$", r.stdout, re.M), r.stdout
        text = r.stdout.split("The old man looked at the sea and")[1]
        assert len(text.split()) > 20, text
        # the server alone is built, and nothing is installed
        assert [line.split()[-1] for line in t.was_told("make")] == ["server", "server"], t.was_told("make")
        assert "--without-cuda" not in t.was_told("configure")[0]


def test_cpu_leaves_cuda_out():
    need_curl()
    with tempfile.TemporaryDirectory() as folder:
        t = Tree(folder)
        for args in ((), (), ("--cpu",), ("--cpu",)):
            assert t.run(*args, DELAY="0").returncode == 0
        told = t.was_told("configure")  # once for each choice
        assert len(told) == 2 and "--without-cuda" in told[1].split(), told


def test_a_build_that_fails():
    with tempfile.TemporaryDirectory() as folder:
        r = Tree(folder).run(FAIL="1", DELAY="0")
        assert r.returncode == 1 and "no rule to make that" in r.stderr and "build.log" in r.stderr, r.stderr


if __name__ == "__main__":
    main(sys.modules[__name__])
