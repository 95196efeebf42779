#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page at /: its files and headers, and every control of it in a real browser (Debian's chromium and
chromium-driver, by selenium, in an interpreter that has it: MIXD_TEST_PYTHON). Without a browser the parts
that need one are skipped."""
import http.client
import json
import math
import os
import re
import signal
import sys
import threading
import time

from harness import ATTENTION, DEMO, SLOW, SRC, Mixd, check_error, free_ports, main, server
from browser import Browser, Key, Proxy, ActionChains, chat, events
from test_keys import Keys, key

PAGE = os.path.join(SRC, "daemon/page")


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def read(path):
    with open(path) as f:
        return f.read()


def reload(s):
    before = len(s.errors())
    s.process.send_signal(signal.SIGHUP)
    s.wait_for(lambda: "reloaded" in s.errors()[before:], "reload")


# ---- without a browser ----

@server(Mixd)
def test_files(s):
    status, headers, body = s.get("/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8", dict(headers)
    assert body == open(os.path.join(PAGE, "index.html"), "rb").read()
    total, seen, todo = 0, set(), ["index.html"]
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml",
             "html": "text/html; charset=utf-8"}
    while todo: # all that a file names, from the first one on
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        status, headers, body = s.get("/page/" + name)
        assert status == 200, (name, status)
        assert body == open(os.path.join(PAGE, name), "rb").read(), name
        assert headers["Content-Type"] == types[name.split(".")[-1]], (name, headers["Content-Type"])
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-cache"
        policy = headers["Content-Security-Policy"]
        for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
                     "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"):
            assert part in policy, (part, policy)
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy, policy
        total += len(body)
        text = body.decode()
        todo += re.findall(r"from '\./([\w.-]+)'", text) + re.findall(r'(?:href|src)="page/([\w.-]+)"', text)
    there = {f for f in os.listdir(PAGE) if f.split(".")[-1] in types}
    assert seen == there, seen ^ there
    assert total < 150_000, total
    print(f"      {len(seen)} files, {total} bytes")


def test_nothing_inline():
    """What the policy would refuse, or what makes HTML of text, is not in the sources."""
    for name in os.listdir(PAGE):
        text = read(os.path.join(PAGE, name))
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", text), name
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|"
                                 r"DOMParser|localStorage|sessionStorage|document\.cookie", text), name
        if name.endswith((".html", ".js", ".css")):
            for url in re.findall(r"https?://[\w./-]+", text):
                assert url.startswith("http://www.w3.org/"), (name, url)


@server(Mixd)
def test_a_browser_asks_again_by_the_tag(s):
    for path in "/", "/page/main.js":
        _, headers, body = s.get(path)
        tag = headers["ETag"]
        for known in tag, "*", f'"x", W/{tag}':
            status, again, nothing = s.get(path, headers={"If-None-Match": known})
            assert (status, nothing) == (304, b"") and again["ETag"] == tag, (known, status)
        status, again, same = s.get(path, headers={"If-None-Match": '"other"'})
        assert (status, same) == (200, body)
        status, head, nothing = s.request("HEAD", path)
        assert status == 200 and nothing == b"" and int(head["Content-Length"]) == len(body)
        check_error(s.post(path, {}), 405, "method_not_allowed")
    for path in "/page/", "/page/nothing.js", "/page/../mixd", "/page/%2e%2e/x", "/page/README.md", "/page/main.js/":
        check_error(s.get(path), 404)


def test_it_can_be_turned_off():
    s = Mixd(http=", page: false")
    for path in "/", "/page/main.js", "/page/state.json":
        check_error(s.get(path), 404, "not_found")
    write(s.config, read(s.config).replace("page: false", "page: true"))
    reload(s)
    assert "http.page" in s.errors(), s.errors()
    assert s.get("/")[0] == 200 and s.get("/page/main.js")[0] == 200
    write(s.config, read(s.config).replace("page: true", "page: false"))
    reload(s)
    check_error(s.get("/"), 404, "not_found")
    s.stop()


def test_operators_have_no_page():
    """With a listener for operators the page has no figures, and that listener no page."""
    s = Mixd(top="admin: { listen: 127.0.0.1:0 }\n")
    assert s.get("/page/state.json")[2] == {"ready": True, "keys": False, "figures": False}
    found = re.search(r"probes and metrics on \S*?:(\d+)", s.errors())
    s.port = int(found[1])
    check_error(s.get("/"), 404, "not_found")
    s.stop()


# ---- Talk ----

def ask(b, text, wait=True):
    """Sends a message, and returns the node of the answer; waits until it is complete."""
    last = lambda: (b.all(".message.assistant") or [None])[-1]
    before = last()
    b.script("arguments[0].value = arguments[1]; arguments[0].focus()", b.one("#prompt"), text)
    b.press(Key.ENTER)
    b.until(lambda: last() not in (None, before), "answer")
    if wait:
        finish(b)
    return last()


def finish(b):
    b.until(lambda: not b.shown("#stop") and not b.all(".busy"), "end of the answer")


def body_of(message):
    return message.find_element("css selector", ".body").text


def note_of(message):
    return message.find_element("css selector", ".note").text


@server(Mixd)
def test_chat(s):
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}")
    assert b.driver.title == "mixd" and b.text("#model") == "demo\ngpt-demo"
    b.fill("#temperature", "0")
    b.fill("#max_tokens", "30")
    first = ask(b, "Once upon a time")
    same = dict(temperature=0, max_tokens=30, model="demo")
    turns = [{"role": "user", "content": "Once upon a time"}]
    said = s.complete("/v1/chat/completions", messages=turns, **same)["choices"][0]["message"]["content"]
    assert body_of(first).split() == said.split(), (body_of(first), said)
    assert re.match(r"30 tokens · first after .*s · .* tokens/s · prompt \d+.* · cut at the most tokens$", note_of(first)), note_of(first)
    # the second turn has all before it
    second = ask(b, "And then?")
    turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
    then = s.complete("/v1/chat/completions", messages=turns, **same)["choices"][0]["message"]["content"]
    assert body_of(second).split() == then.split(), (body_of(second), then)
    # a request by its alias is one
    b.choose("#model", "gpt-demo")
    assert "gpt-demo" in ask(b, "More?").get_attribute("aria-label")
    assert "The answer is complete" in b.one("#said").get_attribute("textContent")
    b.check()


@server(Mixd)
def test_every_setting_is_sent(s):
    p, b = Proxy(s), Browser.get()
    b.open(p.origin)
    assert not b.one("#settings").get_attribute("open") is None
    ask(b, "hello")
    assert p.bodies("/v1/chat/completions") == [
        {"model": "demo", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 512,
         "messages": [{"role": "user", "content": "hello"}]}]
    b.click("#clear")
    assert not b.all(".message") and b.shown(".empty")
    values = dict(max_tokens=5, temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, seed=7, repetition_penalty=1.1,
                  presence_penalty=-0.5, frequency_penalty=0.25)
    for name, value in values.items():
        b.fill("#" + name, str(value))
    b.fill("#system", "Be brief.")
    b.fill("#stops", "###\nEND")
    b.click("#colour")
    assert b.shown("#about-colour")
    ask(b, "again")
    sent = p.bodies("/v1/chat/completions")[-1]
    assert sent == dict(values, model="demo", stream=True, stream_options={"include_usage": True}, stop=["###", "END"],
                        logprobs=True, top_logprobs=5, messages=[{"role": "system", "content": "Be brief."},
                                                                 {"role": "user", "content": "again"}]), sent
    # completion
    assert not b.shown("#for-completion")
    b.click("input[value=completion] + span")
    assert b.shown("#for-completion") and not b.shown("#for-chat")
    ask(b, "The sea")
    sent = p.bodies("/v1/completions")[-1]
    assert sent == dict(values, model="demo", stream=True, stream_options={"include_usage": True}, stop=["###", "END"],
                        logprobs=5, prompt="The sea"), sent
    b.click("#echo")
    ask(b, "The sea")
    assert p.bodies("/v1/completions")[-1]["echo"] is True
    # new lines are typed with shift
    b.one("#prompt").send_keys("a", Key.SHIFT, Key.ENTER, Key.NULL, "b")
    assert b.one("#prompt").get_attribute("value") == "a\nb"
    # what a setting is wrong in is said by the server
    b.fill("#temperature", "9")
    b.click("#send")
    finish(b)
    assert "temperature" in note_of(b.all(".message.assistant")[-1])
    b.check(but=["400 (Bad Request)"])
    p.close()


@server(Mixd)
def test_tokens_and_their_alternatives(s):
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}")
    for name, value in (("temperature", 0), ("max_tokens", 12)):
        b.fill("#" + name, str(value))
    b.click("#colour")
    b.click("input[value=completion] + span")
    ask(b, "The old man looked at")
    spans = b.all(".token")
    answer = s.complete(prompt="The old man looked at", temperature=0, max_tokens=12, logprobs=5)["choices"][0]["logprobs"]
    assert [t.get_attribute("textContent") for t in spans] == answer["tokens"]
    for span, lp in zip(spans, answer["token_logprobs"]):
        shade = sum(math.exp(lp) >= x for x in (0.02, 0.1, 0.3, 0.6, 0.9))
        assert f"p{shade}" in span.get_attribute("class").split(), (span.get_attribute("class"), lp)
    b.hover(spans[3])
    rows = [r.text.split() for r in b.all("#alternatives tr")]
    top = sorted(answer["top_logprobs"][3].items(), key=lambda t: -t[1])
    assert len(rows) == len(top) == 5, rows
    for row, (text, lp) in zip(rows, top):
        assert row[0] == text.replace(" ", "␣").replace("\n", "⏎"), (row, text)
        assert abs(float(row[-2]) / 100 - math.exp(lp)) < 0.006, (row, lp)
    assert b.text("#alternatives .chosen").split()[0] == answer["tokens"][3].replace(" ", "␣").replace("\n", "⏎")
    # by keyboard
    b.hover(b.one("h1"))
    b.until(lambda: not b.shown("#alternatives"), "end of the alternatives")
    b.script("arguments[0].focus()", spans[0])
    b.press(Key.ARROW_RIGHT, Key.ARROW_RIGHT, Key.ARROW_LEFT)
    assert b.script("return document.activeElement === arguments[0]", spans[1]) and b.shown("#alternatives")
    b.press(Key.ESCAPE)
    assert not b.shown("#alternatives")
    # the prompt's tokens too: the first has none
    b.click("#echo")
    ask(b, "The old man")
    assert "pnone" in b.all(".token")[0].get_attribute("class")
    # as text again, and back
    text = body_of(b.all(".message.assistant")[-1])
    b.click("#colour")
    assert not b.shown(".token")
    as_text = body_of(b.all(".message.assistant")[-1])
    assert as_text.split() == text.replace("<|endoftext|>", "").split(), (text, as_text) # begin of text is a token only
    b.click("#colour")
    assert b.shown(".token")
    b.check()


@server(page=1, step_ns=30_000_000)
def test_stop(s):
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}")
    b.fill("#max_tokens", "2000")
    running = lambda: s.get("/v1/requests")[2]["all"]
    b.click("input[value=completion] + span")
    for stop in lambda: b.click("#stop"), lambda: b.press(Key.ESCAPE), lambda: b.click("#clear"):
        ask(b, "a", wait=False)
        b.until(lambda: len(body_of(b.all(".message.assistant")[-1])) > 5, "tokens")
        assert running() == 1 and b.shown("#stop") and not b.shown("#send")
        stop()
        s.wait_for(lambda: running() == 0, "end of the request")
        b.until(lambda: b.shown("#send") and not b.shown("#stop"), "send button")
        if b.all(".message.assistant"):
            assert note_of(b.all(".message.assistant")[-1]) == "stopped"
    assert not b.all(".message")
    b.check()


@server(Mixd)
def test_copy_edit_retry(s):
    p, b = Proxy(s), Browser.get()
    b.open(p.origin)
    b.driver.execute_cdp_cmd("Browser.grantPermissions", {"origin": p.origin, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    p.fake["/v1/chat/completions"] = lambda body: chat("Use ", "`ls`:\n\n```sh\nls -l <x>\n```\n", "Done **now**.")
    button = lambda m, name: next(x for x in m.find_elements("css selector", "button") if x.text == name)
    answer = ask(b, "How?")
    clipboard = lambda: b.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    for text, where in (("Use `ls`:\n\n```sh\nls -l <x>\n```\nDone **now**.", ".message.assistant header"),
                        ("ls -l <x>", ".message.assistant figcaption"), ("How?", ".message.user header")):
        b.hover(b.one(where))
        button(b.one(where), "Copy").click()
        b.until(lambda: clipboard() == text, f"copy of {text}: {clipboard()!r}")
    p.fake["/v1/chat/completions"] = lambda body: chat("Another.")
    b.hover(answer)
    button(answer, "Retry").click()
    b.until(lambda: [body_of(m) for m in b.all(".message.assistant")] == ["Another."], "another answer")
    finish(b)
    b.hover(b.one(".message.user"))
    button(b.one(".message.user"), "Edit").click()
    assert not b.all(".message") and b.one("#prompt").get_attribute("value") == "How?"
    b.one("#prompt").send_keys(" Say!")
    b.click("#send")
    finish(b)
    assert p.bodies("/v1/chat/completions")[-1]["messages"] == [{"role": "user", "content": "How? Say!"}]
    b.check()
    p.close()


@server(Mixd)
def test_markdown(s):
    p, b = Proxy(s), Browser.get()
    b.open(p.origin)
    text = ("# Title\n\nA **bold** and *slanted* and ~~gone~~ `code <b>` line\nof two, a_b_c and 2*3*4.\n\n"
            "- one\n- two\n  1. deep\n  2. deeper\n- three\n\n> quoted **text**\n\n| a | b |\n|---|---|\n| 1 | `2` |\n\n---\n"
            "```python\nprint('<i>')\n# not a title\n```\n[a link](https://example.org/x) and https://example.org/y.\n\n\\*plain\\*")
    p.fake["/v1/chat/completions"] = lambda body: chat(*(text[i:i + 7] for i in range(0, len(text), 7)))
    m = ask(b, "x").find_element("css selector", ".markdown")
    got = lambda css: [e.text for e in m.find_elements("css selector", css)]
    assert got("h3") == ["Title"] and got("strong") == ["bold", "text"] and got("em") == ["slanted"] and got("s") == ["gone"]
    assert got("p > code") == ["code <b>"] and got("pre") == ["print('<i>')\n# not a title"] and got("figcaption span") == ["python"]
    assert got("ul > li > ol > li") == ["deep", "deeper"] and len(got("ul > li")) == 3
    assert got("blockquote") == ["quoted text"] and got("th") == ["a", "b"] and got("td") == ["1", "2"] and len(m.find_elements("css selector", "hr")) == 1
    assert [e.get_attribute("href") for e in m.find_elements("css selector", "a")] == ["https://example.org/x", "https://example.org/y"]
    assert "a_b_c and 2*3*4." in m.text and m.text.endswith("*plain*")
    # in pieces it becomes what it is as a whole
    whole = b.module("markdown.js", "(v => (v.update(a[0]), v.node.outerHTML))(m.view())", text)
    assert m.get_attribute("outerHTML") == whole
    # a model may write anything: it takes no more than a moment
    for nasty in "*" * 20000, "[" * 20000, "`a" * 10000, "> " * 5000, "- " * 5000 + "\n", "|" * 5000, "_a_" * 7000, "\n".join(" " * i + "- x" for i in range(300)):
        ms = b.module("markdown.js", "(t => (m.view().update(a[0]), performance.now() - t))(performance.now())", nasty)
        assert ms < 2000 * SLOW, (nasty[:10], ms)
    b.check()
    p.close()


@server(Mixd)
def test_reasoning(s):
    """What a model thinks stands apart from its answer, is folded up when that begins, and is not sent back."""
    p, b = Proxy(s), Browser.get()
    b.open(p.origin)
    p.fake["/v1/chat/completions"] = lambda body: events(
        *({"choices": [{"index": 0, "delta": {"reasoning_content": t}}]} for t in ("Hm, <b>", "two</b>.")),
        {"choices": [{"index": 0, "delta": {"content": "It is 2."}, "finish_reason": "stop"}]})
    m = ask(b, "1 + 1?")
    assert body_of(m) == "It is 2." and not b.shown(".thinking .plain")
    b.click(".thinking summary")
    assert b.text(".thinking .plain") == "Hm, <b>two</b>."
    ask(b, "Sure?")
    assert p.bodies("/v1/chat/completions")[-1]["messages"][1] == {"role": "assistant", "content": "It is 2."}
    b.check()
    p.close()


HOSTILE = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned=1'><svg onload=window.pwned=1><iframe src=javascript:window.pwned=1>",
    "[click](javascript:window.pwned=1) [data](data:text/html,<script>window.pwned=1</script>) [vb](vbscript:x) [rel](/v1/models)",
    "![pixel](http://evil.example/pixel.png) <link rel=stylesheet href=http://evil.example/x.css>",
    "```html\n<script>window.pwned = 1</script>\n```",
    "[java\tscript](java\tscript:window.pwned=1) [a](\x01javascript:window.pwned=1) [b](JaVaScRiPt:window.pwned=1)",
    "| <script>window.pwned=1</script> | x |\n|---|---|\n| <img src=x onerror=window.pwned=1> | [c](javascript:window.pwned=1) |",
    "&lt;script&gt;window.pwned=1&lt;/script&gt; {{constructor.constructor('window.pwned=1')()}}",
    "</textarea></div></article><body onload=window.pwned=1>",
]


def check_harmless(b, where):
    assert b.script("return window.pwned === undefined"), where
    made = b.script("return [...document.querySelectorAll('main script, main img, main iframe, main link, main object, main embed, main style, main form:not(#composer)')].map(e => e.outerHTML)")
    assert not made, (where, made)
    for a in b.all("main a"):
        assert a.get_attribute("href").startswith(("http://", "https://", "mailto:")), (where, a.get_attribute("href"))
        assert "noopener" in a.get_attribute("rel"), where
    handlers = b.script("return [...document.querySelectorAll('*')].flatMap(e => [...e.attributes]).filter(x => /^on/.test(x.name)).map(x => x.name)")
    assert not handlers, (where, handlers)


@server(Mixd)
def test_hostile_output(s):
    p, b = Proxy(s), Browser.get()
    b.open(p.origin)
    for colour in False, True:
        if colour:
            b.click("#colour")
        for text in HOSTILE:
            lp = {"content": [{"token": text, "logprob": -1.0, "bytes": [], "top_logprobs": [{"token": text, "logprob": -1.0}]}]} if colour else None
            p.fake["/v1/chat/completions"] = lambda body: events({"choices": [{"index": 0, "delta": {"content": text}, "logprobs": lp, "finish_reason": "stop"}]})
            m = ask(b, text)
            check_harmless(b, text)
            assert "window.pwned" not in text or "pwned" in body_of(m) or "[click]" in text or "java" in text, (text, body_of(m))
            if colour:
                b.hover(m.find_element("css selector", ".token"))
                b.until(lambda: b.shown("#alternatives"), "alternatives")
                check_harmless(b, text)
            for link in m.find_elements("css selector", ".markdown span"):
                link.click()
            check_harmless(b, text)
    p.fake["/v1/chat/completions"] = lambda body: events({"choices": [{"index": 0, "delta": {"reasoning_content": HOSTILE[1]}, "finish_reason": "stop"}]})
    m = ask(b, "x")
    assert m.find_element("css selector", ".thinking .plain").text == HOSTILE[1]
    check_harmless(b, "reasoning")
    # errors, too
    p.fake["/v1/chat/completions"] = lambda body: (400, "application/json", [json.dumps({"error": {"message": HOSTILE[1]}})])
    assert note_of(ask(b, "x")) == HOSTILE[1]
    p.fake["/v1/chat/completions"] = lambda body: events({"error": {"message": HOSTILE[0]}})
    assert note_of(ask(b, "x")) == HOSTILE[0]
    p.fake["/v1/chat/completions"] = lambda body: (502, "text/html", [HOSTILE[0]])
    assert "502" in note_of(ask(b, "x"))
    check_harmless(b, "errors")
    b.check(but=["400 (Bad Request)", "502 (Bad Gateway)"])
    # names and texts of models and requests
    p.fake["/v1/models"] = lambda body: (200, "application/json", [json.dumps({"data": [{"id": HOSTILE[1]}]})])
    map_path = "/v1/models/" + b.script("return encodeURIComponent(arguments[0])", HOSTILE[1]) + "/map"
    real = s.get("/v1/models/demo/map")[2]
    real.update(id=HOSTILE[1], root=HOSTILE[0], family=HOSTILE[0], chat=False, chat_error=HOSTILE[1], device=HOSTILE[0])
    for part in real["layers"][0] + real["mixers"] + real["memory"]:
        part.update({k: HOSTILE[1] for k in ("mixer", "kernels", "part", "feed_forward") if k in part})
    p.fake[map_path] = lambda body: (200, "application/json", [json.dumps(real)])
    p.fake["/v1/requests"] = lambda body: (200, "application/json", [json.dumps({"all": 1, "requests": [
        {"id": HOSTILE[0], "model": HOSTILE[1], "age_s": 1, "first_token_s": None, "stream": True, "prompt_tokens": 1, "output_tokens": 0}]})])
    p.fake["/metrics"] = lambda body: (200, "text/plain", ['mixd_model_ready{model_name="<script>window.pwned=1</script>"} 1\n'])
    b.open(p.origin, "understand")
    b.until(lambda: b.shown(".strip"), "map")
    assert HOSTILE[0] in b.text("#map")
    check_harmless(b, "map")
    b.click("#tab-watch")
    b.until(lambda: HOSTILE[0] in b.text("#watch"), "requests")
    check_harmless(b, "watch")
    real.update(state="failed", failure=HOSTILE[1])
    b.click("#tab-understand")
    b.until(lambda: HOSTILE[1] in b.text("#map") and "could not be loaded" in b.text("#map"), "failure")
    check_harmless(b, "failure")
    b.check()
    p.close()


# ---- Watch ----

def figures(b, title):
    """The numbers of a panel, by name, as they stand."""
    return b.script("const p = [...document.querySelectorAll('.panel')].find(p => p.querySelector('h3').textContent === arguments[0]);"
                    "return Object.fromEntries([...p.querySelectorAll('.legend > div')].map(d => [...d.children].map(x => x.textContent)))", title)


def rows(b, css):
    """The texts of a table's cells, as they stand."""
    return b.script("return [...document.querySelectorAll(arguments[0])].map(r => [...r.children].map(c => c.innerText))", css)


def test_arithmetic_of_figures():
    s = Mixd()
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}")
    text = ('# HELP x y\n# TYPE h histogram\nh_bucket{m="a",le="0.1"} 1\nh_bucket{m="a",le="1"} 3\nh_bucket{m="a",le="+Inf"} 4\n'
            'h_sum{m="a"} 9.5\nh_count{m="a"} 4\nc{m="a",x="q\\"\\\\\\n}"} 2\nc{m="b"} 1e3\nplain 7\nnot a line\n')
    run = lambda what: b.module("prometheus.js", what.replace("P", "m.parse(a[0])"), text)
    assert run("m.value(P, 'c', {})") == 1002 and run("m.value(P, 'c', {m: 'b'})") == 1000
    assert run("m.value(P, 'c', {x: 'q\"\\\\\\n}'})") == 2 and run("m.value(P, 'none', {})") is None and run("m.value(P, 'plain', {})") == 7
    assert run("m.histogram(P, 'h', {m: 'a'})") == {"bounds": [0.1, 1], "counts": [1, 2, 1], "sum": 9.5}
    assert run("m.histogram(P, 'h', {m: 'b'})") is None
    assert abs(run("m.quantile(m.histogram(P, 'h', {}), 0.5)") - 0.55) < 1e-9 # the first of two in (0.1, 1]
    assert run("m.quantile(m.histogram(P, 'h', {}), 1)") == 1 and run("m.count(m.minus(m.histogram(P, 'h', {}), m.histogram(P, 'h', {})))") == 0
    for value, told in ((0, "0"), (12345, "12,345"), (1234567, "1.23M"), (0.5, "0.50"), (12.34, "12.3"), (None, "–")):
        assert b.module("format.js", "m.number(a[0] ?? NaN)", value) == told, value
    for value, told in ((0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (5 * 2**30, "5.00 GiB")):
        assert b.module("format.js", "m.bytes(a[0])", value) == told, value
    for value, told in ((0, "0 s"), (3.4e-5, "34.0 µs"), (0.0125, "12.5 ms"), (3.2, "3.20 s"), (250, "4 min 10 s"), (7260, "2 h 1 min")):
        assert b.module("format.js", "m.seconds(a[0])", value) == told, value
    b.check()
    s.stop()


def drain(stream):
    try:
        for _ in stream:
            pass
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        pass # it was aborted


def test_watch():
    s = Mixd(models={"demo": DEMO, "other": DEMO}, step_ms=50)
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}", "watch")
    b.until(lambda: figures(b, "Requests").get("running") == "0", "figures")
    streams = [s.stream(prompt="Once upon a time there was " * 8, max_tokens=1500, ignore_eos=True, model=m) for m in ("demo", "demo", "other")]
    for x in streams:
        threading.Thread(target=drain, args=(x,), daemon=True).start()
    b.until(lambda: figures(b, "Requests") == {"running": "3", "waiting": "0"}, "running requests")
    b.until(lambda: len(b.all(".requests tbody tr")) == 3, "requests in the table")
    table = rows(b, ".requests tbody tr")
    assert {r[0] for r in table} == {x.headers["X-Request-Id"] for x in streams}, table
    assert sorted(r[1] for r in table) == ["demo", "demo", "other"]
    b.until(lambda: all(r[2] == "decode" for r in rows(b, ".requests tbody tr")), "decode")
    number = lambda t: float(t.replace(",", "").replace("k", "e3").split()[0])
    b.until(lambda: figures(b, "Tokens a second")["output"] not in ("–", "0") and number(figures(b, "Tokens a second")["output"]) > 1, "output")
    b.until(lambda: figures(b, "Time to first token")["p50"].endswith(("ms", "s")), "first token")
    b.until(lambda: figures(b, "Between two tokens")["p99"].endswith(("ms", "µs")), "gaps")
    for name in "forward", "sample", "host":
        b.until(lambda: figures(b, "Step time")[name].endswith(("ms", "µs")), name)
    pages = {k: number(v) for k, v in figures(b, "Pages").items()}
    assert set(pages) == {"used", "cached", "free"} and pages["used"] > 0 and sum(pages.values()) == s.metric("mixd_pages"), pages
    assert figures(b, "Slots")["used"] == "3" and "held" in figures(b, "Snapshots") and figures(b, "Preemptions a second") == {"preemptions": "0"}
    b.until(lambda: figures(b, "Prefix hits")["found"] != "", "prefix hits")
    assert not any(p.is_displayed() and "Speculation" in p.text for p in b.all(".panel")) # this server has none
    # by model
    b.choose("#watch-model", "other")
    b.until(lambda: figures(b, "Requests")["running"] == "1" and len(b.all(".requests tbody tr")) == 1, "one model")
    # every panel says to screen readers what it shows
    for p in b.all(".panel svg"):
        if p.is_displayed():
            title = p.find_element("xpath", "ancestor::section/h3").text
            assert p.get_attribute("aria-label").startswith(title + ": "), p.get_attribute("aria-label")
    # the pointer reads a moment of the past
    b.choose("#watch-model", "")
    plot = b.one(".panel svg")
    ActionChains(b.driver).move_to_element_with_offset(plot, -plot.size["width"] // 2 + 2, 0).perform()
    b.until(lambda: figures(b, "Requests")["running"] == "–", "the moment before the first sample")
    b.hover(b.one("h1"))
    b.until(lambda: figures(b, "Requests")["running"] != "–", "now")
    for x in streams:
        x.abort()
    b.until(lambda: b.text(".requests .muted") == "None." and figures(b, "Requests")["running"] == "0", "end of the requests")
    # nothing is asked while the view is closed
    b.click("#tab-talk")
    time.sleep(1.5)
    b.check()
    time.sleep(2.5)
    asked = b.check()
    assert asked and all(u.endswith("/page/state.json") for u in asked), asked
    s.stop()


@server(Mixd)
def test_speculation_is_shown_where_there_is_some(s):
    p, b = Proxy(s), Browser.get()
    n = [0]
    def metrics(body):
        n[0] += 1
        m = '{model_name="demo"}'
        return 200, "text/plain", [f"mixd_model_ready{m} 1\nmixd_steps_total{m} {n[0]}\nvllm:num_requests_running{m} 1\n"
                                   f"vllm:spec_decode_num_draft_tokens_total{m} {100 * n[0]}\nvllm:spec_decode_num_accepted_tokens_total{m} {75 * n[0]}\n"]
    p.fake["/metrics"] = metrics
    b.open(p.origin, "watch")
    b.until(lambda: b.shown(".panel") and figures(b, "Speculation accepted").get("accepted") == "75 %", "accepted")
    b.until(lambda: not any(x.is_displayed() for x in b.all(".panel") if "Pages" in x.text.split("\n")[:1]), "no panel for pages")
    p.fake["/metrics"] = lambda body: (200, "text/plain", ['mixd_model_ready{model_name="demo"} 1\nmixd_steps_total{model_name="demo"} 1000\n'])
    b.until(lambda: "metrics.vllm_names" in b.text("#watch"), "what is left out")
    b.check()
    p.close()


def test_figures_for_operators_only():
    s = Mixd(top="admin: { listen: 127.0.0.1:0 }\n")
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}", "watch")
    b.until(lambda: "for its operators: admin.listen" in b.text("#watch"), "reason")
    assert not b.shown(".panel") and not b.shown(".requests")
    asked = b.check()
    assert not [u for u in asked if u.endswith(("/metrics", "/v1/requests"))], asked
    s.stop()


# ---- Understand ----

def test_understand():
    s = Mixd(models={"demo": DEMO, "attention": ATTENTION})
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}", "understand")
    b.until(lambda: b.shown(".strip"), "map")
    m = s.get("/v1/models/demo/map")[2]
    tiles = b.all(".layer")
    assert [t.find_element("css selector", ".number").text for t in tiles] == ["in", *map(str, range(len(m["layers"]))), "out"]
    for tile, layer in zip(tiles[1:-1], m["layers"]):
        colour = tile.find_element("css selector", ".mixers span").get_attribute("class")
        assert colour == "m-" + layer[0]["mixer"], colour
        assert layer[0]["mixer"] in tile.accessible_name
    colours = {x["mixer"]: b.script("return getComputedStyle(arguments[0]).backgroundColor",
               b.one(f".entries .m-{x['mixer']}")) for x in m["mixers"]}
    assert len(set(colours.values())) == len(m["mixers"]) == 4, colours
    # the details follow the pointer and the keyboard
    b.hover(tiles[4])
    part = m["layers"][3][0]
    assert b.text(".details h4") == "Layer 3" and part["kernels"].split(": ", 1)[1] in b.text(".details"), b.text(".details")
    b.script("arguments[0].focus()", tiles[4])
    for key, title in ((Key.ARROW_RIGHT, "Layer 4"), (Key.HOME, "Embedding"), (Key.ARROW_RIGHT, "Layer 0"), (Key.END, "Logits"), (Key.ARROW_LEFT, "Layer 7")):
        b.press(key)
        assert b.text(".details h4") == title, (title, b.text(".details h4"))
    assert [t.get_attribute("aria-selected") for t in tiles].count("true") == 1
    table = rows(b, "#map section:nth-of-type(3) tbody tr")
    told = lambda n: b.module("format.js", "m.bytes(a[0])", n)
    assert [[r[0], r[1], r[3], r[4], r[5]] for r in table] == [[x["mixer"], str(x["layers"]), told(x["bytes_per_token"]),
            told(x["bytes_per_sequence"]), told(x["bytes_per_snapshot"])] for x in m["mixers"]], table
    # the picture of memory: widths are shares
    total = sum(x["bytes"] for x in m["memory"])
    for rect, x in zip(b.all("svg.memory rect"), m["memory"]):
        assert abs(float(rect.get_attribute("width")) / 1000 - x["bytes"] / total) < 0.003, x
    assert told(total) in b.text("#map section:nth-of-type(4) h3")
    # what a sequence takes
    b.script("const e = document.getElementById('tokens'); e.value = 100; e.dispatchEvent(new Event('input'))")
    per = sum(x["bytes_per_sequence"] for x in m["mixers"]), sum(x["bytes_per_token"] for x in m["mixers"])
    assert f"A sequence of 100 tokens takes {told(per[0] + 100 * per[1])}" in b.text(".sequence output"), b.text(".sequence output")
    assert "64 such sequences fit" in b.text(".sequence output")
    # another model, and an alias
    b.choose("#model", "attention")
    b.until(lambda: b.text("#map h2") == "attention" and {x.get_attribute("class") for x in b.all(".layer .mixers span")} == {"m-none", "m-attention"}, "the other map")
    b.choose("#model", "gpt-demo")
    b.until(lambda: b.text("#map h2") == "gpt-demo, an alias of demo", "alias")
    b.check()
    s.stop()


@server(Mixd)
def test_progress_of_loading(s):
    p, b = Proxy(s), Browser.get()
    begin = time.monotonic()
    p.fake["/v1/models/demo/map"] = lambda body: (200, "application/json", [json.dumps(dict(object="model.map", id="demo", root="demo",
        state="loading", loaded_bytes=int(2e9 * (time.monotonic() - begin)), load_bytes=10**12))])
    b.open(p.origin, "understand")
    b.until(lambda: re.search(r"^\d.*% ?, .* of 931 GiB, (1\.[89]|2\.[01])\d GB/s, .* left$", b.text(".loading p")), "speed")
    first = float(b.one(".loading progress").get_attribute("value"))
    b.until(lambda: float(b.one(".loading progress").get_attribute("value")) > first, "progress")
    p.fake.clear() # it is loaded
    b.until(lambda: b.shown(".strip"), "map")
    b.check()
    p.close()


@server(page=1, hold=1, wait=False)
def test_a_server_that_loads(s):
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}", "understand", wait="loading")
    b.until(lambda: "fake is loading" in b.text("#map"), "loading")
    b.click("#tab-talk")
    assert "loading" in note_of(ask(b, "x"))
    s.process.send_signal(signal.SIGHUP)
    b.until(lambda: b.text("#state") == "ready", "ready")
    b.fill("#max_tokens", "3")
    b.click("input[value=completion] + span")
    assert note_of(ask(b, "x")).startswith("3 tokens")
    b.check(but=["503 (Service Unavailable)"])


# ---- the frame ----

def test_reconnect():
    listen = f"listen: 127.0.0.1:{free_ports(1)[0]}"
    s, b = Mixd(http=listen, step_ms=0), Browser.get()
    b.open(f"http://127.0.0.1:{s.port}")
    ask(b, "one")
    s.pace.set(50)
    b.fill("#max_tokens", "1900")
    b.click("input[value=completion] + span")
    m = ask(b, "two", wait=False)
    b.until(lambda: len(body_of(b.all(".message.assistant")[-1])) > 0, "tokens")
    s.process.kill()
    s.process.wait()
    b.until(lambda: "connection was lost" in note_of(b.all(".message.assistant")[-1]), "loss of the stream")
    b.until(lambda: b.shown("#banner") and b.text("#state") == "no server", "loss of the server")
    assert not b.one("#send").is_enabled()
    again = Mixd(models={"new": DEMO}, http=listen)
    b.until(lambda: b.text("#state") == "ready" and not b.shown("#banner") and b.text("#model") == "new\ngpt-new", "the server again")
    b.fill("#max_tokens", "5")
    assert note_of(ask(b, "three")).startswith("5 tokens")
    b.check(but=["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"])
    again.stop()


def test_keys_are_asked_for_and_kept_nowhere():
    k = Keys(ann="", bob="models: [other]")
    b = Browser.get()
    b.open(f"http://127.0.0.1:{k.server.port}", wait="key wanted")
    assert b.shown("#key-form") and b.one("#key").get_attribute("type") == "password"
    for view in "watch", "understand", "talk":
        b.click("#tab-" + view)
    time.sleep(1.5)
    asked = b.check() # no request in vain: those would be errors in the console
    assert not [u for u in asked if "/v1/" in u], asked
    assert not b.one("#send").is_enabled()
    b.fill("#key", "wrong-key")
    b.press(Key.ENTER)
    b.until(lambda: "key" in b.text("#key-note") and "memory only" not in b.text("#key-note"), "refusal")
    assert b.shown("#key-form") and b.one("#key").get_attribute("value") == ""
    b.check(but=["401 (Unauthorized)"])
    b.fill("#key", key("ann"))
    b.click("#key-form button")
    b.until(lambda: b.text("#state") == "ready" and not b.shown("#key-form"), "admission")
    assert b.text("#model").split() == ["demo", "other", "gpt-demo", "gpt-other"]
    b.fill("#max_tokens", "3")
    assert note_of(ask(b, "hi")).startswith("3 tokens")
    b.click("#tab-understand")
    b.until(lambda: b.shown(".strip"), "map")
    b.click("#tab-watch")
    b.until(lambda: figures(b, "Requests").get("running") == "0", "figures")
    kept = b.script("return [JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, location.href, document.documentElement.outerHTML, document.getElementById('key').value]")
    assert not any(key("ann") in x for x in kept), kept
    asked = b.check()
    assert not any(key("ann") in u for u in asked)
    # a key that is taken away
    k.write(bob="models: [other]")
    k.reload()
    b.click("#tab-talk")
    ask(b, "hi")
    b.until(lambda: b.shown("#key-form") and b.text("#state") == "key wanted", "the form again")
    # one that may do less
    b.fill("#key", key("bob"))
    b.click("#key-form button")
    b.until(lambda: b.text("#state") == "ready" and b.text("#model").split() == ["other", "gpt-other"], "another key")
    b.check(but=["401 (Unauthorized)"])
    # a new tab knows nothing
    b.open(f"http://127.0.0.1:{k.server.port}", wait="key wanted")
    b.check()
    k.server.stop()


@server(Mixd)
def test_views_and_colours(s):
    b = Browser.get()
    b.open(f"http://127.0.0.1:{s.port}")
    b.script("document.getElementById('tab-talk').focus()")
    for press, view in ((Key.ARROW_RIGHT, "watch"), (Key.ARROW_RIGHT, "understand"), (Key.ARROW_RIGHT, "talk"), (Key.ARROW_LEFT, "understand")):
        b.press(press)
        shown = [v for v in ("talk", "watch", "understand") if b.shown("#" + v)]
        assert shown == [view] and b.driver.current_url.endswith("#/" + view), (shown, view)
        assert b.script("return document.activeElement.id") == "tab-" + view
    back = lambda: b.script("return getComputedStyle(document.documentElement).backgroundColor")
    light, colours = back(), []
    for _ in range(3):
        b.click("#theme")
        colours.append((b.one("#theme").accessible_name, back()))
    b.look_as(1280, 900, True)
    dark = back()
    assert colours == [("Colours: light", light), ("Colours: dark", dark), ("Colours: as the system", light)] and dark != light, colours
    b.check()


CONTRAST = """
const parse = c => { const x = document.createElement('canvas').getContext('2d'); x.fillStyle = c; x.fillRect(0, 0, 1, 1); return [...x.getImageData(0, 0, 1, 1).data]; };
const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const back = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255]; };
return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.disabled && !e.closest('svg') && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(e => { const [a, b] = [light(parse(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x); return [(a + 0.05) / (b + 0.05), e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 30)]; })
  .filter(([ratio]) => ratio < 4.5);
"""


@server(Mixd)
def test_everybody_can_use_it(s):
    """At a phone's width and a desktop's, in light and dark: nothing runs over the side, text has a contrast
    of 4.5 (WCAG 2.2, 1.4.3), and every control has a name."""
    b = Browser.get()
    for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
        b.open(f"http://127.0.0.1:{s.port}", width=width, height=800, dark=dark)
        assert (b.one("#settings").get_attribute("open") is None) == (width < 600)
        if width < 600:
            b.click("#settings summary")
        b.fill("#max_tokens", "20")
        b.click("#colour")
        if width < 600:
            b.click("#settings summary")
        ask(b, "a long word: " + "w" * 300)
        for view in "talk", "watch", "understand":
            b.click("#tab-" + view)
            if view != "talk":
                b.until(lambda: b.shown({"watch": ".panel", "understand": ".strip"}[view]), view)
            assert b.script("return document.documentElement.scrollWidth <= innerWidth"), (view, width)
            over = b.script("return [...document.querySelectorAll('main *')].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, pre, .hidden')).map(e => e.outerHTML.slice(0, 100))")
            assert not over, (view, width, over)
            low = b.script(CONTRAST)
            assert not low, (view, width, dark, low)
            for control in b.all("button, input, select, textarea, summary, svg[role=img], [role=listbox], [tabindex='0']"):
                if control.is_displayed():
                    assert control.accessible_name.strip(), control.get_attribute("outerHTML")[:200]
        b.check()


if __name__ == "__main__":
    try:
        main(sys.modules[__name__])
    finally:
        Browser.end()
