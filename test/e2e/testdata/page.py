"""A small web server for a box: a page, its script and style, a WebSocket that echoes, and /log."""
import base64, hashlib, http.server, struct, sys

NAME, PORT = sys.argv[1], int(sys.argv[2])
LOG = []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, kind, text, **headers):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        LOG.append("%s cookie=%s authorization=%s" % (self.path, self.headers.get("Cookie"), self.headers.get("Authorization")))
        if self.headers.get("Upgrade", "").lower() == "websocket":
            self.echo()
        elif path == "/app.js":
            self.reply("text/javascript", open("app.js").read())
        elif path == "/style.css":
            self.reply("text/css", "#title { text-transform: uppercase }")
        elif path == "/data":
            # What a careless server says.
            self.reply("text/javascript", "window.stolen = 'the secret of %s'" % NAME, Access_Control_Allow_Origin=self.headers.get("Origin", "*"),
                       Access_Control_Allow_Credentials="true")
        elif path == "/log":
            self.reply("text/plain", "\n".join(LOG))
        else:
            self.reply("text/html", "<!doctype html><link rel=stylesheet href=/style.css><h1 id=title>%s</h1><p id=out></p><script src=/app.js></script>" % NAME,
                       Set_Cookie="app=%s; Path=/" % NAME)

    def echo(self):
        accept = base64.b64encode(hashlib.sha1((self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        self.wfile.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
        self.close_connection = True
        while True:  # short messages only
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            length = head[1] & 127
            mask = self.rfile.read(4)
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            self.wfile.write(struct.pack("BB", head[0], length) + text)


http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
