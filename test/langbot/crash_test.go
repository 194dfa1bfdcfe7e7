package langbot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// TestKilledAtRandom kills the daemon or its launcher while workspaces do everything at once. Every command
// has its own exit code and output, exactly what the daemon lists is left, and all of it can be deleted.
func TestKilledAtRandom(t *testing.T) {
	rounds := 5
	switch {
	case testing.Short():
		rounds = 3
	case testutil.Full():
		rounds = 30
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := begin(t)
	var ran, lost atomic.Int64
	for range rounds {
		w.round(t, random, &ran, &lost)
		if t.Failed() {
			return
		}
	}
	if ran.Load() == 0 {
		t.Error("no command ended")
	}
	t.Logf("%d commands ended, %d were lost with the daemon", ran.Load(), lost.Load())
	for workspace := range 3 {
		b := w.bot("i", fmt.Sprint("w", workspace))
		b.at.Generation = 1 << 20
		if got := b.call("box_status", object{}); got["active_sessions"] != 0.0 || got["managed_processes"] != 0.0 {
			t.Errorf("%v", got)
		}
	}
	if boxes := w.boxes(); len(boxes) != 0 {
		t.Errorf("boxes %v are left", boxes)
	}
}

// round lets three workspaces work until a process of ours is killed.
func (w *world) round(t *testing.T, random *rand.Rand, ran, lost *atomic.Int64) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for workspace := range 3 {
		b := w.bot("i", fmt.Sprint("w", workspace))
		if got := b.call("box_get_sessions", object{}); len(got["sessions"].([]any)) > 3 {
			t.Errorf("%s", show(got))
		}
		seeds := [2]uint64{random.Uint64(), uint64(workspace)}
		for n := range 2 {
			wg.Go(func() { b.work(ctx, stop, rand.New(rand.NewPCG(seeds[0], seeds[1]+uint64(n)<<8)), ran, lost) })
		}
	}
	before := ran.Load()
	w.await("a command has ended", func() bool { return ran.Load() > before })
	time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) // any moment is a good one
	if random.IntN(3) == 0 {
		for _, pid := range w.Find("launcher") {
			terminate(t, pid)
		}
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
	}
	if err := w.Kill(); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
}

// work does random things until stop, or until the connection is lost.
func (b *bot) work(ctx context.Context, stop <-chan struct{}, random *rand.Rand, ran, lost *atomic.Int64) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-b.Done():
			return
		default:
		}
		session := fmt.Sprint("s", random.IntN(3))
		var err error
		switch random.IntN(6) {
		case 0:
			err = b.Call(ctx, &b.at, "box_delete_session", object{"session_id": session}, nil)
		case 1:
			err = b.Call(ctx, &b.at, "box_start_managed_process", object{"session_id": session, "spec": object{"process_id": fmt.Sprint(random.IntN(2)), "command": "sleep", "args": []string{"1000"}}}, nil)
		case 2:
			err = b.Call(ctx, &b.at, "box_stop_managed_process", object{"session_id": session, "process_id": fmt.Sprint(random.IntN(2))}, nil)
		default:
			err = b.check(ctx, session, random.IntN(256), ran, lost)
		}
		var remote *RemoteError
		if err != nil && !errors.As(err, &remote) && !errors.Is(err, errLost) {
			b.w.t.Errorf("%v", err)
		}
		if remote != nil && !expected(remote.Message) {
			b.w.t.Errorf("%s", remote.Message)
		}
	}
}

// expected are the failures that others' deletions, and a launcher that is gone, explain.
func expected(message string) bool {
	for _, class := range []string{"BoxSessionNotFoundError: ", "BoxManagedProcessNotFoundError: ", "BoxError: ", "BoxBackendUnavailableError: "} {
		if strings.HasPrefix(message, class) {
			return true
		}
	}
	return false
}

// check runs a command whose answer is known.
func (b *bot) check(ctx context.Context, session string, code int, ran, lost *atomic.Int64) error {
	var r result
	word := fmt.Sprintf("%x", rand.Uint64())
	s := spec(session, object{"cmd": fmt.Sprintf("echo %s; echo %s >&2; exit %d", word, word, code)})
	if err := b.Call(ctx, &b.at, "box_exec", s, &r); err != nil {
		lost.Add(1)
		return err
	}
	ran.Add(1)
	if r.Status != "completed" || r.Exit == nil || *r.Exit != code || r.Stdout != word || r.Stderr != word {
		b.w.t.Errorf("want exit %d and %q twice: %v", code, word, r)
	}
	return nil
}
