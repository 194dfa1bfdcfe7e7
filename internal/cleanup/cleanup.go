// Package cleanup undoes set-up of several steps that fails part-way.
//
// A function that acquires several things pushes one undo step after each,
// defers [Stack.Undo], and releases the stack once all of it succeeded. It is
// not for tearing down live objects: those have a Close of their own.
package cleanup

import "errors"

// Stack holds the undo steps of what was done so far. The zero value is empty.
// It is used by one goroutine.
type Stack struct {
	steps []func() error
}

// Push adds the step that undoes what was just done.
func (s *Stack) Push(step func() error) { s.steps = append(s.steps, step) }

// Release drops all steps: what was done is now owned by someone else.
func (s *Stack) Release() { s.steps = nil }

// Undo runs the steps, last one first, each once, and joins their errors to
// *err, which they never replace. It does nothing after Release.
func (s *Stack) Undo(err *error) {
	for len(s.steps) > 0 {
		last := len(s.steps) - 1
		step := s.steps[last]
		s.steps = s.steps[:last]
		if e := step(); e != nil {
			*err = errors.Join(*err, e)
		}
	}
}
