"""redis-server as a child, and a proxy before it that is slow, hangs, lies or breaks connections, as a test tells it."""

import pathlib
import random
import socket
import subprocess
import threading
import time

import serving


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Redis:
    """A redis-server that writes each change to its file, so that it can be started again; with keep=False it writes none."""

    def __init__(self, folder, keep=True):
        self.port, self._folder, self._process = free_port(), pathlib.Path(folder), None
        self._keep = "yes" if keep else "no"
        self.start()

    def start(self):
        self._process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--appendonly",
             self._keep, "--appendfsync", "always", "--save", "", "--maxmemory", "1gb", "--maxmemory-policy", "noeviction"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def answers():
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as one:
                    one.sendall(b"PING\r\n")
                    return one.recv(16).startswith(b"+PONG")
            except OSError:
                return False

        serving.wait_until(answers, "redis-server")

    def stop(self):
        self._process.kill()
        self._process.wait()


LIES = (b"$-2\r\n", b"$2147483647\r\nabc", b"*2147483647\r\n", b":notanumber\r\n", b"+\r\n", b"-\r\n", b"-ERR lies\r\n", b"?what\r\n",
        b"*-1\r\n", b"$-1\r\n", b"*1\r\n*1\r\n*1\r\n:1\r\n", b"%1\r\n+a\r\n+b\r\n", b"\0" * 64, b"$5\r\nabc\r\n\r\n", b":9223372036854775807\r\n",
        b"*2\r\n$1\r\n0\r\n$5\r\nthere\r\n", b"*2\r\n:-1\r\n*-1\r\n", b"+OK\r\n" * 3, b"*0\r\n")


class RedisProxy:
    """`mode`: pass, slow (`delay` seconds before each reply), hang (no reply), refuse (closes new connections), break (closes
    a connection at its next command), lose (closes a connection in place of the reply to a SET or DEL), repeat (each reply again after `delay`
    seconds), push (a message of no command before each reply), lie (another reply), mangle (bytes of the reply changed)."""

    def __init__(self, port):
        self._redis, self.mode, self.delay = port, "pass", 0.0
        self.lie = None  # one of LIES instead of a random one
        self.replies = 0  # that were not passed as they were
        self._random = random.Random(15)
        self._loses = set()  # connections that end in place of their next reply
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.mode == "refuse":
                    self.replies += 1
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._redis), 5)
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._commands, args=(client, server), daemon=True).start()
            threading.Thread(target=self._replies, args=(client, server), daemon=True).start()

    def _commands(self, client, server):
        try:
            while data := client.recv(1 << 16):
                if self.mode == "break":
                    self.replies += 1
                    break
                if self.mode == "lose" and (b"$3\r\nSET\r\n" in data or b"$3\r\nDEL\r\n" in data):
                    self._loses.add(client)
                server.sendall(data)
        except OSError:
            pass
        self._end(client, server)

    def _replies(self, client, server):
        try:
            while data := server.recv(1 << 16):
                if client in self._loses:
                    self._loses.discard(client)
                    self.replies += 1
                    break
                client.sendall(self._changed(data))
                if self.mode == "repeat":
                    time.sleep(self.delay)
                    client.sendall(data)
        except OSError:
            pass
        self._end(client, server)

    def _changed(self, data):
        if self.mode != "pass":
            self.replies += 1
        if self.mode == "slow":
            time.sleep(self.delay)
        elif self.mode == "push":
            return b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n" + data
        elif self.mode == "hang":
            while self.mode == "hang":
                time.sleep(0.02)
            raise OSError("the reply is lost")
        elif self.mode == "lie":
            return self.lie or self._random.choice(LIES)
        elif self.mode == "mangle":
            data = bytearray(data)
            for _ in range(1 + len(data) // 200):
                data[self._random.randrange(len(data))] = self._random.randrange(256)
            return bytes(data)
        return data

    @staticmethod
    def _end(*sockets):
        for one in sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()
