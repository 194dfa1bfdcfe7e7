//go:build amd64 || arm64

package linux

import (
	"errors"
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// TestProbes: a host that runs these tests has all features.
func TestProbes(t *testing.T) {
	for _, p := range []struct {
		feature string
		root    bool
		probe   func() error
	}{
		{"pidfd", false, ProbePidfd},
		{"openat2", false, ProbeOpenat2},
		{"clone3 into cgroup", false, ProbeCloneIntoCgroup},
		{"seccomp", false, ProbeSeccomp},
		{"mount_setattr", true, ProbeMountAPI},
		{"overlayfs", true, func() error { return ProbeFilesystem("overlay") }},
		{"user namespaces", true, ProbeUserNS},
		{"id-mapped root file system", true, func() error { return ProbeIDMap("/usr") }},
		{"overlay of id-mapped layers", true, func() error {
			_, err := ProbeLayers("/usr")
			return err
		}},
	} {
		t.Run(p.feature, func(t *testing.T) {
			if p.root {
				testutil.RequireRoot(t)
			}
			testutil.RequireFeature(t, p.feature, p.probe())
		})
	}
}

// TestProbesSayNo: an impossible feature is reported as a definite no.
func TestProbesSayNo(t *testing.T) {
	testutil.RequireRoot(t)
	for name, err := range map[string]error{
		"file system": ProbeFilesystem("no-such-fs"),
		"proc":        ProbeIDMap("/proc"),
		"layers":      second(ProbeLayers("/proc")),
		"verity":      ProbeVerity("/dev/shm"),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", name, err)
		}
	}
	if err := ProbeIDMap("/no/such/directory"); !errors.Is(err, os.ErrNotExist) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("missing directory: %v, want ErrNotExist only", err)
	}
}

func second(_ bool, err error) error { return err }

// TestLayersByName: what kernels before 6.15 need works on this kernel, too.
func TestLayersByName(t *testing.T) {
	testutil.RequireRoot(t)
	var trees []*os.File
	for range 2 {
		m, err := NewMount("tmpfs", 0)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		trees = append(trees, m)
	}
	if err := probeLayersByName(trees[0], trees[1]); err != nil {
		t.Error(err)
	}
}

func TestKernelRelease(t *testing.T) {
	release, machine, err := KernelRelease()
	if err != nil || release == "" || machine == "" {
		t.Errorf("KernelRelease() = %q, %q, %v", release, machine, err)
	}
}
