package spec

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Ready says how to find out that a managed process does its work: by exactly one of the
// four probes.
type Ready struct {
	Line    string   `json:"line,omitempty" doc:"Ready when a line of its output, stdout or stderr, contains this text."`
	Port    int      `json:"port,omitempty" doc:"Ready when something in the box listens on this TCP port."`
	HTTP    string   `json:"http,omitempty" doc:"PORT/PATH, such as 8080/health: ready when GET of the path, on that port of the box's loopback, answers 200 to 399."`
	Command []string `json:"command,omitempty" doc:"Ready when this program, run in the box as the process's user in its directory, exits with 0."`
	// Timeout is how long the process may take; 0 is DefaultReadyTimeout.
	Timeout Duration `json:"timeout,omitempty" doc:"How long it may take, up to an hour; a process that is not ready then is ended. 0: 1m."`
	// LiveEvery repeats the probe of a ready process; 0: it is not repeated.
	LiveEvery Duration `json:"live_every,omitempty" doc:"Repeat the probe this often once it is ready, at least 1s; not with line. After three failures in a row the process is unready, or restarted if restart says so. 0: do not repeat."`
}

// Bounds of [Ready].
const (
	DefaultReadyTimeout = time.Minute
	maxReadyTimeout     = time.Hour
	minLiveEvery        = time.Second
	maxReadyText        = 256
	maxReadyPath        = 1024
)

// Validate checks r. The fields of its errors begin with "ready.".
func (r *Ready) Validate() error {
	given := 0
	for _, is := range []bool{r.Line != "", r.Port != 0, r.HTTP != "", len(r.Command) > 0} {
		if is {
			given++
		}
	}
	bad := func(field, value, rule string, args ...any) error {
		return &FieldError{Field: "ready." + field, Value: value, Rule: fmt.Sprintf(rule, args...)}
	}
	if given != 1 {
		return &FieldError{Field: "ready", Value: fmt.Sprintf("with %d probes", given), Rule: "must have exactly one of line, port, http and command"}
	}
	if len(r.Line) > maxReadyText || !utf8.ValidString(r.Line) || strings.ContainsFunc(r.Line, unicode.IsControl) {
		return bad("line", Quote(r.Line), "must be up to %d bytes of text without control characters", maxReadyText)
	}
	if r.Port < 0 || r.Port > math.MaxUint16 {
		return bad("port", strconv.Itoa(r.Port), "must be 1 to %d", math.MaxUint16)
	}
	if r.HTTP != "" {
		if _, _, err := r.Address(); err != nil {
			return err
		}
	}
	if len(r.Command) > 0 && r.Command[0] == "" {
		return bad("command", `[""]`, "must begin with a program")
	}
	for _, arg := range r.Command {
		if strings.Contains(arg, "\x00") {
			return bad("command", Quote(arg), "must not contain NUL bytes")
		}
	}
	if r.Timeout < 0 || r.Timeout.D() > maxReadyTimeout {
		return bad("timeout", r.Timeout.String(), "must be up to %s", maxReadyTimeout)
	}
	if r.LiveEvery != 0 && (r.LiveEvery.D() < minLiveEvery || r.LiveEvery.D() > maxReadyTimeout) {
		return bad("live_every", r.LiveEvery.String(), "must be %s to %s, or 0 for never", minLiveEvery, maxReadyTimeout)
	}
	if r.LiveEvery != 0 && r.Line != "" {
		return bad("live_every", r.LiveEvery.String(), "needs port, http or command: a line is written only once")
	}
	return nil
}

// Address returns the port and the path of HTTP; the path begins with a slash.
func (r *Ready) Address() (port int, path string, err error) {
	number, path, _ := strings.Cut(r.HTTP, "/")
	port, err = strconv.Atoi(number)
	unprintable := func(c rune) bool { return c <= ' ' || c > '~' }
	if err != nil || port < 1 || port > math.MaxUint16 || len(path) > maxReadyPath || strings.ContainsFunc(path, unprintable) {
		return 0, "", &FieldError{Field: "ready.http", Value: Quote(r.HTTP),
			Rule: fmt.Sprintf("must be PORT/PATH, such as 8080/health: a port from 1 to %d and up to %d bytes of a path, percent-encoded", math.MaxUint16, maxReadyPath)}
	}
	return port, "/" + path, nil
}

// Bounds of restarts.
const (
	defaultRestarts = 5
	maxRestarts     = 100
)

// ParseRestart reads when a managed process is restarted: "" or "no" for never, or
// "on-failure" with ":N" for at most N restarts in a row, 5 if it is absent.
func ParseRestart(text string) (most int, err error) {
	if text == "" || text == "no" {
		return 0, nil
	}
	policy, number, given := strings.Cut(text, ":")
	most = defaultRestarts
	if given {
		most, err = strconv.Atoi(number)
	}
	if policy != "on-failure" || err != nil || most < 1 || most > maxRestarts {
		return 0, &FieldError{Field: "restart", Value: Quote(text), Rule: fmt.Sprintf("must be on-failure, on-failure:N with N from 1 to %d, or no", maxRestarts)}
	}
	return most, nil
}
