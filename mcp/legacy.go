package mcp

import (
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of the sessions of revisions up to 2025-11-25. A session of the protocol holds nothing but
// memory here, and a client whose session is gone initializes a new one.
const (
	legacyTimeout = 30 * time.Minute // without a request; an open stream is no use
	maxLegacy     = 4096             // of all tenants
	maxLegacyEach = 512              // of one tenant
)

// legacySessions are the sessions of the protocol: whose they are, and when they were used. The SDK
// keeps the rest. If there are too many, the one that was not used for the longest time ends.
type legacySessions struct {
	mu   sync.Mutex
	byID map[string]*legacySession
	each map[string]int // by tenant; no entry means none
}

type legacySession struct {
	owner, tenant string
	server        *sdk.Server
	used          time.Time
	active        int // requests in progress
}

func newLegacySessions() *legacySessions {
	return &legacySessions{byID: map[string]*legacySession{}, each: map[string]int{}}
}

// add records a new session with one request in progress. It reports false if there are too many
// sessions, all with requests in progress.
func (l *legacySessions) add(id string, q *request) bool {
	l.mu.Lock()
	now := time.Now()
	tenant := q.caller.Tenant
	for other, s := range l.byID {
		if s.active == 0 && now.Sub(s.used) > legacyTimeout { // the SDK has ended it
			l.dropLocked(other, s)
		}
	}
	var victims []*legacySession
	var victimIDs []string
	for l.each[tenant] >= maxLegacyEach || len(l.byID) >= maxLegacy {
		only := ""
		if l.each[tenant] >= maxLegacyEach {
			only = tenant
		}
		oldest := ""
		for other, s := range l.byID {
			if s.active == 0 && (only == "" || s.tenant == only) && (oldest == "" || s.used.Before(l.byID[oldest].used)) {
				oldest = other
			}
		}
		if oldest == "" {
			break
		}
		victims, victimIDs = append(victims, l.byID[oldest]), append(victimIDs, oldest)
		l.dropLocked(oldest, l.byID[oldest])
	}
	room := l.each[tenant] < maxLegacyEach && len(l.byID) < maxLegacy
	s := &legacySession{owner: q.owner(), tenant: tenant, server: q.server, used: now, active: 1}
	if room {
		l.byID[id] = s
		l.each[tenant]++
	}
	l.mu.Unlock()
	for i, v := range victims {
		v.close(victimIDs[i])
	}
	if !room {
		go s.close(id) // not here: the SDK is answering
	}
	return room
}

func (l *legacySessions) dropLocked(id string, s *legacySession) {
	delete(l.byID, id)
	if l.each[s.tenant]--; l.each[s.tenant] == 0 {
		delete(l.each, s.tenant)
	}
}

// use begins a request. It reports whether the caller has such a session. The caller calls release.
func (l *legacySessions) use(id string, q *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.byID[id]
	if s == nil || s.owner != q.owner() {
		return false
	}
	s.active++
	return true
}

// release ends a request. ended means that the session has ended, too.
func (l *legacySessions) release(id string, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.byID[id]
	if s == nil {
		return
	}
	s.active--
	s.used = time.Now()
	if ended {
		l.dropLocked(id, s)
	}
}

// closeAll ends all sessions.
func (l *legacySessions) closeAll() {
	l.mu.Lock()
	all := l.byID
	l.byID, l.each = map[string]*legacySession{}, map[string]int{}
	l.mu.Unlock()
	for id, s := range all {
		s.close(id)
	}
}

// close ends the session in the SDK.
func (s *legacySession) close(id string) {
	for one := range s.server.Sessions() {
		if one.ID() == id {
			one.Close() // its requests have ended, and nobody can use it any more
			return
		}
	}
}
