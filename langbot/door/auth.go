package door

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/langbot/protocol"
)

// Headers by which a client identifies itself.
const (
	instanceHeader   = "X-LangBot-Instance-Id"
	tokenHeader      = "X-LangBot-Box-Control-Token"
	workspaceHeader  = "X-LangBot-Workspace-Id"
	generationHeader = "X-LangBot-Placement-Generation"
)

// clientKey is the key of a client in the context of a connection.
type clientKey struct{}

// client is the user of this host at the other end of a connection.
type client struct {
	uid int
	err error // why uid is not known
}

// connContext determines the user of a client as soon as it has connected: the user of a
// client that has disconnected cannot be determined.
func (d *Door) connContext(ctx context.Context, c net.Conn) context.Context {
	if d.o.Local == nil {
		return ctx
	}
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	who := client{err: errors.New("the connection is not TCP")}
	if t, ok := c.(*net.TCPConn); ok {
		who.uid, who.err = linux.TCPClientUID(t)
	}
	return context.WithValue(ctx, clientKey{}, who)
}

// admitsUser reports whether the client's user may use the door. If not, it refuses the
// request.
func (d *Door) admitsUser(w http.ResponseWriter, r *http.Request) bool {
	if d.o.Local == nil {
		return true
	}
	who, ok := r.Context().Value(clientKey{}).(client)
	if !ok {
		who.err = errors.New("the connection is not the door's own")
	}
	if err := d.o.Local(who.uid, who.err); err != nil {
		text(w, http.StatusForbidden, err.Error())
		return false
	}
	return true
}

// admits reports whether the request has the token and names an instance.
func (d *Door) admits(r *http.Request) (instance string, ok bool) {
	instance = protocol.Trim(r.Header.Get(instanceHeader))
	token := sha256.Sum256([]byte(r.Header.Get(tokenHeader)))
	// Hashes have one length, so the comparison does not reveal the token's length.
	if d.o.Token != "" && subtle.ConstantTimeCompare(token[:], d.token[:]) != 1 {
		return "", false
	}
	return instance, isInstance(instance)
}

// isInstance reports whether s is a valid name of an instance:
// [A-Za-z0-9][A-Za-z0-9._:-]{0,127}.
func isInstance(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == ':' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// relayContext returns the context that the headers of a relay request name.
func relayContext(h http.Header, instance string) (protocol.Context, bool) {
	workspace := protocol.Trim(h.Get(workspaceHeader))
	if n := utf8.RuneCountInString(workspace); n < 1 || n > 256 || !utf8.ValidString(workspace) {
		return protocol.Context{}, false
	}
	generation, ok := parseGeneration(h.Get(generationHeader))
	return protocol.Context{Instance: instance, Workspace: workspace, Generation: generation}, ok
}

// parseGeneration parses a positive decimal number in its shortest form.
func parseGeneration(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 1 && strconv.FormatInt(n, 10) == s
}
