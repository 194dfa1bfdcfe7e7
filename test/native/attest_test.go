package native

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/attest"
)

// prober measures with a real engine, and must leave nothing.
func prober(t testing.TB, s *storage, o attest.Options) *attest.Prober {
	t.Helper()
	o.Engine, o.Scratch = s.Service, t.TempDir()
	p := attest.New(o)
	t.Cleanup(func() {
		p.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if boxes, err := s.Boxes(ctx); err != nil || len(boxes) != 0 {
			t.Errorf("the probe left boxes %v: %v", boxes, err)
		}
		if volumes, err := s.Volumes(ctx); err != nil || len(volumes) != 0 {
			t.Errorf("the probe left volumes %v: %v", volumes, err)
		}
		if names, err := os.ReadDir(o.Scratch); err != nil || len(names) != 0 {
			t.Errorf("the probe left %v: %v", names, err)
		}
	})
	return p
}

// wantChecks fails the test unless exactly the checks in not are false, each for a reason
// that says what not has.
func wantChecks(t testing.TB, r attest.Report, not map[string]string) {
	t.Helper()
	for _, name := range attest.Names {
		c, ok := r.Checks[name]
		want, isFalse := not[name]
		if !ok || c.OK == isFalse || c.OK != (c.Reason == "") || !strings.Contains(c.Reason, want) {
			t.Errorf("%s: %+v, want it false: %v, with %q", name, c, isFalse, want)
		}
	}
}

// notV2 has the guarantees that are false on a host whose cgroup v2 has no controllers.
func notV2() map[string]string {
	controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if strings.Contains(string(controllers), "memory") {
		return map[string]string{}
	}
	return map[string]string{attest.CgroupV2: "memory, pids and cpu are limited by cgroup v1 here"}
}

func TestAttest(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	p := prober(t, s, attest.Options{Storage: s.Service})
	began := time.Now()
	r := p.Report(t.Context(), time.Minute, attest.Places{})
	t.Logf("took %v", time.Since(began))
	wantChecks(t, r, notV2())
	if again := p.Report(t.Context(), time.Minute, attest.Places{}); again.At != r.At {
		t.Error("it was measured again within the age that was asked for")
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	at := make(map[time.Time]bool)
	for range 20 {
		wg.Go(func() {
			r := p.Report(t.Context(), 0, attest.Places{})
			mu.Lock()
			defer mu.Unlock()
			at[r.At] = true
		})
	}
	wg.Wait()
	if len(at) > 2 { // one who asks after the first is done may get the second
		t.Errorf("20 who asked at once caused %d measurements", len(at))
	}
}

// Without storage the rest is measured all the same.
func TestAttestWithoutStorage(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	not := notV2()
	for _, name := range []string{attest.HardWorkspaceQuota, attest.HardSkillStorageQuota, attest.InodeQuota} {
		not[name] = "no storage of limited size"
	}
	wantChecks(t, prober(t, s, attest.Options{}).Report(t.Context(), 0, attest.Places{}), not)
}

// Skills, or workspaces, in a directory of the host are limited by project quota, where
// there is one.
func TestAttestDirectoryOfHost(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, 0)
	root := dataParent(t)
	dir := filepath.Join(root, "skills")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := engine.Directory{Path: dir, Within: root}
	limitable := s.LimitDirectory(t.Context(), d, 64*mib, 1000)
	not := notV2()
	if limitable != nil {
		if !errors.Is(limitable, engine.ErrUnenforceable) {
			t.Fatal(limitable)
		}
		not[attest.HardSkillStorageQuota], not[attest.InodeQuota] = "quota", "quota"
	} else if err := s.LimitDirectory(t.Context(), d, 0, 0); err != nil {
		t.Fatal(err)
	}
	wantChecks(t, prober(t, s, attest.Options{Storage: s.Service}).Report(t.Context(), 0, attest.Places{Skills: d}), not)
	if limitable != nil {
		delete(not, attest.HardSkillStorageQuota) // in a volume now, and workspaces there
		not[attest.HardWorkspaceQuota] = "quota"
	}
	wantChecks(t, prober(t, s, attest.Options{Storage: s.Service}).Report(t.Context(), 0, attest.Places{Workspaces: d}), not)
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the probe left %v: %v", names, err)
	}
}

// A probe that is cut off leaves nothing that the next one minds.
func TestAttestCutOff(t *testing.T) {
	s := startStorage(t, 0)
	testutil.Long(t)
	for i := range 10 {
		p := prober(t, s, attest.Options{Storage: s.Service})
		go p.Report(context.Background(), 0, attest.Places{})
		time.Sleep(time.Duration(i) * 10 * time.Millisecond) // anywhere in it
		p.Close()
	}
	wantChecks(t, prober(t, s, attest.Options{Storage: s.Service}).Report(t.Context(), 0, attest.Places{}), notV2())
}
