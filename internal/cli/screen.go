package cli

import (
	"io"
	"strings"
)

// screen is a stream for people: how much is done for their eyes depends on whether it
// is a terminal.
type screen struct {
	io.Writer
	terminal bool // columns are aligned
	colour   bool
}

// screen describes w, which is stdout or stderr. Colours are left out if NO_COLOR is set
// to anything (no-color.org), and on terminals that know none.
func (a *App) screen(w io.Writer) screen {
	s := screen{Writer: w, terminal: asTerminal(w) != nil}
	noColour, _ := a.LookupEnv("NO_COLOR")
	kind, _ := a.LookupEnv("TERM")
	s.colour = s.terminal && noColour == "" && kind != "" && kind != "dumb"
	return s
}

// Colours of ECMA-48, "select graphic rendition".
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
)

// paint gives text a colour; no colour is "".
func (s screen) paint(text, colour string) string {
	if !s.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// stateColour is the colour of a state of a session, a process, the daemon or a check. A
// state may be followed by its reason.
func stateColour(state string) string {
	word, _, _ := strings.Cut(state, ":")
	switch strings.TrimSpace(word) {
	case "running", "yes", "ok":
		return green
	case "failed", "no":
		return red
	case "creating", "starting", "stopping", "degraded", "unknown":
		return yellow
	}
	return ""
}
