package session

import (
	"reflect"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func sampleSession() *sessionRecord {
	return &sessionRecord{
		Tenant: "t", ID: "a", State: Running, Generation: 2, Box: "s-1", CreatedAt: time.Unix(1700000000, 5).UTC(), LifeLeft: time.Hour, NetworkBytes: 5,
		Built: choose.Choice{Engine: "oci", Isolation: "namespaces", Reason: "native: has gone", Degraded: "isolation is namespaces"},
		Resolved: policy.Resolved{Profile: "default", Env: []string{"A=b"}, Settings: spec.Settings{Image: "host", WorkspaceMode: "rw", IdleTTL: spec.Duration(time.Minute), CPUs: 0.5, Retain: "none", Isolation: "gvisor"},
			Mounts: []mount{{Source: "/srv/n/x", Target: "/x", Within: "/srv", NoLinks: "/srv/n"}}},
	}
}

func sampleProcess() *processRecord {
	return &processRecord{Tenant: "t", Session: "a", ID: "p", Key: "k-p", Box: "s-1", State: ProcessExited, Args: []string{"a", "\xff"},
		StartedAt: time.Unix(1700000000, 0).UTC(), Result: &engine.Result{Verdict: engine.Exited, ExitCode: 3, Receipt: engine.Receipt{Wall: 5}}}
}

// supervisedProcess waits for its restart.
func supervisedProcess() *processRecord {
	p := sampleProcess()
	p.Args = p.Args[:1]
	p.Ready, p.Restart = &spec.Ready{HTTP: "80/", Timeout: spec.Duration(1500 * time.Millisecond), LiveEvery: spec.Duration(time.Minute)}, "on-failure:7"
	p.Kept = &keptCommand{Args: []string{"a", "b"}, Env: []string{"A=b"}, Dir: "/tmp", MakeDir: true, User: &engine.User{UID: 1, GID: 2}, TTY: &engine.WindowSize{Rows: 3, Cols: 4}, StderrHistory: 65536}
	p.Readiness, p.ReadyAt, p.Restarts = ProcessUnready, time.Unix(1700000001, 7).UTC(), 3
	p.RestartAt, p.Failure, p.FailureOutput = time.Unix(1700000002, 0).UTC(), "exited with 3", "no\n"
	return p
}

func TestRecordsSurvive(t *testing.T) {
	s := sampleSession()
	got, err := decodeSession(sessionKey(s.key()), encode(s))
	if err != nil || !reflect.DeepEqual(&got, s) {
		t.Errorf("%+v, %v", got, err)
	}
	supervised := supervisedProcess()
	gotS, err := decodeProcess(processKey(supervised.key(), "p"), encode(supervised))
	if err != nil || !reflect.DeepEqual(&gotS, supervised) {
		t.Errorf("%+v, %v", gotS, err)
	}
	p := sampleProcess()
	p.Args = p.Args[:1] // JSON has no bytes that are no UTF-8; they are only shown
	gotP, err := decodeProcess(processKey(p.key(), p.ID), encode(p))
	if err != nil || !reflect.DeepEqual(&gotP, p) {
		t.Errorf("%+v, %v", gotP, err)
	}
}

func TestBadRecords(t *testing.T) {
	for name, change := range map[string]func(r *sessionRecord){
		"another key":    func(r *sessionRecord) { r.ID = "b" },
		"unknown state":  func(r *sessionRecord) { r.State = "dancing" },
		"generation":     func(r *sessionRecord) { r.Generation = 0 },
		"network bytes":  func(r *sessionRecord) { r.NetworkBytes = -1 },
		"no box":         func(r *sessionRecord) { r.Box = "" },
		"box":            func(r *sessionRecord) { r.Box = "../x" },
		"spec":           func(r *sessionRecord) { r.Resolved.Mounts[0].Target = "x" },
		"spec of limits": func(r *sessionRecord) { r.Resolved.Memory = -7 },
	} {
		r := sampleSession()
		key := sessionKey(r.key())
		change(r)
		if _, err := decodeSession(key, encode(r)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	good := encode(sampleSession())
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 0x20
		if _, err := decodeSession(sessionKey(keyA), bad); err == nil {
			t.Errorf("byte %d changed: taken", i)
		}
	}
	for name, change := range map[string]func(p *processRecord){
		"readiness":     func(p *processRecord) { p.Readiness = "almost" },
		"two probes":    func(p *processRecord) { p.Ready.Port = 1 },
		"restart":       func(p *processRecord) { p.Restart = "always" },
		"no command":    func(p *processRecord) { p.Kept = nil },
		"empty command": func(p *processRecord) { p.Kept.Args = nil },
		"running":       func(p *processRecord) { p.State = ProcessRunning },
	} {
		p := supervisedProcess()
		change(p)
		if _, err := decodeProcess(processKey(p.key(), p.ID), encode(p)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func newLedger(t testing.TB) *policy.Ledger {
	p, err := policy.New(policy.Config{})
	must(t, err)
	return p.NewLedger()
}

// Arbitrary content of the database causes no panic, and accepted records are usable.
func FuzzRecords(f *testing.F) {
	f.Add([]byte("t\x00a"), encode(sampleSession())[4:])
	f.Add([]byte("t\x00a\x00p"), encode(sampleProcess())[4:])
	f.Add([]byte("t\x00a\x00p"), encode(supervisedProcess())[4:])
	f.Add([]byte("t\x00a"), []byte(`{"tenant":"t","id":"a","state":"running","generation":1,"box":"s","resolved":{"spec":{"limits":{"cpus":1e300}}}}`))
	volume := volumeRecord{Tenant: "t", Name: "a", Bytes: 8 << 20, CreatedAt: time.Unix(1700000000, 0).UTC()}
	f.Add(volume.key(), encode(&volume)[4:])
	ledger := newLedger(f)
	f.Fuzz(func(t *testing.T, key, body []byte) {
		value := withSum(body)
		if r, err := decodeSession(key, value); err == nil {
			if u := countable(boxUse(r.Resolved)); u.CPUs != u.CPUs || u.Memory < engine.Unlimited {
				t.Errorf("%+v cannot be counted", u)
			}
			again, err := decodeSession(key, r.put().value)
			if err != nil || again.key() != r.key() {
				t.Errorf("%+v is not taken again: %v", r, err)
			}
		}
		if r, err := decodeVolume(key, value); err == nil {
			ledger.Adopt(r.Tenant, r.use())() // panics if it cannot be counted
			if _, err := decodeVolume(key, r.put().value); err != nil || engine.ValidateVolumeName(r.id()) != nil {
				t.Errorf("%+v is not taken again: %v", r, err)
			}
		}
		if r, err := decodeProcess(key, value); err == nil {
			if _, err := decodeProcess(key, r.put().value); err != nil {
				t.Errorf("%+v is not taken again: %v", r, err)
			}
		}
	})
}
