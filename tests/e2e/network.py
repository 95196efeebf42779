# SPDX-License-Identifier: Apache-2.0
"""Networks that behave badly, for tests of several hosts. Relay: a host between two ends of TCP connections,
which hands on late, in pieces, changed bytes, or nothing. Network: another network namespace behind a wire
that loses, delays and reorders packets. What is random comes from a seed, which is printed."""
import heapq
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time

from harness import Skip

DATA = 100  # what is longer than this is no message of a control connection


class Relay:
    """Takes connections, and makes one of its own to `target` for each. All is changed while it runs:
    most      bytes that are handed on at a time, and of which some are late
    held      nothing is handed on; nobody hears of it
    cut       the next data end their connection, in their middle
    corrupt   of the next record of TLS with data from the side that connected one bit changes"""

    def __init__(self, target, seed):
        print(f"      seed {seed}")
        self.target, self.draw = target, random.Random(seed)
        self.most, self.held, self.cut, self.corrupt = 65536, False, False, False
        self.bytes, self.releases, self.closing = 0, 0, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets, self.threads = [], [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
                far = socket.create_connection(self.target)
            except OSError:
                if self.closing:
                    return
                near.close()  # nobody listens there yet
                continue
            for s in near, far:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sockets.append(s)
            for a, b in (near, far), (far, near):
                self.threads.append(threading.Thread(target=self.carry, args=(a, b, a is near), daemon=True))
                self.threads[-1].start()

    def hold(self):
        n = self.releases
        while self.held and self.releases == n and not self.closing:
            time.sleep(0.01)

    def let_go(self):
        """Ends `held`, for each thread that waits, though it be set again before the thread looks."""
        self.releases, self.held = self.releases + 1, False

    def carry(self, a, b, outwards):
        try:
            while data := a.recv(65536):
                self.hold()
                self.bytes += len(data)
                # of a record of TLS that is whole; in its head, a length would only be waited for
                n = 5 + int.from_bytes(data[3:5], "big")
                if self.corrupt and outwards and data[:3] == b"\x17\3\3" and DATA < n <= len(data):
                    self.corrupt = False
                    data = bytearray(data)
                    data[self.draw.randrange(5, n)] ^= 1 << self.draw.randrange(8)
                if self.cut and len(data) > DATA:
                    b.sendall(data[:len(data) // 2])
                    break
                while data:
                    n = self.draw.randint(1, self.most)
                    b.sendall(data[:n])
                    data = data[n:]
                    if self.most < 65536 and not self.draw.randrange(64):
                        time.sleep(self.draw.random() / 500)
        except OSError:
            pass
        self.hold()
        for s in a, b:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.closing = True
        for s in [self.listener, *self.sockets]:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        for t in self.threads:
            t.join()


SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING, ETH_P_ALL = 263, 15, 4, 3


def in_user_namespace(test):
    """Runs a test of the running program as root of namespaces of its own, where this is not root."""
    command = 'mount -t tmpfs none /run && ip link set lo up && exec "$0" "$@"'
    try:
        done = subprocess.run(["unshare", "-rnm", "sh", "-c", command, sys.executable, sys.argv[0], test],
                              capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Skip("network namespaces need unshare") from None
    print(done.stdout, end="")
    if "skip " in done.stdout or "unshare" in done.stderr or "mount:" in done.stderr:
        raise Skip(f"no network namespaces without root: {(done.stderr or done.stdout).strip()}")
    assert done.returncode == 0, done.stdout + done.stderr


class Network:
    """A namespace (`within` is a command that runs others there) with a wire to it. The wire has two ends
    here, between which this process hands on each packet, after a millisecond or two, or loses it."""

    def __init__(self, seed):
        print(f"      seed {seed}")
        n = os.getpid() % 100000
        self.name, self.links = f"mixd{n}", [f"ma{n}", f"mb{n}"]
        self.draw, self.percent, self.cut = random.Random(seed), 0, False
        self.seen, self.lost, self.closing = 0, 0, False
        self.sockets, self.thread = [], None
        try:
            done = subprocess.run(["ip", "netns", "add", self.name], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Skip("network namespaces need iproute2") from None
        if done.returncode:
            raise Skip(f"no network namespaces: {done.stderr.strip()}")
        self.within = ("ip", "netns", "exec", self.name)
        net = f"10.{random.randrange(200, 250)}.{random.randrange(256)}"
        self.ip = f"{net}.1"
        try:
            for link, ip, there in (self.links[0], 1, ()), (self.links[1], 2, ("netns", self.name)):
                within = self.within if there else ()
                self.run("ip", "link", "add", link, "type", "veth", "peer", "name", f"{link}h", *there)
                self.run("ip", "link", "set", link, "up")
                self.run(*within, "ip", "addr", "add", f"{net}.{ip}/24", "dev", f"{link}h")
                self.run(*within, "ip", "link", "set", f"{link}h", "up")
            for link in self.links:
                s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                self.sockets.append(s)
                s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)  # checksums that are left to the card, and long packets
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
                s.bind((link, 0))
        except OSError as e:
            self.remove()
            raise Skip(f"no raw packets: {e}") from None
        except Skip:
            self.remove()
            raise
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skip(f"{' '.join(command)}: {done.stderr.strip()}")

    def take(self, i, late):
        """Reads a packet of wire end i."""
        packet, sender = self.sockets[i].recvfrom(1 << 17)
        if sender[2] == PACKET_OUTGOING:
            return
        self.seen += 1
        if self.cut or self.draw.random() * 100 < self.percent:
            self.lost += 1
            return
        heapq.heappush(late, (time.monotonic() + 0.001 + self.draw.random() / 1000, self.seen, i, packet))

    def carry(self):
        late = []
        while not self.closing:
            now = time.monotonic()
            while late and late[0][0] <= now:
                _, _, i, packet = heapq.heappop(late)
                try:
                    self.sockets[1 - i].send(packet)
                except OSError:
                    self.lost += 1  # as a wire that is full
            wait = max(0, late[0][0] - now) if late else 0.1
            for s in select.select(self.sockets, [], [], wait)[0]:
                self.take(self.sockets.index(s), late)

    def remove(self):
        self.closing = True
        if self.thread:
            self.thread.join()
        for s in self.sockets:
            s.close()
        for link in self.links:
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)
