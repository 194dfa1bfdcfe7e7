package mcp

import (
	"context"
	"fmt"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

type previewArgs struct {
	inSession
	Port    int     `json:"port" jsonschema:"TCP port of the box that a server listens on."`
	Minutes float64 `json:"minutes,omitempty" jsonschema:"How long the link is valid; 0: an hour."`
}

type previewResult struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
	Listening bool      `json:"listening" jsonschema:"A server listens on the port now."`
}

type sessionArgs struct {
	inSession
	Action string `json:"action" jsonschema:"info: about the session; list: all sessions that you may use; end: delete the session with its files and processes. The next call with its name makes a new one."`
}

type sessionResult struct {
	Sessions []sessionInfo `json:"sessions"`
}

type sessionInfo struct {
	Session   string     `json:"session"`
	State     string     `json:"state"`
	Profile   string     `json:"profile"`
	Network   bool       `json:"network"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" jsonschema:"When it is deleted unless it is used."`
}

// addSession adds the tools about the session itself.
func (t *tools) addSession() {
	if t.opt.Previews {
		add(t, "preview", "Show a port", "Make a link under which people see, in their browser, what a server in the box serves on a port. Give it to the user: the link is the login.",
			kind{openWorld: true}, (*box).preview)
	}
	if t.opt.SessionTool {
		add(t, "session", "Manage sessions", "Look at, list or end sessions. Every tool has an argument session, which names the one to work in; it is made if it is missing.",
			kind{destructive: true}, (*box).manage)
	}
}

func (b *box) preview(ctx context.Context, in previewArgs) (*sdk.CallToolResult, *previewResult, error) {
	link, err := b.c.Link(ctx, b.session.ID, in.Port, time.Duration(in.Minutes*float64(time.Minute)))
	if err != nil {
		return nil, nil, err
	}
	out := &previewResult{URL: link.URL, ExpiresAt: link.ExpiresAt}
	ports, err := b.c.Ports(ctx, b.session.ID)
	for _, p := range ports {
		out.Listening = out.Listening || p.Port == in.Port && (p.Protocol == "tcp" || p.Protocol == "tcp6")
	}
	text := fmt.Sprintf("%s\nvalid until %s", link.URL, link.ExpiresAt.Format(time.RFC3339))
	if err == nil && !out.Listening {
		text += fmt.Sprintf("\nNothing listens on port %d yet: start a server there.", in.Port)
	}
	return textResult(text), out, nil
}

func (b *box) manage(ctx context.Context, in sessionArgs) (*sdk.CallToolResult, *sessionResult, error) {
	list := []apitypes.Session{b.session}
	var err error
	switch in.Action {
	case "info":
	case "list":
		list, err = b.c.Sessions(ctx)
	case "end":
		if err := b.c.Remove(ctx, b.session.ID); err != nil {
			return nil, nil, err
		}
		return textResult("session " + b.session.ID + " has ended"), &sessionResult{Sessions: []sessionInfo{}}, nil
	default:
		err = fmt.Errorf("action %q: must be info, list or end", in.Action)
	}
	if err != nil {
		return nil, nil, err
	}
	out, text := &sessionResult{Sessions: []sessionInfo{}}, ""
	for _, s := range list {
		out.Sessions = append(out.Sessions, sessionInfo{s.ID, s.State, s.Profile, s.Network, s.ExpiresAt})
		text += fmt.Sprintf("%s: %s, profile %s\n", s.ID, s.State, s.Profile)
	}
	return textResult(text), out, nil
}
