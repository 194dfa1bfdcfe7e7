package doctor

import "testing"

func TestParseRelease(t *testing.T) {
	for in, want := range map[string]kernelVersion{
		"6.1.0-31-amd64": {6, 1, 0}, "6.18.44-fc-v657": {6, 18, 44}, "5.15.167.4-microsoft-standard-WSL2": {5, 15, 167}, "6.17-rc3": {6, 17, 0}, "7.0": {7, 0, 0}, "6.12.90+deb13-amd64": {6, 12, 90},
	} {
		if got, ok := parseRelease(in); !ok || got != want {
			t.Errorf("parseRelease(%q) = %v, %v, want %v", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "linux", "6", "6.x", "-1.2.3", "99999999999999999999.1.1"} {
		if got, ok := parseRelease(in); ok {
			t.Errorf("parseRelease(%q) = %v, want none", in, got)
		}
	}
}

func TestUpstream(t *testing.T) {
	for _, c := range []struct{ version, signature, want string }{
		{"Linux version 6.1.0-31-amd64 (debian-kernel@lists.debian.org) (gcc-12) #1 SMP PREEMPT_DYNAMIC Debian 6.1.128-1 (2025-02-07)", "", "6.1.128"},
		{"Linux version 6.1.0-56-cloud-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-16)", "", "6.1.192"},
		{"Linux version 6.8.0-31-generic (buildd@lcy02) #31-Ubuntu SMP", "Ubuntu 6.8.0-31.31-generic 6.8.1", "6.8.1"},
		{"Linux version 6.18.44 (root@build) #1 SMP", "", ""},
		{"", "nonsense", ""},
	} {
		if got := upstream(c.version, c.signature); got != c.want {
			t.Errorf("upstream(%q, %q) = %q, want %q", c.version, c.signature, got, c.want)
		}
	}
}

func TestHoles(t *testing.T) {
	pipe, copyFail := holes[0], holes[1]
	for _, c := range []struct {
		hole hole
		v    kernelVersion
		want bool
	}{
		{pipe, kernelVersion{5, 7, 19}, false},
		{pipe, kernelVersion{5, 8, 0}, true},
		{pipe, kernelVersion{5, 10, 101}, true},
		{pipe, kernelVersion{5, 10, 102}, false},
		{pipe, kernelVersion{5, 13, 19}, true},
		{pipe, kernelVersion{5, 16, 11}, false},
		{pipe, kernelVersion{5, 17, 0}, false},
		{copyFail, kernelVersion{4, 10, 0}, false},
		{copyFail, kernelVersion{6, 1, 170}, true},
		{copyFail, kernelVersion{6, 1, 171}, false},
		{copyFail, kernelVersion{6, 8, 0}, true},
		{copyFail, kernelVersion{6, 18, 44}, false},
		{copyFail, kernelVersion{7, 0, 4}, true},
		{copyFail, kernelVersion{7, 1, 0}, false},
	} {
		if got := c.hole.affects(c.v); got != c.want {
			t.Errorf("%s affects %v: %v, want %v", c.hole.name, c.v, got, c.want)
		}
	}
}
