package linux

import (
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

func TestParseMountInfo(t *testing.T) {
	for line, want := range map[string]MountInfo{
		"36 35 98:0 /sub /mnt/p rw,noatime master:1 - ext3 /dev/root rw,errors=continue": {
			36, 35, "98:0", "/sub", "/mnt/p", []string{"rw", "noatime"}, false, "ext3", []string{"rw", "errors=continue"}},
		"1 0 0:2 / / rw - rootfs none rw": {1, 0, "0:2", "/", "/", []string{"rw"}, false, "rootfs", []string{"rw"}},
		`7 1 0:3 /a\040b /c\134d\011\012 rw shared:1 master:2 - tmpfs t rw`: {
			7, 1, "0:3", "/a b", "/c\\d\t\n", []string{"rw"}, true, "tmpfs", []string{"rw"}},
		"8 1 0:3 /gone//deleted /x rw - tmpfs t": {8, 1, "0:3", "/gone//deleted", "/x", []string{"rw"}, false, "tmpfs", nil},
		"32 31 0:29 /docker/x /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct": {
			32, 31, "0:29", "/docker/x", "/sys/fs/cgroup/cpu,cpuacct", []string{"rw"}, false, "cgroup", []string{"rw", "cpu", "cpuacct"}},
	} {
		got, err := ParseMountInfo(strings.NewReader(line + "\n"))
		if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%q: %+v, %v, want %+v", line, got, err, want)
		}
	}
}

func TestBadMountInfo(t *testing.T) {
	for _, bad := range []string{
		"", "x", "36 35 98:0 / / rw", "x 35 98:0 / / rw - t s", "1 x 98:0 / / rw - t s", "36 35 98:0 / - t s",
		"1 2 0:1 / /p rw -", "1 2 0:1 / /p rw - cgroup", strings.Repeat("x", maxMountLine+1),
	} {
		if got, err := ParseMountInfo(strings.NewReader("1 0 0:2 / / rw - rootfs none rw\n" + bad + "\n")); err == nil {
			t.Errorf("%.40q: %+v and no error", bad, got)
		}
	}
}

func TestFindMountInfo(t *testing.T) {
	const text = "1 0 0:2 / / rw - rootfs none rw\nnot a line\n36 35 98:0 / /a\\040b rw - t s\n361 36 98:0 / /c rw - t s\n"
	for id, want := range map[uint64]string{1: "/", 36: "/a b", 361: "/c", 3: "", 35: "", 0: ""} {
		m, ok, err := FindMountInfo(strings.NewReader(text), id)
		if m.Point != want || ok != (want != "") || err != nil {
			t.Errorf("%d: %+v, %v, %v", id, m, ok, err)
		}
	}
	for _, bad := range []string{"7 x\n", strings.Repeat("x", maxMountLine+1)} {
		if m, ok, err := FindMountInfo(strings.NewReader(bad), 7); ok || err == nil {
			t.Errorf("%.40q: %+v, %v and no error", bad, m, ok)
		}
	}
}

// A box can nest each of its mounts as deeply as it likes: finding one must cost only one line.
func TestFindMountInfoCost(t *testing.T) {
	const lines, long = 64, 2 << 20
	var readers []io.Reader
	path := strings.Repeat("/d", long/2)
	for i := range lines {
		readers = append(readers, strings.NewReader(fmt.Sprintf("%d 1 0:2 / ", i+10)), strings.NewReader(path), strings.NewReader(" rw - t s\n"))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, ok, err := FindMountInfo(io.MultiReader(readers...), lines+9)
	runtime.ReadMemStats(&after)
	if !ok || err != nil || m.Point != path {
		t.Fatalf("%v, %v, %d bytes", ok, err, len(m.Point))
	}
	// The buffer doubles up to the line, and the line is copied.
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 12*long {
		t.Errorf("%d lines of %d bytes cost %d bytes", lines, long, spent)
	}
}

func TestUnescapeMount(t *testing.T) {
	for in, want := range map[string]string{
		"/plain":        "/plain",
		`/a\040b\011`:   "/a b\t",
		`/back\134`:     `/back\`,
		`/end\04`:       `/end\04`,
		`/not\999octal`: `/not\999octal`,
	} {
		if got := unescapeMount(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestReadMountInfoHasTheRoot(t *testing.T) {
	mounts, err := ReadMountInfo()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.Point == "/" && m.FSType != "" && strings.Contains(m.Device, ":") {
			return
		}
	}
	t.Errorf("no root among %d mounts", len(mounts))
}
