package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/policy"
)

// Sensitivity is a one-way street. A session becomes sensitive when a request says so, when it
// gives up its network, and before it gets anything that is sensitive: a mount root that the
// operator has named, a named volume, a directory of the host that a sensitive session can
// write to, or a copy of files of a sensitive session. From then on it has no network. What a
// sensitive session can write to becomes sensitive as well, and so do the other sessions that
// have it.
//
// Each of these is on disk before the data can be seen: [session.makeSensitive] waits for the
// records before the box is built or changed. In memory they are set first, and never taken
// back, even if a record cannot be written.

// sensitivity holds the sensitive volumes and paths. Records of sessions say it themselves.
type sensitivity struct {
	mu      sync.Mutex                 // before Manager.mu and session.mu
	volumes map[string]spec.Sensitive  // named volumes, by ID
	paths   map[string]sensitiveRecord // by place, see placeOf; none lies in another
	copies  map[copying]int            // copies of files under way
}

// copying is data on its way from one session to another.
type copying struct{ from, to *session }

// sensitiveRecord is a sensitive volume or path of the host as stored in the database.
type sensitiveRecord struct {
	Volume string `json:"volume,omitempty"` // ID of a named volume, or
	Path   string `json:"path,omitempty"`   // see placeOf
	Tenant string `json:"tenant,omitempty"` // of the session that made Path sensitive
	spec.Sensitive
}

func (r *sensitiveRecord) key() []byte {
	if r.Volume != "" {
		return []byte("volume/" + r.Volume)
	}
	return []byte("path/" + r.Path)
}

func (r *sensitiveRecord) put() change { return change{sensitiveBucket, r.key(), encode(r)} }

func decodeSensitive(key, value []byte) (r sensitiveRecord, err error) {
	if err = decode(value, &r); err == nil && (string(r.key()) != string(key) || r.Volume == "" && !strings.HasPrefix(r.Path, "/") && !strings.HasPrefix(r.Path, "volume:")) {
		err = errors.New("belongs to something else")
	}
	if err != nil {
		return r, fmt.Errorf("record of a sensitive volume or path %q: %w", key, err)
	}
	return r, nil
}

// maxSensitivePaths bounds the paths that sessions of one tenant can make sensitive.
const maxSensitivePaths = 1000

// Reasons.
const (
	askedFor   = "a request asked for it"
	networkOff = "its network was given up"
	lostRecord = "a record that was lost may have said so"
)

// asksSensitive returns why the request itself makes its session sensitive; empty if it does
// not, or its profile forbids that. The default of a profile counts only for new sessions, as
// with other settings.
func (a *asked) asksSensitive() string {
	if a == nil || a.request.Sensitive == nil || !*a.request.Sensitive || !a.resolved.Sensitive {
		return ""
	}
	return askedFor
}

// MayHaveNetwork returns nil if session key may ever have a network, and otherwise the reason
// why not. Whatever leads into or out of a box asks this: a network, and the previews and
// forwarded ports of people other than operators.
func (m *Manager) MayHaveNetwork(key Key) error {
	s, err := m.find(key)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayHaveNetworkLocked()
}

func (s *session) mayHaveNetworkLocked() error {
	if why := s.record.Sensitive; why != nil {
		return &policy.DeniedError{Field: "network", Value: "true",
			Rule: fmt.Sprintf("session %q is sensitive since %s, for good: %s", s.key.ID, why.Since.Format(time.RFC3339), why.Reason)}
	}
	return s.m.policy.MayHaveNetwork(s.record.Resolved)
}

// makeSensitive is called before the session gets mounts, in addition to those that it has, and
// with the reason why it becomes sensitive in any case; empty: it does not. When it returns nil,
// the session and whatever it can write to are sensitive on disk if they have to be. The
// caller holds the op, and has claimed the volumes.
func (s *session) makeSensitive(c Caller, mounts []engine.Mount, reason string) error {
	m := s.m
	s.mu.Lock()
	// A call that makes one of these sensitive from now on finds this session; see settleVolumes.
	s.coming = without(mounts, s.record.Resolved.Mounts)
	has, already := s.record.Resolved.Mounts, s.record.Sensitive != nil
	s.mu.Unlock()
	m.sensitive.mu.Lock()
	for _, d := range mounts {
		if m.avoidsLinksLocked(s.key.Tenant, d) && d.NoLinks != d.Within {
			m.sensitive.mu.Unlock()
			return fmt.Errorf("mount %s: a path in the same mount root has just become sensitive, retry: %w", spec.QuotePath(d.Source), ErrState)
		}
	}
	if !already && reason == "" {
		reason = m.whyLocked(mounts)
	}
	var err error
	if already || reason != "" && reason != networkOff { // which is never refused
		err = m.checkPathsLocked(s.key.Tenant, slices.Concat(has, mounts))
	}
	m.sensitive.mu.Unlock()
	if err != nil || !already && reason == "" {
		return err
	}
	if !already {
		if err := m.audit(c, s.key, audit.Entry{Action: "sensitive", Decision: audit.Allow, Reason: reason}); err != nil {
			return err
		}
	}
	return m.ratchet(c, func(r *ratchet) { r.session(s, reason) })
}

// whyLocked returns why one of mounts is sensitive; empty if none is.
func (m *Manager) whyLocked(mounts []engine.Mount) string {
	for _, d := range mounts {
		switch _, sensitive := m.sensitive.volumes[d.Volume]; {
		case sensitive:
			name := d.Volume
			if r, ok := m.named.record(d.Volume); ok {
				name = r.Name
			}
			return fmt.Sprintf("volume %q is sensitive", name)
		case m.placeOf(d) == "":
			continue
		}
		if root := m.policy.SensitiveRoot(m.placeOf(d)); root != "" {
			return fmt.Sprintf("%q is a sensitive mount root", root)
		}
		for path := range m.sensitive.paths {
			if pathin.Overlap(path, m.placeOf(d)) {
				return fmt.Sprintf("a sensitive session could write to %q", path)
			}
		}
	}
	return ""
}

// avoidLinks lets the engine refuse sources with a symlink below a mount root in which a session
// of the tenant has made a path sensitive: a box may have made the link, and it would lead
// there under another name.
func (m *Manager) avoidLinks(tenant string, mounts []engine.Mount) {
	if len(mounts) == 0 {
		return
	}
	m.sensitive.mu.Lock()
	defer m.sensitive.mu.Unlock()
	for i, d := range mounts {
		if m.avoidsLinksLocked(tenant, d) {
			mounts[i].NoLinks = d.Within
		}
	}
}

func (m *Manager) avoidsLinksLocked(tenant string, d engine.Mount) bool {
	if place := m.placeOf(d); d.Within == "" || place == "" || m.isPathLocked(place) {
		return false
	}
	for path, r := range m.sensitive.paths {
		if r.Tenant == tenant && pathin.In(path, d.Within) {
			return true
		}
	}
	return false
}

// placeOf returns what d shares with other sessions, if that is no named volume: a path of the
// host, or volume:NAME/path in a volume of boxd's own, such as a skill. It is empty for the
// session's own workspace.
func (m *Manager) placeOf(d engine.Mount) string {
	switch {
	case policy.IsVolumeID(d.Volume), isVolumeName(d.Volume), d.Volume == "" && pathin.In(d.Source, m.workspaces.Root()):
		return ""
	case d.Volume != "":
		return "volume:" + d.Volume + d.Source
	}
	return d.Source
}

// has reports whether d shares path, a part of it, or something around it.
func (m *Manager) has(d engine.Mount, path string) bool {
	place := m.placeOf(d)
	return place != "" && pathin.Overlap(place, path)
}

// checkPathsLocked refuses mounts that would make too many paths sensitive.
func (m *Manager) checkPathsLocked(tenant string, mounts []engine.Mount) error {
	more := map[string]bool{}
	for _, d := range mounts {
		path := m.placeOf(d)
		if d.ReadOnly || path == "" || m.isPathLocked(path) {
			continue
		}
		if more[path] = true; m.sensitive.pathsOf(tenant)+len(more) > maxSensitivePaths {
			return &policy.DeniedError{Field: "mounts", Value: spec.Quote(d.Source), Rule: fmt.Sprintf(
				"sensitive sessions of the tenant can write to %d paths, which is the most: mount it read-only, or have an administrator forget paths that were emptied", maxSensitivePaths)}
		}
	}
	return nil
}

// pathsOf counts the paths that sessions of tenant have made sensitive.
func (n *sensitivity) pathsOf(tenant string) (count int) {
	for _, r := range n.paths {
		if r.Tenant == tenant {
			count++
		}
	}
	return count
}

// isPathLocked reports whether all of path is sensitive.
func (m *Manager) isPathLocked(path string) bool {
	for root := range m.sensitive.paths {
		if pathin.In(path, root) {
			return true
		}
	}
	root := m.policy.SensitiveRoot(path)
	return root != "" && pathin.In(path, root)
}

// ratchet calls begin, which makes something sensitive, goes on with everything that data can
// flow to from there, and waits until all of it is on disk.
func (m *Manager) ratchet(c Caller, begin func(*ratchet)) error {
	r := ratchet{m: m, at: time.Now().Round(0)}
	m.sensitive.mu.Lock()
	begin(&r)
	for len(r.queue) > 0 {
		next := r.queue[0]
		r.queue = r.queue[1:]
		r.session(next.s, next.reason)
	}
	m.sensitive.mu.Unlock()
	var cutting sync.WaitGroup
	for _, t := range r.turned {
		cutting.Go(t.s.cutVisits)
	}
	cutting.Wait()
	var errs []error
	for _, w := range r.writes {
		errs = append(errs, w.wait())
	}
	for _, t := range r.turned {
		t.s.reportUnpublished(c, t.closed, "the session is sensitive: "+t.reason)
		if t.made { // otherwise the event of its creation says it
			t.s.publish(EventSensitive, c, "", map[string]any{"reason": t.reason})
		}
		_ = m.audit(c, t.s.key, audit.Entry{Action: "sensitive", Decision: audit.Done, Reason: t.reason}) // reports its error
	}
	for _, v := range r.marked {
		tenant, details := v.Tenant, map[string]any{"path": v.Path}
		if named, ok := m.named.record(v.Volume); ok {
			tenant, details = named.Tenant, map[string]any{"volume": named.Name}
			m.publish(Event{Type: EventVolumeMarked, Tenant: tenant, Request: c.Request, Details: map[string]any{"volume": named.Name, "reason": v.Reason}})
		}
		_ = m.audit(c, Key{Tenant: tenant}, audit.Entry{Action: "sensitive", Decision: audit.Done, Reason: v.Reason, Details: details}) // reports its error
	}
	return errors.Join(errs...)
}

// ratchet is what becomes sensitive at once. Its methods need sensitivity.mu.
type ratchet struct {
	m      *Manager
	at     time.Time
	queue  []turn
	writes []*pending
	turned []turn
	marked []sensitiveRecord
}

// turn is a session that becomes sensitive, and why.
type turn struct {
	s      *session
	reason string
	made   bool // it has had a box
	closed []*publishedPort
}

// session makes s sensitive, and whatever it can write to.
func (r *ratchet) session(s *session, reason string) {
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return
	}
	if s.record.Sensitive == nil {
		s.record.Sensitive = &spec.Sensitive{Since: r.at, Reason: reason}
		// Under s.mu: for all who see that it is sensitive, no port leads into it.
		r.turned = append(r.turned, turn{s, reason, s.made, s.unpublishLocked()})
		s.record.Published = nil
		if s.record.Generation > 0 && !s.erased { // otherwise its record is not written, or with its first box
			r.writes = append(r.writes, r.m.store.enqueue(s.putLocked()...))
		}
		if s.proxy != nil { // the disk writes the record meanwhile
			s.proxy.Shut() // under s.mu: for all who see that it is sensitive, it has no network
		}
	}
	mounts := s.mountsLocked()
	s.mu.Unlock()
	for _, d := range mounts {
		switch {
		case d.ReadOnly:
		case policy.IsVolumeID(d.Volume):
			r.volume(d.Volume, fmt.Sprintf("session %q, which is sensitive, can write to it", s.key.ID))
		case r.m.placeOf(d) != "":
			r.path(d, s.key)
		}
	}
	for f := range r.m.sensitive.copies {
		if f.from == s && !f.to.isSensitive() {
			r.queue = append(r.queue, turn{s: f.to, reason: copiedFrom(s)})
		}
	}
}

func copiedFrom(s *session) string {
	return fmt.Sprintf("files were copied from session %q, which is sensitive", s.key.ID)
}

// volume makes a named volume sensitive, and the sessions that have it.
func (r *ratchet) volume(id, reason string) {
	if _, done := r.m.sensitive.volumes[id]; done {
		return
	}
	record := sensitiveRecord{Volume: id, Sensitive: spec.Sensitive{Since: r.at, Reason: reason}}
	r.m.sensitive.volumes[id] = record.Sensitive
	r.mark(record)
	for _, s := range r.m.all("") {
		r.reach(s, func(d engine.Mount) bool { return d.Volume == id })
	}
}

// path makes the path of d sensitive, and the sessions that have a mount of it, in it or around
// it. If the tenant has too many, as after its sessions gave up their networks, it is all of the
// mount root or volume.
func (r *ratchet) path(d engine.Mount, writer Key) {
	path := r.m.placeOf(d)
	if r.m.isPathLocked(path) {
		return
	}
	if r.m.sensitive.pathsOf(writer.Tenant) >= maxSensitivePaths {
		d.Source = cmp.Or(d.Within, "/")
		path = r.m.placeOf(d)
	}
	for inner, old := range r.m.sensitive.paths {
		if pathin.In(inner, path) {
			delete(r.m.sensitive.paths, inner)
			r.writes = append(r.writes, r.m.store.enqueue(change{sensitiveBucket, old.key(), nil}))
		}
	}
	record := sensitiveRecord{Path: path, Tenant: writer.Tenant,
		Sensitive: spec.Sensitive{Since: r.at, Reason: fmt.Sprintf("session %q of tenant %q, which is sensitive, can write to it", writer.ID, writer.Tenant)}}
	r.m.sensitive.paths[path] = record
	r.mark(record)
	for _, s := range r.m.all("") {
		r.reach(s, func(d engine.Mount) bool { return r.m.has(d, path) })
	}
}

func (r *ratchet) mark(record sensitiveRecord) {
	r.marked = append(r.marked, record)
	r.writes = append(r.writes, r.m.store.enqueue(record.put()))
}

// reach queues s if it has a mount that has just become sensitive.
func (r *ratchet) reach(s *session, became func(engine.Mount) bool) {
	s.mu.Lock()
	mounts, already := s.mountsLocked(), s.record.Sensitive != nil
	s.mu.Unlock()
	if !already && slices.ContainsFunc(mounts, became) {
		r.queue = append(r.queue, turn{s: s, reason: r.m.whyLocked(mounts)})
	}
}

// mountsLocked returns the mounts that the session has or is about to get. One that stays for
// its workspace gets its mounts when it is revived.
func (s *session) mountsLocked() []engine.Mount {
	if s.record.Retained != nil && s.record.State != Stopping {
		return s.coming
	}
	return slices.Concat(s.record.Resolved.Mounts, s.record.Attaching, s.coming)
}

// Copying is called before files are copied from session from to session to, and makes to
// sensitive if from is, or becomes so before the caller calls done.
func (m *Manager) Copying(c Caller, from, to Key) (done func(), err error) {
	source, err := m.find(from)
	if err != nil {
		return nil, err
	}
	target, err := m.find(to)
	if err != nil || source == target {
		return func() {}, err
	}
	f := copying{source, target}
	m.sensitive.mu.Lock()
	m.sensitive.copies[f]++
	m.sensitive.mu.Unlock()
	done = func() {
		m.sensitive.mu.Lock()
		defer m.sensitive.mu.Unlock()
		if m.sensitive.copies[f]--; m.sensitive.copies[f] == 0 {
			delete(m.sensitive.copies, f)
		}
	}
	if !source.isSensitive() || target.isSensitive() {
		return done, nil
	}
	reason := copiedFrom(source)
	if err = m.audit(c, to, audit.Entry{Action: "sensitive", Decision: audit.Allow, Reason: reason}); err == nil {
		err = m.ratchet(c, func(r *ratchet) { r.session(target, reason) })
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

func (s *session) isSensitive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Sensitive != nil
}

// MarkVolume makes a named volume sensitive, and every session that has it.
func (m *Manager) MarkVolume(ctx context.Context, c Caller, tenant, name string) (VolumeView, error) {
	if err := m.enter(); err != nil {
		return VolumeView{}, err
	}
	defer m.wg.Done()
	id := policy.VolumeID(tenant, name)
	unlock, err := m.named.changing.LockContext(ctx, id)
	if err != nil {
		return VolumeView{}, err
	}
	defer unlock()
	r, err := m.usableVolume(tenant, name)
	if err == nil {
		err = m.auditVolume(c, r, "volume-sensitive", audit.Allow, nil)
	}
	if err == nil {
		err = m.ratchet(c, func(r *ratchet) { r.volume(id, askedFor) })
	}
	if err != nil {
		return VolumeView{}, err
	}
	return m.Volume(ctx, tenant, name)
}

// SensitivePath is a path of the host, or of a volume of boxd's own, that sensitive sessions can
// write to, or could.
type SensitivePath struct {
	Path, Tenant string
	spec.Sensitive
}

// SensitivePaths lists them, sorted.
func (m *Manager) SensitivePaths() (list []SensitivePath) {
	m.sensitive.mu.Lock()
	defer m.sensitive.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(m.sensitive.paths)) {
		r := m.sensitive.paths[path]
		list = append(list, SensitivePath{path, r.Tenant, r.Sensitive})
	}
	return list
}

// ForgetSensitivePath forgets that a path is sensitive, unless a session has it.
func (m *Manager) ForgetSensitivePath(c Caller, path string) error {
	if err := m.enter(); err != nil {
		return err
	}
	defer m.wg.Done()
	details := map[string]any{"path": cut(path)}
	if err := m.audit(c, Key{}, audit.Entry{Action: "forget-sensitive", Decision: audit.Allow, Details: details}); err != nil {
		return err
	}
	m.sensitive.mu.Lock()
	r, found := m.sensitive.paths[path]
	var write *pending
	err := error(nil)
	if !found {
		err = fmt.Errorf("sensitive path %s: %w", spec.QuotePath(path), ErrNotFound)
	}
	for _, s := range m.all("") {
		s.mu.Lock()
		has := slices.ContainsFunc(s.mountsLocked(), func(d engine.Mount) bool { return m.has(d, path) })
		s.mu.Unlock()
		if has && err == nil {
			err = fmt.Errorf("path %s: session %q of tenant %q has it: remove the session first: %w", spec.QuotePath(path), s.key.ID, s.key.Tenant, ErrState)
		}
	}
	if err == nil {
		delete(m.sensitive.paths, path)
		write = m.store.enqueue(change{sensitiveBucket, r.key(), nil})
	}
	m.sensitive.mu.Unlock()
	if err == nil {
		if err = write.wait(); err != nil { // nothing was changed
			m.sensitive.mu.Lock()
			if _, again := m.sensitive.paths[path]; !again {
				m.sensitive.paths[path] = r
			}
			m.sensitive.mu.Unlock()
		}
	}
	end := audit.Entry{Action: "forget-sensitive", Decision: audit.Done, Details: details}
	if err != nil {
		end.Decision, end.Reason = audit.Failed, err.Error()
	}
	_ = m.audit(c, Key{}, end) // reports its error
	return err
}

// volume returns why a named volume is sensitive; nil: it is not. The creation
// of a copy asks this when the copy is complete, and writes markVolume with its record.
func (n *sensitivity) volume(id string) *spec.Sensitive {
	n.mu.Lock()
	defer n.mu.Unlock()
	if is, ok := n.volumes[id]; ok {
		return &is
	}
	return nil
}

// markVolume makes a volume that no session has yet sensitive. The caller writes the change.
func (n *sensitivity) markVolume(id, reason string) change {
	n.mu.Lock()
	defer n.mu.Unlock()
	record := sensitiveRecord{Volume: id, Sensitive: spec.Sensitive{Since: time.Now().Round(0), Reason: reason}}
	n.volumes[id] = record.Sensitive
	return record.put()
}

// unmarkVolume forgets a volume that has been removed. The caller writes the change.
func (n *sensitivity) unmarkVolume(id string) change {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.volumes, id)
	return change{sensitiveBucket, (&sensitiveRecord{Volume: id}).key(), nil}
}

// loadSensitive continues with what the database says is sensitive. If the database was
// damaged, every volume is: the record that said so may be among the lost ones.
func (m *Manager) loadSensitive(got loaded) {
	for _, r := range got.sensitive {
		if r.Volume != "" {
			m.sensitive.volumes[r.Volume] = r.Sensitive
		} else {
			m.sensitive.paths[r.Path] = r
		}
	}
	if got.damage == nil {
		return
	}
	for _, r := range got.volumes {
		if _, known := m.sensitive.volumes[r.id()]; !known {
			m.store.enqueue(m.sensitive.markVolume(r.id(), lostRecord))
		}
	}
}

// ratchetFound makes those of the recovered sessions sensitive that have something sensitive,
// as after a change of sensitive_mount_roots.
func (m *Manager) ratchetFound(found []*session) error {
	return m.ratchet(system, func(r *ratchet) {
		for _, s := range found {
			s.mu.Lock()
			mounts, already := s.mountsLocked(), s.record.Sensitive != nil
			s.mu.Unlock()
			if reason := m.whyLocked(mounts); reason != "" && !already {
				r.queue = append(r.queue, turn{s: s, reason: reason})
			}
		}
	})
}
