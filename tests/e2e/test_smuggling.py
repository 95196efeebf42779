#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests whose end another program on the way may see elsewhere are refused, and nothing behind
them on the connection is answered."""
import json
import socket
import sys
import time

from harness import PATIENCE, Mixd, main, server

SECOND = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"prompt": "a", "max_tokens": 1}'


def talk(s, pieces, ends=True):
    """What the server answers until it closes the connection, or until the first answer is there."""
    c = socket.create_connection((s.host, s.port), timeout=PATIENCE)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    try:
        for i, piece in enumerate(pieces):
            if i:
                time.sleep(0.005)
            c.sendall(piece)
    except ConnectionError:
        pass  # refused already
    try:
        while ends or b"}" not in data:
            more = c.recv(65536)
            if not more:
                break
            data += more
    except ConnectionError:
        pass
    c.close()
    return data


def get(*lines, path=b"/health", version=b"HTTP/1.1"):
    return b"".join(line + b"\r\n" for line in (b"GET " + path + b" " + version, *lines, b""))


def post(*lines, body=BODY):
    return b"".join(line + b"\r\n" for line in (b"POST /v1/completions HTTP/1.1", b"Host: x", *lines, b"")) + body


def check_refused(s, request, status=400, silent=False):
    """Whole, in two pieces, and with the last byte apart. Versions of libmicrohttpd refuse more or
    fewer of these by themselves: then 501 may be 400, and where `silent` the connection just ends."""
    n = len(request)
    for pieces in ([request + SECOND], [request[:n // 2], request[n // 2:] + SECOND],
                   [request[:n - 1], request[n - 1:], SECOND]):
        answer = talk(s, pieces)
        if silent and not answer:
            continue
        by_itself = b"application/json" not in answer
        assert int(answer[9:12] or 0) in (status, 400 if by_itself else status), (request, answer)
        # libmicrohttpd 0.9.75 sends the header of its own refusals twice
        assert b"HTTP/1.1 200 " not in answer and b'"version"' not in answer, (request, answer)
        header, _, body = answer.partition(b"\r\n\r\n")
        assert b"\r\nConnection: close" in header, answer
        if not by_itself:
            assert json.loads(body)["error"]["message"], answer


CHUNKED = b"20\r\n" + BODY + b"\r\n0\r\n\r\n"
assert len(BODY) == 0x20


@server()
def test_bodies_of_two_lengths(s):
    n = b"Content-Length: %d" % len(BODY)
    check_refused(s, post(n, n))
    check_refused(s, post(n, b"Content-Length: 5"))
    check_refused(s, post(b"content-length: 5", b"X: y", n))
    check_refused(s, post(b"Content-Length: 32, 32"))
    check_refused(s, post(b"Content-Length: +32"))
    check_refused(s, post(b"Content-Length: 0x20"))
    check_refused(s, post(b"Content-Length:"))
    check_refused(s, post(n, b"Transfer-Encoding: chunked", body=CHUNKED))
    check_refused(s, post(b"Transfer-Encoding: chunked", n, body=CHUNKED))
    check_refused(s, post(b"transfer-encoding: CHUNKED", b"Content-Length: 0", body=CHUNKED))
    check_refused(s, post(b"Transfer-Encoding: identity", n))
    # a GET with a body that others do not see
    check_refused(s, get(b"Host: x", b"Content-Length: 0", b"Content-Length: 30"))


@server()
def test_transfer_codings(s):
    for coding in (b"gzip", b"identity", b"gzip, chunked", b"chunked, gzip", b"xchunked", b"chunked;a",
                   b"\"chunked\"", b""):
        check_refused(s, post(b"Transfer-Encoding: " + coding, body=CHUNKED), 501)
    check_refused(s, post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKED))
    check_refused(s, post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", body=CHUNKED))
    check_refused(s, post(b"Transfer-Encoding: \x0bchunked", body=CHUNKED))
    old = post(b"Transfer-Encoding: chunked", b"Connection: keep-alive", body=CHUNKED)
    check_refused(s, old.replace(b"HTTP/1.1", b"HTTP/1.0"))


@server()
def test_nothing_is_read_behind_chunks(s):
    """Where they end, libmicrohttpd is less strict than others: so the connection ends with them."""
    for chunks in (CHUNKED, CHUNKED.replace(b"\r\n", b"\n"), CHUNKED.replace(b"20\r", b"20;x\r")):
        answer = talk(s, [post(b"Transfer-Encoding: chunked", body=chunks) + SECOND])
        assert answer.startswith(b"HTTP/1.1 200 ") or chunks != CHUNKED, answer
        assert b"\r\nConnection: close" in answer, answer
        assert answer.count(b"HTTP/1.1 ") == 1, answer


@server()
def test_line_ends(s):
    host, n = b"Host: x", b"Content-Length: %d" % len(BODY)
    good = get(host, b"X: y")
    for i in range(good.count(b"\r\n")):
        at = -1
        for _ in range(i + 1):
            at = good.index(b"\r\n", at + 1)
        check_refused(s, good[:at] + good[at + 1:])  # bare line feed
    check_refused(s, good.replace(b"\r\n", b"\n"))
    check_refused(s, get(host, b"X: a\rb"))
    check_refused(s, get(host, b"X: y\r"))
    check_refused(s, get(host, b"X: a\0b"))
    check_refused(s, get(host, b"X\0: y"))
    check_refused(s, get(host, b"X: a\x01b"))
    # folded: libmicrohttpd would append to the name
    check_refused(s, post(b"X: a", b" b", n))
    check_refused(s, post(b"X: a", b"\tb", n))
    check_refused(s, post(b"Content-: 3", b" Length", n))
    check_refused(s, get(b" X: y", host))
    check_refused(s, get(host, b"no colon"))


@server()
def test_names_and_hosts(s):
    n = b"Content-Length: %d" % len(BODY)
    check_refused(s, post(b"Content-Length : 5", n))
    check_refused(s, post(b"Content-Length\t: 5", n))
    check_refused(s, post(b"Transfer-Encoding : chunked", n))
    check_refused(s, post(b": y", n))
    check_refused(s, post(b"X(y): z", n))
    check_refused(s, get())
    check_refused(s, get(b"X: y"))
    check_refused(s, get(b"Host: a", b"Host: b"))
    check_refused(s, get(b"Host: a", b"host: a"))
    for host in (b"a b", b"a,b", b"a/b", b"u@a", b"a\\b", b"a?b"):
        check_refused(s, get(b"Host: " + host))


@server()
def test_request_lines(s):
    host = b"Host: x"
    for path in (b"/health%00x", b"/health%00", b"/v1/models/%00", b"/health\0x", b"/health\0?x",
                 b"/health\0HTTP/1.1", b"/health%zz", b"/health%", b"/health%2", b"/health x", b"/health\tx",
                 b"/health\x7f", b"/health?a b", b"/health?a\0b", b" /health", b"/health "):
        check_refused(s, get(host, path=path), silent=b"\0" in path or b" " in path or b"\t" in path)
    for version in (b"HTTP/1.1 ", b"http/1.1", b"HTTP/1.1x"):
        check_refused(s, get(host, version=version))
    check_refused(s, b"G(T /health HTTP/1.1\r\nHost: x\r\n\r\n")
    check_refused(s, get(host, version=b"HTTP/2.0"), 505)


@server()
def test_queries_of_many_arguments(s):
    host = b"Host: x"
    for n, good in ((64, True), (65, False), (400, False), (700, False), (7000, False)):
        for query in (b"&".join(b"a%d=b" % i for i in range(n)), b"&" * (n - 1)):
            if len(query) > 30000:
                continue
            request = get(host, path=b"/health?" + query)
            if good:
                assert talk(s, [request], ends=False).startswith(b"HTTP/1.1 200 "), n
            else:
                answer = talk(s, [request + SECOND])
                assert answer.startswith(b"HTTP/1.1 400 ") and b'"version"' not in answer, (n, answer)
                assert b"X-Request-Id" in answer and b"more than 64 arguments" in answer, answer


@server(Mixd, top="log: { format: json, access: errors }\n")
def test_what_the_library_refuses_has_a_line(s):
    """Its answers are pages of HTML, but the log and the metrics know of them."""
    host = b"Host: x"
    chunked = b"Transfer-Encoding: chunked"
    cases = (("header", post(b"Content-Length: +32", b"X-Request-Id: length")),
             ("header", get(host, b"X: " + b"y" * 40000)),
             ("header", get(host, b"no colon", b"X: y")),
             ("chunk", post(chunked, body=b"zz\r\n" + BODY)),
             ("chunk", post(chunked, body=b"20\r\n" + BODY + b"xx0\r\n\r\n")),
             ("chunk", post(chunked, body=b"20;" + b"x" * 40000)))
    found = []
    for i, (part, request) in enumerate(cases):
        answer = talk(s, [request])
        # where it closes a socket that has unread bytes, the client may lose the answer
        assert answer[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 5", b""), answer
        lines = lambda: [l for l in map(json.loads, s.errors().splitlines()) if l.get("code", "not_healthy") != "not_healthy"]
        s.wait_for(lambda: len(lines()) > i, f"line of {request[:80]}")
        found = lines()
        assert len(found) == i + 1, found
        line = found[i]
        assert line["status"] == 400 and line["code"] == "bad_framing" and part in line["error"], line
        assert line["id"] and line["client"].startswith("127.0.0.1:"), line
    assert found[0]["id"] == "length", found
    # a client that leaves within a header made no request
    c = socket.create_connection((s.host, s.port))
    c.sendall(b"GET /health HTTP/1.1\r\nHost:")
    c.close()
    assert s.post("/v1/completions", {"nonsense": 1})[0] == 400
    s.wait_for(lambda: len(lines()) == len(cases) + 1, "a line")
    assert lines()[-1]["code"] == "unknown_parameter", lines()
    count = sum(float(l.rsplit(" ", 1)[1]) for l in s.get("/metrics")[2].decode().splitlines()
                if l.startswith("http_requests_total") and '"4xx"' in l)
    assert count == len(cases) + 1, count


@server()
def test_what_is_right_is_served(s):
    host = b"Host: x"
    for request in (get(host), get(b"Host:x"), get(b"Host: \t x"), get(b"host: [::1]:8080"), get(b"Host:"),
                    get(host, b"X:"), get(host, b"X: a\tb"), get(host, b"X: a b "),
                    get(host, b"X: " + "ä".encode()), get(host, path=b"/health?"),
                    get(host, path=b"/health?a=b&c&d=%00&=&x"), get(host, path=b"/%68ealth"),
                    get(host, *[b"X-%d: y" % i for i in range(100)]), get(host, b"X: " + b"y" * 15000),
                    get(host, b"X: " + b"y" * 20000, b"Y: z"), get(host, b"Cookie: a=b; c=d", b"Y: z"),
                    b"\r\n" + get(host),
                    get(host, b"Content-Length: 3") + b"abc"):
        # whole, twice on one connection, and byte by byte at first
        n = min(len(request), 40)
        for pieces in ([request], [request[:n // 2], request[n // 2:]],
                       [request[i:i + 1] for i in range(n)] + [request[n:]]):
            answer = talk(s, pieces, ends=False)
            assert answer.startswith(b"HTTP/1.1 200 "), (request, answer)
        answer = talk(s, [request * 3 + get(host, b"Connection: close")])
        assert answer.count(b"HTTP/1.1 200 ") == 4, (request, answer)
    for version in (b"", b"Connection: keep-alive"):
        old = get(*([version] if version else []), version=b"HTTP/1.0")
        assert talk(s, [old], ends=False).startswith(b"HTTP/1.1 200 ")
    answer = talk(s, [post(b"Content-Length: %d" % len(BODY)) * 2 + get(host, b"Connection: close")])
    assert answer.count(b"HTTP/1.1 200 ") == 3, answer


main(sys.modules[__name__])
