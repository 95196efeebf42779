#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What mixd holds resident is what --check said, within 5 %: at start, after requests, and after
requests much larger than any that is served."""
import os
import platform
import re
import subprocess
import sys
import time

from harness import BUILD, PATIENCE, Mixd, Skip, Thread, main, server


def skip_where_memory_differs():
    if os.environ.get("MIXD_TEST_SLOW"):
        raise Skip("a sanitizer has memory of its own")
    if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (5, 14):
        raise Skip("no MADV_POPULATE_WRITE: pages become resident as they are used")


def planned(s):
    """MiB of --check's total."""
    r = subprocess.run([os.path.join(BUILD, "mixd"), "--check", "--config", s.config], text=True,
                       env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs")),
                       stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    return float(re.search(r"total +([0-9.]+) MiB", r.stdout)[1])


def expect(s, total, when):
    """The plan is resident, once that has come to rest: pages are touched in the background."""
    now = last = still = 0
    end = time.monotonic() + PATIENCE
    while (still < 5 or now < 0.95 * total) and time.monotonic() < end:
        time.sleep(0.1)
        with open(f"/proc/{s.process.pid}/status") as f:
            now = int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) / 1024
        still = still + 1 if now == last else 0
        last = now
    print(f"{when}: planned {total:.1f} MiB, resident {now:.1f} MiB")
    assert abs(now / total - 1) < 0.05, (when, total, now)


def ask(s):
    """50 requests, 5 at a time."""
    def some(i):
        for k in range(10):
            s.complete(prompt="The sea " * (20 * (k % 5) + 1), max_tokens=8, n=1 + i % 2, logprobs=2)
    for t in [Thread(some, i) for i in range(5)]:
        t.join()


@server(Mixd, keys=", memory: 256MiB")
def test_resident_memory_is_as_planned(s):
    skip_where_memory_differs()
    total = planned(s)
    expect(s, total, "at start")
    ask(s)
    expect(s, total, "after 50 requests")
    for prompt in ("The sea " * 800000, [5] * 1000000):
        assert s.post("/v1/completions", dict(prompt=prompt, max_tokens=2))[0] == 400
    expect(s, total, "after large bodies")


@server(Mixd, keys=", memory: 40MiB")
def test_a_small_plan_is_kept_too(s):
    skip_where_memory_differs()
    total = planned(s)
    expect(s, total, "at start")
    ask(s)
    expect(s, total, "after 50 requests")


main(sys.modules[__name__])
