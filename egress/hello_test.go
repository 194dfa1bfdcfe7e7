package egress

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/boxd/boxd/egress/rules"
)

// record wraps extensions in a ClientHello and a record.
func record(extensions ...[]byte) []byte {
	vector := func(width int, b []byte) []byte {
		head := []byte{byte(len(b) >> 16), byte(len(b) >> 8), byte(len(b))}
		return append(head[3-width:], b...)
	}
	var all []byte
	for _, e := range extensions {
		all = append(append(all, e[:2]...), vector(2, e[2:])...)
	}
	body := make([]byte, 34)
	body = append(body, vector(1, nil)...)
	body = append(body, vector(2, []byte{0x13, 1})...)
	body = append(body, vector(1, []byte{0})...)
	body = append(body, vector(2, all)...)
	return append([]byte{22, 3, 1}, vector(2, append([]byte{1}, vector(3, body)...))...)
}

func serverName(kind byte, name string) []byte {
	n := len(name)
	return append([]byte{0, 0, 0, byte(n + 3), kind, 0, byte(n)}, name...)
}

func TestHello(t *testing.T) {
	ech := []byte{0xfe, 0x0d, 0, 0, 1}
	for name, c := range map[string]struct {
		raw  []byte
		want hello
		err  error
	}{
		"a name":                {record(serverName(0, "a.example")), hello{name: "a.example"}, nil},
		"no name":               {record(), hello{}, nil},
		"the outer name of ECH": {record(ech, serverName(0, "Public.Example")), hello{name: "public.example", ech: true}, nil},
		"two names":             {record(serverName(0, "a.example"), serverName(0, "b.example")), hello{}, errHello},
		"a list of names":       {record([]byte{0, 0, 0, 12, 0, 0, 1, 'a', 0, 0, 1, 'b', 0, 0, 1, 'c'}), hello{}, errHello},
		"another kind of name":  {record(serverName(1, "a.example")), hello{}, errHello},
		"an address":            {record(serverName(0, "127.0.0.1")), hello{}, errHello},
		"a number":              {record(serverName(0, "2130706433")), hello{}, errHello},
		"a NUL":                 {record(serverName(0, "a.example\x00.b")), hello{}, errHello},
		"an empty name":         {record(serverName(0, "")), hello{}, errHello},
		"an empty extension":    {record([]byte{0, 0}), hello{}, errHello},
		"HTTP":                  {[]byte("GET / HTTP/1.1\r\n\r\n"), hello{}, errNotTLS},
		"SSLv2":                 {[]byte{0x80, 0x2e, 1, 0, 2}, hello{}, errNotTLS},
		"an alert":              {[]byte{21, 3, 3, 0, 2, 2, 0}, hello{}, errNotTLS},
		"a ServerHello":         {[]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, hello{}, errHello},
		"an empty record":       {[]byte{22, 3, 1, 0, 0}, hello{}, errHello},
		"a huge hello":          {[]byte{22, 3, 1, 0, 4, 1, 1, 0, 0}, hello{}, errHello},
		"bytes after the hello": {append(record()[:4], append([]byte{record()[4] + 1}, append(record()[5:], 0)...)...), hello{}, errHello},
	} {
		_, h, err := readHello(&oneByteReader{c.raw})
		if !errors.Is(err, c.err) || err == nil && h != c.want {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	whole := record(serverName(0, "a.example"))
	for n := range whole {
		if _, h, err := readHello(&oneByteReader{whole[:n]}); err == nil {
			t.Errorf("the first %d bytes: %+v", n, h)
		}
	}
}

// echConfig returns a key for Encrypted Client Hello with a public name (RFC 9849, section 4).
func echConfig(t *testing.T, public string) (list []byte, key tls.EncryptedClientHelloKey) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	vector := func(b []byte) []byte { return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...) }
	body := append([]byte{1, 0, 0x20}, vector(private.PublicKey().Bytes())...) // id, DHKEM(X25519)
	body = append(body, vector([]byte{0, 1, 0, 1})...)                         // HKDF-SHA256, AES-128-GCM
	body = append(body, 0, byte(len(public)))                                  // maximum length of a name
	body = append(append(body, public...), 0, 0)
	config := append([]byte{0xfe, 0x0d}, vector(body)...)
	return vector(config), tls.EncryptedClientHelloKey{Config: config, PrivateKey: private.Bytes()}
}

// TestECH: a server for two names decrypts the name that the proxy cannot see. That is refused,
// unless all public names are allowed or the rule names the port.
func TestECH(t *testing.T) {
	w := shop(t)
	list, key := echConfig(t, "shop.example")
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.TLS.ServerName) }))
	front.TLS = &tls.Config{Certificates: []tls.Certificate{w.certificate("shop.example", "evil.example")}, EncryptedClientHelloKeys: []tls.EncryptedClientHelloKey{key}}
	front.Config.ErrorLog = quiet
	front.StartTLS()
	t.Cleanup(front.Close)
	w.place(public1+":443", front.URL)
	grease := record(append([]byte{0xfe, 0x0d}, make([]byte, 50)...), serverName(0, "shop.example"))
	for name, c := range map[string]struct {
		rules rules.Rules
		works bool
	}{
		"a name":                    {allowing("shop.example"), false},
		"public, and a list of own": {rules.Rules{Public: true, Only: [][]string{{"shop.example"}}}, false},
		"public":                    {rules.Rules{Public: true}, true},
		"a name with its port":      {allowing("shop.example:443"), true},
	} {
		b := w.box(Config{Rules: c.rules})
		conn, _ := b.tunnel("shop.example:443")
		secure := tls.Client(conn, &tls.Config{ServerName: "evil.example", RootCAs: w.roots(), EncryptedClientHelloConfigList: list})
		err := secure.Handshake()
		if (err == nil) != c.works || !c.works && !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			io.WriteString(secure, "GET / HTTP/1.0\r\n\r\n")
			if answer, _ := io.ReadAll(secure); !strings.HasSuffix(string(answer), "evil.example") {
				t.Errorf("%s: the server took the outer name: %q", name, answer)
			}
		}
		conn, _ = b.tunnel("shop.example:443")
		conn.Write(grease)
		alert := make([]byte, 7)
		if _, err := io.ReadFull(conn, alert); err != nil || (alert[6] == 112) == c.works { // unrecognized_name
			t.Errorf("%s: random extension: %v, %v", name, alert, err)
		}
		conn, _ = b.tunnel("shop.example:443")
		if err := tls.Client(conn, &tls.Config{ServerName: "shop.example", RootCAs: w.roots()}).Handshake(); err != nil {
			t.Errorf("%s: without the extension: %v", name, err)
		}
	}
}

// TestNamesKeepTheirAddresses: the box and the session's viewers do not learn which private address a
// name has; the operator does.
func TestNamesKeepTheirAddresses(t *testing.T) {
	w := shop(t)
	w.name("db.corp.example", "10.20.30.40")
	b := w.box(Config{Rules: rules.Rules{Public: true, Deny: []string{"10.20.0.0/16"}, MoreDeny: [][]string{{"93.184.216.34"}}}})
	for _, request := range []string{"CONNECT %s:5432 HTTP/1.1\r\nHost: %[1]s:5432\r\n\r\n", "GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\n\r\n"} {
		for name, says := range map[string]string{"db.corp.example": "rule forbids", "shop.example": "rule forbids"} {
			if answer := b.raw(fmt.Sprintf(request, name)); !strings.HasPrefix(answer, "HTTP/1.1 403") || !strings.Contains(answer, says) || strings.Contains(answer, "10.20") || strings.Contains(answer, "93.184") {
				t.Errorf("%q", answer)
			}
		}
	}
	w.name("db.corp.example", "10.99.30.40")
	if answer := b.raw("GET http://db.corp.example/ HTTP/1.1\r\nHost: db.corp.example\r\n\r\n"); !strings.Contains(answer, "it leads to an address that is not public") || strings.Contains(answer, "10.99") {
		t.Errorf("%q", answer)
	}
	c := b.await(func(c Connection) bool { return c.Refused == netip.MustParseAddr("10.99.30.40") })
	if shown, err := json.Marshal(c); err != nil || strings.Contains(string(shown), "10.99") {
		t.Errorf("%s, %v", shown, err)
	}
}
