package gateway

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/relay"
)

// The phases in which a server can fail.
const (
	PhaseImage     = "image"     // the image of its box is not there
	PhaseInstall   = "install"   // its install step failed
	PhaseStart     = "start"     // its box or its program did not start
	PhaseHandshake = "handshake" // it did not answer initialize
	PhaseTools     = "tools"     // its tools are not those that the configuration pins
	PhaseRun       = "run"       // it runs, and does not keep to the protocol
	PhaseLost      = "lost"      // it ended, or cannot be reached any more
)

// Failure says why a server does not answer. It is the data of an error of JSON-RPC.
type Failure struct {
	Server string `json:"server"`
	Phase  string `json:"phase"`
	Reason string `json:"reason"`
	// How its process ended; empty if it has not.
	Verdict  string `json:"verdict,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	// Stderr is the last lines that it wrote to stderr, and lines of stdout that are no messages.
	Stderr []string `json:"stderr,omitempty"`
	// RetryAfter is in how many seconds it is started again at the earliest; 0: with the next request.
	RetryAfter int `json:"retry_after,omitempty"`
	// Tools is the digest of the tools that were found instead of the pinned ones.
	Tools string `json:"tools,omitempty"`
	// Problem is what the API answered, if that is the reason.
	Problem *apitypes.Problem `json:"problem,omitempty"`
}

func (f *Failure) Error() string {
	text := fmt.Sprintf("server %q: %s: %s", f.Server, f.Phase, f.Reason)
	if len(f.Stderr) > 0 {
		text += "; stderr ends with: " + oneline.Fold(strings.Join(f.Stderr[max(0, len(f.Stderr)-3):], "\n"))
	}
	if f.RetryAfter > 0 {
		text += fmt.Sprintf("; it is started again in %d s at the earliest", f.RetryAfter)
	}
	return text
}

// response returns the answer to a request that f has ended.
func (f *Failure) response(m *message) *message {
	return errorResponse(m.id, rpcError{codeFailed, f.Error(), f})
}

// failed returns err, of the API, as a failure in a phase.
func (s *Server) failed(phase string, err error) *Failure {
	f := &Failure{Server: s.Name, Phase: phase, Reason: oneline.Fold(err.Error())}
	if refused, ok := errors.AsType[*client.Error](err); ok {
		f.Problem = &refused.Problem
		f.RetryAfter = refused.RetryAfter
		for _, c := range refused.Conflicts {
			f.Reason += fmt.Sprintf("; %s is %s and was asked to be %s", c.Field, c.Have, c.Asked)
		}
	}
	return f
}

// isImage reports whether err is about the image of a box.
func isImage(err error) bool {
	return client.IsCode(err, apitypes.CodeImagesDisabled, apitypes.CodeImageNotPresent, apitypes.CodeImageNotFound, apitypes.CodeImageLogin, apitypes.CodeImageDamaged,
		apitypes.CodeImagePlatform, apitypes.CodeImageRefused, apitypes.CodeRegistry)
}

// exited returns the failure of a process that has ended.
func (s *Server) exited(e relay.Exit) *Failure {
	f := &Failure{Server: s.Name, Phase: PhaseLost, Verdict: e.Verdict}
	if e.Verdict == "exited" {
		f.ExitCode = &e.Code
		f.Reason = fmt.Sprintf("its process exited with code %d", e.Code)
	} else {
		f.Reason = "its process ended: " + e.Verdict
	}
	return f
}

// Bounds of what is kept of a server's messages to people.
const (
	maxTail     = 20
	maxTailLine = 500
)

// tail keeps the last lines of a stream.
type tail struct {
	mu   sync.Mutex
	kept []string
	open bool // the last one is not complete
}

// add appends text. prefix is put in front of each line.
func (t *tail) add(prefix string, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for part := range strings.Lines(strings.ToValidUTF8(string(b), "\uFFFD")) {
		line := strings.TrimRight(part, "\r\n")
		if t.open && prefix == "" {
			last := &t.kept[len(t.kept)-1]
			*last += line[:min(len(line), maxTailLine-min(len(*last), maxTailLine))]
		} else if line != "" {
			t.kept = append(t.kept[max(0, len(t.kept)-maxTail+1):], prefix+line[:min(len(line), maxTailLine)])
		}
		t.open = prefix == "" && !strings.HasSuffix(part, "\n") && len(t.kept) > 0
	}
}

func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]string, 0, len(t.kept))
	for _, l := range t.kept {
		out = append(out, strings.ToValidUTF8(oneline.Fold(l), ""))
	}
	return out
}
