package volumes

import (
	"errors"
	"fmt"

	"github.com/boxd/boxd/internal/linux"
)

// List returns all volumes, sorted by name. For a volume that cannot be read, the list has only
// the name, and the error says why. The list is complete unless it is nil.
func (s *Store) List() ([]State, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	states := make([]State, 0, len(names))
	var failed []error
	for _, name := range names {
		st, err := s.state(name)
		if errors.Is(err, ErrUnknown) {
			continue // it was removed meanwhile
		}
		if err != nil {
			st = State{Name: name}
			failed = append(failed, fmt.Errorf("volume %q: %w", name, err))
		}
		states = append(states, st)
	}
	return states, errors.Join(failed...)
}

// Get returns volume name. The error is ErrUnknown if there is none.
func (s *Store) Get(name string) (State, error) {
	if err := checkName(name); err != nil {
		return State{}, err
	}
	st, err := s.state(name)
	if err != nil {
		return State{}, fmt.Errorf("volume %q: %w", name, err)
	}
	return st, nil
}

func (s *Store) state(name string) (State, error) {
	defer s.locks.Lock(name)()
	r, err := s.load(name)
	if err != nil {
		return State{}, err
	}
	st := State{Name: name, Bytes: r.Bytes, Inodes: r.Inodes, By: r.By}
	if r.By == ByImage {
		err = s.imageUse(name, r, &st)
	} else {
		var q linux.ProjectQuota
		q, err = linux.GetProjectQuota(s.dir, r.Project)
		st.UsedBytes, st.UsedInodes = int64(q.UsedBytes), int64(q.UsedInodes)
	}
	return st, err
}
