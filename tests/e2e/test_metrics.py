#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/metrics: accepted by promtool, holds the names of vLLM's Grafana board, and counts what happened."""
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from harness import check_sanitizers

TOP = os.path.abspath(os.environ.get("srcdir", "."))
BUILD = os.path.abspath(os.environ.get("builddir", "."))
MIXD = os.path.join(BUILD, "mixd")
SLOW = 5 if os.environ.get("MIXD_TEST_SLOW") else 1

# What the stock board of vLLM queries.
BOARD = """e2e_request_latency_seconds_bucket time_to_first_token_seconds_bucket
 inter_token_latency_seconds_bucket prompt_tokens_total generation_tokens_total num_requests_running
 num_requests_waiting kv_cache_usage_perc request_prompt_tokens_bucket request_generation_tokens_bucket
 request_success_total request_queue_time_seconds_sum request_prefill_time_seconds_sum
 request_decode_time_seconds_sum request_max_num_generation_tokens_sum""".split()


class Metrics(unittest.TestCase):
    posted = 0  # requests to /v1/completions

    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.mkdtemp(prefix="mixd-")
        config = os.path.join(cls.tmp, "mixd.yaml")
        with open(config, "w") as f:
            f.write("http: { listen: '127.0.0.1:0' }\n"
                    f"models: [{{ name: 'de\"mo', path: {TOP}/models/demo }}]\n")
        cls.log = os.path.join(cls.tmp, "log")
        with open(cls.log, "w") as log:
            cls.mixd = subprocess.Popen(
                [MIXD, "--config", config], stderr=log,
                env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs")))
        end = time.monotonic() + 60 * SLOW
        text = ""
        while "mixd: ready" not in text:
            assert time.monotonic() < end and cls.mixd.poll() is None, text
            time.sleep(0.05)
            with open(cls.log) as f:
                text = f.read()
        cls.port = int(re.search(r"listening on 127\.0\.0\.1:(\d+)", text).group(1))

    @classmethod
    def tearDownClass(cls):
        cls.mixd.terminate()
        code = cls.mixd.wait(30 * SLOW)
        with open(cls.log) as f:
            log = f.read()
        shutil.rmtree(cls.tmp)
        check_sanitizers(log)
        assert code == 0, f"mixd ended with {code}\n{log}"

    def request(self, method, path, body=None, headers={}):
        Metrics.posted += path == "/v1/completions"
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        c.request(method, path, json.dumps(body) if body else None,
                  {"Content-Type": "application/json", **headers})
        r = c.getresponse()
        answer = r.status, r.headers.get("Content-Type"), r.read().decode()
        c.close()
        return answer

    def values(self):
        status, kind, text = self.request("GET", "/metrics")
        self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
        return text, {k: float(v) for k, v in re.findall(r"^([^#\s]+(?:\{.*\})?) (\S+)$", text, re.M)}

    def settled(self, steps=0):
        """The figures once all requests are counted, and at least as many steps. A step is counted when it is
        over, and a request when its answer is on the way: both may be later than the client's reading it."""
        deadline = time.monotonic() + 60 * SLOW
        while True:
            text, values = self.values()
            counted = sum(v for k, v in values.items()
                          if k.startswith('http_requests_total{handler="/v1/completions"'))
            if counted == self.posted and values['mixd_steps_total{model_name="de\\"mo",engine="0"}'] >= steps:
                return text, values
            self.assertLess(time.monotonic(), deadline, text)

    def test_names_and_counts(self):
        _, before = self.settled()
        label = '{model_name="de\\"mo",engine="0"}'
        status, _, body = self.request("POST", "/v1/completions",
                                       dict(prompt=[5] * 100, max_tokens=9, ignore_eos=True))
        self.assertEqual(status, 200, body)
        self.assertEqual(self.request("POST", "/v1/completions", dict(prompt=[5] * 3000))[0], 400)
        answered = 'http_requests_total{handler="/v1/completions",method="POST",status="%s"}'

        def gain(name):
            return after.get(name, 0) - before.get(name, 0)

        text, after = self.settled(before["mixd_steps_total" + label] + 9)
        self.assertEqual(gain("vllm:generation_tokens_total" + label), 9)
        self.assertEqual(gain("vllm:prompt_tokens_total" + label), 100)
        self.assertEqual(gain("vllm:time_to_first_token_seconds_count" + label), 1)
        self.assertEqual(gain("vllm:inter_token_latency_seconds_count" + label), 8)
        self.assertEqual(gain("vllm:request_generation_tokens_sum" + label), 9)
        self.assertEqual(gain('vllm:request_success_total{model_name="de\\"mo",engine="0",'
                              'finished_reason="length"}'), 1)
        self.assertEqual(gain(answered % "2xx"), 1)
        self.assertEqual(gain(answered % "4xx"), 1)
        self.assertEqual(gain('mixd_requests_rejected_total{model_name="de\\"mo",engine="0",'
                              'reason="too_long"}'), 1)
        self.assertGreaterEqual(gain("mixd_steps_total" + label), 9)
        # a CPU waits while the host plans and delivers; it does not wait for requests
        self.assertEqual(gain("mixd_step_idle_seconds_count" + label), gain("mixd_steps_total" + label))
        idle = gain("mixd_step_idle_seconds_sum" + label)
        host = gain("mixd_step_phase_seconds_sum" + label[:-1] + ',phase="host"}')
        self.assertGreater(idle, 0)
        self.assertLess(idle, host + 1 * SLOW)
        self.assertEqual(after["mixd_pages_used" + label], 0)
        self.assertEqual((after["mixd_slots" + label], after["mixd_slots_used" + label]), (64, 0))
        mixers = ("hyena", "gla", "mamba", "attention")
        of = {m: {k: after[f"mixd_mixer_{k}{label[:-1]},mixer=\"{m}\"}}"]
                  for k in ("layers", "page_bytes", "slot_bytes")} for m in mixers}
        self.assertEqual([of[m]["layers"] for m in mixers], [2, 2, 2, 2])
        self.assertEqual([m for m in mixers if of[m]["page_bytes"]], ["hyena", "attention"])
        self.assertEqual([m for m in mixers if of[m]["slot_bytes"]], ["hyena", "gla", "mamba"])
        self.assertEqual(sum(of[m]["page_bytes"] for m in mixers), after["mixd_page_bytes" + label])
        self.assertEqual(after["mixd_pages" + label],
                         after["mixd_pages_free" + label] + after["mixd_pages_cached" + label])
        # the 100 tokens again come from the cache: recurrent states are kept where a prompt ends, less one
        self.request("POST", "/v1/completions", dict(prompt=[5] * 100, max_tokens=1))
        _, last = self.values()
        hits = "vllm:prefix_cache_hits_total" + label
        self.assertEqual(last[hits] - after[hits], 99)

        def looked_up(outcome):
            key = 'mixd_prefix_cache_lookups_total{model_name="de\\"mo",engine="0",outcome="%s"}' % outcome
            return last[key] - before.get(key, 0)

        self.assertEqual([looked_up(o) for o in ("hit", "miss", "no_snapshot", "evicted",
                                                 "unsupported")], [1, 1, 0, 0, 0])
        for name in BOARD:
            self.assertIn("vllm:" + name + "{", text)

    def test_what_an_endpoint_picker_scrapes(self):
        # Kubernetes' Gateway API Inference Extension (its default specs for vLLM, and llm-d's): three
        # gauges, and a gauge with two labels that it reads as integers. LoRA's may be absent.
        text, values = self.values()
        for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc",
                     "cache_config_info"):
            self.assertIn(f"# TYPE vllm:{name} gauge\n", text)
            samples = [(k, v) for k, v in values.items() if k.split("{")[0] == "vllm:" + name]
            self.assertEqual(len(samples), 1)  # it takes the newest of several; we have one
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', samples[0][0]))
        self.assertEqual(samples[0][1], 1)
        own = '{model_name="de\\"mo",engine="0"}'
        self.assertEqual(int(labels["block_size"]), values["mixd_page_tokens" + own])
        self.assertEqual(int(labels["num_gpu_blocks"]), values["mixd_pages" + own])

    def load_report(self, form, **body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        headers = {"Content-Type": "application/json"}
        if form:
            headers["endpoint-load-metrics-format"] = form
        Metrics.posted += 1
        c.request("POST", "/v1/completions", json.dumps(dict(prompt=[6] * 40, max_tokens=2, **body)), headers)
        r = c.getresponse()
        r.read()
        c.close()
        return r.status, r.headers.get("endpoint-load-metrics")

    def test_load_reports(self):
        for stream in False, True:
            status, report = self.load_report("JSON", stream=stream)
            self.assertEqual((status, report[:5]), (200, "JSON "))
            named = json.loads(report[5:])["named_metrics"]
            self.assertEqual(sorted(named), ["kv_cache_usage_perc", "num_requests_waiting"])
            # a stream begins when its request is accepted, so that may still wait itself
            self.assertIn(named["num_requests_waiting"], (0, 1) if stream else (0,))
            self.assertTrue(0 <= named["kv_cache_usage_perc"] <= 1)
            _, report = self.load_report("text", stream=stream)
            self.assertRegex(report, r"^TEXT named_metrics\.kv_cache_usage_perc=[01]\.\d+, "
                                     r"named_metrics\.num_requests_waiting=[01]$")
        self.assertEqual(self.load_report(None), (200, None))
        self.assertEqual(self.load_report("BIN"), (200, None))
        self.assertEqual(self.load_report("JSON", temperature=-1), (400, None))

    def test_openmetrics_is_negotiated(self):
        status, kind, text = self.request("GET", "/metrics",
                                          headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        self.assertEqual(status, 200)
        self.assertTrue(kind.startswith("application/openmetrics-text; version=1.0.0"))
        self.assertTrue(text.endswith("# EOF\n"))
        self.assertIn("# TYPE mixd_steps counter\n", text)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not here")
    def test_promtool(self):
        _, _, text = self.request("GET", "/metrics")
        r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        self.assertNotIn("error", (r.stdout + r.stderr).lower())
        # What is left is vLLM's naming: its colon, and one histogram called "..._total".
        own = [line for line in (r.stdout + r.stderr).splitlines() if not line.startswith("vllm:")]
        self.assertEqual(own, [])
        bad = subprocess.run(["promtool", "check", "metrics"], input=text + "mixd_steps_total 1 2 3\n",
                             capture_output=True, text=True)
        self.assertNotEqual(bad.returncode, 0)


if __name__ == "__main__":
    if not os.path.exists(MIXD):
        sys.exit(77)
    unittest.main(verbosity=2)
