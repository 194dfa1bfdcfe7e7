package door

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

// ServeHTTP answers all requests to LangBot's address.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve := d.route(r)
	switch {
	case serve == nil:
		text(w, http.StatusNotFound, "404: Not Found")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET,HEAD")
		text(w, http.StatusMethodNotAllowed, "405: Method Not Allowed")
	default:
		serve(w, r)
	}
}

// route returns the handler of a path, or nil. Identifiers in the path may be
// percent-encoded; apart from that they are taken literally, even "..".
func (d *Door) route(r *http.Request) http.HandlerFunc {
	path := r.URL.EscapedPath()
	switch path {
	case "/rpc/ws":
		return d.serveActions
	case "/healthz":
		return d.serveLive
	case "/readyz":
		return d.serveReady
	}
	rest, ok := strings.CutPrefix(path, "/v1/sessions/")
	if !ok {
		return nil
	}
	parts := strings.Split(rest, "/")
	process := "default"
	switch {
	case len(parts) == 4 && parts[1] == "managed-process" && parts[3] == "ws":
		process = unescape(parts[2])
	case len(parts) == 3 && parts[1] == "managed-process" && parts[2] == "ws":
	default:
		return nil
	}
	session := unescape(parts[0])
	if session == "" || process == "" {
		return nil
	}
	return func(w http.ResponseWriter, r *http.Request) { d.serveRelay(w, r, session, process) }
}

// unescape decodes one part of a path. A part that cannot be decoded is taken literally.
func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// text answers with one line, without a newline, as the reference server does.
func text(w http.ResponseWriter, status int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	w.Write([]byte(line))
}

func (d *Door) unauthorized(w http.ResponseWriter, r *http.Request, why string) {
	if n, ok := d.seldom.now(); ok {
		d.o.Logger.Warn("LangBot's door: refused a connection", "remote", r.RemoteAddr, "path", r.URL.Path, "reason", why, "like_this", n)
	}
	text(w, http.StatusUnauthorized, "Unauthorized")
}

func (d *Door) serveLive(w http.ResponseWriter, r *http.Request) {
	d.writeJSON(w, http.StatusOK, d.b.Live())
}

func (d *Door) serveReady(w http.ResponseWriter, r *http.Request) {
	body, ready := d.b.Ready(r.Context())
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	d.writeJSON(w, status, body)
}

func (d *Door) writeJSON(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		d.o.Logger.Error("LangBot's door: encoding an answer to a probe", "error", err)
		text(w, http.StatusInternalServerError, "500: Internal Server Error")
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	w.Write(b)
}

// serveRelay checks access, in the order that the protocol prescribes, and passes the
// request to the backend, which knows whether there is such a process.
func (d *Door) serveRelay(w http.ResponseWriter, r *http.Request, session, process string) {
	if !d.admitsUser(w, r) {
		return
	}
	instance, ok := d.admits(r)
	pinned := d.Instance()
	if !ok || !d.o.PerConnection && instance != pinned { // with no instance pinned, there is no process yet
		d.unauthorized(w, r, "token or instance")
		return
	}
	c, ok := relayContext(r.Header, instance)
	if !ok {
		d.unauthorized(w, r, "workspace or generation header")
		return
	}
	if now, ok := d.b.Current(c.Instance, c.Workspace); !ok || now != c.Generation {
		d.unauthorized(w, r, "not the current generation")
		return
	}
	if !c.Owns(session) {
		d.unauthorized(w, r, "session of another workspace or generation")
		return
	}
	if !d.takeSlot(w, &d.relayConns) {
		return
	}
	defer d.freeSlot(&d.relayConns)
	d.b.Relay(w, r, c, session, process)
}

// serveActions serves a connection that carries actions, until it ends.
func (d *Door) serveActions(w http.ResponseWriter, r *http.Request) {
	if !d.admitsUser(w, r) {
		return
	}
	instance, ok := d.admits(r)
	if pinned := d.Instance(); !ok || !d.o.PerConnection && pinned != "" && instance != pinned {
		d.unauthorized(w, r, "token or instance")
		return
	}
	if !websocket.IsWebSocketUpgrade(r) {
		text(w, http.StatusBadRequest, "400: this is a WebSocket, ask for an upgrade")
		return
	}
	if !d.takeSlot(w, &d.actionConns) {
		return
	}
	defer d.freeSlot(&d.actionConns)
	if c := d.upgrade(w, r, instance); c != nil {
		c.serve()
	}
}

// upgrade answers the request, and pins the instance of the first connection. It returns
// nil if it refuses the request.
func (d *Door) upgrade(w http.ResponseWriter, r *http.Request, instance string) *conn {
	if !d.o.PerConnection {
		if d.Instance() == "" {
			d.pinning.Lock()
			defer d.pinning.Unlock()
		}
		if pinned := d.Instance(); pinned != "" && pinned != instance { // another instance was faster
			d.unauthorized(w, r, "instance")
			return nil
		}
	}
	// An offer that limits our compression would need an answer that the library cannot give,
	// so it is ignored.
	if strings.Contains(strings.Join(r.Header.Values("Sec-Websocket-Extensions"), ","), "server_max_window_bits") {
		r.Header.Del("Sec-Websocket-Extensions")
	}
	var m *meter
	ws, err := wsconn.Upgrade(&d.upgrader, w, r, func(c net.Conn) net.Conn {
		m = &meter{Conn: c, times: &d.times}
		return m
	})
	if err != nil {
		return nil // the upgrader has answered
	}
	d.mu.Lock()
	if !d.o.PerConnection && d.pinned == "" {
		d.pinned = instance
		d.o.Logger.Info("LangBot's door: pinned to the instance that connected first", "instance", instance)
	}
	d.mu.Unlock()
	return newConn(d, ws, m, r, instance)
}
