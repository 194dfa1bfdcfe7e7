package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/session"
)

// The example that the libraries of Standard Webhooks test themselves with.
const (
	exampleSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	exampleID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	exampleBody      = `{"test": 2432232314}`
	exampleSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func exampleKeys() ([][]byte, error) { return ParseSecrets(exampleSecret) }

func TestSignature(t *testing.T) {
	keys, err := exampleKeys()
	if err != nil {
		t.Fatal(err)
	}
	if got := signature(keys, exampleID, "1614265330", []byte(exampleBody)); got != exampleSignature {
		t.Errorf("got %s, want %s", got, exampleSignature)
	}
	both, err := ParseSecrets(exampleSecret + " whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 24)))
	if err != nil {
		t.Fatal(err)
	}
	if list := strings.Fields(signature(both, exampleID, "1614265330", []byte(exampleBody))); len(list) != 2 || list[0] != exampleSignature || list[1] == list[0] {
		t.Errorf("with two secrets: %q", list)
	}
}

func TestParseSecrets(t *testing.T) {
	for _, bad := range []string{"", " ", "secret", "whsec_", "whsec_!", "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23)),
		"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65)), exampleSecret[len("whsec_"):], exampleSecret + " x"} {
		if keys, err := ParseSecrets(bad); err == nil {
			t.Errorf("%q: %d keys", bad, len(keys))
		} else if bad != "" && len(bad) > 8 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error contains the secret: %v", err)
		}
	}
}

// database is what the database has of an outbox.
type database struct {
	mu      sync.Mutex
	entries map[string][]byte
	err     error
	removed chan struct{} // gets a token for each removal
}

func newDatabase() *database {
	return &database{entries: map[string][]byte{}, removed: make(chan struct{}, 10000)}
}

func (d *database) remove(keys []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	for _, k := range keys {
		delete(d.entries, k)
		d.removed <- struct{}{}
	}
	return nil
}

func (d *database) stored() (list []session.OutboxEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range d.entries {
		list = append(list, session.OutboxEntry{Key: k, Value: v})
	}
	slices.SortFunc(list, func(a, b session.OutboxEntry) int { return strings.Compare(a.Key, b.Key) })
	return list
}

// end stores the end of a process, as the manager of sessions does, and returns the ID of its message.
func (d *database) end(s *Sender, process string) (id string) { return d.endOf(s, "t", process) }

func (d *database) endOf(s *Sender, tenant, process string) (id string) {
	entries := s.Entries(session.Ending{Event: session.Event{Type: session.EventProcessExited, Tenant: tenant, Session: "s", Process: process, Time: time.Now()}})
	d.mu.Lock()
	for _, e := range entries {
		d.entries[e.Key] = e.Value
		id = idOf(e)
	}
	d.mu.Unlock()
	s.Stored(entries)
	return id
}

// idOf returns the ID of the message that an entry is.
func idOf(e session.OutboxEntry) string {
	m, err := parseMessage(e)
	if err != nil {
		panic(err)
	}
	return m.id
}

// options are those of a sender to one receiver.
func options(url string) Options {
	return Options{Logger: slog.New(slog.DiscardHandler), UserAgent: "boxd/test",
		Body: func(e session.Ending) ([]byte, error) {
			return fmt.Appendf(nil, `{"process":%q}`, e.Event.Process), nil
		},
		Receivers: []Receiver{{Name: "r", URL: url, Secrets: exampleKeys, Timeout: time.Minute}}}
}

func open(t *testing.T, o Options, d *database) *Sender {
	s := New(o)
	s.Open(d.stored(), d.remove)
	var once sync.Once
	t.Cleanup(func() { once.Do(s.Close) })
	return s
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(5 * time.Minute):
		t.Fatalf("waited too long for %s", what)
	}
}

// Whatever a receiver does with the first attempt, it gets the message again, with the same ID and body,
// and signed for that moment.
func TestBadReceivers(t *testing.T) {
	dripped := make(chan struct{})
	t.Cleanup(func() { close(dripped) })
	for name, first := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		says   string // in the state
	}{
		"fails":            {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "500 Internal Server Error"},
		"refuses":          {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, "400 Bad Request"},
		"is not to change": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }, "304"},
		"hangs":            {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "no answer within 2s"},
		"resets": {func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}, "reset"},
		"ends": {func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			c.Close()
		}, "EOF"},
		"is no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			io.WriteString(c, "220 smtp.example ESMTP\r\n")
			c.Close()
		}, "malformed"},
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "redirects are not followed"},
		"drips a header": {func(w http.ResponseWriter, r *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := io.WriteString(c, "X: y\r\n"); err != nil {
					return
				}
				select {
				case <-dripped:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}, "no answer within 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var got []*http.Request
			var bodies []string
			taken := make(chan struct{})
			var sender atomic.Pointer[Sender]
			var between State // after the first attempt
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				got, bodies = append(got, r), append(bodies, string(body))
				n := len(got)
				mu.Unlock()
				if n == 1 {
					first.answer(w, r)
					return
				}
				between = sender.Load().States()[0]
				w.WriteHeader(204)
				close(taken)
			}))
			defer srv.Close()
			d := newDatabase()
			o := options(srv.URL + "/hook?token=hidden")
			if strings.HasPrefix(first.says, "no answer") {
				o.Receivers[0].Timeout = 2 * time.Second
			}
			s := open(t, o, d)
			sender.Store(s)
			id := d.end(s, "p")
			await(t, "the second attempt", taken)
			if st := between; st.Pending != 1 || !strings.Contains(st.Error, first.says) || strings.Contains(st.Error, "hidden") {
				t.Errorf("%+v, want %q", st, first.says)
			}
			await(t, "its removal", d.removed)
			mu.Lock()
			defer mu.Unlock()
			for i, r := range got {
				h := r.Header
				if r.URL.Path != "/hook" || r.Method != "POST" || bodies[i] != `{"process":"p"}` || h.Get("webhook-id") != id || h.Get("Content-Type") != "application/json" || h.Get("User-Agent") != "boxd/test" {
					t.Errorf("attempt %d: %s %s %v %q", i, r.Method, r.URL, h, bodies[i])
				}
				if err := verify(h, bodies[i]); err != nil {
					t.Error(err)
				}
			}
			if st := s.States()[0]; st.Pending != 0 || st.Bytes != 0 || st.Delivered != 1 || st.Failed != 1 || st.Error != "" {
				t.Errorf("%+v", st)
			}
		})
	}
}

// verify is what a receiver does, by the specification.
func verify(h http.Header, body string) error {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(exampleSecret, "whsec_"))
	sum := hmac.New(sha256.New, key)
	fmt.Fprintf(sum, "%s.%s.%s", h.Get("webhook-id"), h.Get("webhook-timestamp"), body)
	if want := "v1," + base64.StdEncoding.EncodeToString(sum.Sum(nil)); h.Get("webhook-signature") != want {
		return fmt.Errorf("signature %q, want %q", h.Get("webhook-signature"), want)
	}
	return nil
}

// A receiver behind a certificate that nobody knows gets nothing.
func TestCertificateIsVerified(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it got a request") }))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	s := New(options(srv.URL))
	q := s.queues[0]
	if _, err := q.post(&message{id: "msg_1", body: []byte("{}")}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
}

// A receiver that answers late holds up nobody: other receivers and the callers go on.
func TestSlowReceiver(t *testing.T) {
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-release }))
	defer slow.Close()
	var mu sync.Mutex
	got := map[string]bool{}
	quick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		got[r.Header.Get("webhook-id")] = true
		mu.Unlock()
	}))
	defer quick.Close()
	o := options(slow.URL)
	o.Receivers[0].Timeout, o.Receivers[0].Rate = time.Minute, 1000
	o.Receivers = append(o.Receivers, Receiver{Name: "quick", URL: quick.URL, Secrets: exampleKeys, Rate: 1000})
	d := newDatabase()
	s := open(t, o, d)
	const n = 100
	for i := range n {
		d.end(s, fmt.Sprint(i))
	}
	for range n {
		await(t, "the quick receiver", d.removed)
	}
	if st := s.States(); st[0].Pending != n || st[1].Pending != 0 || len(got) != n {
		t.Errorf("%+v, %d arrived", st, len(got))
	}
	close(release)
	for range n {
		await(t, "the slow receiver", d.removed)
	}
}

// transport answers without a network, so that time can be made up.
type transport func(r *http.Request) (status int, err error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) {
	status, err := f(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(nil)), Request: r}, nil
}

// While a receiver is down, attempts become rare, and when it is back everything arrives, in spite of a
// restart meanwhile.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		down, attempts, arrived := true, 0, map[string]int{}
		o := options("http://receiver.test:8080/hidden?key=hidden")
		o.transport = transport(func(r *http.Request) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if attempts++; down {
				return 0, errors.New("connection refused")
			}
			arrived[r.Header.Get("webhook-id")]++
			return 200, nil
		})
		d := newDatabase()
		s := New(o)
		s.Open(nil, d.remove)
		const n = 200
		for i := range n {
			d.end(s, fmt.Sprint(i))
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		mu.Lock()
		if most := int(24*time.Hour/lastProbe)*5/4 + 20; attempts > most || attempts < 1000 {
			t.Errorf("%d attempts in 24 h, want at most %d", attempts, most)
		}
		mu.Unlock()
		s.Close()
		if st := s.States()[0]; st.Pending != n || st.Dropped != 0 || st.Error != "connection refused" || st.Host != "receiver.test:8080" {
			t.Errorf("%+v", st)
		}
		s = New(o)
		s.Open(d.stored(), d.remove)
		time.Sleep(time.Minute)
		mu.Lock()
		down = false
		mu.Unlock()
		time.Sleep(lastPause * 6 / 5)
		synctest.Wait()
		if st := s.States()[0]; st.Pending != 0 || st.Delivered != n || len(arrived) != n || len(d.stored()) != 0 {
			t.Errorf("%+v, %d arrived, %d stored", st, len(arrived), len(d.stored()))
		}
		for id, times := range arrived {
			if times != 1 {
				t.Errorf("%s arrived %d times", id, times)
			}
		}
		s.Close()
	})
}

// A message that a receiver never takes does not hold up the others, and is dropped at last.
func TestPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tried, arrived := 0, 0
		o := options("http://receiver.test")
		o.transport = transport(func(r *http.Request) (int, error) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(string(body), "poison") {
				tried++
				return 422, nil
			}
			arrived++
			return 200, nil
		})
		d := newDatabase()
		s := New(o)
		s.Open(nil, d.remove)
		d.end(s, "poison")
		for i := range 100 {
			d.end(s, fmt.Sprint(i))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if arrived != 100 {
			t.Errorf("%d arrived within 10 s", arrived)
		}
		time.Sleep(DefaultMaxAge + sweepEvery)
		synctest.Wait()
		if st := s.States()[0]; st.Pending != 0 || st.Dropped != 1 || len(d.stored()) != 0 || tried < 250 || tried > 400 {
			t.Errorf("%+v, %d stored, %d attempts", st, len(d.stored()), tried)
		}
		s.Close()
	})
}

// A queue that is full drops the oldest messages, also from the database, and says so.
func TestFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := options("http://receiver.test")
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Receivers[0].QueueSize = 1000
		o.Body = func(e session.Ending) ([]byte, error) { return bytes.Repeat([]byte("x"), 100), nil }
		o.transport = transport(func(r *http.Request) (int, error) { return 503, nil })
		d := newDatabase()
		s := New(o)
		s.Open(nil, d.remove)
		var ids []string
		for range 25 {
			ids = append(ids, d.end(s, ""))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * logEvery)
		synctest.Wait()
		s.Close()
		if st := s.States()[0]; st.Pending != 10 || st.Bytes != 1000 || st.Dropped != 15 {
			t.Errorf("%+v", st)
		}
		var left []string
		for _, e := range d.stored() {
			left = append(left, idOf(e))
		}
		if !slices.Equal(left, ids[15:]) {
			t.Errorf("stored are %v, want %v", left, ids[15:])
		}
		if n := strings.Count(log.String(), "were dropped"); n < 1 || n > 2 || !strings.Contains(log.String(), "webhook=r") {
			t.Errorf("%d lines: %s", n, log.String())
		}
	})
}

// A tenant with many messages displaces none of another, and delays them by no more than its share, also after a restart.
func TestTenantsShareQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		down, arrived := true, []string{}
		o := options("http://receiver.test")
		o.Receivers[0].QueueSize = 1000
		o.Body = func(e session.Ending) ([]byte, error) { return fmt.Appendf(nil, "%-50s", e.Tenant), nil }
		o.transport = transport(func(r *http.Request) (int, error) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			if down {
				return 503, nil
			}
			arrived = append(arrived, strings.TrimSpace(string(body)))
			return 200, nil
		})
		d := newDatabase()
		s := New(o)
		s.Open(nil, d.remove)
		for _, tenant := range []string{"quiet", "loud"} {
			for range map[string]int{"quiet": 3, "loud": 100}[tenant] {
				d.endOf(s, tenant, "")
				time.Sleep(time.Millisecond)
			}
		}
		d.endOf(s, "late", "")
		time.Sleep(time.Minute)
		synctest.Wait()
		s.Close()
		s = New(o)
		mu.Lock()
		down = false
		mu.Unlock()
		s.Open(d.stored(), d.remove)
		time.Sleep(time.Hour)
		synctest.Wait()
		s.Close()
		count, position := map[string]int{}, map[string]int{} // of the last
		for i, tenant := range arrived {
			count[tenant]++
			position[tenant] = i
		}
		if count["quiet"] != 3 || count["late"] != 1 || count["loud"] != 16 {
			t.Errorf("arrived: %v", count)
		}
		if position["late"] > 4 || position["quiet"] > 9 {
			t.Errorf("in the order %v", arrived)
		}
	})
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options("http://receiver.test")
		o.Receivers[0].Rate = 10
		o.transport = transport(func(r *http.Request) (int, error) { return 200, nil })
		d := newDatabase()
		s := New(o)
		s.Open(nil, d.remove)
		for range 100 {
			d.end(s, "")
		}
		time.Sleep(5*time.Second - time.Millisecond)
		synctest.Wait()
		if n := s.States()[0].Delivered; n != 50 {
			t.Errorf("%d in 5 s, want 50", n)
		}
		s.Close()
	})
}

// A message is not lost because the database cannot be written, or because there is no secret: it waits.
func TestTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		arrived := 0
		secret := ""
		o := options("http://receiver.test")
		o.Receivers[0].Secrets = func() ([][]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			return ParseSecrets(secret)
		}
		o.transport = transport(func(r *http.Request) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			arrived++
			return 200, nil
		})
		d := newDatabase()
		d.err = errors.New("disk full")
		s := New(o)
		s.Open(nil, d.remove)
		d.end(s, "p")
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := s.States()[0]; arrived != 0 || st.Pending != 1 || !strings.Contains(st.Error, "there is no webhook secret") {
			t.Errorf("without a secret: %d, %+v", arrived, st)
		}
		mu.Lock()
		secret = exampleSecret
		mu.Unlock()
		time.Sleep(2 * lastProbe)
		synctest.Wait()
		if st := s.States()[0]; arrived != 1 || st.Pending != 0 || len(d.stored()) != 1 {
			t.Errorf("%d, %+v", arrived, st)
		}
		d.mu.Lock()
		d.err = nil
		d.mu.Unlock()
		time.Sleep(2 * removePause)
		synctest.Wait()
		if len(d.stored()) != 0 || arrived != 1 {
			t.Errorf("%d stored, %d arrived", len(d.stored()), arrived)
		}
		s.Close()
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "99999": longestWait,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

// Receivers get what they asked for; the messages of one end have one ID. Those of a receiver that is gone are dropped.
func TestSelection(t *testing.T) {
	o := options("http://receiver.test")
	o.Receivers = []Receiver{{Name: "all", Secrets: exampleKeys}, {Name: "removed", Events: []session.EventType{session.EventRemoved}, Secrets: exampleKeys},
		{Name: "a", Tenants: []string{"a"}, Secrets: exampleKeys}}
	s := New(o)
	for _, c := range []struct {
		kind   session.EventType
		tenant string
		want   string
	}{{session.EventRemoved, "a", "all removed a"}, {session.EventRemoved, "b", "all removed"}, {session.EventProcessExited, "a", "all a"}, {session.EventExpired, "b", "all"}} {
		var names []string
		ids := map[string]bool{}
		for _, e := range s.Entries(session.Ending{Event: session.Event{Type: c.kind, Tenant: c.tenant, Time: time.Now()}}) {
			m, err := parseMessage(e)
			if err != nil {
				t.Fatal(err)
			}
			names, ids[m.id] = append(names, m.receiver), true
		}
		if got := strings.Join(names, " "); got != c.want || len(ids) != 1 {
			t.Errorf("%s of %s: %q with %d IDs, want %q", c.kind, c.tenant, got, len(ids), c.want)
		}
	}
	d := newDatabase()
	d.end(s, "p")
	fewer := New(options("http://receiver.test"))
	fewer.o.transport = nil
	fewer.Open(append(d.stored(), session.OutboxEntry{Key: "r\x00nonsense"}), d.remove)
	fewer.Close()
	if len(d.stored()) != 0 {
		t.Errorf("%d stored", len(d.stored()))
	}
}

// Close lets a request that is under way end, but not for long.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for takes, want := range map[time.Duration]int{time.Second: 0, time.Minute: 1} {
			o := options("http://receiver.test")
			o.Receivers[0].Timeout = time.Minute
			o.transport = transport(func(r *http.Request) (int, error) {
				select {
				case <-time.After(takes):
					return 200, nil
				case <-r.Context().Done():
					return 0, context.Cause(r.Context())
				}
			})
			d := newDatabase()
			s := New(o)
			s.Open(nil, d.remove)
			d.end(s, "p")
			synctest.Wait()
			begin := time.Now()
			s.Close()
			if got := len(d.stored()); got != want || time.Since(begin) > closePatience {
				t.Errorf("a request of %v: %d stored, closed after %v", takes, got, time.Since(begin))
			}
		}
	})
}
