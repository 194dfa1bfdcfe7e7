"""Answers every question for A or AAAA on 127.0.0.1 port 53, over UDP and TCP."""
import socket
import struct
import threading

ADDRESSES = {1: socket.inet_aton("192.0.2.7"), 28: socket.inet_pton(socket.AF_INET6, "2001:db8::7")}


def answer(query):
    end = query.index(b"\0", 12) + 1
    kind, _ = struct.unpack_from("!HH", query, end)
    address = ADDRESSES.get(kind)
    head = query[:2] + struct.pack("!HHHHH", 0x8580, 1, 1 if address else 0, 0, 0)
    record = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(address)) + address if address else b""
    return head + query[12:end + 4] + record


def serve_tcp(listener):
    while True:
        connection, _ = listener.accept()
        with connection:
            size, = struct.unpack("!H", connection.recv(2, socket.MSG_WAITALL))
            reply = answer(connection.recv(size, socket.MSG_WAITALL))
            connection.sendall(struct.pack("!H", len(reply)) + reply)


udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 53))
threading.Thread(target=serve_tcp, args=(socket.create_server(("127.0.0.1", 53)),), daemon=True).start()
print("ready", flush=True)
while True:
    question, client = udp.recvfrom(4096)
    udp.sendto(answer(question), client)
