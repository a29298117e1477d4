"""HTTP/2 and gRPC by hand: raw frames to a server, and what it says. Standard library only."""
import socket
import struct

DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def integer(n):
    if n < 127:
        return bytes([n])
    out, n = bytearray([127]), n - 127
    while n >= 128:
        out.append(n % 128 + 128)
        n //= 128
    return bytes(out + bytes([n]))


def block(*fields):
    """HPACK literals, nothing indexed."""
    out = b""
    for name, value in zip(fields[::2], fields[1::2]):
        out += b"\0" + integer(len(name)) + name.encode() + integer(len(value)) + value.encode()
    return out


def head(path="/tandem.v1.Engine/Generate", *more):
    return block(":authority", "a", ":method", "POST", ":scheme", "http", ":path", path, "content-type",
                 "application/grpc", "te", "trailers", *more)


def varint(n):
    out = bytearray()
    while n >= 128:
        out.append(n % 128 + 128)
        n //= 128
    return bytes(out + bytes([n]))


def generate(text="hello", tokens=8):
    """A GenerateRequest{text, sampling{temperature 0, max_tokens}} as a gRPC message."""
    sampling = b"\x0d\0\0\0\0" + b"\x48" + varint(tokens)
    m = b"\x12" + varint(len(text)) + text.encode() + b"\x2a" + varint(len(sampling)) + sampling
    return b"\0" + struct.pack(">I", len(m)) + m


class Peer:
    """One connection of raw frames."""

    def __init__(self, port, settings=b""):
        self.s = socket.create_connection(("127.0.0.1", port), 30)
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))
        self.buf = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.s.close()

    def send(self, data):
        """False when the server has closed."""
        try:
            self.s.sendall(data)
            return True
        except OSError:
            return False

    def ask(self, stream, text="hello", tokens=8, end=True):
        return self.send(frame(HEADERS, END_HEADERS, stream, head()) +
                         frame(DATA, END_STREAM if end else 0, stream, generate(text, tokens)))

    def frames(self, seconds=30):
        """(kind, flags, stream, payload) until the server closes or says nothing for so long."""
        self.s.settimeout(seconds)
        while True:
            while len(self.buf) >= 9:
                n = int.from_bytes(self.buf[:3], "big")
                if len(self.buf) < 9 + n:
                    break
                kind, flags, stream = self.buf[3], self.buf[4], struct.unpack(">I", self.buf[5:9])[0]
                payload, self.buf = self.buf[9:9 + n], self.buf[9 + n:]
                yield kind, flags, stream, payload
            try:
                got = self.s.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                return
            except socket.timeout:
                raise AssertionError("the server said nothing") from None
            if not got:
                return
            self.buf += got

    def goaway(self):
        """The code of the last GOAWAY before the server closes; None without one."""
        code = None
        for kind, _, _, payload in self.frames():
            if kind == GOAWAY:
                code = struct.unpack(">I", payload[4:8])[0]
        return code


def until_end(peer, stream):
    for f in peer.frames():
        yield f
        if f[2] == stream and (f[0] == RST or f[1] & END_STREAM and f[0] in (HEADERS, DATA)):
            return
