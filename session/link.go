package session

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine/spec"
)

// Links to ports of a session are signed and checked outside of this package, for a number of the
// session: its links are valid for as long as the number stays the same.

// LinkNumber returns the number of session key for which links are made; 0: no link is valid. It waits
// for nothing, so that strangers do not learn by the time it takes which sessions there are.
func (m *Manager) LinkNumber(key Key) (uint64, error) {
	s, err := m.find(key)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mayHaveNetworkLocked() != nil {
		return 0, nil // its links open nothing
	}
	return s.record.Links, nil
}

// MakeLink admits a caller to make a link to a port that expires at a time, and returns the number
// for which it is made. Nobody, not even a trusted caller, makes links to a session that may not have
// a network, and links made before it became sensitive do not count; see [Manager.MayHaveNetwork].
func (m *Manager) MakeLink(c Caller, key Key, port int, expires time.Time) (number uint64, err error) {
	if err := m.enter(); err != nil {
		return 0, err
	}
	defer m.wg.Done()
	s, err := m.findSettled(key)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	err = s.mayHaveNetworkLocked()
	s.mu.Unlock()
	if err == nil {
		err = spec.CheckBoxPort("port", port)
	}
	if err != nil {
		m.deny(c, key, "link", err)
		return 0, err
	}
	details := (&Visit{Port: port, Link: 1, Expires: expires}).details()
	if err := m.audit(c, key, audit.Entry{Action: "link", Decision: audit.Allow, Details: details}); err != nil {
		return 0, err
	}
	s.mu.Lock()
	if number = s.record.Links; number != 0 {
		s.mu.Unlock()
		return number, nil
	}
	return s.renumberLinks()
}

// RevokeLinks makes all links to ports of session key invalid, and ends what they have opened before
// it returns.
func (m *Manager) RevokeLinks(c Caller, key Key) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.wg.Done()
	s, err := m.findSettled(key)
	if err != nil {
		return err
	}
	if err := m.audit(c, key, audit.Entry{Action: "revoke-links", Decision: audit.Allow}); err != nil {
		return err
	}
	s.mu.Lock()
	if s.record.Links == 0 {
		s.mu.Unlock()
		return nil
	}
	_, err = s.renumberLinks()
	s.cutVisits()
	return err
}

// renumberLinks replaces the number of the links. If that cannot be recorded, links made earlier are
// invalid for this manager only. The caller holds s.mu, which renumberLinks unlocks.
func (s *session) renumberLinks() (number uint64, err error) {
	if s.record.Generation == 0 || s.erased || s.gone {
		s.mu.Unlock()
		return 0, fmt.Errorf("session %q is being created or removed: %w", s.key.ID, ErrState)
	}
	var b [8]byte
	rand.Read(b[:]) // never fails
	s.record.Links = max(1, binary.BigEndian.Uint64(b[:]))
	number = s.record.Links
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	return number, write.wait()
}
