package api

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

// watching is a watch whose changes are awaited one after the other.
type watching struct {
	t       *testing.T
	changes chan apitypes.FileChange // closed at the end
	end     chan error
	stop    context.CancelFunc
}

func startWatch(t *testing.T, c *client.Client, dir string, o client.WatchOptions) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{t: t, changes: make(chan apitypes.FileChange, 1000), end: make(chan error, 1), stop: cancel}
	go func() {
		w.end <- c.WatchFiles(ctx, "a", dir, o, func(change apitypes.FileChange) error { w.changes <- change; return nil })
		close(w.changes)
	}()
	w.await("ready ")
	return w
}

// await waits for a change "type path", and passes over others.
func (w *watching) await(want string) {
	w.t.Helper()
	var seen []string
	deadline := time.After(20 * time.Second)
	for {
		select {
		case change, ok := <-w.changes:
			if !ok {
				w.t.Fatalf("ended before %q: %v; %q", want, <-w.end, seen)
			}
			path := change.Path
			if len(change.RawPath) > 0 {
				path = string(change.RawPath)
			}
			got := change.Type + " " + path
			if got == want {
				return
			}
			seen = append(seen, got)
		case <-deadline:
			w.t.Fatalf("no %q in %q", want, seen)
		}
	}
}

func TestWatch(t *testing.T) {
	f := serve(t, nil)
	c := f.client()
	ensure(t, c, "a")
	dir := t.TempDir()
	growTree(t, dir, "sub/deep/ ", "here H")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w := startWatch(t, c, dir, client.WatchOptions{Recursive: true})
	must(os.WriteFile(dir+"/new\xff", []byte("x"), 0o600))
	w.await("created new\xff")
	w.await("modified new\xff")
	must(os.Chmod(dir+"/here", 0o600))
	w.await("attributes here")
	must(os.WriteFile(dir+"/sub/deep/f", []byte("x"), 0o600))
	w.await("created sub/deep/f")
	must(os.MkdirAll(dir+"/a/b/c", 0o700))
	must(os.WriteFile(dir+"/a/b/c/f", nil, 0o600))
	w.await("created a/b/c/f") // whether it was made before its directory was watched or after
	must(os.Rename(dir+"/a/b", dir+"/moved"))
	w.await("removed a/b")
	w.await("created moved/c/f")
	must(os.WriteFile(dir+"/moved/c/f", []byte("more"), 0o600))
	w.await("modified moved/c/f")
	must(os.RemoveAll(dir + "/moved"))
	w.await("removed moved")
	must(os.Symlink("/etc", dir+"/link")) // is not followed
	w.await("created link")

	some := startWatch(t, c, dir, client.WatchOptions{Globs: []string{"*.png"}})
	growTree(t, dir, "sub/x.png X", "a.txt T", "b.png B")
	select {
	case change := <-some.changes:
		if change.Type != "created" || change.Path != "b.png" {
			t.Errorf("%+v", change)
		}
	case err := <-some.end:
		t.Error(err)
	}
	some.stop()
	if err := <-some.end; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(os.RemoveAll(dir))
	w.await("gone ")
	if err := <-w.end; err != nil {
		t.Error(err)
	}
	for what, code := range map[string]string{"/none": apitypes.CodeNoFile, "/f": apitypes.CodeFileType} {
		growTree(t, dir, "f F")
		if err := c.WatchFiles(t.Context(), "a", dir+what, client.WatchOptions{}, nil); !client.IsCode(err, code) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.WatchFiles(t.Context(), "a", dir, client.WatchOptions{Globs: []string{"["}}, nil); !client.IsCode(err, apitypes.CodeInvalid) {
		t.Error(err)
	}
	// The command in the box ends with the client.
	for {
		select {
		case args := <-f.engine.killed:
			if strings.HasPrefix(args, "watch ") {
				return
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the watch goes on without its client")
		}
	}
}
