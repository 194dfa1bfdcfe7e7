package langbot

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// turn is a step of the recorded conversation in testdata, between LangBot's own client and the reference
// server.
type turn struct {
	Conn     int
	Dir      string // c2s or s2c
	Kind     string // open, status, text, close
	Path     string
	Headers  map[string]string
	Status   int
	Protocol string
	Text     string
	Code     int
}

func conversation(t *testing.T) (turns []turn) {
	t.Helper()
	f, err := os.Open("testdata/conversation.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var next turn
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			t.Fatal(err)
		}
		turns = append(turns, next)
	}
	return turns
}

// player plays the client's part.
type player struct {
	*world
	conns   map[int]*websocket.Conn // nil: it was refused, or has ended
	answers map[int]*http.Response
}

// TestReplay plays a whole conversation of LangBot's client, byte by byte as it sent
// it, and wants the answers that it got.
func TestReplay(t *testing.T) {
	p := &player{begin(t), map[int]*websocket.Conn{}, map[int]*http.Response{}}
	turns := conversation(t)
	if len(turns) < 60 {
		t.Fatalf("the conversation has %d turns only", len(turns))
	}
	for i, next := range turns {
		if err := p.play(next); err != nil {
			t.Fatalf("turn %d, connection %d, %s %s %.300s: %v", i+1, next.Conn, next.Dir, next.Kind, next.Text, err)
		}
	}
}

func (p *player) play(next turn) error {
	conn := p.conns[next.Conn]
	switch next.Dir + " " + next.Kind {
	case "c2s open":
		h := http.Header{}
		for k, v := range next.Headers {
			if k != "Sec-WebSocket-Protocol" {
				h.Set(k, v)
			}
		}
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		defer cancel()
		var protocols []string
		if name := next.Headers["Sec-WebSocket-Protocol"]; name != "" {
			protocols = []string{name}
		}
		ws, answer, err := p.dialer().dial(ctx, next.Path, h, protocols...)
		if answer == nil {
			return err
		}
		p.conns[next.Conn], p.answers[next.Conn] = ws, answer
		if ws != nil {
			p.t.Cleanup(func() { ws.Close() })
		}
		return nil
	case "s2c status":
		got := p.answers[next.Conn]
		if protocol := got.Header.Get("Sec-WebSocket-Protocol"); got.StatusCode != next.Status || protocol != next.Protocol {
			return fmt.Errorf("got %d with protocol %q, want %d with %q", got.StatusCode, protocol, next.Status, next.Protocol)
		}
		return nil
	case "c2s text":
		p.settle(next.Text)
		return conn.WriteMessage(websocket.TextMessage, []byte(next.Text))
	case "s2c text":
		_, message, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		return same([]byte(next.Text), message)
	case "c2s close":
		return conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(next.Code, ""))
	case "s2c close":
		_, message, err := conn.ReadMessage()
		if !websocket.IsCloseError(err, next.Code) {
			return fmt.Errorf("got %.100q, %v; want the close code %d", message, err, next.Code)
		}
		p.conns[next.Conn] = nil
		return conn.Close()
	}
	return fmt.Errorf("%s %s: no such turn", next.Dir, next.Kind)
}

// settle waits for what the conversation takes for granted where it asks for a
// process: that its line on stderr has come, and that relays which were closed are.
func (p *player) settle(request string) {
	if !strings.Contains(request, "box_get_managed_process") && !strings.Contains(request, "box_get_session\"") {
		return
	}
	relayed := p.conns[2] != nil || p.conns[3] != nil
	c := p.dial("lbc-instance")
	defer c.Close()
	p.await("the process has written to stderr, and the relay is as it should be", func() bool {
		var info object
		err := c.Call(p.t.Context(), &Context{"lbc-instance", "lbc-workspace", 1}, "box_get_managed_process", object{"session_id": "lbc_session", "process_id": "echo"}, &info)
		return err != nil || info["stderr_preview"] == "ready" && info["attached"] == relayed
	})
}

// ours are values that each server has of its own, by their names.
var ours = map[string]*regexp.Regexp{
	"backend_name":       regexp.MustCompile(`^boxd$`),
	"name@backend":       regexp.MustCompile(`^boxd$`),
	"backend_session_id": regexp.MustCompile(`^\S+$`),
	"created_at":         stamp, "last_used_at": stamp, "started_at": stamp,
	"created_at@skill": zoned, "updated_at@skill": zoned,
}

var (
	stamp = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`)
	zoned = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00$`)
)

// same compares an answer with the one of the reference server. A bare line is one of
// a relay.
func same(want, got []byte) error {
	var wanted, has any
	if json.Unmarshal(want, &wanted) != nil {
		if !bytes.Equal(want, got) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	}
	if err := json.Unmarshal(got, &has); err != nil {
		return fmt.Errorf("got %q: %w", got, err)
	}
	return alike("", wanted, has)
}

// alike compares values of JSON: the same keys, and the same values where they are not
// each server's own.
func alike(name string, want, got any) error {
	if list, ok := want.([]any); ok {
		other, ok := got.([]any)
		if !ok || len(other) != len(list) {
			return fmt.Errorf("%s: got %s, want %s", name, show(got), show(want))
		}
		for i := range list {
			if err := alike(name, list[i], other[i]); err != nil {
				return err
			}
		}
		return nil
	}
	wanted, ok := want.(object)
	if !ok {
		if !reflect.DeepEqual(want, got) {
			return fmt.Errorf("%s: got %s, want %s", name, show(got), show(want))
		}
		return nil
	}
	has, ok := got.(object)
	if !ok {
		return fmt.Errorf("%s: got %s, want %s", name, show(got), show(want))
	}
	for key, w := range wanted {
		g, ok := has[key]
		if !ok {
			return fmt.Errorf("%s has no %q: %s", name, key, show(got))
		}
		if err := alikeField(name, key, w, g, has); err != nil {
			return err
		}
	}
	return nil
}

func alikeField(name, key string, want, got any, all object) error {
	kind := key
	if _, skill := all["package_root"]; skill && strings.HasSuffix(key, "_at") {
		kind += "@skill"
	}
	if _, backend := all["available"]; backend && key == "name" {
		kind += "@backend"
	}
	text, _ := got.(string)
	switch pattern := ours[kind]; {
	case pattern != nil:
		if !pattern.MatchString(text) {
			return fmt.Errorf("%s.%s: got %s, want %s", name, key, show(got), pattern)
		}
	case key == "duration_ms":
		if ms, ok := got.(float64); !ok || ms < 0 || ms != float64(int(ms)) {
			return fmt.Errorf("%s.%s: got %s, want a whole number", name, key, show(got))
		}
	case key == "package_root":
		tail := path.Join("tenants", "ws-dc28ebcfd22f6415ec7ffb16", "lbc-demo")
		if !path.IsAbs(text) || !strings.HasSuffix(text, "/"+tail) {
			return fmt.Errorf("%s.%s: got %s, want …/%s", name, key, show(got), tail)
		}
	case key == "stderr_preview" && want == "" && text == "ready": // the process was quick
	case key == "message" && strings.Contains(want.(string), ":"):
		class, _, _ := strings.Cut(want.(string), ":")
		if !strings.HasPrefix(text, class+": ") {
			return fmt.Errorf("%s.%s: got %q, want a %s", name, key, text, class)
		}
	default:
		return alike(name+"."+key, want, got)
	}
	return nil
}
