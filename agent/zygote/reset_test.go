package zygote

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReset: a zygote that dies with a request unread has ended, and one that does not answer is late.
func TestReset(t *testing.T) {
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ours)
	if _, err := Fork(ours, time.Millisecond); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("a zygote that says nothing: %v", err)
	}
	unix.Close(theirs)
	if _, err := Fork(ours, time.Second); !errors.Is(err, ErrEnded) {
		t.Errorf("a zygote that has died: %v", err)
	}
	ours, theirs, err = Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ours)
	if err := newConn(ours, time.Second).send([]byte("spare"), nil); err != nil {
		t.Fatal(err)
	}
	unix.Close(theirs)
	if line, err := newConn(ours, time.Second).receiveLine(); line != "" || !errors.Is(err, ErrEnded) {
		t.Errorf("%q, %v, want that it has ended", line, err)
	}
}
