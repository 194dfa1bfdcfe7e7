package daemon

import (
	"strings"
	"testing"
)

const quietStatus = "Name:\tboxd\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n" +
	"CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n"

func TestVerifyThread(t *testing.T) {
	if err := verifyThread(quietStatus, 7, 8); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ from, to, part string }{
		{"7\t7\t7\t7", "7\t7\t0\t7", "Uid"},
		{"8\t8\t8\t8", "8\t8\t8\t0", "Gid"},
		{"CapPrm:\t0000000000000000", "CapPrm:\t0000000000000080", "CapPrm"},
		{"CapInh:\t0000000000000000", "CapInh:\t0000000000000001", "CapInh"},
		{"CapEff:\t0000000000000000\n", "", "no line CapEff"},
		{"NoNewPrivs:\t1", "NoNewPrivs:\t0", "NoNewPrivs"},
	} {
		if err := verifyThread(strings.Replace(quietStatus, c.from, c.to, 1), 7, 8); err == nil || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%q: %v, want %q", c.to, err, c.part)
		}
	}
}
