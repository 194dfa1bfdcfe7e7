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
	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/policy"
)

// Conditions of named volumes.
var (
	// ErrVolumeInUse: sessions have the volume attached in a way that excludes the request.
	ErrVolumeInUse = errors.New("the volume is in use")
	// ErrVolumeExists: the volume exists, with other limits than the request asks for.
	ErrVolumeExists = errors.New("the volume exists with other limits")
	// ErrVolumeLost: the engine does not have the volume any more.
	ErrVolumeLost = errors.New("the data of the volume is gone")
)

// VolumeLimits are the limits of a named volume.
type VolumeLimits struct {
	Bytes  spec.Size
	Inodes int64 // 0: as many as follow from Bytes, see [engine.Volume]
}

// VolumeView is a named volume at one moment.
type VolumeView struct {
	Tenant, Name string
	VolumeLimits
	From      string // the volume of which it was a copy at first; may be empty
	UsedBytes int64  // as measured last
	Removing  bool
	Lost      bool            // see ErrVolumeLost
	Sensitive *spec.Sensitive // nil: it is not
	Created   bool            // the call that returned the view made the volume
	CreatedAt time.Time
	Attached  []Attachment // sorted by session
}

// Attachment is a session that has a volume.
type Attachment struct {
	Session  string
	ReadOnly bool
}

// volumeRecord is a named volume as stored in the database.
type volumeRecord struct {
	Tenant string    `json:"tenant"`
	Name   string    `json:"name"`
	Bytes  spec.Size `json:"bytes"`
	Inodes int64     `json:"inodes,omitempty"`
	From   string    `json:"from,omitempty"` // see VolumeView
	// Creating: no client has been told of the volume yet. Without it, a volume that the engine
	// does not have is lost, and is not made again.
	Creating  bool      `json:"creating,omitempty"`
	Removing  bool      `json:"removing,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

func (r *volumeRecord) id() string { return policy.VolumeID(r.Tenant, r.Name) }

func (r *volumeRecord) key() []byte { return []byte(r.Tenant + "\x00" + r.Name) }

func (r *volumeRecord) put() change { return change{volumesBucket, r.key(), encode(r)} }

func (r *volumeRecord) engineVolume() engine.Volume {
	return engine.Volume{Name: r.id(), Bytes: int64(r.Bytes), Inodes: r.Inodes}
}

func (r *volumeRecord) use() policy.Use { return policy.Use{Volumes: 1, VolumeBytes: r.Bytes} }

func decodeVolume(key, value []byte) (r volumeRecord, err error) {
	if err = decode(value, &r); err == nil && string(r.key()) != string(key) {
		err = fmt.Errorf("belongs to another volume")
	}
	if err == nil {
		err = cmp.Or(policy.ValidateTenant(r.Tenant), policy.ValidateVolumeName(r.Name), r.engineVolume().WithDefaults().Validate())
	}
	if err != nil {
		return r, fmt.Errorf("volume record %q: %w", key, err)
	}
	return r, nil
}

// namedVolumes are the volumes of tenants, and the sessions that have them. A volume has any
// number of sessions that read it, or one that writes. The records of the sessions say which
// have it, so a successor finds the same.
type namedVolumes struct {
	changing keyed.Locks // by ID, held while a volume is made, resized or removed; before mu
	copying  keyed.Locks // by tenant, held while a copy is made; after changing and before mu

	mu  sync.Mutex // a leaf
	all map[string]*namedVolume
	// holders has the sessions of each volume, by the volume's ID; true: it writes. A volume
	// whose record was lost can have sessions too.
	holders map[string]map[Key]bool
	// going has the boxes that are being removed in the background and may still have
	// volumes, by their IDs.
	going map[string]goingBox
}

// goingBox is a box that is being removed.
type goingBox struct {
	key    Key // of its session
	mounts []engine.Mount
}

// namedVolume is a volume that is complete. Its fields are guarded by namedVolumes.mu.
type namedVolume struct {
	record  volumeRecord
	release func() // returns its reservation to the ledger
	lost    bool   // see ErrVolumeLost
	copies  int    // that are being made of it
}

// record returns the record of a volume.
func (n *namedVolumes) record(id string) (volumeRecord, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v := n.all[id]; v != nil {
		return v.record, true
	}
	return volumeRecord{}, false
}

// records returns the records of all volumes.
func (n *namedVolumes) records() (list []volumeRecord) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.all {
		list = append(list, v.record)
	}
	return list
}

// claim makes key a session of the volumes among mounts, in addition to those that it has.
// It claims all or none. asked may have the names of volumes that do not exist any more.
func (n *namedVolumes) claim(key Key, mounts []engine.Mount, asked []spec.VolumeWish) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range mounts {
		if !policy.IsVolumeID(m.Volume) {
			continue
		}
		v := n.all[m.Volume]
		if v == nil || v.record.Removing {
			gone := &engine.FieldError{Field: "volume", Value: "at " + m.Target, Rule: "was removed meanwhile: create it, or leave it out"}
			i := slices.IndexFunc(asked, func(w spec.VolumeWish) bool { return policy.VolumeID(key.Tenant, w.Name) == m.Volume })
			switch {
			case v != nil:
				gone.Value = spec.Quote(v.record.Name)
			case i >= 0:
				gone.Value = spec.Quote(asked[i].Name)
			}
			return gone
		}
		switch {
		case v.lost:
			return v.record.lostError()
		case v.copies > 0 && !m.ReadOnly:
			return v.copiedError()
		}
		for other, writes := range n.sessionsLocked(m.Volume) {
			if other != key && (writes || !m.ReadOnly) {
				how := map[bool]string{true: "has it read-write", false: "has it read-only"}[writes]
				return fmt.Errorf("volume %q: session %q %s: several sessions can have a volume read-only, or one read-write: %w", v.record.Name, other.ID, how, ErrVolumeInUse)
			}
		}
	}
	n.holdLocked(key, mounts)
	return nil
}

// sessionsLocked returns the sessions that have a volume, or whose former boxes may have it;
// true: it writes.
func (n *namedVolumes) sessionsLocked(id string) map[Key]bool {
	all := maps.Clone(n.holders[id])
	for _, box := range n.going {
		for _, m := range box.mounts {
			if m.Volume != id {
				continue
			}
			if all == nil {
				all = map[Key]bool{}
			}
			all[box.key] = all[box.key] || !m.ReadOnly
		}
	}
	return all
}

// hold notes that a box of session key, which is being removed, may have mounts until done is
// called.
func (n *namedVolumes) hold(key Key, box string, mounts []engine.Mount) (done func()) {
	mounts = namedMounts(mounts)
	if len(mounts) == 0 {
		return func() {}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.going[box] = goingBox{key, mounts}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.going, box)
	}
}

// checkThere refuses mounts of volumes whose data is gone.
func (n *namedVolumes) checkThere(mounts []engine.Mount) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range mounts {
		if v := n.all[m.Volume]; v != nil && v.lost {
			return v.record.lostError()
		}
	}
	return nil
}

func (r *volumeRecord) lostError() error {
	return fmt.Errorf("volume %q: its data is gone, because the launcher has no volume %q any more: put that back into the launcher's data directory and restart boxd, or remove the volume: %w",
		r.Name, r.id(), ErrVolumeLost)
}

func (v *namedVolume) copiedError() error {
	return fmt.Errorf("volume %q is being copied, and must not change meanwhile: try again later: %w", v.record.Name, ErrVolumeInUse)
}

// settle makes mounts all that key has. Mounts of other kinds do not count.
func (n *namedVolumes) settle(key Key, mounts []engine.Mount) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, sessions := range n.holders {
		if delete(sessions, key); len(sessions) == 0 {
			delete(n.holders, id)
		}
	}
	n.holdLocked(key, mounts)
}

func (n *namedVolumes) holdLocked(key Key, mounts []engine.Mount) {
	for _, m := range mounts {
		if !policy.IsVolumeID(m.Volume) {
			continue
		}
		if n.holders[m.Volume] == nil {
			n.holders[m.Volume] = map[Key]bool{}
		}
		n.holders[m.Volume][key] = n.holders[m.Volume][key] || !m.ReadOnly
	}
}

// namedMounts returns the mounts of list that are named volumes.
func namedMounts(list []engine.Mount) []engine.Mount {
	return slices.DeleteFunc(slices.Clone(list), func(m engine.Mount) bool { return !policy.IsVolumeID(m.Volume) })
}

// among returns the named volumes among mounts as clients ask for them.
func (n *namedVolumes) among(mounts []engine.Mount) (list []spec.VolumeWish) {
	for _, m := range mounts {
		if !policy.IsVolumeID(m.Volume) {
			continue
		}
		w := spec.VolumeWish{Name: m.Volume, Target: m.Target, ReadOnly: m.ReadOnly}
		if r, ok := n.record(m.Volume); ok {
			w.Name, w.Size = r.Name, r.Bytes
		}
		list = append(list, w)
	}
	return list
}

// takeVolumes makes the volumes of asked that have a size and do not exist, and claims all
// of mounts for the session. The caller settles. A volume that was made stays even if the
// session does not come about.
func (s *session) takeVolumes(ctx context.Context, c Caller, field string, asked []spec.VolumeWish, mounts []engine.Mount) error {
	for i, w := range asked {
		r, exists := s.m.named.record(policy.VolumeID(s.key.Tenant, w.Name))
		if !exists && w.Size == 0 {
			return &engine.FieldError{Field: fmt.Sprintf("%s[%d].name", field, i), Value: spec.Quote(w.Name), Rule: "must be a volume of the tenant: create it first, or give its size"}
		}
		if !exists || r.Creating {
			if _, err := s.m.createVolume(ctx, c, volumeRecord{Tenant: s.key.Tenant, Name: w.Name, Bytes: w.Size}, true); err != nil {
				return err
			}
		}
	}
	return s.m.named.claim(s.key, mounts, asked)
}

// settleVolumes makes the mounts and volumes that the session has those of its record. The
// caller holds the op.
func (s *session) settleVolumes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming = nil
	switch {
	case s.gone:
	case s.record.Retained != nil:
		s.m.named.settle(s.key, nil)
	default:
		s.m.named.settle(s.key, slices.Concat(s.record.Resolved.Mounts, s.record.Attaching))
	}
}

// enter counts a call that is not about a session; the caller calls m.wg.Done.
func (m *Manager) enter() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return ErrClosed
	}
	m.wg.Add(1)
	return nil
}

// CreateVolume makes a named volume of tenant. If it exists with these limits, CreateVolume
// returns it; with others, the error is ErrVolumeExists.
func (m *Manager) CreateVolume(ctx context.Context, c Caller, tenant, name string, l VolumeLimits) (VolumeView, error) {
	r := volumeRecord{Tenant: tenant, Name: name, Bytes: l.Bytes, Inodes: l.Inodes}
	if err := r.validate(); err != nil {
		return VolumeView{}, err
	}
	if err := m.enter(); err != nil {
		return VolumeView{}, err
	}
	defer m.wg.Done()
	created, err := m.createVolume(ctx, c, r, false)
	if err != nil {
		return VolumeView{}, err
	}
	v, err := m.Volume(ctx, tenant, name)
	v.Created = created
	return v, err
}

func (r *volumeRecord) validate() error {
	if err := cmp.Or(policy.ValidateTenant(r.Tenant), policy.ValidateVolumeName(r.Name)); err != nil {
		return err
	}
	s := spec.Settings{WorkspaceSize: r.Bytes, WorkspaceInodes: r.Inodes}
	if r.Bytes < spec.MinVolumeBytes || r.Bytes > spec.MaxVolumeBytes {
		return &engine.FieldError{Field: "size", Value: r.Bytes.String(), Rule: fmt.Sprintf("must be %s to %s", spec.FormatSize(spec.MinVolumeBytes), spec.FormatSize(spec.MaxVolumeBytes))}
	}
	if bad, ok := errors.AsType[*engine.FieldError](spec.CheckInodes(&s)); ok {
		return &engine.FieldError{Field: "inodes", Value: bad.Value, Rule: strings.ReplaceAll(bad.Rule, "workspace_size", "size")}
	}
	return nil
}

// createVolume makes the volume of r, which is valid. With lenient, a volume that exists will do
// whatever its limits are.
func (m *Manager) createVolume(ctx context.Context, c Caller, r volumeRecord, lenient bool) (created bool, err error) {
	unlock, err := m.named.changing.LockContext(ctx, r.id())
	if err != nil {
		return false, err
	}
	defer unlock()
	if has, ok := m.named.record(r.id()); ok {
		switch {
		case has.Removing:
			return false, fmt.Errorf("volume %q is being removed: %w", r.Name, ErrState)
		case has.Creating:
			if err := m.completeVolume(ctx, has); err != nil {
				return false, err
			}
		}
		if err := m.named.checkThere([]engine.Mount{{Volume: r.id()}}); err != nil {
			return false, err
		}
		switch {
		case !lenient && (has.Bytes != r.Bytes || r.Inodes != 0 && has.Inodes != r.Inodes):
			return false, fmt.Errorf("volume %q has %s, not %s: resize it, or remove it first: %w", r.Name, has.Bytes, r.Bytes, ErrVolumeExists)
		}
		return false, nil
	}
	return true, m.addVolume(ctx, c, r)
}

// addVolume makes the volume of r, which does not exist. The caller has locked its name.
func (m *Manager) addVolume(ctx context.Context, c Caller, r volumeRecord) error {
	if m.options.Storage == nil {
		return errNoStorage
	}
	release, err := m.ledger.Reserve(r.Tenant, r.use())
	if err != nil {
		m.auditVolume(c, r, "volume-create", audit.Deny, err)
		return err
	}
	if err := m.makeVolume(ctx, c, &r); err != nil {
		release()
		return err
	}
	m.named.mu.Lock()
	m.named.all[r.id()] = &namedVolume{record: r, release: release}
	m.named.mu.Unlock()
	m.auditVolume(c, r, "volume-create", audit.Done, nil)
	details := map[string]any{"volume": r.Name, "size": r.Bytes}
	if r.From != "" {
		details["from"] = r.From
	}
	m.publish(Event{Type: EventVolumeCreated, Tenant: r.Tenant, Request: c.Request, Details: details})
	return nil
}

// makeVolume records that the volume is being created, makes it, and records that it is there. A
// successor makes what has a record and is not there, and removes what has none, and copies.
// Once begun, it does not end with ctx, unless the volume is a copy.
func (m *Manager) makeVolume(ctx context.Context, c Caller, r *volumeRecord) error {
	if err := m.store.admit(); err != nil {
		return err
	}
	if err := m.volumes.await(ctx, r.id()); err != nil {
		return err
	}
	if err := m.auditVolume(c, *r, "volume-create", audit.Allow, nil); err != nil {
		return err
	}
	v := r.engineVolume()
	var cancel context.CancelFunc
	if r.From != "" {
		v.From = policy.VolumeID(r.Tenant, r.From)
		ctx, cancel = context.WithCancel(ctx)
		defer context.AfterFunc(m.ctx, cancel)()
	} else {
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	}
	defer cancel()
	r.CreatedAt, r.Creating = time.Now().Round(0), true
	if err := m.store.write(r.put()); err != nil {
		return err
	}
	err := m.options.Storage.MakeVolume(ctx, v)
	if err == nil {
		err = m.recordMade(r)
	}
	if err != nil {
		m.dropNewVolume(r.id(), "")
		m.auditVolume(c, *r, "volume-create", audit.Failed, err)
		return errors.Join(m.namesFrom(*r, err), m.store.write(change{volumesBucket, r.key(), nil}))
	}
	return nil
}

// recordMade records that the volume of r is there.
func (m *Manager) recordMade(r *volumeRecord) error {
	r.Creating = false
	changes := []change{r.put()}
	kept := m.volumes.isKept(r.id())
	if kept {
		changes = append(changes, change{metaBucket, keptKey(r.id()), nil}, m.sensitive.markVolume(r.id(), lostRecord))
	} else if r.From != "" && m.sensitive.volume(policy.VolumeID(r.Tenant, r.From)) != nil {
		changes = append(changes, m.sensitive.markVolume(r.id(), fmt.Sprintf("it is a copy of volume %q, which is sensitive", r.From)))
	}
	err := m.store.write(changes...)
	if err == nil && kept {
		m.volumes.claim(r.id())
	}
	return err
}

// completeVolume makes a volume whose creation a former manager has begun. The caller has locked
// its name.
func (m *Manager) completeVolume(ctx context.Context, r volumeRecord) error {
	if m.options.Storage == nil {
		return errNoStorage
	}
	if err := m.options.Storage.MakeVolume(ctx, r.engineVolume()); err != nil {
		return err
	}
	if err := m.recordMade(&r); err != nil {
		return err
	}
	m.named.mu.Lock()
	defer m.named.mu.Unlock()
	m.named.all[r.id()].record = r
	return nil
}

// ResizeVolume changes the limits of a named volume, live. ErrInvalid: it holds more than the
// new limits allow, or the host can only enlarge it, or only while no session has it.
func (m *Manager) ResizeVolume(ctx context.Context, c Caller, tenant, name string, l VolumeLimits) (VolumeView, error) {
	r := volumeRecord{Tenant: tenant, Name: name, Bytes: l.Bytes, Inodes: l.Inodes}
	if err := r.validate(); err != nil {
		return VolumeView{}, err
	}
	if err := m.enter(); err != nil {
		return VolumeView{}, err
	}
	defer m.wg.Done()
	unlock, err := m.named.changing.LockContext(ctx, r.id())
	if err != nil {
		return VolumeView{}, err
	}
	defer unlock()
	has, err := m.usableVolume(tenant, name)
	if err == nil {
		err = m.named.mayResize(r.id())
	}
	if err == nil {
		err = m.findLost(ctx, []engine.Mount{{Volume: r.id()}}) // the engine would make an empty one
	}
	if err != nil {
		return VolumeView{}, err
	}
	r.CreatedAt, r.From = has.CreatedAt, has.From
	if r.Inodes = cmp.Or(r.Inodes, has.Inodes); l.Inodes == 0 {
		if err := r.validate(); err != nil {
			return VolumeView{}, err
		}
	}
	more, err := m.ledger.Reserve(tenant, policy.Use{VolumeBytes: max(0, r.Bytes-has.Bytes)})
	if err != nil {
		m.auditVolume(c, r, "volume-resize", audit.Deny, err)
		return VolumeView{}, err
	}
	defer more()
	if err := m.auditVolume(c, r, "volume-resize", audit.Allow, nil); err != nil {
		return VolumeView{}, err
	}
	// If this process ends in between, its successor takes the larger of the two sizes.
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	if err = m.options.Storage.MakeVolume(making, r.engineVolume()); err == nil {
		err = m.store.write(r.put())
	}
	if err != nil {
		m.auditVolume(c, r, "volume-resize", audit.Failed, err)
		if bad, ok := errors.AsType[*engine.FieldError](err); ok { // in the engine's terms, such as that an image in use cannot grow
			rule := fmt.Sprintf("is not possible now for volume %q, which %s: try again, or detach it from all sessions first", name, strings.ReplaceAll(bad.Rule, r.id(), name))
			if r.Bytes < has.Bytes {
				rule = fmt.Sprintf("is less than the %s of volume %q, which can only grow on this host: export it, and import it into a smaller one", has.Bytes, name)
			}
			err = &engine.FieldError{Field: "size", Value: r.Bytes.String(), Rule: rule}
		}
		return VolumeView{}, err
	}
	m.replaceVolume(r)
	m.auditVolume(c, r, "volume-resize", audit.Done, nil)
	m.publish(Event{Type: EventVolumeResized, Tenant: tenant, Request: c.Request, Details: map[string]any{"volume": name, "size": r.Bytes}})
	return m.Volume(ctx, tenant, name)
}

// replaceVolume puts the record r, and what it counts, in the place of the old one.
func (m *Manager) replaceVolume(r volumeRecord) {
	release := m.ledger.Adopt(r.Tenant, r.use())
	m.named.mu.Lock()
	v := m.named.all[r.id()]
	old := v.release
	v.record, v.release = r, release
	m.named.mu.Unlock()
	old()
}

// mayResize returns why a volume cannot change its size now.
func (n *namedVolumes) mayResize(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v := n.all[id]; v.copies > 0 {
		return v.copiedError()
	}
	return nil
}

// findLost asks the engine for the named volumes among mounts, and returns ErrVolumeLost for the
// first that it does not have.
func (m *Manager) findLost(ctx context.Context, mounts []engine.Mount) error {
	if m.options.Storage == nil {
		return errNoStorage
	}
	there, err := m.options.Storage.Volumes(ctx)
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if !slices.ContainsFunc(there, func(v engine.VolumeState) bool { return v.Name == mount.Volume }) {
			m.named.setLost(mount.Volume)
		}
	}
	return m.named.checkThere(mounts)
}

// setLost notes that the engine does not have a volume. One that is being created does not count.
func (n *namedVolumes) setLost(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v := n.all[id]; v != nil && !v.record.Creating {
		v.lost = true
	}
}

// explainLost returns err, or why the engine cannot mount one of mounts if that is because the
// data of a volume is gone.
func (m *Manager) explainLost(ctx context.Context, mounts []engine.Mount, err error) error {
	bad, ok := errors.AsType[*engine.FieldError](err)
	named := namedMounts(mounts)
	if !ok || bad.Field != "mount volume" || len(named) == 0 {
		return err
	}
	if lost := m.findLost(ctx, named); errors.Is(lost, ErrVolumeLost) {
		return lost
	}
	return err
}

// usableVolume returns the record of a volume that is not being removed.
func (m *Manager) usableVolume(tenant, name string) (volumeRecord, error) {
	r, ok := m.named.record(policy.VolumeID(tenant, name))
	switch {
	case !ok:
		return r, fmt.Errorf("volume %q: %w", name, ErrNotFound)
	case r.Removing:
		return r, fmt.Errorf("volume %q is being removed: %w", name, ErrState)
	}
	return r, nil
}

// RemoveVolume removes a named volume with its content. If a session has it, the error is
// ErrVolumeInUse. After any other error the removal goes on in the background.
func (m *Manager) RemoveVolume(ctx context.Context, c Caller, tenant, name string) error {
	if err := cmp.Or(policy.ValidateTenant(tenant), policy.ValidateVolumeName(name)); err != nil {
		return err
	}
	if err := m.enter(); err != nil {
		return err
	}
	defer m.wg.Done()
	id := policy.VolumeID(tenant, name)
	unlock, err := m.named.changing.LockContext(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := m.usableVolume(tenant, name)
	if err != nil {
		return err
	}
	if err := m.auditVolume(c, r, "volume-remove", audit.Allow, nil); err != nil {
		return err
	}
	if err := m.named.beginRemoval(id); err != nil {
		return err
	}
	r.Removing = true
	if err := m.store.write(r.put()); err != nil {
		m.named.setRemoving(id, false)
		return err
	}
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	if err := m.finishRemoval(removing, c, r); err != nil {
		m.removeNamedLater(c, r)
		return fmt.Errorf("removing volume %q (it will be retried): %w", name, err)
	}
	return nil
}

// beginRemoval keeps sessions from getting the volume, unless one has it.
func (n *namedVolumes) beginRemoval(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.all[id]
	sessions := n.sessionsLocked(id)
	for key := range sessions {
		if len(sessions) == 1 {
			return fmt.Errorf("volume %q: session %q has it: detach it there, or remove the session: %w", v.record.Name, key.ID, ErrVolumeInUse)
		}
		return fmt.Errorf("volume %q: %d sessions have it, such as %q: detach it there, or remove them: %w", v.record.Name, len(sessions), key.ID, ErrVolumeInUse)
	}
	if v.copies > 0 {
		return v.copiedError()
	}
	v.record.Removing = true
	return nil
}

func (n *namedVolumes) setRemoving(id string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all[id].record.Removing = on
}

// finishRemoval removes a volume that no session can get any more. The record goes last.
func (m *Manager) finishRemoval(ctx context.Context, c Caller, r volumeRecord) error {
	if m.options.Storage == nil {
		return errNoStorage
	}
	if err := m.options.Storage.RemoveVolume(ctx, r.id()); err != nil {
		return err
	}
	if err := m.store.write(change{volumesBucket, r.key(), nil}, m.sensitive.unmarkVolume(r.id())); err != nil {
		return err
	}
	m.named.mu.Lock()
	v := m.named.all[r.id()]
	delete(m.named.all, r.id())
	m.named.mu.Unlock()
	v.release()
	m.auditVolume(c, r, "volume-remove", audit.Done, nil)
	m.publish(Event{Type: EventVolumeRemoved, Tenant: r.Tenant, Request: c.Request, Details: map[string]any{"volume": r.Name}})
	return nil
}

func (m *Manager) removeNamedLater(c Caller, r volumeRecord) {
	m.spawn(func() {
		tries := 0
		m.retry(func(ctx context.Context) error {
			err := m.finishRemoval(ctx, c, r)
			if tries++; err != nil && tries == reportAfter {
				m.report(Key{Tenant: r.Tenant}, "", fmt.Sprintf("removing volume %q (it will be retried): %v", r.Name, err))
			}
			return err
		})
	})
}

// auditVolume records an action on a volume.
func (m *Manager) auditVolume(c Caller, r volumeRecord, action, decision string, cause error) error {
	e := audit.Entry{Action: action, Decision: decision, Details: map[string]any{"volume": r.Name, "size": r.Bytes}}
	if cause != nil {
		e.Reason = cause.Error()
	}
	return m.audit(c, Key{Tenant: r.Tenant}, e)
}

// Volume returns a named volume of tenant.
func (m *Manager) Volume(ctx context.Context, tenant, name string) (VolumeView, error) {
	if err := cmp.Or(policy.ValidateTenant(tenant), policy.ValidateVolumeName(name)); err != nil {
		return VolumeView{}, err
	}
	views := m.volumeViews(ctx, func(r *volumeRecord) bool { return r.Tenant == tenant && r.Name == name })
	if len(views) == 0 {
		return VolumeView{}, fmt.Errorf("volume %q: %w", name, ErrNotFound)
	}
	return views[0], nil
}

// Volumes lists the named volumes of tenant, or of all tenants with "", sorted by tenant and
// name.
func (m *Manager) Volumes(ctx context.Context, tenant string) []VolumeView {
	return m.volumeViews(ctx, func(r *volumeRecord) bool { return tenant == "" || r.Tenant == tenant })
}

func (m *Manager) volumeViews(ctx context.Context, wanted func(*volumeRecord) bool) []VolumeView {
	n := &m.named
	var list []VolumeView
	n.mu.Lock()
	for id, v := range n.all {
		r := &v.record
		if !wanted(r) {
			continue
		}
		view := VolumeView{Tenant: r.Tenant, Name: r.Name, VolumeLimits: VolumeLimits{r.Bytes, r.Inodes}, From: r.From, Removing: r.Removing, Lost: v.lost, CreatedAt: r.CreatedAt}
		sessions := n.sessionsLocked(id)
		for _, key := range slices.SortedFunc(maps.Keys(sessions), func(a, b Key) int { return strings.Compare(a.ID, b.ID) }) {
			view.Attached = append(view.Attached, Attachment{key.ID, !sessions[key]})
		}
		list = append(list, view)
	}
	n.mu.Unlock()
	slices.SortFunc(list, func(a, b VolumeView) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
	})
	for i := range list {
		v := &list[i]
		v.Sensitive = m.sensitive.volume(policy.VolumeID(v.Tenant, v.Name))
		v.UsedBytes, _ = m.volumeUse(ctx, policy.VolumeID(v.Tenant, v.Name)) // 0 if ctx ends
	}
	return list
}

// loadVolumes continues with the volumes of the records. Open calls it before the sessions
// say which they have.
func (m *Manager) loadVolumes(list []volumeRecord) {
	for _, r := range list {
		if r.Creating && r.From != "" { // its copy ended with the former manager
			r.Removing = true
			_ = m.auditVolume(system, r, "volume-create", audit.Failed, errors.New("boxd ended before it was complete")) // reports its error
		}
		m.named.all[r.id()] = &namedVolume{record: r, release: m.ledger.Adopt(r.Tenant, r.use())}
		if r.Removing {
			m.removeNamedLater(system, r)
		}
	}
}

// reconcileVolumes makes the volumes whose creation was interrupted, and notes which are lost.
// there are the volumes of the engine.
func (m *Manager) reconcileVolumes(there []engine.VolumeState) {
	sizes := map[string]int64{}
	for _, v := range there {
		sizes[v.Name] = max(1, v.Bytes) // one that cannot be read is listed without its size
	}
	for _, r := range m.named.records() {
		size := spec.Size(sizes[r.id()])
		switch {
		case r.Removing:
		case size == 0 && !r.Creating:
			m.named.setLost(r.id())
			m.report(Key{Tenant: r.Tenant}, "", r.lostError().Error())
		case r.Creating || size > 1 && size < r.Bytes:
			m.spawn(func() {
				m.retry(func(ctx context.Context) error {
					defer m.named.changing.Lock(r.id())()
					now, ok := m.named.record(r.id())
					if !ok || now.Removing || now.Creating != r.Creating || now.Bytes != r.Bytes {
						return nil
					}
					return m.completeVolume(ctx, now)
				})
			})
		case size > r.Bytes: // a crash during a change of its size
			r.Bytes = size
			m.replaceVolume(r)
			m.spawn(func() { m.retry(func(context.Context) error { return m.store.write(r.put()) }) })
		}
	}
}
