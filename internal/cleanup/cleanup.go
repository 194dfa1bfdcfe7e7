// Package cleanup undoes a multi-step set-up that fails part-way.
//
// A function that acquires several resources pushes one undo step after each,
// defers [Stack.Undo], and releases the stack once every step has succeeded. The
// package is not for tearing down live objects: they have their own Close.
package cleanup

import (
	"errors"
	"slices"
)

// Stack holds the undo steps of the set-up so far. The zero value is an empty
// stack. Only one goroutine may use it.
type Stack struct {
	steps []func() error
}

// Push adds the step that undoes the latest step of the set-up.
func (s *Stack) Push(step func() error) { s.steps = append(s.steps, step) }

// Release drops all steps: the resources now have another owner.
func (s *Stack) Release() { s.steps = nil }

// Undo runs each step once, last one first, and joins their errors to *err,
// which they never replace. After Release it does nothing.
func (s *Stack) Undo(err *error) {
	steps := s.steps
	s.steps = nil
	for _, step := range slices.Backward(steps) {
		if e := step(); e != nil {
			*err = errors.Join(*err, e)
		}
	}
}
