package conformance

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// root: the system is the host's, read-only, with a host name, an /etc and a /tmp of the box.
func (e *suite) root(t testing.TB) {
	b := e.create(t, engine.Spec{})
	boxtest.WantOutput(t, b, `hostname; exec 2>/dev/null
		touch /usr/x || echo read-only; touch /etc/x || echo read-only; touch /x || echo read-only
		touch /tmp/x && ls /tmp; cat /etc/hostname; test -e /dev/sda || echo no disks; echo x > /dev/null && head -c 2 /dev/zero | wc -c`,
		"box\nread-only\nread-only\nread-only\nx\nbox\nno disks\n2\n")
	named := e.create(t, engine.Spec{Hostname: "other"})
	boxtest.WantOutput(t, named, "hostname; cat /etc/hostname", "other\nother\n")
}

// layeredRoot: boxes write layers, and other boxes have a root of them that they cannot change, or
// change for themselves.
func (e *suite) layeredRoot(t testing.TB) {
	h := e.private(t)
	layers := h.client.(engine.Layers)
	low, high := strings.Repeat("1", 64), strings.Repeat("2", 64)
	write := func(name, id, script string) {
		t.Helper()
		ok(t, layers.MakeLayer(t.Context(), name))
		b := h.create(t, engine.Spec{Unpacks: true, Mounts: []engine.Mount{{Layer: name, Source: "/", Target: "/layer"}}})
		boxtest.WantOutput(t, b, "set -e; mkdir -m 755 /layer/fs; cd /layer/fs; umask 022; "+script, "")
		boxtest.Remove(t, b)
		ok(t, layers.PublishLayer(t.Context(), name, id))
	}
	write("low", low, `mkdir -p usr/bin usr/lib usr/lib64 etc gone; ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64; echo 1 >gone/1
		for p in sh cat ls id touch stat; do
			p=$(command -v $p); cp -L "$p" usr/bin/
			ldd "$p" | grep -o '/[^ ]*' | while read -r lib; do mkdir -p "./${lib%/*}"; cp -Ln "$lib" "./$lib"; done
		done
		echo pg:x:999:999::/:/bin/sh >etc/passwd; echo low >etc/which`)
	write("high", high, `mknod gone c 0 0; mkdir etc; echo high >etc/which; touch etc/pg; chown 999:999 etc/pg`)

	spec := engine.Spec{Image: "example:1", Layers: []string{low, high}}
	b := h.create(t, spec)
	boxtest.WantOutput(t, b, "cat /etc/which; ls -d /gone 2>/dev/null; stat -c %u /etc/pg; touch /etc/x 2>/dev/null || echo read-only; touch /tmp/x && echo written", "high\n999\nread-only\nwritten\n")
	c := boxtest.Shell("id -un")
	c.User = &engine.User{UID: 999, GID: 999}
	if o := boxtest.Run(t, b, c); o.Stdout != "pg\n" {
		t.Errorf("a user of the image: %+v", o)
	}
	spec.WritableRoot, spec.UpperSize = true, 8*boxtest.MiB
	own := h.create(t, spec)
	boxtest.WantOutput(t, own, "echo changed >/etc/which; cat /etc/which", "changed\n")
	boxtest.WantOutput(t, b, "cat /etc/which", "high\n")
	h.KillLauncher(t)
	boxtest.WantOutput(t, own, "cat /etc/which", "changed\n")
	if err := layers.RemoveLayer(t.Context(), low); !errors.Is(err, engine.ErrLayerInUse) {
		t.Errorf("removing a layer of a box: %v", err)
	}
	none := engine.Spec{Layers: []string{strings.Repeat("3", 64)}}
	if x, err := h.tryCreate(t.Context(), none); !errors.Is(err, engine.ErrNoLayer) {
		t.Errorf("a layer that does not exist: %v, %v", x, err)
	}
	boxtest.Remove(t, b)
	boxtest.Remove(t, own)
	ok(t, layers.RemoveLayer(t.Context(), low), layers.RemoveLayer(t.Context(), high))
}

// besideOthers: boxes of this engine and of every other one that the service has are in one list,
// and do not notice each other.
func (e *suite) besideOthers(t testing.TB) {
	h := e.private(t)
	states, err := h.client.(engine.Choosing).Engines(t.Context(), "", "")
	ok(t, err)
	own := h.create(t, engine.Spec{ID: "own"})
	p := boxtest.Begin(t, own, boxtest.Shell("exec sleep 3600"))
	n := 1
	for _, s := range states {
		if !s.Available() {
			continue
		}
		other, err := h.client.Create(t.Context(), engine.Spec{Engine: s.Engine, Isolation: s.Isolation})
		if err != nil {
			t.Errorf("%s, %s: %v", s.Engine, s.Isolation, err)
			continue
		}
		n++
		boxtest.WantOutput(t, other, "echo here", "here\n")
		boxtest.WantOutput(t, own, "echo here", "here\n")
		if of := other.Spec(); of.Engine != s.Engine || of.Isolation != s.Isolation {
			t.Errorf("a box of %s, %s has the spec %+v", s.Engine, s.Isolation, of)
		}
	}
	h.KillLauncher(t)
	ids, err := h.client.Boxes(t.Context())
	if err != nil || len(ids) != n {
		t.Errorf("boxes: %q, %v, want %d", ids, err, n)
	}
	for _, id := range ids {
		if id != "own" {
			ok(t, h.client.Discard(t.Context(), id))
		}
	}
	boxtest.WantOutput(t, own, "ps -e -o comm= | grep -c sleep", "1\n")
	ok(t, p.Signal(9))
	boxtest.Wait(t, p)
	for _, s := range states {
		if s.Available() || s.Engine == e.Engine && s.Isolation == e.Isolation { // its probe took too long, and it has built a box
			continue
		}
		if b, err := h.client.Create(t.Context(), engine.Spec{Engine: s.Engine, Isolation: s.Isolation}); !errors.Is(err, engine.ErrNoEngine) {
			t.Errorf("%s, %s is not available (%s): %v, %v", s.Engine, s.Isolation, s.Reason, b, err)
		}
	}
}

// usage: what a box holds at a moment is what its processes hold.
func (e *suite) usage(t testing.TB) {
	b := e.create(t, engine.Spec{})
	before, err := b.Usage()
	ok(t, err)
	out := boxtest.NewScreen()
	release, stdin := boxtest.NewGate()
	c := boxtest.Python(boxtest.Hog, "32")
	c.Stdin, c.Stdout = stdin, out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "taken")
	during, err := b.Usage()
	ok(t, err)
	if grown := boxtest.Figure(t, "memory", during.Memory) - boxtest.Figure(t, "memory", before.Memory); grown < 30*boxtest.MiB || grown > 64*boxtest.MiB {
		t.Errorf("a process with 32 MiB made the box grow by %d bytes", grown)
	}
	if grown := boxtest.Figure(t, "processes", during.PIDs) - boxtest.Figure(t, "processes", before.PIDs); grown != 1 {
		t.Errorf("one process counts as %d", grown)
	}
	if boxtest.Figure(t, "processor time", during.CPU) <= boxtest.Figure(t, "processor time", before.CPU) {
		t.Errorf("processor time %v, then %v", *before.CPU, *during.CPU)
	}
	release()
	boxtest.Wait(t, p)
}
