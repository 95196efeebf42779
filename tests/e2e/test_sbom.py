#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/sbom: what the programs of this build link is listed, by package and version, as SPDX asks."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from harness import BUILD, PATIENCE, SRC, Skip, main

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)


def sbom(*args):
    for program in ("dpkg-query", "readelf"):
        if not shutil.which(program):
            raise Skip("no " + program)
    return subprocess.run([os.path.join(SRC, "tools/sbom"), *args], capture_output=True, text=True, timeout=4 * PATIENCE)


def test_bill_of_materials():
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "usr/lib"))
        linked = {}
        for name in ("mixd", "mixctl", "daemon/.libs/front-grpc.so"):
            path = os.path.join(BUILD, name)
            if not os.path.exists(path):
                continue
            shutil.copy(path, os.path.join(folder, "usr/lib"))
            text = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True).stdout
            linked["./usr/lib/" + os.path.basename(name)] = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", text))
        p = sbom(folder)
        assert p.returncode == 0 and not p.stderr, p.stderr
        assert sbom(folder).stdout == p.stdout, "another text for the same files"
        d = json.loads(p.stdout)
        packages = {x["SPDXID"]: x for x in d["packages"]}
        for f in d["files"]:
            found = {packages[r["relatedSpdxElement"]]["name"] for r in d["relationships"]
                     if r["spdxElementId"] == f["SPDXID"] and r["relationshipType"] == "DYNAMIC_LINK"}
            # libm and libc are of one package
            assert len(found) >= len(linked[f["fileName"]] - {"libm.so.6", "ld-linux-x86-64.so.2"}) - 1, (f, found)
        assert len(d["files"]) == len(linked)
        jansson = packages["SPDXRef-Package-libjansson4"]
        version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libjansson4"], capture_output=True, text=True).stdout
        assert jansson["versionInfo"] == version and version in jansson["externalRefs"][0]["referenceLocator"], jansson
        # what a library needs in turn: gnutls is asked for by mixd, nettle by gnutls
        gnutls = "libgnutls.so.30" in linked["./usr/lib/mixd"]
        assert not gnutls or {"spdxElementId": "SPDXRef-Package-libgnutls30", "relationshipType": "DEPENDS_ON",
                "relatedSpdxElement": "SPDXRef-Package-libnettle8"} in d["relationships"], "no nettle"
        if subprocess.run([PYTHON, "-c", "import spdx_tools"], stderr=subprocess.DEVNULL).returncode == 0:
            file = os.path.join(folder, "mixd.spdx.json")
            with open(file, "w") as f:
                f.write(p.stdout)
            valid = subprocess.run([PYTHON, "-c", "from spdx_tools.spdx.clitools.pyspdxtools import main; main()", "-i", file],
                                   capture_output=True, text=True, timeout=PATIENCE)
            assert valid.returncode == 0, valid.stderr


def test_nothing_to_list():
    with tempfile.TemporaryDirectory() as folder:
        p = sbom(folder)
        assert p.returncode == 1 and "no program and no module" in p.stderr, p.stderr
    p = sbom("/no/such/package.deb")
    assert p.returncode == 1 and "/no/such/package.deb: neither" in p.stderr, p.stderr


main(sys.modules[__name__])
