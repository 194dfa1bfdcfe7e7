package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/boxd/boxd/internal/rpcline"
)

// pins are the tools that a process had when they were checked.
type pins struct {
	lock  sync.Mutex // held during a check
	mu    sync.Mutex
	known map[string]string // digest by name; nil: not checked
}

// recheck makes the next request about tools check them.
func (t *pins) recheck() {
	t.mu.Lock()
	t.known = nil
	t.mu.Unlock()
}

func (t *pins) get() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known
}

// Bounds of a list of tools.
const (
	maxToolPages = 100
	maxTools     = 10_000
)

// checkTools asks the server for its tools and compares them with the pinned ones.
func (p *process) checkTools(ctx context.Context, log *slog.Logger) error {
	p.tools.lock.Lock()
	defer p.tools.lock.Unlock()
	if p.tools.get() != nil {
		return nil
	}
	if p.hello != nil && p.capabilities()["tools"] == nil {
		if p.s.Tools.Pin != "" {
			return p.inPhase(PhaseTools, fmt.Errorf("it has no tools, and %s is pinned", p.s.Tools.Pin))
		}
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.s.StartTimeout, fmt.Errorf("it did not list its tools within %s", p.s.StartTimeout))
	defer cancel()
	known := map[string]string{}
	params := map[string]any{}
	for page := 0; ; page++ {
		if page == maxToolPages || len(known) > maxTools {
			return p.inPhase(PhaseTools, fmt.Errorf("its list of tools has more than %d pages or %d tools", maxToolPages, maxTools))
		}
		raw, err := p.do(ctx, "tools/list", params)
		if err != nil {
			return p.inPhase(PhaseTools, err)
		}
		tools, err := toolsOf(raw)
		if err != nil {
			return p.inPhase(PhaseTools, err)
		}
		for _, tool := range tools {
			if _, twice := known[tool.name]; twice {
				return p.inPhase(PhaseTools, fmt.Errorf("it has two tools %.100q", tool.name))
			}
			known[tool.name] = toolDigest(tool.raw)
		}
		cursor := object(raw)["nextCursor"]
		if text(cursor) == "" {
			break
		}
		params["cursor"] = cursor
	}
	found := toolsDigest(known)
	switch pin := p.s.Tools.Pin; {
	case pin == "":
		log.Info("mcp: tools of a server", "server", p.s.Name, "session", p.session, "tools", len(known), "digest", found)
	case pin != found && p.s.Tools.Changed == ToolsRefuse:
		f := p.inPhase(PhaseTools, fmt.Errorf("its tools have the digest %s, and %s is pinned: look at them, and pin the new digest", found, pin))
		f.Tools = found
		return f
	case pin != found:
		log.Warn("mcp: the tools of a server are not the pinned ones", "server", p.s.Name, "session", p.session, "digest", found, "pinned", pin)
	}
	p.tools.mu.Lock()
	p.tools.known = known
	p.tools.mu.Unlock()
	return nil
}

// listedTool is a tool of a server, as it is listed.
type listedTool struct {
	name string
	raw  json.RawMessage
}

// toolsOf returns the tools in the result of tools/list. A list that its readers could understand in several
// ways is refused: what is compared with a pin must be what clients see.
func toolsOf(result json.RawMessage) (tools []listedTool, err error) {
	if err := rpcline.CheckMembers(result, false, "tools", "nextCursor", "_meta"); err != nil {
		return nil, fmt.Errorf("its list of tools: %w", err)
	}
	for _, raw := range array(object(result)["tools"]) {
		tool := listedTool{text(object(raw)["name"]), raw}
		if err := rpcline.CheckMembers(raw, true, "name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution", "_meta"); err != nil {
			return nil, fmt.Errorf("its tool %.100q: %w", tool.name, err)
		}
		tools = append(tools, tool)
	}
	return tools, nil
}

// notifies reports whether a message without an ID is a notification: a call without one would be carried out
// by some servers, and pass by the rules for tools.
func notifies(m *message) bool { return strings.HasPrefix(m.method, "notifications/") }

func array(raw json.RawMessage) (a []json.RawMessage) {
	if json.Unmarshal(raw, &a) != nil {
		return nil
	}
	return a
}

// toolDigest is independent of the order of members and of white space.
func toolDigest(tool json.RawMessage) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(tool))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return ""
	}
	return digest(string(encode(v)))
}

// toolsDigest is the digest of a list of tools, in whatever order.
func toolsDigest(known map[string]string) string {
	return "sha256:" + digest(string(encode(known))) // the encoder sorts the keys
}

// allows reports whether clients may see and call a tool.
func (s *Server) allows(tool string) bool {
	return len(s.Tools.Allow) == 0 || slices.Contains(s.Tools.Allow, tool)
}

// filterTools removes tools that are not allowed from an answer to tools/list. A tool that was not there
// when the tools were checked makes the answer a failure, if they are pinned.
func (p *process) filterTools(m *message) *message {
	result := object(m.members["result"])
	if result == nil {
		return m
	}
	known := p.tools.get()
	tools, err := toolsOf(m.members["result"])
	if err != nil {
		return p.inPhase(PhaseTools, err).response(m)
	}
	kept := []json.RawMessage{}
	for _, tool := range tools {
		if known != nil && p.s.Tools.Pin != "" && p.s.Tools.Changed == ToolsRefuse && known[tool.name] != toolDigest(tool.raw) {
			p.tools.recheck()
			return p.inPhase(PhaseTools, fmt.Errorf("its tool %.100q is not the pinned one", tool.name)).response(m)
		}
		if p.s.allows(tool.name) {
			kept = append(kept, tool.raw)
		}
	}
	result["tools"] = encode(kept)
	m.members["result"] = encode(result)
	return m
}
