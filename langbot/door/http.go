package door

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/websocket"
)

// ServeHTTP answers everything that comes to LangBot's address.
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

// route finds what serves a path. Identifiers in it may be percent-encoded, and stand
// for themselves otherwise: "..", too.
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

// unescape decodes one part of a path; what cannot be decoded was meant as it stands.
func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// text answers with one line, without its end: that is how clients have seen it.
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

// serveRelay checks who asks, in the order in which the protocol has it, and hands
// over. Whether there is such a process is for the backend to say.
func (d *Door) serveRelay(w http.ResponseWriter, r *http.Request, session, process string) {
	if !d.admitsUser(w, r) {
		return
	}
	instance, ok := d.admits(r)
	pinned := d.Instance()
	if !ok || !d.o.PerConnection && instance != pinned { // nothing is pinned: nobody has a process yet
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
	free, ok := d.takeRelay()
	if !ok {
		text(w, http.StatusServiceUnavailable, full)
		return
	}
	defer free()
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
	if status := d.take(); status != 0 {
		text(w, status, full)
		return
	}
	defer d.give()
	if c := d.upgrade(w, r, instance); c != nil {
		c.serve()
	}
}

const full = "503: the server is stopping, or has as many connections as it takes"

// upgrade answers the request, and pins the instance of the first that succeeds.
func (d *Door) upgrade(w http.ResponseWriter, r *http.Request, instance string) *conn {
	if !d.o.PerConnection {
		if d.Instance() == "" {
			d.pinning.Lock()
			defer d.pinning.Unlock()
		}
		if pinned := d.Instance(); pinned != "" && pinned != instance { // somebody was faster
			d.unauthorized(w, r, "instance")
			return nil
		}
	}
	// An offer that limits our compression would have to be answered in kind.
	if strings.Contains(strings.Join(r.Header.Values("Sec-Websocket-Extensions"), ","), "server_max_window_bits") {
		r.Header.Del("Sec-Websocket-Extensions")
	}
	h := &hijacker{ResponseWriter: w, times: &d.times}
	ws, err := d.upgrader.Upgrade(h, r, nil)
	if err != nil {
		return nil // the upgrader has answered
	}
	if !d.o.PerConnection {
		d.pin(instance)
	}
	return newConn(d, ws, h.meter, r, instance)
}

func (d *Door) pin(instance string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pinned == "" {
		d.pinned = instance
		d.o.Logger.Info("LangBot's door: pinned to the instance that connected first", "instance", instance)
	}
}
