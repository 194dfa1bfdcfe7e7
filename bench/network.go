package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/engine/spec"
)

const (
	proxyAddress  = "127.0.0.1:3128" // in a box
	serverHost    = "127.0.0.2"      // where the servers of the benchmark listen
	boxPort       = 8000             // where those in boxes do
	openMany      = 10_000           // connections at once
	openBoxes     = 16               // that have them: each may make a certain number per second
	openOff       = 4_000            // connections of one box when its network is taken away
	proxyTarget   = 500 * time.Microsecond
	previewTarget = 300 * time.Microsecond
	openTarget    = 100 << 20
	offTarget     = 100 * time.Millisecond
)

// networkConfig gives boxes of profile "net" a network that leads to the servers of the
// benchmark, without limits, and leaves boxes the half of all descriptors that they may have at most.
const networkConfig = `network: proxy
limits: {sessions: 64, processes: 64, ports: 16}
http: {max_connections: 64}
relay: {max_clients: 16}
profiles:
  net:
    network: true
    network_rules:
      public: false
      allow: ["` + serverHost + `:1-65535"]
      limits: {connections: 16384, bytes: 0, bandwidth: 0}
`

// netBench is the benchmark of the network: a daemon, and servers of this process.
type netBench struct {
	*bench
	*served
	most int // connections at once, as far as the limit of open files allows
	host *inside
	box  *inside // of session "net"
}

// network measures what a network costs, against the same connection without a box.
func (b *bench) network(ctx context.Context) {
	// Both processes have two of each connection. Boxes get half of the daemon's; an eighth of these is for connections
	// that have asked for nothing yet, and a quarter of the others for boxes with few.
	most := min(openMany, int(files(7*openMany)-1000)/2)
	file := filepath.Join(b.scratch, "network.yaml")
	err := os.WriteFile(file, []byte(networkConfig), 0o644)
	var s *served
	if err == nil {
		s, err = b.serve("--config", file)
	}
	if err != nil {
		b.fail(b.current, err)
		return
	}
	n := &netBench{bench: b, served: s, most: most}
	if err := errors.Join(n.measure(ctx), s.end()); err != nil {
		b.fail(b.current, err)
	}
}

func (n *netBench) measure(ctx context.Context) (err error) {
	if n.host, err = enter(os.Getpid()); err != nil {
		return err
	}
	defer n.host.leave()
	if err := n.sessions(ctx); err != nil {
		return err
	}
	if err := n.networked(ctx, "net"); err != nil {
		return err
	}
	if n.box, err = n.enterSession(ctx, "net"); err != nil {
		return err
	}
	defer n.box.leave()
	for _, f := range []func(context.Context) error{n.proxy, n.proxyRequests, n.preview, n.forward, n.open, n.off} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// files raises the limit of open files for this process and the daemon as far as it may, up to
// most, and returns it.
func files(most uint64) uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024
	}
	limit.Cur = max(limit.Cur, min(limit.Max, most))
	// Package syscall hands it on to children. Only CAP_SYS_RESOURCE raises the hard limit.
	more := syscall.Rlimit{Cur: max(limit.Cur, most), Max: max(limit.Max, most)}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &more) == nil {
		return more.Cur
	}
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
	return limit.Cur
}

// networked creates a session with a network.
func (n *netBench) networked(ctx context.Context, id string) error {
	persistent := true
	_, err := n.client.Ensure(ctx, apitypes.SessionRequest{ID: id, SessionSpec: apitypes.SessionSpec{
		Profile: "net", LiveWishes: spec.LiveWishes{Persistent: &persistent, Network: new(true)}}})
	return err
}

// sessions measures what a session with a network takes longer.
func (n *netBench) sessions(ctx context.Context) error {
	cycle := func(id string, ensure func(context.Context, string) error) sample {
		return func() (time.Duration, error) {
			begin := time.Now()
			err := errors.Join(ensure(ctx, id), n.exec(ctx, id))
			took := time.Since(begin)
			return took, errors.Join(err, n.client.Remove(ctx, id))
		}
	}
	s, err := n.alternate(max(n.n/4, 5), cycle("without", n.ensure), cycle("with", n.networked))
	if err != nil {
		return err
	}
	n.times("network.create.none", "create a session without a network, to the first exit", s[0], nil, "", goal{})
	n.times("network.create", "create a session with a network, to the first exit", s[1], s[0], "without a network", goal{})
	if err := errors.Join(n.ensure(ctx, "without"), n.networked(ctx, "with")); err != nil {
		return err
	}
	s, err = n.alternate(n.n, timed(func() error { return n.exec(ctx, "without") }), timed(func() error { return n.exec(ctx, "with") }))
	if err != nil {
		return err
	}
	n.times("network.exec", "exec in a session with a network", s[1], s[0], "without a network", goal{})
	return nil
}

// above adds a row of durations whose goal is a distance to direct.
func (n *netBench) above(name, what string, s, direct series, most time.Duration) {
	n.times(name, what, s, direct, "a direct connection", goal{fmt.Sprintf("≤ %.1f ms above", most.Seconds()*1e3), s.p50()-direct.p50() <= most})
}

// bulkRow adds a row of samples that moved bulkBytes each.
func (n *netBench) bulkRow(name, what string, s, direct series) {
	n.rates(name, what, report.BytesPerSecond, bulkBytes, s, direct, "a direct connection",
		goal{"≥ 1 GB/s", bulkBytes/s.p50().Seconds() >= bulkTarget})
}

// server serves each connection of a listener with f until it is closed.
func server(l net.Listener, f func(net.Conn)) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); f(c) })
		}
	})
	return func() { l.Close(); wg.Wait() }
}

// echoOrFlood answers "e" and every byte after it with the same, and "f" with a flood.
func echoOrFlood(c net.Conn) {
	var one [1]byte
	for {
		if _, err := io.ReadFull(c, one[:]); err != nil {
			return
		}
		for one[0] == 'f' {
			if _, err := c.Write(flood); err != nil {
				return
			}
		}
		if _, err := c.Write(one[:]); err != nil {
			return
		}
	}
}

var flood = make([]byte, 256<<10)

// ask sends one byte and reads one.
func ask(c net.Conn, what byte) error {
	one := [1]byte{what}
	if _, err := c.Write(one[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, one[:])
	return err
}

// drain reads bulkBytes.
func drain(r io.Reader) sample {
	buf := make([]byte, 256<<10)
	return timed(func() error {
		for n := 0; n < bulkBytes; n += len(buf) {
			if _, err := io.ReadFull(r, buf); err != nil {
				return err
			}
		}
		return nil
	})
}

// errFull: the proxy has as many connections as the daemon's limit of open files lets it have.
var errFull = errors.New("the proxy takes no more connections")

// errFast: the box makes more new connections per second than it may.
var errFast = errors.New("too many new connections per second")

// connect opens a tunnel from the box to target.
func (n *netBench) connect(target string) (net.Conn, error) { return connectFrom(n.box, target) }

func connectFrom(box *inside, target string) (net.Conn, error) {
	c, err := box.dial(proxyAddress)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target)
	var answer [256]byte // the server speaks second, so nothing follows the head
	k, err := c.Read(answer[:])
	if head := string(answer[:k]); err == nil && strings.HasPrefix(head, "HTTP/1.1 503") {
		rest, _ := io.ReadAll(c)
		if err = errFull; strings.Contains(head+string(rest), "per second") {
			err = errFast
		}
	} else if err == nil && (!strings.HasPrefix(head, "HTTP/1.1 200") || !strings.HasSuffix(head, "\r\n\r\n")) {
		err = fmt.Errorf("CONNECT %s: %.100q", target, head)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// proxy measures single connections through CONNECT.
func (n *netBench) proxy(ctx context.Context) error {
	l, err := n.host.listen(serverHost + ":0")
	if err != nil {
		return err
	}
	defer server(l, echoOrFlood)()
	target := l.Addr().String()
	direct := func() (net.Conn, error) { return n.host.dial(target) }
	through := func() (net.Conn, error) { return n.connect(target) }
	first := func(dial func() (net.Conn, error)) sample {
		return func() (time.Duration, error) {
			begin := time.Now()
			c, err := dial()
			if err != nil {
				return 0, err
			}
			defer c.Close()
			err = ask(c, 'e')
			return time.Since(begin), err
		}
	}
	s, err := n.alternate(min(n.n, 400), first(direct), first(through))
	if err != nil {
		return err
	}
	n.above("network.connect", "proxy, CONNECT to the first byte", s[1], s[0], proxyTarget)
	one, err := direct()
	if err != nil {
		return err
	}
	defer one.Close()
	two, err := through()
	if err != nil {
		return err
	}
	defer two.Close()
	s, err = n.alternate(5*n.n, timed(func() error { return ask(one, 'e') }), timed(func() error { return ask(two, 'e') }))
	if err != nil {
		return err
	}
	n.times("network.echo", "proxy, round trip of a byte on an open connection", s[1], s[0], "a direct connection", goal{})
	// A flood fills the buffers and waits while the other is measured.
	if err := errors.Join(ask(one, 'f'), ask(two, 'f')); err != nil {
		return err
	}
	if s, err = n.alternate(max(n.n/100, 4), drain(one), drain(two)); err != nil {
		return err
	}
	n.bulkRow("network.bulk", "proxy, bulk over CONNECT", s[1], s[0])
	return nil
}

// get asks for a URL and reads the answer.
func get(c *http.Client, url string) error {
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, %w", url, resp.Status, err)
	}
	return nil
}

// proxyRequests measures plain HTTP with connections that are kept. Each sample has a box of its own,
// because a box makes only so many requests at once.
func (n *netBench) proxyRequests(ctx context.Context) error {
	l, err := n.host.listen(serverHost + ":0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: http.HandlerFunc(page)}
	go srv.Serve(l)
	defer srv.Close()
	client := func(p *inside, proxy *url.URL) *http.Client {
		return &http.Client{Transport: &http.Transport{
			Proxy: func(*http.Request) (*url.URL, error) { return proxy, nil }, MaxIdleConnsPerHost: clients,
			DialContext: func(_ context.Context, _, address string) (net.Conn, error) { return p.dial(address) },
		}}
	}
	direct := client(n.host, nil)
	defer direct.CloseIdleConnections()
	address := "http://" + l.Addr().String()
	through := func() (took time.Duration, err error) {
		const id = "requests"
		if err := n.networked(ctx, id); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, n.client.Remove(ctx, id)) }()
		box, err := n.enterSession(ctx, id)
		if err != nil {
			return 0, err
		}
		defer box.leave()
		c := client(box, &url.URL{Scheme: "http", Host: proxyAddress})
		defer c.CloseIdleConnections()
		return together(clients, func(int) error { return get(c, address) })()
	}
	s, err := n.alternate(max(n.n/10, 5), together(clients, func(int) error { return get(direct, address) }), through)
	if err != nil {
		return err
	}
	n.rate("network.requests", fmt.Sprintf("proxy, plain HTTP requests/s, %d clients", clients), s[1], s[0], goal{})
	return nil
}

// page answers "/" with a short text, and "/bulk" with bulkBytes.
func page(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/bulk") {
		io.WriteString(w, "hello\n")
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(bulkBytes))
	for n := 0; n < bulkBytes; n += len(flood) {
		if _, err := w.Write(flood); err != nil {
			return
		}
	}
}

// preview measures requests through the API to a server in the box.
func (n *netBench) preview(context.Context) error {
	l, err := n.box.listen(fmt.Sprintf("127.0.0.1:%d", boxPort))
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: http.HandlerFunc(page)}
	go srv.Serve(l)
	defer srv.Close()
	client := func(dial func() (net.Conn, error)) *http.Client {
		return &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}}
	}
	direct := client(func() (net.Conn, error) { return n.box.dial(l.Addr().String()) })
	through := client(func() (net.Conn, error) { return net.Dial("unix", n.Socket()) })
	defer direct.CloseIdleConnections()
	defer through.CloseIdleConnections()
	base := fmt.Sprintf("http://boxd/v1/sessions/net/ports/%d/", boxPort)
	s, err := n.alternate(n.n, timed(func() error { return get(direct, "http://direct/") }), timed(func() error { return get(through, base) }))
	if err != nil {
		return err
	}
	n.above("preview.request", "preview, request", s[1], s[0], previewTarget)
	download := func(c *http.Client, url string) sample {
		return func() (time.Duration, error) {
			resp, err := c.Get(url)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			return drain(resp.Body)()
		}
	}
	if s, err = n.alternate(max(n.n/100, 4), download(direct, "http://direct/bulk"), download(through, base+"bulk")); err != nil {
		return err
	}
	n.bulkRow("preview.bulk", "preview, bulk", s[1], s[0])
	return nil
}

// forward measures "boxd forward", a process of its own, to a server in the box.
func (n *netBench) forward(ctx context.Context) (err error) {
	l, err := n.box.listen(fmt.Sprintf("127.0.0.1:%d", boxPort))
	if err != nil {
		return err
	}
	defer server(l, echoOrFlood)()
	cmd := exec.CommandContext(ctx, n.boxd, "forward", "net", fmt.Sprintf("0:%d", boxPort))
	cmd.Env = append(os.Environ(), "BOXD_SOCKET="+n.Socket())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { // its status is that of the signal
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	address, _, ok := strings.Cut(line, " leads to")
	if err != nil || !ok {
		return fmt.Errorf("boxd forward: %q, %w", line, err)
	}
	direct, err := n.box.dial(l.Addr().String())
	if err != nil {
		return err
	}
	defer direct.Close()
	through, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer through.Close()
	s, err := n.alternate(n.n, timed(func() error { return ask(direct, 'e') }), timed(func() error { return ask(through, 'e') }))
	if err != nil {
		return err
	}
	n.times("forward.echo", "boxd forward, round trip of a byte", s[1], s[0], "a direct connection", goal{})
	if err := errors.Join(ask(direct, 'f'), ask(through, 'f')); err != nil {
		return err
	}
	if s, err = n.alternate(max(n.n/100, 4), drain(direct), drain(through)); err != nil {
		return err
	}
	n.bulkRow("forward.bulk", "boxd forward, bulk", s[1], s[0])
	return nil
}

// hold opens connections from boxes in turn through the proxy, each of which has carried a byte
// in both directions, until there are count or the proxy takes no more.
func hold(boxes []*inside, target string, count int) (held []net.Conn, err error) {
	held = make([]net.Conn, count)
	err = atOnce(count, 8, func(i int) (err error) {
		c, err := connectFrom(boxes[i%len(boxes)], target)
		for errors.Is(err, errFast) {
			time.Sleep(10 * time.Millisecond)
			c, err = connectFrom(boxes[i%len(boxes)], target)
		}
		if err != nil {
			return err
		}
		held[i] = c
		return ask(c, 'e')
	})
	if errors.Is(err, errFull) {
		err = nil
	}
	return slices.DeleteFunc(held, func(c net.Conn) bool { return c == nil }), err
}

func closeAll(held []net.Conn) {
	for _, c := range held {
		c.Close()
	}
}

// open measures the memory of a daemon with many open connections.
func (n *netBench) open(ctx context.Context) error {
	l, err := n.host.listen(serverHost + ":0")
	if err != nil {
		return err
	}
	defer server(l, echoOrFlood)()
	boxes := []*inside{n.box}
	for i := range openBoxes - 1 {
		id := fmt.Sprint("open-", i)
		if err := n.networked(ctx, id); err != nil {
			return err
		}
		defer n.client.Remove(ctx, id)
		box, err := n.enterSession(ctx, id)
		if err != nil {
			return err
		}
		defer box.leave()
		boxes = append(boxes, box)
	}
	before, err := residentSet(n.PID())
	if err != nil {
		return err
	}
	held, err := hold(boxes, l.Addr().String(), n.most)
	defer closeAll(held)
	if err != nil {
		return err
	}
	rss, err := residentSet(n.PID())
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d open connections of %d boxes, RSS of the daemon", len(held), openBoxes)
	n.value("network.memory", what, report.Bytes, float64(rss), float64(before), "before", goal{"≤ 100 MiB", rss <= openTarget})
	return nil
}

// off measures how long it takes to take the network away from a session with many
// connections: to the answer, and until the last client knows.
func (n *netBench) off(ctx context.Context) error {
	l, err := n.host.listen(serverHost + ":0")
	if err != nil {
		return err
	}
	defer server(l, echoOrFlood)()
	var answered, known series
	open := openOff
	for i := range 3 {
		id := fmt.Sprint("off-", i)
		held, took, end, err := n.offOnce(ctx, id, l.Addr().String())
		if err != nil {
			return err
		}
		open = min(open, held)
		answered, known = append(answered, took), append(known, end)
	}
	what := fmt.Sprintf("network off with %d open connections", open)
	n.times("network.off", what+", to the answer", answered, nil, "", goal{"≤ 100 ms", answered.p50() <= offTarget})
	n.times("network.off.known", what+", until all clients know", known, nil, "", goal{})
	return nil
}

func (n *netBench) offOnce(ctx context.Context, id, target string) (open int, answered, known time.Duration, err error) {
	if err := n.networked(ctx, id); err != nil {
		return 0, 0, 0, err
	}
	defer n.client.Remove(ctx, id)
	box, err := n.enterSession(ctx, id)
	if err != nil {
		return 0, 0, 0, err
	}
	defer box.leave()
	held, err := hold([]*inside{box}, target, openOff)
	defer closeAll(held)
	if err != nil {
		return 0, 0, 0, err
	}
	var ended sync.WaitGroup
	for _, c := range held {
		ended.Go(func() { _, _ = c.Read(make([]byte, 1)) })
	}
	begin := time.Now()
	_, err = n.client.Update(ctx, id, apitypes.SessionUpdate{LiveWishes: spec.LiveWishes{Network: new(false)}})
	answered = time.Since(begin)
	if err != nil {
		return 0, 0, 0, err
	}
	ended.Wait()
	return len(held), answered, time.Since(begin), nil
}
