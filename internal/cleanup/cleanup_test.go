package cleanup

import (
	"errors"
	"slices"
	"testing"
)

func TestUndo(t *testing.T) {
	cause, second := errors.New("cause"), errors.New("second")
	var got []int
	var s Stack
	s.Push(func() error { got = append(got, 1); return nil })
	s.Push(func() error { got = append(got, 2); return second })
	err := cause
	s.Undo(&err)
	s.Undo(&err)
	if !slices.Equal(got, []int{2, 1}) {
		t.Errorf("steps ran as %v, want the last one first, each once", got)
	}
	if !errors.Is(err, cause) || !errors.Is(err, second) {
		t.Errorf("error %v, want both", err)
	}
}

func TestRelease(t *testing.T) {
	var s Stack
	s.Push(func() error { t.Error("a released step ran"); return nil })
	s.Release()
	var err error
	s.Undo(&err)
	if err != nil {
		t.Error(err)
	}
}
