package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/linux"
)

// program is what a command of a box does.
type program func(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) engine.Result

// host is an engine with layers in memory.
type host struct {
	gone      chan struct{} // closed: its boxes have ended
	mu        sync.Mutex
	made      map[string]bool
	published map[string]bool
	boxes     int // that exist
	most      int // boxes that existed at the same time
	specs     []engine.Spec
	commands  []engine.Command

	programs map[string]program
	fail     map[string]error // by operation
	written  []byte           // what write has read
}

func newHost() *host {
	h := &host{made: map[string]bool{}, published: map[string]bool{}, fail: map[string]error{}}
	h.programs = map[string]program{"inflate": cat, "sum": say(goodSum), "write": func(_ context.Context, _ []string, in io.Reader, out, _ io.Writer) engine.Result {
		text, _ := io.ReadAll(in)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.written = text
		fmt.Fprintf(out, `{"bytes":%d,"entries":3,"skipped":{"device":1}}`, len(text))
		return exit(0)
	}}
	return h
}

var goodSum = `{"sha256":"` + strings.Repeat("a", 64) + `","files":3,"bytes":5}`

func exit(n int) engine.Result { return engine.Result{Verdict: engine.Exited, ExitCode: n} }

func cat(_ context.Context, _ []string, in io.Reader, out, _ io.Writer) engine.Result {
	io.Copy(out, in)
	return exit(0)
}

func say(text string) program {
	return func(_ context.Context, _ []string, in io.Reader, out, _ io.Writer) engine.Result {
		if in != nil {
			io.Copy(io.Discard, in)
		}
		io.WriteString(out, text)
		return exit(0)
	}
}

// ends is a program that says text on stderr, having read nothing, and ends like that.
func ends(text string, r engine.Result) program {
	return func(_ context.Context, _ []string, _ io.Reader, _, errs io.Writer) engine.Result {
		io.WriteString(errs, text)
		return r
	}
}

func stuck(ctx context.Context, _ []string, _ io.Reader, _, _ io.Writer) engine.Result {
	<-ctx.Done()
	return engine.Result{Verdict: engine.Canceled, ExitCode: -1}
}

func (h *host) MakeLayer(_ context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail["make"] == nil {
		h.made[name] = true
	}
	return h.fail["make"]
}

func (h *host) PublishLayer(_ context.Context, name, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail["publish"] != nil {
		return h.fail["publish"]
	}
	if !h.made[name] || h.boxes > 0 && h.most == 1 {
		return errors.New("no such layer, or a box has it mounted")
	}
	delete(h.made, name)
	h.published[id] = true
	return nil
}

func (h *host) AbandonLayer(ctx context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.made, name)
	return errors.Join(ctx.Err(), h.fail["abandon"])
}

func (h *host) RemoveLayer(context.Context, string) error { panic("not used") }

func (h *host) Layers(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(h.published)), nil
}

func (h *host) Create(_ context.Context, s engine.Spec) (engine.Box, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail["create"] != nil {
		return nil, h.fail["create"]
	}
	h.specs = append(h.specs, s)
	h.boxes++
	h.most = max(h.most, h.boxes)
	return &fakeBox{h: h}, nil
}

type fakeBox struct {
	engine.Box
	h *host
}

func (b *fakeBox) Done() <-chan struct{} { return b.h.gone }

func (b *fakeBox) Remove(ctx context.Context) error {
	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	b.h.boxes--
	return errors.Join(ctx.Err(), b.h.fail["remove"])
}

// Start runs the program as the engine would: it gets files of the caller as they are, and ends them with it.
func (b *fakeBox) Start(ctx context.Context, c engine.Command) (engine.Process, error) {
	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	if err := b.h.fail["start "+c.Args[0]]; err != nil {
		return nil, err
	}
	b.h.commands = append(b.h.commands, c)
	run, in, out := b.h.programs[c.Args[0]], c.Stdin, c.Stdout
	var files []*os.File
	own := func(f *os.File) *os.File {
		mine, err := linux.Dup(f)
		if err != nil {
			panic(err)
		}
		files = append(files, mine)
		return mine
	}
	if f, ok := in.(*os.File); ok {
		in = own(f)
	}
	if f, ok := out.(*os.File); ok {
		out = own(f)
	}
	p := &fakeProcess{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.result = run(ctx, c.Args, in, out, c.Stderr)
		linux.CloseAll(files)
	}()
	return p, nil
}

type fakeProcess struct {
	engine.Process
	done   chan struct{}
	result engine.Result
}

func (p *fakeProcess) Wait() (engine.Result, error) {
	<-p.done
	return p.result, nil
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

const archive = "the archive of a layer"

// layer is one whose blob is archive.
func layer() images.Layer {
	return images.Layer{Blob: strings.NewReader(archive), Size: int64(len(archive)), DiffID: digest(archive), MaxBytes: 1 << 20}
}

func (h *host) unpacker() *Unpacker {
	return New(Options{Create: h.Create, Layers: h})
}

// checkClean fails unless only the layers in published are left.
func (h *host) checkClean(t *testing.T, published ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := slices.Sorted(maps.Keys(h.published)); len(h.made) > 0 || h.boxes > 0 || !slices.Equal(got, published) {
		t.Errorf("left: unpublished %v, %d boxes, published %q; want %q", h.made, h.boxes, got, published)
	}
}

func TestUnpack(t *testing.T) {
	h := newHost()
	var read atomic.Int64
	l := layer()
	l.Below, l.Progress = []string{digest("0"), digest("1")}, read.Store
	got, err := h.unpacker().Unpack(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != digest(archive) || got.Bytes != int64(len(archive)) || got.Entries != 3 || got.Skipped["device"] != 1 || got.Sum != strings.Repeat("a", 64) || string(h.written) != archive {
		t.Errorf("unpacked %+v from %q", got, h.written)
	}
	if read.Load() != l.Size {
		t.Errorf("progress ends at %d of %d", read.Load(), l.Size)
	}
	h.checkClean(t, digest(archive))
	s := h.specs[0]
	if !s.Unpacks || len(s.Mounts) != 3 || s.Limits.Memory != 512<<20 || s.Limits.FileSize != 1<<20 {
		t.Errorf("box %+v", s)
	}
	for i, m := range s.Mounts {
		want := engine.Mount{Source: "/", Target: fmt.Sprintf("/below/%d", i-1), Layer: digest(fmt.Sprint(i - 1)), ReadOnly: true}
		if i == 0 {
			want = engine.Mount{Source: "/", Target: "/layer", Layer: m.Layer}
		}
		if m != want {
			t.Errorf("mount %d is %+v, want %+v", i, m, want)
		}
	}
	for _, c := range h.commands {
		want := engine.User{}
		if c.Args[0] == "inflate" {
			want = engine.User{UID: 1, GID: 1}
		}
		if c.Builtin != engine.BuiltinUnpack || *c.User != want || c.Timeout != patience {
			t.Errorf("command %+v", c)
		}
	}
	if w := h.commands[1].Args; w[1] != `{"bytes":1048576,"entries":2000000,"below":2}` {
		t.Errorf("write got %q", w)
	}

	h = newHost()
	l = layer()
	l.DiffID = "" // so nothing else shows that the archive is whole
	if _, err := h.unpacker().Unpack(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if w := h.commands[1].Args; w[1] != `{"bytes":1048576,"entries":2000000,"below":0,"root":true}` {
		t.Errorf("write of a root file system got %q", w)
	}
}

// TestUnpackLong: neither the pipes nor the buffer bound a stream.
func TestUnpackLong(t *testing.T) {
	h, text := newHost(), strings.Repeat("0123456789abcdef", 1<<18)
	l := images.Layer{Blob: strings.NewReader(text), Size: int64(len(text)), DiffID: digest(text), MaxBytes: 1 << 30}
	if got, err := h.unpacker().Unpack(t.Context(), l); err != nil || got.ID != l.DiffID || string(h.written) != text {
		t.Errorf("unpacked %v: %v", got, err)
	}
}

func TestIDs(t *testing.T) {
	inherits := say(`{"bytes":1,"entries":1,"inherits":true}`)
	chain, below := digest("chain"), []string{digest("below")}
	for _, c := range []struct {
		name          string
		diffID, chain string
		below         []string
		write         program
		want          string // ID, or the beginning of the error
	}{
		{"diff ID", digest(archive), chain, below, nil, digest(archive)},
		{"computed diff ID", "", "", nil, nil, digest(archive)},
		{"chain ID", digest(archive), chain, below, inherits, chain},
		{"inherits from nothing", digest(archive), "", nil, inherits, digest(archive)},
		{"no chain ID", digest(archive), "", below, inherits, "unpacking layer sha256:" + digest(archive)},
		{"malformed chain ID", digest(archive), "../" + chain[3:], below, inherits, "unpacking layer sha256:" + digest(archive)},
		{"other diff ID", digest("other"), chain, below, nil, "image is damaged: the archive of the layer has the digest sha256:" + digest(archive)},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, l := newHost(), layer()
			if c.write != nil {
				h.programs["write"] = c.write
			}
			l.DiffID, l.ChainID, l.Below = c.diffID, c.chain, c.below
			got, err := h.unpacker().Unpack(t.Context(), l)
			if err != nil {
				if !strings.HasPrefix(err.Error(), c.want) {
					t.Errorf("error %q, want %q", err, c.want)
				}
				h.checkClean(t)
				return
			}
			if got.ID != c.want {
				t.Errorf("ID %q, want %q", got.ID, c.want)
			}
			h.checkClean(t, c.want)
		})
	}
}

func TestFailures(t *testing.T) {
	killed := func(v engine.Verdict, limit string) engine.Result {
		return engine.Result{Verdict: v, ExitCode: -1, Signal: syscall.SIGKILL, Limit: limit}
	}
	for _, c := range []struct {
		name, command string
		run           program
		kind          error
		text          string
	}{
		{"damaged compression", "inflate", ends("starting\ngzip: invalid checksum\n", exit(proto.Corrupt)), images.ErrCorrupt, "image is damaged: gzip: invalid checksum"},
		{"too long", "inflate", ends("more than 5 bytes", exit(proto.Refused)), images.ErrRefused, "image refused: more than 5 bytes"},
		{"damaged archive", "write", ends("unexpected EOF", exit(proto.Corrupt)), images.ErrCorrupt, "image is damaged: unexpected EOF"},
		{"hostile archive", "write", ends(`entry "a/../b": no`, exit(proto.Refused)), images.ErrRefused, `image refused: entry "a/../b": no`},
		{"full disk", "write", ends("no space left", exit(proto.NoSpace)), images.ErrNoSpace, "no space for the image: no space left"},
		{"control characters", "write", ends("a\x1b[2J\rb\xff", exit(proto.Refused)), images.ErrRefused, "image refused: a?[2J?b\ufffd"},
		{"a flood of words", "write", ends(strings.Repeat("x", 1<<20), exit(proto.Refused)), images.ErrRefused, "image refused: " + strings.Repeat("x", 400)},
		{"broken", "write", ends("panic: oh\n\ngoroutine 1", exit(2)), nil, "unpacking layer (write): goroutine 1"},
		{"silent", "write", ends("", exit(3)), nil, "unpacking layer (write): it ended with status 3 without saying why"},
		{"out of memory", "inflate", ends("", killed(engine.OOM, "512 MiB")), images.ErrRefused, "image refused: unpacking it takes more memory than 512 MiB"},
		{"too slow", "write", ends("", killed(engine.TimedOut, "")), images.ErrRefused, "image refused: unpacking it takes longer than 30m0s"},
		{"large file", "write", ends("", killed(engine.DiskQuota, "file size 1 MiB")), images.ErrRefused, "image refused: one of its files is larger than 1 MiB"},
		{"killed", "write", ends("", killed(engine.Signaled, "")), nil, "unpacking layer (write): it was ended by signal killed"},
		{"lost", "sum", ends("", killed(engine.BoxLost, "")), engine.ErrBoxLost, "unpacking layer (sum): " + engine.ErrBoxLost.Error()},
		{"wrong result", "write", say("{}{"), nil, `the unpacker's result is malformed: "{}{"`},
		{"no result", "write", say(""), nil, `the unpacker's result is malformed: ""`},
		{"negative", "write", say(`{"bytes":-1}`), nil, `the unpacker's result is malformed: "{\"bytes\":-1}"`},
		{"more than allowed", "write", say(`{"bytes":1048577}`), nil, `the unpacker's result is malformed: "{\"bytes\":1048577}"`},
		{"strange kind", "write", say(`{"skipped":{"\u001b":1}}`), nil, `the unpacker's result is malformed: "{\"skipped\":{\"\\u001b\":1}}"`},
		{"wrong sum", "sum", say(`{"sha256":"../../etc"}`), nil, `the unpacker's sum of the layer is malformed: "{\"sha256\":\"../../etc\"}"`},
		{"reads nothing and is content", "write", ends("", exit(0)), nil, "the unpacker did not read the archive to its end: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, l := newHost(), layer()
			text := strings.Repeat(archive, 1<<18) // more than all pipes hold
			l.Blob, l.Size, l.DiffID = strings.NewReader(text), int64(len(text)), digest(text)
			if c.command != "write" {
				l = layer()
			}
			h.programs[c.command] = c.run
			_, err := h.unpacker().Unpack(t.Context(), l)
			if err == nil || !strings.HasPrefix(err.Error(), c.text) || c.kind != nil && !errors.Is(err, c.kind) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want %q", err, c.text)
			}
			if c.kind == nil && (errors.Is(err, images.ErrCorrupt) || errors.Is(err, images.ErrRefused)) {
				t.Errorf("error %q blames the image", err)
			}
			h.checkClean(t)
		})
	}
}

// TestKilledWithBox: when a box ends and takes its commands with it, nobody blames the image.
func TestKilledWithBox(t *testing.T) {
	h := newHost()
	h.gone = make(chan struct{})
	close(h.gone)
	h.programs["write"] = ends("", engine.Result{Verdict: engine.Signaled, Signal: syscall.SIGKILL})
	if _, err := h.unpacker().Unpack(t.Context(), layer()); !errors.Is(err, engine.ErrBoxLost) {
		t.Errorf("error %v, want that the box was lost", err)
	}
	h.checkClean(t)
}

// TestCause: a decompressor that fails also breaks the archive off. The cause is the first failure.
func TestCause(t *testing.T) {
	h := newHost()
	h.programs["inflate"] = ends("checksum", exit(proto.Corrupt))
	h.programs["write"] = func(_ context.Context, _ []string, in io.Reader, _, errs io.Writer) engine.Result {
		io.Copy(io.Discard, in)
		io.WriteString(errs, "unexpected EOF")
		return exit(proto.Corrupt)
	}
	if _, err := h.unpacker().Unpack(t.Context(), layer()); err == nil || err.Error() != "image is damaged: checksum" {
		t.Errorf("error %v, want that of inflate", err)
	}
	// And the other way round: inflate fails because write has.
	h.programs["write"] = ends("bad name", exit(proto.Refused))
	h.programs["inflate"] = func(_ context.Context, _ []string, _ io.Reader, out, errs io.Writer) engine.Result {
		var err error
		for err == nil {
			_, err = out.Write(make([]byte, 1<<16))
		}
		io.WriteString(errs, err.Error())
		return exit(1)
	}
	if _, err := h.unpacker().Unpack(t.Context(), layer()); err == nil || err.Error() != "image refused: bad name" {
		t.Errorf("error %v, want that of write", err)
	}
	h.checkClean(t)
}

// TestOperations: whatever the engine refuses, nothing is left, and the error says what was being done.
func TestOperations(t *testing.T) {
	boom := errors.New("boom")
	for op, text := range map[string]string{
		"make": "making layer: boom", "create": "creating a box to unpack a layer: boom", "start inflate": "unpacking (inflate): boom",
		"start write": "unpacking (write): boom", "start sum": "unpacking (sum): boom", "publish": "publishing layer " + digest(archive) + ": boom",
		"remove": "removing the box that unpacked a layer: boom",
	} {
		h := newHost()
		h.fail[op] = boom
		if _, err := h.unpacker().Unpack(t.Context(), layer()); err == nil || err.Error() != text {
			t.Errorf("%s: error %v, want %q", op, err, text)
		}
		h.checkClean(t)
	}
	h := newHost()
	h.fail["publish"] = &os.PathError{Op: "mkdir", Path: "x", Err: syscall.ENOSPC}
	if _, err := h.unpacker().Unpack(t.Context(), layer()); !errors.Is(err, syscall.ENOSPC) { // of which the store makes ErrNoSpace
		t.Errorf("error %v, want ENOSPC", err)
	}
}

// TestCancel: the end of the context ends commands that would not end by themselves, and undoes everything.
func TestCancel(t *testing.T) {
	for _, command := range []string{"inflate", "write", "sum"} {
		h := newHost()
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		h.programs[command] = func(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) engine.Result {
			cancel(enough)
			return stuck(ctx, args, in, out, errs)
		}
		if _, err := h.unpacker().Unpack(ctx, layer()); !errors.Is(err, enough) {
			t.Errorf("%s: error %v", command, err)
		}
		h.checkClean(t)
	}
}

// TestRoom: an unpacker that fills the disk is ended.
func TestRoom(t *testing.T) {
	h := newHost()
	h.programs["write"] = stuck
	u := New(Options{Create: h.Create, Layers: h, Room: func() error { return errors.New("only 5 MiB are left") }})
	if _, err := u.Unpack(t.Context(), layer()); !errors.Is(err, images.ErrNoSpace) || err.Error() != "no space for the image: only 5 MiB are left" {
		t.Errorf("error %v", err)
	}
	h.checkClean(t)
}

// TestHeldPipe: a PID 1 that keeps a pipe of its commands open delays nothing.
func TestHeldPipe(t *testing.T) {
	h := newHost()
	var held *os.File
	h.programs["inflate"] = func(_ context.Context, _ []string, _ io.Reader, out, _ io.Writer) engine.Result {
		held, _ = linux.Dup(out.(*os.File))
		return exit(0)
	}
	h.programs["write"] = ends("I have seen enough", exit(proto.Refused))
	_, err := h.unpacker().Unpack(t.Context(), layer())
	held.Close()
	if err == nil || err.Error() != "image refused: I have seen enough" {
		t.Errorf("error %v", err)
	}
}

// TestBounded: no more boxes than allowed exist at the same time, and who waits can give up.
func TestBounded(t *testing.T) {
	h := newHost()
	started, proceed := make(chan struct{}), make(chan struct{})
	h.programs["inflate"] = func(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) engine.Result {
		started <- struct{}{}
		<-proceed
		return cat(ctx, args, in, out, errs)
	}
	u := New(Options{Create: h.Create, Layers: h})
	u.slots = make(chan struct{}, 2)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := u.Unpack(t.Context(), layer()); err != nil {
				t.Error(err)
			}
		})
	}
	<-started
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := u.Sum(ctx, digest("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a slot: %v", err)
	}
	close(proceed)
	<-started
	<-started
	all.Wait()
	if h.most != 2 {
		t.Errorf("%d boxes at the same time, want 2", h.most)
	}
}

func TestSum(t *testing.T) {
	h := newHost()
	got, err := h.unpacker().Sum(t.Context(), digest("x"))
	if err != nil || got != strings.Repeat("a", 64) {
		t.Errorf("sum %q: %v", got, err)
	}
	if m := h.specs[0].Mounts; len(m) != 1 || !m[0].ReadOnly || m[0].Layer != digest("x") || !h.specs[0].Unpacks {
		t.Errorf("box %+v", h.specs[0])
	}
	h.checkClean(t)
}

// TestStreamLimit: a small blob cannot become a large stream, and a layer that says nothing of its size is bounded, too.
func TestStreamLimit(t *testing.T) {
	for _, c := range []struct{ size, max, want int64 }{
		{1, 1 << 40, freeBytes + MaxRatio}, {1 << 40, 1 << 30, 1<<30 + MaxEntries*entryBytes}, {1 << 50, math.MaxInt64, 1<<40 + MaxEntries*entryBytes}, {0, 5, 5 + MaxEntries*entryBytes},
	} {
		if got := streamLimit(images.Layer{Size: c.size, MaxBytes: min(c.max, MaxBytes)}); got != c.want {
			t.Errorf("streamLimit(%d, %d) = %d, want %d", c.size, c.max, got, c.want)
		}
	}
}

func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"bytes":1,"entries":2,"inherits":true,"skipped":{"device":1}}`))
	f.Add([]byte(`{"skipped":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseResult(text, 100)
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q is not one printable line", err)
		}
		if err == nil && (r.Bytes > 100 || !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && string(bytes.TrimSpace(text)) != "null") {
			t.Errorf("%q was accepted: %+v", text, r)
		}
	})
}
