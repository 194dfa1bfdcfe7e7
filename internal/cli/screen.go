package cli

import (
	"io"
	"strings"
)

// screen is stdout or stderr. Only a terminal gets aligned columns and colours.
type screen struct {
	io.Writer
	terminal bool // columns are aligned
	colour   bool
}

// screen describes w, which is stdout or stderr. There are no colours if NO_COLOR is set to
// anything (no-color.org), nor on terminals that have none.
func (a *App) screen(w io.Writer) screen {
	s := screen{Writer: w, terminal: asTerminal(w) != nil}
	kind := a.env("", "TERM")
	s.colour = s.terminal && a.env("", "NO_COLOR") == "" && kind != "" && kind != "dumb"
	return s
}

// Colours of ECMA-48, "select graphic rendition".
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
)

// paint gives text a colour, or none if colour is "".
func (s screen) paint(text, colour string) string {
	if !s.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// stateColour returns the colour for a state of a session, a process, the daemon or a check. The
// state may be followed by a colon and its reason.
func stateColour(state string) string {
	word, _, _ := strings.Cut(state, ":")
	switch strings.TrimSpace(word) {
	case "running", "ready", "yes", "ok":
		return green
	case "failed", "no":
		return red
	case "creating", "starting", "unready", "restarting", "stopping", "degraded", "unknown":
		return yellow
	}
	return ""
}
