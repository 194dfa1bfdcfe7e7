package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnpackerVerdicts: a box that unpacks may do more in two calls, and in no other.
func TestUnpackerVerdicts(t *testing.T) {
	type args = [6]uint64
	for goarch, a := range arches {
		box, unpacker := a.program(), a.unpackerProgram()
		numbers := map[string]int{}
		for _, c := range everyCall() {
			numbers[c.name] = a.number(c)
		}
		both := func(d data) (of, plain verdict) {
			t.Helper()
			of, _, err := run(unpacker, d)
			if err != nil {
				t.Fatal(err)
			}
			if plain, _, err = run(box, d); err != nil {
				t.Fatal(err)
			}
			return of, plain
		}
		for _, c := range []struct {
			name string
			args args
			want verdict
		}{
			{"mknodat", args{0, 0, unix.S_IFCHR | 0o600, 0}, allow},
			{"mknodat", args{0, 0, unix.S_IFCHR, high}, allow}, // the kernel drops it
			{"mknodat", args{0, 0, unix.S_IFCHR | 0o600, 0x103}, eperm},
			{"mknodat", args{0, 0, unix.S_IFCHR | 0o600, 1 << 31}, eperm},
			{"mknodat", args{0, 0, unix.S_IFCHR | unix.S_ISUID | 0o600, 0}, eperm},
			{"mknodat", args{0, 0, unix.S_IFBLK | 0o600, 0}, eperm},
			{"mknodat", args{0, 0, high | unix.S_IFBLK | 0o600, 0}, eperm},
			{"mknodat", args{0, 0, unix.S_IFREG | 0o4755, 0}, eperm},
			{"mknodat", args{0, 0, unix.S_IFIFO | 0o600, 0}, allow},
			{"mknod", args{0, unix.S_IFCHR | 0o600, 0}, eperm},
			{"setxattr", args{}, eopnotsupp},
			{"lsetxattr", args{}, eopnotsupp},
			{"fsetxattr", args{}, allow},
			{"setxattrat", args{}, eopnotsupp},
			{"fchmodat", args{0, 0, 0o4755}, eperm},
			{"mount", args{}, eperm},
			{"open_by_handle_at", args{}, eperm},
			{"unshare", args{}, eperm},
			{"setns", args{}, eperm},
		} {
			if nr := numbers[c.name]; nr >= 0 {
				if got, _ := both(data{nr: uint32(nr), arch: a.audit, args: c.args}); got != c.want {
					t.Errorf("%s: %s%v: %v, want %v", goarch, c.name, c.args, got, c.want)
				}
			}
		}
		differ := map[uint32]bool{}
		for name := range unpackerChecks {
			differ[uint32(numbers[name])] = true
		}
		for nr := range uint32(700) {
			for _, arg := range []uint64{0, 1, 0x3d0f00, unix.S_IFCHR, unix.S_IFCHR | setid, unix.CLONE_NEWUSER, ^uint64(0)} {
				d := data{nr: nr, arch: a.audit, args: args{arg, arg, arg, arg, arg, arg}}
				if got, plain := both(d); got != plain && !differ[nr] {
					t.Errorf("%s: call %d with %#x: %v, in other boxes %v", goarch, nr, arg, got, plain)
				}
			}
		}
		if got, plain := both(data{nr: x32Bit, arch: a.audit}); got != kill || plain != kill {
			t.Errorf("%s: x32: %v, in other boxes %v", goarch, got, plain)
		}
	}
}
