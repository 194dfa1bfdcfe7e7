package langbot

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"golang.org/x/sys/unix"
)

// configFile writes a configuration that anybody may read.
func configFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "boxd.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// raw is JSON that is sent as it is.
func raw(text string) json.RawMessage { return json.RawMessage(text) }

func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, os.ErrNotExist)
}

// native makes a session through the daemon's own door; the function that it returns
// says whether it is still there.
func (w *world) native(id string) func() bool {
	w.t.Helper()
	if _, err := w.api.Ensure(w.t.Context(), apitypes.SessionRequest{ID: id}); err != nil {
		w.t.Fatal(err)
	}
	return func() bool {
		_, err := w.api.Session(w.t.Context(), id)
		return err == nil
	}
}

// asOwner calls fn with the file system rights of the user that LangBot runs as.
func asOwner(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setfsgid(sharedOwner); err != nil {
			result <- err
			return
		}
		if err := unix.Setfsuid(sharedOwner); err != nil {
			result <- err
			return
		}
		result <- fn()
	}()
	return <-result
}

// watch returns a channel that is closed at the next event of a type, of any tenant.
func (w *world) watch(kind string) <-chan struct{} {
	w.t.Helper()
	e, err := w.every.Events(w.t.Context(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { e.Close() })
	seen := make(chan struct{})
	go func() {
		for {
			event, err := e.Next()
			if err != nil {
				return
			}
			if event.Type == kind {
				close(seen)
				return
			}
		}
	}()
	return seen
}

// within waits for c to be closed.
func within(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("gave up waiting until %s", what)
	}
}

// boxes lists the boxes of the door's sessions.
func (w *world) boxes() (ids []string) {
	w.t.Helper()
	list, err := w.every.Sessions(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range list {
		if s.Tenant == "langbot" && s.Box != "" {
			ids = append(ids, s.Box)
		}
	}
	return ids
}

// get asks the door by HTTP, and decodes the answer if out is not nil.
func (w *world) get(path string, out any) int {
	w.t.Helper()
	answer, err := http.Get(strings.Replace(w.dialer().Base, "ws://", "http://", 1) + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	if out != nil {
		if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
			w.t.Fatal(err)
		}
	}
	return answer.StatusCode
}

// terminate kills a process and waits until it is gone.
func terminate(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000); err != nil && err != unix.EINTR {
		t.Error(err)
	}
}

func readLog(w *world) (string, error) {
	b, err := os.ReadFile(w.Log())
	return string(b), err
}

// write makes a file of the user that LangBot runs as.
func write(t *testing.T, name, content string) {
	t.Helper()
	if err := asOwner(func() error { return os.WriteFile(name, []byte(content), 0o644) }); err != nil {
		t.Fatal(err)
	}
}
