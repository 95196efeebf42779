# SPDX-License-Identifier: Apache-2.0
"""Requests that a server has to refuse (RFC 9112), since a proxy in front of it may read them otherwise."""

BODY = b'{"prompt":"a"}'
SMUGGLED = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


def post(headers, body=BODY, version=b"1.1"):
    return b"POST /tokenize HTTP/" + version + b"\r\n" + headers + b"\r\n" + body


CHUNKED = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"
HOST = b"Host: x\r\n"
FORMS = [
    ("two Content-Length, equal", post(HOST + b"Content-Length: 14\r\nContent-Length: 14\r\n")),
    ("two Content-Length, different", post(HOST + b"Content-Length: 14\r\nContent-Length: 15\r\n")),
    ("Content-Length: 14, 14", post(HOST + b"Content-Length: 14, 14\r\n")),
    ("Content-Length: +14", post(HOST + b"Content-Length: +14\r\n")),
    ("Content-Length: -1", post(HOST + b"Content-Length: -1\r\n")),
    ("Content-Length: 0x0e", post(HOST + b"Content-Length: 0x0e\r\n")),
    ("Content-Length of 25 digits", post(HOST + b"Content-Length: 1000000000000000000000014\r\n")),
    ("Content-Length and chunked", post(HOST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", CHUNKED)),
    ("Transfer-Encoding: xchunked", post(HOST + b"Transfer-Encoding: xchunked\r\n", CHUNKED)),
    ("Transfer-Encoding: gzip, chunked", post(HOST + b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED)),
    ("Transfer-Encoding: identity", post(HOST + b"Transfer-Encoding: identity\r\nContent-Length: 14\r\n")),
    ("chunked twice", post(HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", CHUNKED)),
    ("chunked in HTTP/1.0", post(HOST + b"Transfer-Encoding: chunked\r\n", CHUNKED, b"1.0")),
    ("bare LF in the header", b"POST /tokenize HTTP/1.1\nHost: x\nContent-Length: 14\n\n" + BODY),
    ("one bare LF in the header", post(b"Host: x\nContent-Length: 14\r\n")),
    ("bare LF after a chunk's size", post(HOST + b"Transfer-Encoding: chunked\r\n",
                                          b"e\n" + BODY + b"\r\n0\r\n\r\n")),
    ("no Host", post(b"Content-Length: 14\r\n")),
    ("two Host", post(HOST + b"Host: y\r\nContent-Length: 14\r\n")),
    ("space before a header's colon", post(HOST + b"Content-Length : 14\r\n")),
    ("folded header", post(HOST + b"X: a\r\n b\r\nContent-Length: 14\r\n")),
    ("NUL in a header", post(HOST + b"X: a\0b\r\nContent-Length: 14\r\n")),
    ("/health%00x", b"GET /health%00x HTTP/1.1\r\nHost: x\r\n\r\n"),
]
