package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/containerd/proto"
	"github.com/boxd/boxd/engine/containerd/standin"
	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/internal/oneline"
)

const (
	// DefaultAddress is where distributions have containerd's socket.
	DefaultAddress = "/run/containerd/containerd.sock"
	// DefaultRuntime is the shim that every containerd has. It runs runc.
	DefaultRuntime = "io.containerd.runc.v2"
)

// Options of an [Engine]. None may be empty.
type Options struct {
	Program  string // path of boxd-containerd
	Address  string // path of containerd's socket
	Runtime  string // name of a runtime of containerd whose shim runs a program like runc
	StateDir string // of the launcher; several launchers may share it
	// Runc returns the path of runc, for containers whose launcher has not said which.
	Runc func() (string, error)
}

// How long containerd may take. Its own work is a matter of milliseconds, but it starts processes,
// and waits for disks.
const (
	stateTime  = 2 * time.Second
	createTime = 15 * time.Second
	removeTime = 3 * time.Second // the removal of a box waits for it
)

// Engine is the launcher's side of containerd. It is safe for concurrent use.
type Engine struct {
	options Options
	works   keyed.Locks // by container: one birth or removal at a time
	starts  sync.Mutex  // held to start a helper

	mu      sync.Mutex
	helper  *helper // the last one started; nil before the first request
	version string  // of its build
	closed  bool
	asked   int                 // how often settling was asked for
	settles bool                // a goroutine does it
	owed    map[string]struct{} // containers that could not be removed when their box was
	closing chan struct{}       // closed by Close
	settled sync.WaitGroup
}

// Dir is the name of the directory of all containers, in the state directory.
const Dir = "containerd"

// New returns an engine. It starts nothing.
func New(o Options) *Engine { return &Engine{options: o, closing: make(chan struct{})} }

func (e *Engine) base() string { return filepath.Join(e.options.StateDir, Dir) }

func (e *Engine) dir(container string) string { return filepath.Join(e.base(), container) }

// identifier is what containerd accepts as an ID, of at most maxIdentifier bytes.
var identifier = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$`)

const maxIdentifier = 76

// ContainerID returns the ID in containerd of a box whose cgroup is called name: name itself, if
// containerd accepts it, or else a hash of it.
func ContainerID(name string) string {
	if len(name) <= maxIdentifier && identifier.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// ownKernels begin the names of runtimes that run a container on a kernel of its own. No process of the
// host can be PID 1 of such a box. They are untested, and refused before anything is asked of them.
var ownKernels = []string{"io.containerd.runsc.", "io.containerd.kata."}

// State asks whether boxes can be built, and returns the version of containerd. Otherwise the
// error is engine.ErrNoEngine with the reason.
func (e *Engine) State(ctx context.Context) (version string, err error) {
	if slices.ContainsFunc(ownKernels, func(prefix string) bool { return strings.HasPrefix(e.options.Runtime, prefix) }) {
		return "", fmt.Errorf("%w: runtime %q of containerd has a kernel of its own, which boxd does not support: name one that runs runc, such as %s", engine.ErrNoEngine, e.options.Runtime, DefaultRuntime)
	}
	// Many hosts have none, which does not take a process to find out.
	if _, err := os.Lstat(e.options.Address); err != nil {
		return "", fmt.Errorf("%w: containerd does not run: %w: start it, or name its socket", engine.ErrNoEngine, err)
	}
	r, err := e.request(ctx, proto.TypeState, proto.Request{Within: stateTime})
	return r.State.Version, err
}

// Stats returns what containerd reports of a box.
func (e *Engine) Stats(ctx context.Context, container string) (proto.Stats, error) {
	r, err := e.request(ctx, proto.TypeStats, proto.Request{Within: stateTime, ID: container})
	if err != nil || r.Stats == nil {
		return proto.Stats{}, errors.Join(err, fmt.Errorf("statistics of container %q: none", container))
	}
	return *r.Stats, nil
}

// Forget removes what containerd has of a box whose processes have ended. It does nothing for a
// box that is not one of containerd's. If containerd does not answer now, the removal is repeated
// in the background until it does, and by later launchers; nothing of the box waits for that.
func (e *Engine) Forget(ctx context.Context, container string) {
	if _, err := os.Lstat(e.dir(container)); errors.Is(err, fs.ErrNotExist) {
		return
	}
	unlock := e.works.Lock(container)
	err := e.forget(ctx, container)
	unlock()
	if err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: container %q of a box that is gone is removed later: %v\n", container, oneline.Error(err))
		e.mu.Lock()
		if e.owed == nil {
			e.owed = map[string]struct{}{}
		}
		e.owed[container] = struct{}{}
		e.mu.Unlock()
		e.Settle()
	}
}

// forget removes a container and its directory. The caller holds its lock.
func (e *Engine) forget(ctx context.Context, container string) error {
	dir := e.dir(container)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := e.request(ctx, proto.TypeRemove, proto.Request{Within: removeTime, ID: container}); err != nil {
		return fmt.Errorf("removing container %q: %w", container, err)
	}
	e.mu.Lock()
	delete(e.owed, container)
	e.mu.Unlock()
	err := os.RemoveAll(dir)
	_ = os.Remove(e.base()) // fails unless it was the last
	return err
}

// placeDir moves dir to where the directory of a container belongs. Other launchers remove the one
// above while it is empty.
func (e *Engine) placeDir(dir, container string) (err error) {
	for range 100 {
		if err = os.MkdirAll(e.base(), 0o700); err == nil {
			err = os.Rename(dir, e.dir(container))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

// Pauses between the attempts of settle.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Settle has the containers of this state directory whose box is gone removed in the background, as
// soon as containerd answers.
func (e *Engine) Settle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked++; e.settles || e.closed {
		return
	}
	e.settles = true
	e.settled.Go(func() {
		for pause := firstPause; ; pause = min(2*pause, lastPause) {
			select {
			case <-e.closing:
				return
			case <-time.After(pause):
			}
			e.mu.Lock()
			asked := e.asked
			e.mu.Unlock()
			if e.settle() != nil {
				continue
			}
			e.mu.Lock()
			e.settles = e.asked != asked
			done := !e.settles
			e.mu.Unlock()
			if done {
				return
			}
		}
	})
}

// settle removes the containers of this state directory whose box is gone: those that have a
// directory, and those that only containerd knows, from before the last boot of the host.
func (e *Engine) settle() error {
	ctx := context.Background()
	listed, err := e.request(ctx, proto.TypeList, proto.Request{Within: removeTime})
	if err != nil {
		return err
	}
	all := map[string]struct{}{}
	for _, id := range listed.IDs {
		all[id] = struct{}{}
	}
	entries, err := os.ReadDir(e.base())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		all[entry.Name()] = struct{}{}
	}
	var errs []error
	for id := range all {
		errs = append(errs, e.settleOne(ctx, id))
	}
	return errors.Join(errs...)
}

func (e *Engine) settleOne(ctx context.Context, container string) error {
	unlock := e.works.Lock(container)
	defer unlock()
	dir := e.dir(container)
	e.mu.Lock()
	_, owed := e.owed[container]
	e.mu.Unlock()
	if _, err := os.Stat(filepath.Join(dir, boxName)); err == nil && !owed {
		return nil // the box is there, or another launcher is about to sweep it
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The shim runs it to delete the container. It is missing if the host's /run was emptied.
	if _, err := os.Lstat(filepath.Join(dir, standin.Name)); errors.Is(err, fs.ErrNotExist) {
		runc, err := e.options.Runc()
		if err != nil {
			return err
		}
		if err := os.Symlink(runc, filepath.Join(dir, standin.Name)); err != nil {
			return err
		}
	}
	return e.forget(ctx, container)
}

// Close ends boxd-containerd. Containers stay as they are.
func (e *Engine) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.closed = true
	close(e.closing)
	h := e.helper
	e.mu.Unlock()
	if h != nil {
		h.end(errClosed)
	}
	e.settled.Wait()
}

var errClosed = fmt.Errorf("%w: the launcher is ending", engine.ErrNoEngine)
