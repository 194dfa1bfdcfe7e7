# Streams through the proxy in both directions, as fast as they go, until they break. Each
# argument is WAY/DIRECTION/HOST. Prints a line for each stream that has ended: its name, the
# bytes that it received, and how it ended.
import socket, struct, sys, threading


def connect(host):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(f"CONNECT {host}:7000 HTTP/1.1\r\nHost: {host}:7000\r\n\r\n".encode())
    f = s.makefile("rb")
    assert b" 200 " in f.readline()
    while f.readline() != b"\r\n":
        pass
    return s, f


def socks(host):
    s = socket.create_connection(("127.0.0.1", 1080))
    f = s.makefile("rb")
    s.sendall(b"\5\1\0")
    assert f.read(2) == b"\5\0"
    s.sendall(b"\5\1\0\3" + bytes([len(host)]) + host.encode() + struct.pack(">H", 7000))
    assert f.read(10)[1] == 0
    return s, f


def http(host):
    s = socket.create_connection(("127.0.0.1", 3128))
    return s, s.makefile("rb")


BLOCK = b"x" * 65536


def stream(name):
    way, direction, host = name.split("/")
    received, why = 0, "end"
    try:
        s, f = {"connect": connect, "socks": socks, "http": http}[way](host)
        if way == "http":
            if direction == "up":
                s.sendall(f"POST http://{host}/sink?{name} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
                while True:
                    s.sendall(b"10000\r\n" + BLOCK + b"\r\n")
            s.sendall(f"GET http://{host}/source?{name} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        else:
            s.sendall(f"{name}\n".encode())
            if direction == "up":
                while True:
                    s.sendall(BLOCK)
        while more := f.read1(65536):
            received += len(more)
    except (OSError, AssertionError) as e:
        why = type(e).__name__
    print(name, received, why, flush=True)


for name in sys.argv[1:]:
    threading.Thread(target=stream, args=(name,)).start()
threading.Event().wait()  # until somebody ends it
