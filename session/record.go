package session

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// recordVersion is the version of all records. Records of version 1 can be read
// (record1.go), after their database was copied. A database of a newer version is refused.
const recordVersion = 2

// sessionRecord is a session as stored in the database.
type sessionRecord struct {
	Tenant     string          `json:"tenant"`
	ID         string          `json:"id"`
	State      State           `json:"state"`
	Reason     string          `json:"reason,omitempty"`
	Generation int             `json:"generation"`
	Box        string          `json:"box"` // ID of the box of this generation
	Resolved   policy.Resolved `json:"resolved"`
	Unenforced string          `json:"unenforced,omitempty"`
	// Built is what Box was built with, or the box before it while it is being built.
	Built choose.Choice `json:"built,omitzero"`
	// Image is the image that the session has; nil: that of the host.
	Image *sessionImage `json:"image,omitempty"`
	// Attaching are named volumes that the box is about to get, or has got if the last
	// manager ended before it could record that. Until then no other session gets them.
	Attaching []engine.Mount `json:"attaching,omitempty"`
	// Fresh: the session is being created, and the directory of its workspace did not exist
	// before. So if the creation fails, its content belongs to no other session.
	Fresh     bool      `json:"fresh,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// BoxSince is when the box was made; zero in records of older builds.
	BoxSince time.Time `json:"box_since,omitzero"`
	// Sensitive says why the session has no network for good; nil: it is not sensitive. It
	// is set once, with [Manager.ratchet], and goes with the record.
	Sensitive *spec.Sensitive `json:"sensitive,omitempty"`
	// Links is the number for which links to ports of the session are made: random, so that links
	// to an earlier session of this key do not count. 0: none was made. A change revokes all links.
	Links uint64 `json:"links,omitempty"`
	// Published are the ports that the session publishes, if it is not sensitive.
	Published []publishedRecord `json:"published,omitempty"`
	// Retained: a TTL has ended the session, or is ending it, and it stays for its workspace.
	Retained *retention `json:"retained,omitempty"`
	// Expired: the session is Stopping because a TTL ends it.
	Expired bool `json:"expired,omitempty"`
	// Paused says that the session is paused; nil, or of another box than Box: it is not.
	Paused *pauseRecord `json:"paused,omitempty"`
	// LifeLeft is what was left of MaxLifetime when the record was written. It bounds how
	// much lifetime a clock that was set back can add.
	LifeLeft time.Duration `json:"life_left,omitempty"`
	// NetworkBytes is what Box had moved over its network when the record was written, against
	// limits.bytes.
	NetworkBytes int64 `json:"network_bytes,omitempty"`
}

// processRecord is a managed process as stored in the database.
type processRecord struct {
	Tenant  string       `json:"tenant"`
	Session string       `json:"session"`
	ID      string       `json:"id"`
	Key     string       `json:"key"` // its name in the box
	Box     string       `json:"box"`
	State   ProcessState `json:"state"`
	PID     int          `json:"pid,omitempty"`
	Args    []string     `json:"args,omitempty"`
	TTY     bool         `json:"tty,omitempty"`
	ProcessSettings
	StartedAt time.Time      `json:"started_at"`
	EndedAt   time.Time      `json:"ended_at,omitzero"`
	Result    *engine.Result `json:"result,omitempty"`
	// Kept, of a process with Ready or Restart, is what its probes and restarts need.
	Kept      *keptCommand `json:"kept,omitempty"`
	Readiness ProcessState `json:"readiness,omitempty"` // ready or unready; empty before that
	ReadyAt   time.Time    `json:"ready_at,omitzero"`
	Restarts  int          `json:"restarts,omitempty"` // in a row
	// RestartAt is when a process that has ended is started again; zero: not.
	RestartAt     time.Time `json:"restart_at,omitzero"`
	Failure       string    `json:"failure,omitempty"`
	FailureOutput string    `json:"failure_output,omitempty"`
	// Denied is what was refused to the session while the process ran, at most maxKeptDenials.
	Denied []Denial `json:"denied,omitempty"`
	// Replaces is the process that had the ID before, while this one is starting.
	Replaces *processRecord `json:"replaces,omitempty"`
}

func (r *sessionRecord) key() Key { return Key{r.Tenant, r.ID} }
func (r *processRecord) key() Key { return Key{r.Tenant, r.Session} }

func sessionKey(k Key) []byte            { return []byte(k.Tenant + "\x00" + k.ID) }
func processKey(k Key, id string) []byte { return []byte(k.Tenant + "\x00" + k.ID + "\x00" + id) }

func (r *sessionRecord) put() change {
	return change{sessionsBucket, sessionKey(r.key()), encode(r)}
}

func (r *processRecord) put() change {
	return change{processBucket, processKey(r.key(), r.ID), encode(r)}
}

// encode returns the stored form of a record: the CRC-32 (IEEE) of the rest, big-endian,
// and JSON. bbolt has no checksums for its data pages.
func encode(record any) []byte {
	body, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("session record: %v", err)) // values of plain types: cannot fail
	}
	return withSum(body)
}

func withSum(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(body)), body...)
}

func decode(value []byte, record any) error {
	if len(value) < 4 {
		return fmt.Errorf("%d bytes: too short", len(value))
	}
	sum, body := binary.BigEndian.Uint32(value), value[4:]
	if crc32.ChecksumIEEE(body) != sum {
		return fmt.Errorf("wrong checksum")
	}
	return json.Unmarshal(body, record)
}

// decodeSession reads a record and checks every value that is used without another check.
func decodeSession(key, value []byte) (r sessionRecord, err error) {
	if err := decode(value, &r); err != nil {
		return r, fmt.Errorf("session record %q: %w", key, err)
	}
	r.fillIn()
	switch {
	case string(sessionKey(r.key())) != string(key):
		err = fmt.Errorf("belongs to another session")
	case !slices.Contains([]State{Creating, Running, Stopping, Stopped, Failed}, r.State):
		err = fmt.Errorf("unknown state %q", r.State)
	case r.Generation < 1:
		err = fmt.Errorf("generation %d", r.Generation)
	case r.NetworkBytes < 0:
		err = fmt.Errorf("network bytes %d", r.NetworkBytes)
	default:
		err = r.validate()
	}
	if err != nil {
		return r, fmt.Errorf("session record %q: %w", key, err)
	}
	return r, nil
}

// fillIn sets what older builds did not know: they kept no workspaces, and had one engine and one wall.
func (r *sessionRecord) fillIn() {
	r.Resolved.Retain = cmp.Or(r.Resolved.Retain, spec.None)
	if r.Resolved.Isolation == "" {
		r.Resolved.Isolation, r.Resolved.Require = spec.IsolationNamespaces, true
	}
	r.Built.Engine = cmp.Or(r.Built.Engine, spec.EngineNative)
	r.Built.Isolation = cmp.Or(r.Built.Isolation, spec.IsolationNamespaces)
}

// builtAs takes over what a box says that it was built with. If the record says otherwise, it is of an
// earlier box, and why this one was built so is lost.
func (r *sessionRecord) builtAs(has engine.Spec) {
	has = has.WithDefaults()
	if has.Engine != r.Built.Engine || has.Isolation != r.Built.Isolation {
		r.Built = choose.Choice{Engine: has.Engine, Isolation: has.Isolation}
	}
	// A record from before its first box says nothing of it, and fillIn native.
	if r.Built.Degraded == "" && spec.Weaker(has.Isolation, r.Resolved.Isolation) {
		r.Built.Degraded = fmt.Sprintf("isolation is %s, not %s", has.Isolation, r.Resolved.Isolation)
	}
}

// box returns the box that the record describes, without its ID and labels.
func (r *sessionRecord) box() engine.Spec {
	b := r.Resolved.Spec()
	b.Engine, b.Isolation = r.Built.Engine, r.Built.Isolation
	b.Image = r.Resolved.Image
	if r.Image != nil {
		b.Layers = r.Image.Layers
	}
	return b
}

func (r *sessionRecord) validate() error {
	if err := r.key().validate(); err != nil {
		return err
	}
	if r.Box == "" {
		return fmt.Errorf("no box id")
	}
	if err := (engine.Spec{ID: r.Box}).Validate(); err != nil {
		return err
	}
	return r.box().Validate()
}

func decodeProcess(key, value []byte) (r processRecord, err error) {
	if err := decode(value, &r); err != nil {
		return r, fmt.Errorf("process record %q: %w", key, err)
	}
	states := []ProcessState{ProcessStarting, ProcessRunning, ProcessStopping, ProcessExited, ProcessStopped, ProcessFailed}
	switch {
	case string(processKey(r.key(), r.ID)) != string(key):
		err = fmt.Errorf("belongs to another process")
	case !slices.Contains(states, r.State):
		err = fmt.Errorf("unknown state %q", r.State)
	case r.State.Ended() && r.Result == nil:
		err = fmt.Errorf("has ended without a result")
	case r.Key == "":
		err = fmt.Errorf("no key")
	case r.Replaces != nil && (r.Replaces.ID != r.ID || r.Replaces.key() != r.key() || r.Replaces.Key == "" || !r.Replaces.State.Ended() || r.Replaces.Result == nil):
		err = fmt.Errorf("replaces a process that has not ended")
	default:
		err = cmp.Or(policy.ValidateProcessID(r.ID), r.validateSupervision())
	}
	if err == nil && r.Replaces != nil {
		err = r.Replaces.validateSupervision()
	}
	if err != nil {
		return r, fmt.Errorf("process record %q: %w", key, err)
	}
	return r, nil
}
