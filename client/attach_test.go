package client

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/boxd/boxd/relay"
)

// What the daemon says to a client that comes again is an Error, as at first.
func TestRefusedWhenComingAgain(t *testing.T) {
	hub := relay.NewHub(relay.Source{Stdout: silent{}, Done: make(chan struct{})}, relay.Options{})
	defer hub.Close()
	var asked atomic.Int32
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		switch asked.Add(1) {
		case 1:
			hub.Serve(w, r, relay.Grant{})
		case 2:
			http.Error(w, `{"code":"shutting_down","status":503,"detail":"soon"}`, http.StatusServiceUnavailable)
		default:
			http.Error(w, `{"code":"output_gone","status":410,"detail":"gone"}`, http.StatusGone)
		}
	})
	var lost []error
	a, err := c.Attach(t.Context(), "a", "p", AttachOptions{Lost: func(err error) { lost = append(lost, err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	go hub.Close()
	if ev, err := a.Recv(); !IsCode(err, "output_gone") {
		t.Errorf("%+v, %v", ev, err)
	}
	if len(lost) != 2 || !IsCode(lost[1], "shutting_down") {
		t.Errorf("lost: %v", lost)
	}
}

// silent is an output to which nothing is written.
type silent struct{}

func (silent) Bounds() (oldest, end int64) { return 0, 0 }

func (silent) ReadAt(ctx context.Context, _ []byte, off int64) (int, int64, error) {
	<-ctx.Done()
	return 0, off, ctx.Err()
}

func (silent) Release(int64) {}
