#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The soak for some seconds, as "make check" runs it."""
import os
import sys

soak = os.path.join(os.path.dirname(os.path.abspath(__file__)), "soak")
os.execv(sys.executable, [sys.executable, soak, "--seconds", "15"])
