package egress

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"

	"github.com/boxd/boxd/egress/rules"
)

var quiet = log.New(io.Discard, "", 0)

const public1, public2 = "93.184.216.34", "2606:2800:220:1::1"

// shop is a world with one web server, for http and https.
func shop(t testing.TB) *world {
	w := newWorld(t)
	hello := func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "hello from %s%s", r.Host, r.URL.RequestURI())
	}
	w.place(public1+":80", w.server(hello))
	w.place(public1+":443", w.tlsServer(http.HandlerFunc(hello), "shop.example", "other.example"))
	w.place("["+public2+"]:443", w.tlsServer(http.HandlerFunc(hello), "six.example"))
	w.place(public1+":7", w.sink(echo))
	w.name("shop.example", public1)
	w.name("other.example", public1)
	w.name("six.example", public2)
	return w
}

func get(t testing.TB, c *http.Client, url string) (int, string, http.Header) {
	t.Helper()
	r, err := c.Get(url)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b), r.Header
}

func TestAllowedWorksAndTheRestDoesNot(t *testing.T) {
	w := shop(t)
	b := w.box(Config{Rules: allowing("shop.example", "*.pythonhosted.org", "six.example")})
	c := b.client(t, &tls.Config{RootCAs: w.roots()})
	for _, url := range []string{"http://shop.example/a?b", "https://shop.example/a?b", "http://SHOP.example./a?b", "https://SHOP.example/a?b"} {
		if status, text, _ := get(t, c, url); status != 200 || !strings.HasSuffix(text, "/a?b") {
			t.Errorf("%s: %d %q", url, status, text)
		}
	}
	if status, text, _ := get(t, c, "https://six.example/"); status != 200 {
		t.Errorf("a host with IPv6 only: %d %q", status, text)
	}
	before := w.visited()
	status, text, h := get(t, c, "http://other.example/")
	if want := "boxd: other.example:80 is not allowed: no rule allows it"; status != 403 || text != want+"\n" || h.Get("X-Boxd-Denied") != want {
		t.Errorf("%d %q %v", status, text, h)
	}
	if _, text, _ = get(t, c, "https://other.example/"); !strings.Contains(text, "boxd: other.example:443 is not allowed: no rule allows it") {
		t.Errorf("CONNECT: %q", text)
	}
	if w.visited() != before {
		t.Error("a name that is not allowed was dialled")
	}
	for _, want := range []Denial{{"network", "other.example:80", "default", 1}, {"network", "other.example:443", "default", 1}} {
		if !strings.Contains(fmt.Sprint(b.Denials()), fmt.Sprint(want)) {
			t.Errorf("%v lacks %v", b.Denials(), want)
		}
	}
	_ = rules.Rules{}
}
