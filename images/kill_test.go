package images

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// TestMain plays the importer of TestKill.
func TestMain(m *testing.M) {
	if dir := os.Getenv("IMAGES_TEST_IMPORTER"); dir != "" {
		importForever(dir)
	}
	testutil.MainUnprivileged(m)
}

// importForever imports, removes and collects the layouts in dir.
func importForever(dir string) {
	f := newFake(filepath.Join(dir, "layers"))
	s, err := Open(filepath.Join(dir, "store"), Options{Unpacker: f, Layers: f})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("open")
	for i := 0; ; i++ {
		name := "image" + strconv.Itoa(i%3)
		if _, err = s.Import(context.Background(), filepath.Join(dir, name), Request{Reference: name}); err == nil {
			_, err = s.Lease("t", name, "holder"+strconv.Itoa(i%2))
		}
		if err == nil && i%2 == 0 {
			err = s.Remove(context.Background(), Shared, name)
		}
		if err == nil && i%5 == 4 {
			_, err = s.GC(context.Background())
		}
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
}

// TestKill: whenever an importer is killed, the next one finds images whose layers and records are whole.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"layers", "store"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	base := randomImage(t, 20_000, 2)
	for i := range 3 {
		if err := os.Rename(ociLayout(t, onTop(t, base)), filepath.Join(dir, "image"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 20 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "IMAGES_TEST_IMPORTER="+dir)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		time.Sleep(time.Duration(random.IntN(80)) * time.Millisecond) // the moment of the kill is what varies
		cmd.Process.Kill()
		cmd.Wait()
		if line != "open\n" {
			t.Fatalf("round %d: %q", round, line)
		}
		b := &bench{t: t, fake: newFake(filepath.Join(dir, "layers")), dir: filepath.Join(dir, "store")}
		b.open(Options{})
		all, err := b.List("t")
		if err != nil {
			t.Fatal(err)
		}
		for _, holder := range []string{"holder0", "holder1"} {
			if img, err := b.Leased(holder); err == nil {
				b.wantLayers(img)
			}
		}
		if round%3 == 0 {
			b.mustGC()
		}
		for _, img := range all {
			if err := b.Verify(t.Context(), "t", img.Name); err != nil {
				t.Errorf("round %d: %s: %v", round, img.Name, err)
			}
		}
		if left, _ := os.ReadDir(b.newDir()); len(left) > 0 {
			t.Errorf("round %d: left: %v", round, left)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	b := &bench{t: t, fake: newFake(filepath.Join(dir, "layers")), dir: filepath.Join(dir, "store")}
	b.open(Options{})
	defer b.Close()
	all, _ := b.List("t")
	for _, img := range all {
		b.Remove(t.Context(), Shared, img.Name)
	}
	b.RetainLeases(func(string) bool { return false })
	b.mustGC()
	if ids := b.layers(); len(ids) > 0 {
		t.Errorf("layers left: %v", ids)
	}
}
