package webhook

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/session"
)

// Receiver is a server that is told about ends. Only Name, URL and Secrets are required.
type Receiver struct {
	// Name must be unique, and have no NUL: messages wait under it across restarts.
	Name string
	URL  string
	// Secrets returns the keys that sign, the newest first. It is called for each attempt.
	Secrets func() ([][]byte, error)
	// Events and Tenants select what the receiver is told; empty: everything.
	Events  []session.EventType
	Tenants []string
	// Timeout bounds one attempt, from the connection to the status of the answer.
	Timeout time.Duration
	// Rate is how many attempts begin per second at most.
	Rate int
	// QueueSize bounds the bodies that wait, in bytes: the tenant that has the most of them loses its oldest. MaxAge is how long one waits.
	QueueSize int64
	MaxAge    time.Duration
}

// Defaults of a [Receiver].
const (
	DefaultTimeout   = 15 * time.Second
	DefaultRate      = 50
	DefaultQueueSize = 16 << 20
	DefaultMaxAge    = 72 * time.Hour
)

// Options of a [Sender].
type Options struct {
	Receivers []Receiver
	// Body returns the body of the messages about an end, JSON.
	Body func(session.Ending) ([]byte, error)
	// UserAgent is sent with each request.
	UserAgent string
	Logger    *slog.Logger // nil is slog.Default

	transport http.RoundTripper // for tests
}

// Sender delivers messages. It is a [session.Outbox], and safe for concurrent use.
type Sender struct {
	o      Options
	log    *slog.Logger
	queues []*queue
	ctx    context.Context
	cancel context.CancelFunc
}

var _ session.Outbox = (*Sender)(nil)

// New returns a sender, which begins with Open.
func New(o Options) *Sender {
	s := &Sender{o: o, log: cmp.Or(o.Logger, slog.Default())}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, r := range o.Receivers {
		r.Timeout = cmp.Or(r.Timeout, DefaultTimeout)
		r.Rate = cmp.Or(r.Rate, DefaultRate)
		r.QueueSize = cmp.Or(r.QueueSize, DefaultQueueSize)
		r.MaxAge = cmp.Or(r.MaxAge, DefaultMaxAge)
		s.queues = append(s.queues, newQueue(s, r))
	}
	return s
}

func (s *Sender) client() *http.Client {
	transport := s.o.transport
	if transport == nil {
		transport = &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			DialContext:       (&net.Dialer{}).DialContext, // an attempt has a deadline
			ForceAttemptHTTP2: true, MaxIdleConnsPerHost: parallel, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
		}
	}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Open implements [session.Outbox]. Messages for receivers that are not configured any more are removed.
func (s *Sender) Open(stored []session.OutboxEntry, remove func(keys []string) error) {
	unwanted := map[string]int{}
	var keys []string
	for _, e := range stored {
		m, err := parseMessage(e)
		q := s.queue(m.receiver)
		if err != nil || q == nil {
			unwanted[m.receiver]++
			keys = append(keys, e.Key)
			continue
		}
		q.add(m)
	}
	for _, name := range slices.Sorted(maps.Keys(unwanted)) {
		s.log.Warn("messages for a webhook that is not configured any more are dropped", "webhook", name, "messages", unwanted[name])
	}
	if len(keys) > 0 {
		if err := remove(keys); err != nil {
			s.log.Warn("dropping messages for a webhook that is not configured any more: the next start repeats it", "error", err)
		}
	}
	for _, q := range s.queues {
		q.begin(remove)
	}
}

func (s *Sender) queue(name string) *queue {
	for _, q := range s.queues {
		if q.r.Name == name {
			return q
		}
	}
	return nil
}

// Entries implements [session.Outbox].
func (s *Sender) Entries(e session.Ending) (list []session.OutboxEntry) {
	var body []byte
	id := ""
	for _, q := range s.queues {
		if len(q.r.Events) > 0 && !slices.Contains(q.r.Events, e.Type) || len(q.r.Tenants) > 0 && !slices.Contains(q.r.Tenants, e.Tenant) {
			continue
		}
		if id == "" {
			var err error
			if body, err = s.o.Body(e); err != nil { // values of plain types
				s.log.Error("a message about an end cannot be made", "tenant", e.Tenant, "session", e.Session, "process", e.Event.Process, "error", err)
				return nil
			}
			id = "msg_" + rand.Text()
		}
		list = append(list, session.OutboxEntry{Key: messageKey(q.r.Name, e.Time, id, e.Tenant), Value: body})
	}
	return list
}

// Stored implements [session.Outbox].
func (s *Sender) Stored(entries []session.OutboxEntry) {
	for _, e := range entries {
		if m, err := parseMessage(e); err == nil {
			s.queue(m.receiver).add(m)
		}
	}
}

// Close implements [session.Outbox]. It gives requests under way a moment; those that are cut off are repeated by the next
// sender.
func (s *Sender) Close() {
	for _, q := range s.queues {
		q.stop()
	}
	t := time.AfterFunc(closePatience, s.cancel)
	defer t.Stop()
	for _, q := range s.queues {
		q.wait()
	}
	s.cancel()
}

// closePatience is how long Close waits for requests.
const closePatience = 2 * time.Second

// State describes the queue of a receiver. Counters begin with the sender.
type State struct {
	Name      string
	Host      string    // of the URL, with its port; path and query can be secrets
	Pending   int       // messages
	Bytes     int64     // of their bodies
	Oldest    time.Time // zero: none is pending
	Delivered uint64    // messages
	Failed    uint64    // attempts
	Dropped   uint64    // messages that were too old, or displaced by others
	// Error says why the last attempt has failed; empty: it has not. It does not contain the URL.
	Error string
}

// States returns the state of each receiver.
func (s *Sender) States() []State {
	list := make([]State, len(s.queues))
	for i, q := range s.queues {
		list[i] = q.state()
	}
	return list
}

// message is a message to one receiver.
type message struct {
	receiver string
	key      string // in the database
	id       string
	tenant   string    // empty in messages of older builds, which share one queue
	at       time.Time // when that ended which it is about
	body     []byte

	// The rest belongs to the queue.
	attempts int
	due      time.Time // of the next attempt
	busy     bool      // a request is under way
}

// messageKey returns the key of a message: they are sorted by receiver and age. No tenant contains NUL.
func messageKey(receiver string, at time.Time, id, tenant string) string {
	return fmt.Sprintf("%s\x00%020d-%s\x00%s", receiver, at.UnixNano(), id, tenant)
}

func parseMessage(e session.OutboxEntry) (*message, error) {
	receiver, rest, ok := strings.Cut(e.Key, "\x00")
	nanos, rest, ok2 := strings.Cut(rest, "-")
	id, tenant, _ := strings.Cut(rest, "\x00")
	at, err := strconv.ParseInt(nanos, 10, 64)
	m := &message{receiver: receiver, key: e.Key, id: id, tenant: tenant, at: time.Unix(0, at), body: e.Value}
	if !ok || !ok2 || err != nil || id == "" || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' || r == '.' }) {
		return m, fmt.Errorf("%q is no key of a message", e.Key)
	}
	return m, nil
}
