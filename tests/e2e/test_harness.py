#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The harness itself: what a server writes on stderr is read while it writes, and no line is lost."""
import sys

from harness import Process, brief, main, sanitizer_report

ROUNDS, LINES = 25, 5000
WRITER = f"""
import os
print("begin", flush=True)
for i in range({LINES}):
    os.write(2, b"line %d\\n" % i)
"""


def test_log_is_read_while_it_is_written():
    """Short logs, and several: a reader that moves the writer's position is found out more often."""
    want = "".join(f"line {i}\n" for i in range(LINES))
    for _ in range(ROUNDS):
        s = Process([sys.executable, "-c", WRITER])
        s.wait_line("begin")
        while s.process.poll() is None:
            got = s.errors()
            assert want.startswith(got), f"{len(got)} bytes are not how the log begins: {got[:50]!r}"
        assert s.errors() == want
        s.stop()


def test_reports_of_sanitizers_are_found():
    assert sanitizer_report("a\n==7==ERROR: LeakSanitizer: b\nc\n") == "==7==ERROR: LeakSanitizer: b\nc\n"
    assert sanitizer_report("a\nx.c:7:9: runtime error: b\n") == "x.c:7:9: runtime error: b\n"
    assert sanitizer_report("a\nb\n") == ""


def test_a_report_keeps_both_ends():
    text = "".join(f"line {i}\n" for i in range(1000))
    lines = brief(text).splitlines()
    assert lines[0] == "line 0" and lines[-1] == "line 999" and len(lines) == 41, lines
    assert brief("a\nb\n") == "a\nb" and len(brief("x" * 9999)) < 310


if __name__ == "__main__":
    main(sys.modules[__name__])
