package oneshot

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
)

// Find returns the socket of the daemon to ask. named is what the user names, or empty: then it is that of
// the environment or the default one, of which checked says that its owner has to be checked. An error of type *[Unused]
// says why no daemon is asked.
func Find(named string, lookup func(string) (string, bool)) (socket string, checked bool, err error) {
	if named != "" {
		return named, false, nil
	}
	get := func(name string) string { value, _ := lookup(name); return value }
	for _, name := range []string{"BOXD_INIT", "BOXD_STATE_DIR"} {
		if get(name) != "" {
			return "", false, &Unused{Reason: name + " is for a launcher of boxd run itself", Absent: true}
		}
	}
	switch socket = get("BOXD_SOCKET"); {
	case socket != "":
		return socket, false, nil
	case get("BOXD_URL") != "":
		return "", false, unused("BOXD_URL names a daemon, to which no descriptors can be passed")
	}
	return DefaultSocket, true, nil
}

// Request completes q, which has everything but the box, with the box. It leaves no setting to the daemon. An error of
// type *[Unused] says why no daemon can have it: a daemon has mount roots, images, a network and engines of its own.
func Request(s *spec.Spec, q apitypes.RunRequest) (*apitypes.RunRequest, error) {
	own := func(what string) error { return unused("%s needs a launcher of boxd run itself", what) }
	switch {
	case s.Image != spec.HostImage || len(s.Layers) > 0:
		return nil, own("an image")
	case len(s.Mounts) > 0:
		return nil, own("a mount or a workspace")
	case s.Engine != spec.EngineNative || s.Isolation != spec.IsolationNamespaces:
		return nil, own("another engine or isolation")
	}
	for _, text := range slices.Concat(q.Argv, []string{q.Cwd}) {
		if !utf8.ValidString(text) { // which JSON would change
			return nil, own("text that is not UTF-8")
		}
	}
	for name, value := range q.Env {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, own("text that is not UTF-8")
		}
	}
	memory, tmp, upper := spec.Size(s.Limits.Memory), spec.Size(s.TmpSize), spec.Size(s.UpperSize)
	b := &q.Box
	b.Engine, b.Isolation, b.Hostname, b.User = &s.Engine, &s.Isolation, s.Hostname, &s.User
	b.CPUs, b.PIDs, b.Memory, b.TmpSize, b.WritableRoot = &s.Limits.CPUs, &s.Limits.PIDs, &memory, &tmp, &s.WritableRoot
	if s.WritableRoot {
		b.UpperSize = &upper
	}
	return &q, nil
}

// SortEnv sorts variables by name, as a daemon does, so that the environment of a command is in the same order
// whoever runs it.
func SortEnv(env []string) {
	slices.SortStableFunc(env, func(a, b string) int {
		a, _, _ = strings.Cut(a, "=")
		b, _, _ = strings.Cut(b, "=")
		return strings.Compare(a, b)
	})
}

// Env returns variables in the form of the API.
func Env(list []string) map[string]string {
	var env map[string]string
	for _, kv := range list {
		if env == nil {
			env = map[string]string{}
		}
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return env
}

// StatusFailed is the exit status of boxd run when boxd itself has failed.
const StatusFailed = 125

// FailureStatus returns the exit status of boxd run after a daemon has answered with a problem of that code. anywhere
// means that the command cannot be started, by whomever, so that nobody else need try.
func FailureStatus(code string) (status int, anywhere bool) {
	switch code {
	case apitypes.CodeProgramNotFound:
		return 127, true
	case apitypes.CodeProgramNotExecutable:
		return 126, true
	case apitypes.CodeNoDirectory:
		return StatusFailed, true
	}
	return StatusFailed, false
}

// canceled is the verdict of a command that boxd itself has ended.
const canceled = "canceled"

// Status returns the exit status of boxd run after a command that ended with a verdict and a status. sig is the first
// signal that boxd has received, or 0.
func Status(verdict string, status int, sig syscall.Signal) int {
	if sig != 0 && verdict == canceled {
		return 128 + int(sig)
	}
	return status
}

// Ending returns the line that tells people how a command ended; empty if it simply exited. It is printable,
// whatever a daemon says. kills may be nil.
func Ending(verdict, limit string, kills *int64) string {
	switch {
	case verdict != "exited" && verdict != "signaled":
		if limit != "" {
			return oneline.Printable(fmt.Sprintf("verdict: %s (limit %s)", verdict, limit))
		}
		return oneline.Printable("verdict: " + verdict)
	case kills != nil && *kills > 0: // one of its processes was killed, and the command coped with that
		return fmt.Sprintf("memory limit reached, kills: %d", *kills)
	}
	return ""
}
