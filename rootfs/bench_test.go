package rootfs

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func BenchmarkOpenHost(b *testing.B) {
	dir := stateDir(b)
	for b.Loop() {
		h, err := OpenHost(filepath.Join(dir, "host"), filepath.Join(testutil.DefaultStateDir, "etc"))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := h.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkBuild measures one box from Build to Close.
func BenchmarkBuild(b *testing.B) {
	dir := stateDir(b)
	h := testHost(b, dir)
	n := 0
	for b.Loop() {
		n++
		r, err := h.Build(filepath.Join(dir, fmt.Sprint("box", n)), options(testBase))
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Hide(); err != nil {
			b.Fatal(err)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBuildWritable also copies /etc, which is most of the difference.
func BenchmarkBuildWritable(b *testing.B) {
	dir := stateDir(b)
	h, _ := writableHost(b, dir)
	o := writable(b, testBase)
	for b.Loop() {
		r, err := h.Build(filepath.Join(dir, "box"), o)
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
