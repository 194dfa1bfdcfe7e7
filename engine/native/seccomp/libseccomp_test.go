//go:build libseccomp

package seccomp

import (
	"slices"
	"testing"

	libseccomp "github.com/seccomp/libseccomp-golang"
)

// TestNumbersAgainstLibseccomp compares the system call numbers of both policies with those
// of libseccomp, whose tables were made independently. Calls that an old libseccomp does not
// know are only counted.
func TestNumbersAgainstLibseccomp(t *testing.T) {
	foreign := map[string]libseccomp.ScmpArch{"amd64": libseccomp.ArchAMD64, "arm64": libseccomp.ArchARM64}
	for goarch, a := range arches {
		var unknown []string
		for _, c := range slices.Concat(everyCall(), everyDaemonCall()) {
			nr, err := libseccomp.GetSyscallFromNameByArch(c.name, foreign[goarch])
			if err != nil {
				unknown = append(unknown, c.name)
				continue
			}
			// A negative number stands for a call that the architecture lacks.
			if want := max(int(nr), -1); a.number(c) != want {
				t.Errorf("%s on %s: %d, libseccomp says %d", c.name, goarch, a.number(c), want)
			}
		}
		if len(unknown) > 40 {
			t.Errorf("%s: libseccomp knows too few calls for a comparison, it lacks %v", goarch, unknown)
		}
		t.Logf("%s: unknown to libseccomp: %v", goarch, unknown)
	}
}
