package api

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/policy"
)

// TestDocumentedMetrics: docs/api.md names the metrics of networks and ports that there are, each with
// its labels, and no others.
func TestDocumentedMetrics(t *testing.T) {
	f := serve(t, nil)
	_, body := f.raw("GET", "/metrics", scraperToken, "")
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	var exported, documented []string
	for _, m := range regexp.MustCompile(`(?m)^(boxd_(?:network|published|preview)_\S+) `).FindAllSubmatch(body, -1) {
		exported = append(exported, string(m[1]))
	}
	for _, m := range regexp.MustCompile("`(boxd_(?:network|published|preview)_\\w+)(?:\\{(\\w+)=([^}]+)\\})?`").FindAllSubmatch(doc, -1) {
		name := string(m[1])
		if len(m[2]) == 0 {
			documented = append(documented, name)
			continue
		}
		for value := range strings.SplitSeq(string(m[3]), "|") {
			documented = append(documented, name+"{"+string(m[2])+"="+value+"}")
		}
	}
	slices.Sort(exported)
	slices.Sort(documented)
	if len(exported) < 12 || !slices.Equal(exported, documented) {
		t.Errorf("exported:   %q\ndocumented: %q", exported, documented)
	}
}

// TestEngineMetrics: boxes are counted by what builds them, and docs/api.md names these metrics.
func TestEngineMetrics(t *testing.T) {
	f := serve(t, nil)
	if _, err := f.as(operatorToken, "").Ensure(t.Context(), apitypes.SessionRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	f.engine.setHealth(errors.New("no box today")) // of the next one
	if _, err := f.as(operatorToken, "").Ensure(t.Context(), apitypes.SessionRequest{ID: "b"}); err == nil {
		t.Error("a second box was built")
	}
	_, body := f.raw("GET", "/metrics", scraperToken, "")
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"boxd_boxes": 1, "boxd_boxes_built_total": 1, "boxd_boxes_failed_total": 1} {
		if line := fmt.Sprintf("\n%s{engine=\"native\",isolation=\"namespaces\"} %d\n", name, want); !strings.Contains(string(body), line) {
			t.Errorf("no line %q in %s", line, body)
		}
		if !strings.Contains(string(doc), "`"+name+"{engine,isolation}`") {
			t.Errorf("docs/api.md does not name %s", name)
		}
	}
}

// TestPublishedMetrics: connections through published ports are counted with their bytes, and those
// that nothing in the box accepts as refused.
func TestPublishedMetrics(t *testing.T) {
	f := serve(t, func(_ *Options, p *policy.Config) {
		p.Publish = policy.PortPool{First: 10000, Last: 29999, Address: netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.ReadFull(c, make([]byte, 3))
		io.WriteString(c, "hello")
	}()
	s, err := f.as(operatorToken, "").Ensure(t.Context(), apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{
		Publish: []spec.PublishWish{{Port: l.Addr().(*net.TCPAddr).Port}, {Port: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"hello", ""} {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Published[i].Host)))
		if want == "" && errors.Is(err, syscall.ECONNRESET) { // the second connection may be reset at any moment
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "abc")
		got, _ := io.ReadAll(c)
		c.Close()
		if string(got) != want {
			t.Fatalf("port %d: %q", i, got)
		}
	}
	lines := []string{"boxd_published_connections_total 1", "boxd_published_refused_total 1", "boxd_published_in_bytes_total 3", "boxd_published_out_bytes_total 5"}
	for deadline := time.Now().Add(testutil.Patience()); ; {
		_, body := f.raw("GET", "/metrics", scraperToken, "")
		missing := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.Contains(string(body), "\n"+line+"\n") })
		if len(missing) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %q in %s", missing, body)
		}
	}
}
