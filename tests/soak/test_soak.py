#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The soak for some seconds, as "make check" runs it. Under the thread sanitizer it has not been tried yet: run
tests/soak/soak there by hand."""
import os
import sys

if "TSAN_OPTIONS" in os.environ:
    sys.exit(77)
soak = os.path.join(os.path.dirname(os.path.abspath(__file__)), "soak")
os.execv(sys.executable, [sys.executable, soak, "--seconds", "15"])
