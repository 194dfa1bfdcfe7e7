package images

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// witness is a host that no credential may reach.
type witness struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // Authorization of each request
}

func newWitness(t testing.TB, answer http.HandlerFunc) *witness {
	w := &witness{}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.seen = append(w.seen, r.Header.Get("Authorization"))
		w.mu.Unlock()
		answer(rw, r)
	}))
	t.Cleanup(w.Close)
	return w
}

func (w *witness) check(t testing.TB, asked bool) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if (len(w.seen) > 0) != asked || strings.Join(w.seen, "") != "" {
		t.Errorf("the other host saw %q, want asked: %v, and no credentials", w.seen, asked)
	}
}

// TestLoginStays: a registry gets its login, and the hosts to which it redirects do not.
func TestLoginStays(t *testing.T) {
	img := randomImage(t, 1000, 1)
	layer := manifestOf(t, img).Layers[0]
	for _, bearer := range []bool{false, true} {
		t.Run(fmt.Sprint("bearer=", bearer), func(t *testing.T) {
			g := newRegistry(t, false)
			g.push(t, "x:1", img)
			basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:secret"))
			storage := newWitness(t, func(w http.ResponseWriter, r *http.Request) {
				g.Config.Handler.ServeHTTP(w, func() *http.Request { r.URL.RawQuery = "inner"; return r }())
			})
			tokens := 0
			g.answer(func(w http.ResponseWriter, r *http.Request) bool {
				auth := r.Header.Get("Authorization")
				switch {
				case r.URL.RawQuery == "inner":
					return false
				case r.URL.Path == "/token":
					if auth != basic || r.URL.Query().Get("scope") != "repository:x:pull" {
						t.Errorf("token server: %q, %v", auth, r.URL)
					}
					tokens++
					fmt.Fprint(w, `{"token":"opaque"}`)
					return true
				case bearer && auth != "Bearer opaque":
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+g.URL+`/token",service="test"`)
				case !bearer && auth != basic:
					w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				default:
					if strings.HasSuffix(r.URL.Path, layer.Digest.String()) {
						http.Redirect(w, r, storage.URL+r.URL.Path+"?signature=hidden", http.StatusTemporaryRedirect)
						return true
					}
					return false
				}
				w.WriteHeader(http.StatusUnauthorized)
				return true
			})
			b := newBench(t, g.options())
			if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1", Login: "user:secret"}); err != nil {
				t.Error(err)
			}
			storage.check(t, true)
			if bearer && tokens == 0 {
				t.Error("no token was fetched")
			}
			if !bearer {
				if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1", Always: true, Tenant: "u"}); !errors.Is(err, ErrLogin) {
					t.Errorf("without a login: %v", err)
				}
			}
			storage.Close() // its URL has a signature
			b = newBench(t, g.options())
			if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1", Login: "user:secret"}); !errors.Is(err, ErrRegistry) || strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "secret") {
				t.Errorf("storage is gone: %v", err)
			}
		})
	}
}

// TestOnlyHTTPS: a registry that the configuration does not call insecure is not asked by plain http, and does not
// get away with a certificate of its own, and a redirect to http is not followed.
func TestOnlyHTTPS(t *testing.T) {
	img := randomImage(t, 1000, 1)
	layer := manifestOf(t, img).Layers[0]
	plain, secure := newRegistry(t, false), newRegistry(t, true)
	plain.push(t, "x:1", img)
	secure.push(t, "x:1", img)
	b := newBench(t, Options{Stall: testutil.Patience()})
	for _, g := range []*regis{plain, secure} {
		if _, err := b.Pull(t.Context(), Request{Reference: g.host() + "/x:1", Login: "user:secret"}); !errors.Is(err, ErrRegistry) || g.asked("") > 0 {
			t.Errorf("%v; asked %q", err, g.seen)
		}
	}
	b.o = secure.options()
	b.o.Unpacker, b.o.Layers, b.o.pause = b.fake, b.fake, time.Millisecond
	if _, err := b.Pull(t.Context(), Request{Reference: secure.host() + "/x:1"}); err != nil {
		t.Errorf("insecure: %v", err)
	}

	other := newWitness(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200) })
	secure.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, layer.Digest.String()) {
			http.Redirect(w, r, other.URL, http.StatusFound)
			return true
		}
		return false
	})
	p, err := b.place(secure.host(), "x", Registry{}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.wire.TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig
	if _, err := b.download(t.Context(), "t", []*place{p}, layer, func(int64) {}); !errors.Is(err, ErrRegistry) || !strings.Contains(err.Error(), "plain http") {
		t.Errorf("a redirect to http: %v", err)
	}
	other.check(t, false)
}

// TestMirrors: mirrors are asked in their order and without the registry's login, and the registry when they fail.
func TestMirrors(t *testing.T) {
	img := randomImage(t, 20_000, 2)
	origin, full, dead := newRegistry(t, false), newRegistry(t, false), newRegistry(t, false)
	origin.push(t, "x:1", img)
	full.push(t, "cache/x:1", img)
	dead.Close()
	login := filepath.Join(t.TempDir(), "login")
	os.WriteFile(login, []byte("user:secret"), 0o600)
	o := Options{Stall: testutil.Patience(), Registries: map[string]Registry{
		origin.host(): {Insecure: true, LoginFile: login, Mirrors: []string{dead.URL, full.URL + "/cache"}},
		full.host():   {Insecure: true}, dead.host(): {Insecure: true},
	}}
	full.answer(func(_ http.ResponseWriter, r *http.Request) bool {
		if a := r.Header.Get("Authorization"); a != "" {
			t.Errorf("the mirror got %q", a)
		}
		return false
	})
	b := newBench(t, o)
	if got, err := b.Pull(t.Context(), Request{Reference: origin.host() + "/x:1"}); err != nil || origin.asked("") > 0 || got.Name != origin.host()+"/x:1" {
		t.Errorf("%+v, %v; the registry was asked %q", got, err, origin.seen)
	}
	full.answer(func(w http.ResponseWriter, r *http.Request) bool { // has the manifest, and not all blobs
		if strings.HasSuffix(r.URL.Path, manifestOf(t, img).Layers[1].Digest.String()) {
			w.WriteHeader(404)
			return true
		}
		return false
	})
	b = newBench(t, o)
	if _, err := b.Pull(t.Context(), Request{Reference: origin.host() + "/x:1"}); err != nil || origin.asked("blobs") != 1 {
		t.Errorf("%v; the registry was asked %q", err, origin.seen)
	}
	o.Registries[origin.host()] = Registry{Mirrors: []string{"http://mirror.example"}}
	b = newBench(t, o)
	if _, err := b.Pull(t.Context(), Request{Reference: origin.host() + "/x:1"}); err == nil || !strings.Contains(err.Error(), "must be https://") {
		t.Errorf("a mirror by http: %v", err)
	}
}

// TestTurnToConnect: a request that waits while another one logs in ends with its own context.
func TestTurnToConnect(t *testing.T) {
	b := newBench(t, Options{})
	p, err := b.place("localhost:1", "x", Registry{}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.turn <- struct{}{} // the other one
	gone := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := p.connect(ctx); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}
