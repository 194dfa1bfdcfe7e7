package seccomp

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// notListed are calls that the tests know and that are on no list, so that they get ENOSYS.
var notListed = []call{{"openat2", 437, 437}, {"io_setup", 206, 0}, {"memfd_secret", 447, 447}}

// everyCall is all calls of the tables.
func everyCall() []call {
	calls := slices.Clone(notListed)
	for _, g := range slices.Concat(allowedFiles, allowedProcess, refused) {
		calls = append(calls, g.calls...)
	}
	for _, c := range checked {
		calls = append(calls, c.call)
	}
	return calls
}

func numberOf(t *testing.T, a arch, name string) int {
	t.Helper()
	for _, c := range everyCall() {
		if c.name == name {
			return a.number(c)
		}
	}
	t.Fatalf("call %q is in no table", name)
	return -1
}

// TestTables: each call has one place, each number one call, and numbers from
// 424 on are the same on all architectures.
func TestTables(t *testing.T) {
	names := map[string]bool{}
	for _, c := range everyCall() {
		if names[c.name] {
			t.Errorf("%s is listed twice", c.name)
		}
		names[c.name] = true
		if (c.amd64 >= 424 || c.arm64 >= 424) && c.amd64 != c.arm64 {
			t.Errorf("%s is %d on amd64 and %d on arm64", c.name, c.amd64, c.arm64)
		}
	}
	for goarch, a := range arches {
		numbers := map[int]string{}
		for _, c := range everyCall() {
			nr := a.number(c)
			if nr >= 0 && numbers[nr] != "" {
				t.Errorf("%s: %d is %s and %s", goarch, nr, numbers[nr], c.name)
			}
			numbers[nr] = c.name
		}
	}
}

// TestProgramMeansPolicy compares the program with the tables read directly, on
// every number and on arguments near the values that checks compare with.
func TestProgramMeansPolicy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for goarch, a := range arches {
		p := a.program()
		for nr := range uint32(700) {
			want := expected(a, int(nr))
			for range 200 {
				d := data{nr: nr, arch: a.audit, ip: rnd.Uint64()}
				for i := range d.args {
					d.args[i] = likelyArgument(rnd)
				}
				got, _, err := run(p, d)
				if err != nil || got != want(d.args) {
					t.Fatalf("%s %d%#x: %v, %v, want %v", goarch, nr, d.args, got, err, want(d.args))
				}
			}
		}
	}
}

// likelyArgument draws a value that checks look for, about half of the time.
func likelyArgument(rnd *rand.Rand) uint64 {
	interesting := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14, 16, 17, 22, 25, 26, 32, 37, 38, 40, 41, 50, 65, 67, 1024, 0o4000, 0x40000, 0o4755, 0o2755, 0o644, unix.O_CREAT, unix.O_TMPFILE,
		unix.TIOCSTI, unix.TIOCLINUX, unix.CLONE_NEWUSER, unix.S_IFCHR, unix.S_IFIFO, 0x20008, 0xffffffff}
	v := interesting[rnd.IntN(len(interesting))]
	switch rnd.IntN(4) {
	case 0:
		return v | rnd.Uint64()<<32
	case 1:
		return v ^ 1<<rnd.IntN(64)
	}
	return v
}

// expected is the policy for number nr, evaluated without a program.
func expected(a arch, nr int) func([6]uint64) verdict {
	always := func(v verdict) func([6]uint64) verdict { return func([6]uint64) verdict { return v } }
	for _, c := range checked {
		if a.number(c.call) == nr {
			return c.check.evaluate
		}
	}
	has := func(groups []group) bool {
		return slices.ContainsFunc(groups, func(g group) bool {
			return slices.ContainsFunc(g.calls, func(c call) bool { return a.number(c) == nr })
		})
	}
	switch {
	case has(allowedFiles), has(allowedProcess):
		return always(allow)
	case has(refused):
		return always(eperm)
	}
	return always(enosys)
}

func (c check) evaluate(args [6]uint64) verdict {
	for _, r := range c {
		if !slices.ContainsFunc(r.conds, func(c cond) bool {
			value := uint32(args[c.arg])
			if c.high {
				value = uint32(args[c.arg] >> 32)
			}
			return slices.Contains(c.in, value&c.mask) == c.not
		}) {
			return r.verdict
		}
	}
	panic("check without a last rule")
}

// TestChecksEnd: a check that no rule ends would run into the next span.
func TestChecksEnd(t *testing.T) {
	for _, c := range checked {
		if len(c.check) == 0 || len(c.check[len(c.check)-1].conds) != 0 {
			t.Errorf("%s: the last rule has conditions", c.name)
		}
	}
}

// TestGolden shows every change of the policy in review. UPDATE=1 rewrites it.
func TestGolden(t *testing.T) {
	var b strings.Builder
	list := func(v verdict, groups []group) {
		for _, g := range groups {
			fmt.Fprintf(&b, "%v: %s\n", v, g.why)
			for _, c := range g.calls {
				fmt.Fprintf(&b, "\t%s %d %d\n", c.name, c.amd64, c.arm64)
			}
		}
	}
	list(allow, slices.Concat(allowedFiles, allowedProcess))
	list(eperm, refused)
	for _, c := range checked {
		fmt.Fprintf(&b, "checked: %s %d %d: %s\n", c.name, c.amd64, c.arm64, c.why)
		for _, r := range c.check {
			fmt.Fprintf(&b, "\t%v %s\n", r.verdict, describe(r.conds))
		}
	}
	for _, goarch := range []string{"amd64", "arm64"} {
		fmt.Fprintf(&b, "%s: %d instructions\n", goarch, len(arches[goarch].program()))
	}
	golden := filepath.Join("testdata", "policy.txt")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the policy differs from %s: look at the change, then run the test with UPDATE=1", golden)
	}
}

func describe(conds []cond) string {
	if len(conds) == 0 {
		return "otherwise"
	}
	var parts []string
	for _, c := range conds {
		op := "in"
		if c.not {
			op = "not in"
		}
		half := ""
		if c.high {
			half = ">>32"
		}
		parts = append(parts, fmt.Sprintf("arg%d%s&%#x %s %#x", c.arg, half, c.mask, op, c.in))
	}
	return strings.Join(parts, ", ")
}
