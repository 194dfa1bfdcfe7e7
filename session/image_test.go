package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session/imageuser"
)

const python = "docker.io/library/python:3.12"

func digestOf(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// fakeImages is a store, and a registry from which it pulls.
type fakeImages struct {
	mu       sync.Mutex
	store    map[string]images.Image // by reference
	registry map[string]images.Image
	leases   map[string]images.Image
	pulls    []images.Request
	pull     func(ctx context.Context, r images.Request) error // may be nil
	lost     bool                                              // a pulled image is collected at once
}

func newImages() *fakeImages {
	return &fakeImages{store: map[string]images.Image{}, registry: map[string]images.Image{}, leases: map[string]images.Image{}}
}

func image(digit string, c images.Config) images.Image {
	return images.Image{Name: python, Digest: digestOf(digit), Layers: []string{strings.Repeat(digit, 64), strings.Repeat("f", 64)}, Config: c}
}

func findImage(in map[string]images.Image, ref string) (images.Image, bool) {
	if img, ok := in[ref]; ok {
		return img, true
	}
	for _, img := range in {
		if _, digest, _ := strings.Cut("@"+ref, "@"); strings.HasSuffix(digest, img.Digest) {
			return img, true
		}
	}
	return images.Image{}, false
}

func (f *fakeImages) Pull(ctx context.Context, r images.Request) (images.Image, error) {
	f.mu.Lock()
	f.pulls = append(f.pulls, r)
	wait := f.pull
	f.mu.Unlock()
	if wait != nil {
		if err := wait(ctx, r); err != nil {
			return images.Image{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	img, ok := findImage(f.registry, r.Reference)
	if !ok {
		return img, fmt.Errorf("%w %q", images.ErrUnknown, r.Reference)
	}
	if !f.lost {
		f.store[r.Reference] = img
	}
	return img, nil
}

func (f *fakeImages) Lease(tenant, ref, holder string) (images.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	img, ok := findImage(f.store, ref)
	if !ok {
		return img, fmt.Errorf("%w %q", images.ErrUnknown, ref)
	}
	f.leases[holder] = img
	return img, nil
}

func (f *fakeImages) Leased(holder string) (images.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	img, ok := f.leases[holder]
	if !ok {
		return img, images.ErrUnknown
	}
	return img, nil
}

func (f *fakeImages) Release(holder string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.leases, holder)
	return nil
}

func (f *fakeImages) RetainLeases(keep func(string) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.leases, func(holder string, _ images.Image) bool { return !keep(holder) })
	return nil
}

func (f *fakeImages) holders() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.leases))
}

// imageBench is a bench whose store has python. Profile p pulls what is missing, q always.
func imageBench(t *testing.T, c images.Config) (*bench, *fakeImages) {
	b, f := newBench(t), newImages()
	all := []string{"host", "*"}
	f.store[python] = image("a", c)
	b.policy.Profiles = map[string]policy.ProfileConfig{"p": {Images: &all, Pull: ptr(spec.PullMissing)}, "q": {Images: &all, Pull: ptr(spec.PullAlways)}}
	b.alter = func(o *Options) { o.Images = f }
	b.start()
	return b, f
}

func imageRequest(profile, image string) policy.Request {
	r := policy.Request{Wishes: spec.Wishes{Profile: profile}}
	if image != "" {
		r.Image = &image
	}
	return r
}

// TestImageOfSession: the box gets the layers, its commands the environment, directory, user and command of
// the image.
func TestImageOfSession(t *testing.T) {
	b, f := imageBench(t, images.Config{Env: []string{"A=image", "B=image", "C=image", "NOVALUE", "=x"}, WorkingDir: "srv", User: "7:8",
		Entrypoint: []string{"echo"}, Cmd: []string{"hello", "you"}, Labels: map[string]string{"l": "v"}, Volumes: []string{"/data"}})
	r := imageRequest("", "python:3.12")
	r.Env = map[string]string{"B": "session", "C": "session"}
	v := b.ensure(keyA, r)
	if v.Resolved.Image != python || v.ImageDigest != digestOf("a") || v.Resolved.User != (engine.User{UID: 7, GID: 8}) {
		t.Errorf("%+v", v)
	}
	box := b.host.Only()
	if s := box.Spec(); s.Image != python || !slices.Equal(s.Layers, f.store[python].Layers) || s.User != v.Resolved.User {
		t.Errorf("box %+v", s)
	}
	if got := f.holders(); !slices.Equal(got, []string{"session:t/a"}) {
		t.Errorf("leases %q", got)
	}
	for _, c := range []struct {
		e          Exec
		dir, out   string
		args, envs []string
	}{
		{e: Exec{}, dir: "/srv", out: "hello you", args: []string{"echo", "hello", "you"}},
		{e: Exec{Dir: "/tmp"}, dir: "/tmp", out: "hello you"},
		{e: Exec{Args: []string{"true"}}, dir: ""}, // the workspace
		{e: Exec{Args: []string{"env"}, Env: []string{"C=command"}}, envs: []string{"A=image", "B=session", "C=command"}},
	} {
		res, err := b.Exec(ctx, me, keyA, nil, c.e)
		got := box.Last()
		slices.Sort(got.Env)
		if err != nil || got.Dir != c.dir || got.MakeDir != (c.dir == "/srv") || c.out != "" && string(res.Stdout) != c.out || c.args != nil && !slices.Equal(got.Args, c.args) || c.envs != nil && !slices.Equal(got.Env, c.envs) {
			t.Errorf("%+v: %+v, %q, %v", c, got, res.Stdout, err)
		}
	}
	none := imageRequest("", "python:3.12")
	none.WorkspaceMode = ptr(spec.None)
	if _, err := b.Exec(ctx, me, keyB, &none, Exec{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	if got := b.boxOf(keyB).Last(); got.Dir != "/srv" || !got.MakeDir {
		t.Errorf("without a workspace: %q, made if it is missing: %v", got.Dir, got.MakeDir)
	}
	must(t, b.Remove(ctx, me, keyA))
	if got := f.holders(); !slices.Equal(got, []string{"session:t/b"}) {
		t.Errorf("leases %q", got)
	}
}

// TestImageIdentity: the reference is part of a session's identity, not what it means now.
func TestImageIdentity(t *testing.T) {
	b, f := imageBench(t, images.Config{})
	b.ensure(keyA, imageRequest("", "python:3.12"))
	for _, same := range []string{"", "python:3.12", python, "index.docker.io/library/python:3.12"} {
		if v := b.ensure(keyA, imageRequest("", same)); v.Created || v.ImageDigest != digestOf("a") {
			t.Errorf("%q: %+v", same, v)
		}
	}
	empty := imageRequest("", "")
	empty.Image = ptr("")
	b.ensure(keyA, empty)
	for _, other := range []string{"host", "python:3.13", "python@" + digestOf("a")} {
		_, err := b.Ensure(ctx, me, keyA, imageRequest("", other))
		var conflict *ConflictError
		if !errors.As(err, &conflict) || len(conflict.Fields) != 1 || conflict.Fields[0].Field != "image" {
			t.Errorf("%q: %v", other, err)
		}
	}
	b.ensure(keyB, imageRequest("", "host"))
	if _, err := b.Ensure(ctx, me, keyB, imageRequest("", python)); !errors.Is(err, ErrConflict) {
		t.Errorf("host is not %s: %v", python, err)
	}

	// The tag moves: the live session, and each later box of it, keep what they have.
	f.store[python] = image("b", images.Config{Env: []string{"NEW=1"}})
	f.store["old"] = image("a", images.Config{})
	want := b.boxOf(keyA).Spec().Layers
	check := func(what string) {
		t.Helper()
		v := b.ensure(keyA, imageRequest("", python))
		if s := b.host.Box(v.Box).Spec(); v.ImageDigest != digestOf("a") || !slices.Equal(s.Layers, want) {
			t.Errorf("%s: %s, layers %q", what, v.ImageDigest, s.Layers)
		}
	}
	check("live")
	_, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{PIDs: ptr(int64(99))}})
	must(t, err)
	b.host.Kill(b.get(keyA).Box)
	check("another box")
	b.restart()
	check("another daemon")
	b.crash()
	b.host.Remove(b.host.IDs()[0])
	b.host.Remove(b.host.IDs()[0])
	b.start()
	check("after a restart of the host")
	if got := f.holders(); !slices.Equal(got, []string{"session:t/a"}) {
		t.Errorf("leases %q", got)
	}
	if v := b.ensure(Key{"t", "new"}, imageRequest("", python)); v.ImageDigest != digestOf("b") {
		t.Errorf("a new session: %s", v.ImageDigest)
	}
}

// TestImageWithoutDatabase: a session that is recovered from its box has its image.
func TestImageWithoutDatabase(t *testing.T) {
	b, f := imageBench(t, images.Config{Env: []string{"A=image"}, Cmd: []string{"env"}})
	b.ensure(keyA, imageRequest("", python))
	b.crash()
	must(t, os.Remove(filepath.Join(b.dir, "boxd.db")))
	b.start()
	res, err := b.Exec(ctx, me, keyA, nil, Exec{})
	if err != nil || string(res.Stdout) != "A=image" || res.Session.ImageDigest != digestOf("a") {
		t.Errorf("%q, %+v, %v", res.Stdout, res.Session, err)
	}
	if got := f.holders(); len(got) != 1 {
		t.Errorf("leases %q", got)
	}
}

// TestImageLost: a session whose image is gone fails by name, and recovers.
func TestImageLost(t *testing.T) {
	for _, profile := range []string{"", "p"} {
		b, f := imageBench(t, images.Config{})
		b.ensure(keyA, imageRequest(profile, python))
		b.host.Kill(b.get(keyA).Box)
		saved := f.store[python]
		f.mu.Lock()
		clear(f.store)
		clear(f.leases)
		f.mu.Unlock()
		_, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
		if want := map[string]error{"": ErrImageNotPresent, "p": images.ErrUnknown}[profile]; !errors.Is(err, want) || !strings.Contains(err.Error(), python+`" with digest `+saved.Digest) {
			t.Errorf("%q: %v", profile, err)
		}
		if v := b.get(keyA); v.State != Failed || !strings.Contains(v.Reason, python) {
			t.Errorf("%q: %s, %s", profile, v.State, v.Reason)
		}
		if profile == "p" { // another image under the same tag is not asked for
			f.registry[python], f.registry["x"] = image("b", images.Config{}), saved
		} else {
			saved.Layers = []string{strings.Repeat("9", 64)} // of the same content, put together in another way
			f.store["imported again"] = saved
		}
		v := b.ensure(keyA, imageRequest(profile, python))
		if v.ImageDigest != saved.Digest || len(f.holders()) != 1 || !slices.Equal(b.host.Box(v.Box).Spec().Layers, saved.Layers) {
			t.Errorf("%q: %+v", profile, v)
		}
		if n := len(f.pulls); profile == "p" && (n != 2 || f.pulls[1].Reference != "docker.io/library/python@"+saved.Digest) || profile == "" && n != 0 {
			t.Errorf("%q: pulls %+v", profile, f.pulls)
		}
		// A layer of a leased image is lost.
		b.host.Kill(v.Box)
		b.host.SetHook(func(_ context.Context, op, _ string) error {
			if op == "create" {
				return fmt.Errorf("%w: %s", engine.ErrNoLayer, saved.Layers[0])
			}
			return nil
		})
		if _, err := b.Ensure(ctx, me, keyA, imageRequest(profile, python)); !errors.Is(err, engine.ErrNoLayer) {
			t.Errorf("%q: %v", profile, err)
		}
		b.host.SetHook(nil)
		b.ensure(keyA, imageRequest(profile, python))
	}
}

// TestImageRefusedLater: an operator takes an image away; the session lives on and gets no other box.
func TestImageRefusedLater(t *testing.T) {
	b, _ := imageBench(t, images.Config{})
	b.ensure(keyA, imageRequest("", python))
	b.crash()
	b.policy.AllowedImages = []string{"host"}
	b.start()
	run := func() error {
		_, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}})
		return err
	}
	must(t, run())
	_, err := b.Update(ctx, me, keyA, spec.Update{LiveWishes: spec.LiveWishes{PIDs: ptr(int64(99))}})
	must(t, err)
	if _, err := b.Ensure(ctx, me, keyA, imageRequest("", python)); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("asked for: %v", err)
	}
	b.host.Kill(b.get(keyA).Box)
	if err := run(); !errors.Is(err, policy.ErrDenied) {
		t.Errorf("another box: %v", err)
	}
}

// TestPullPolicy: when sessions pull.
func TestPullPolicy(t *testing.T) {
	for _, c := range []struct {
		profile, image   string
		stored, inRemote bool
		never            bool
		want             error
		pulls            int
	}{
		{"", "node", false, true, false, ErrImageNotPresent, 0},
		{"", "node", true, true, false, nil, 0},
		{"p", "node", true, true, false, nil, 0},
		{"p", "node", false, true, false, nil, 1},
		{"p", "node", false, true, true, ErrImageNotPresent, 0},
		{"p", "node", false, false, false, images.ErrUnknown, 1},
		{"q", "node", true, true, false, nil, 1},
		{"q", "node", true, false, false, images.ErrUnknown, 1},
		{"q", "host", false, false, false, nil, 0},
	} {
		b, f := imageBench(t, images.Config{})
		const node = "docker.io/library/node:latest"
		if c.stored {
			f.store[node] = image("c", images.Config{})
		}
		if c.inRemote {
			f.registry[node] = image("d", images.Config{})
		}
		r := imageRequest(c.profile, c.image)
		r.NeverPull = c.never
		v, err := b.Ensure(ctx, me, keyA, r)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || len(f.pulls) != c.pulls {
			t.Errorf("%+v: %v, %d pulls", c, err, len(f.pulls))
		}
		if err != nil {
			if len(f.holders()) != 0 || len(b.host.IDs()) != 0 || len(b.List("")) != 0 || len(b.Errors()) != 0 {
				t.Errorf("%+v: leases %q, boxes %q, sessions %+v, errors %+v", c, f.holders(), b.host.IDs(), b.List(""), b.Errors())
			}
			continue
		}
		if c.pulls > 0 && (v.ImageDigest != digestOf("d") || !b.audit.has("image-pull", audit.Done) || f.pulls[0].Tenant != "t" || f.pulls[0].Always != (c.profile == "q")) {
			t.Errorf("%+v: %+v, %+v", c, v, f.pulls)
		}
		b.ensure(keyA, r) // it exists: nothing more is asked
		if len(f.pulls) != c.pulls {
			t.Errorf("%+v: %d pulls for an existing session", c, len(f.pulls))
		}
	}
}

// TestPullEvents: a session that waits for its image says how far the pull is; a caller that gives up ends
// its share, and nothing is left.
func TestPullEvents(t *testing.T) {
	b, f := imageBench(t, images.Config{})
	const node = "docker.io/library/node:latest"
	f.registry[node] = image("d", images.Config{})
	began := make(chan struct{})
	f.pull = func(ctx context.Context, r images.Request) error {
		r.Progress(images.Progress{Step: "resolve"})
		r.Progress(images.Progress{Step: "download", Layer: "l", Done: 1, Total: 9})
		r.Progress(images.Progress{Step: "download", Layer: "l", Done: 2, Total: 9}) // too soon
		close(began)
		<-ctx.Done()
		return ctx.Err()
	}
	sub := b.Subscribe("t", 0)
	defer sub.Close()
	waiting, cancel := context.WithCancelCause(ctx)
	failed := make(chan error, 1)
	go func() {
		_, err := b.Ensure(waiting, me, keyA, imageRequest("p", "node"))
		failed <- err
	}()
	<-began
	if v := b.get(keyA); v.State != Creating {
		t.Errorf("%+v", v)
	}
	for _, want := range []string{"resolve  0", "download l 1"} {
		e := <-sub.C
		if got := fmt.Sprintf("%v %v %v", e.Details["step"], e.Details["layer"], e.Details["done"]); e.Type != EventImageProgress || e.Session != "a" || got != want {
			t.Errorf("%+v, want %s", e, want)
		}
	}
	gaveUp := errors.New("gave up")
	cancel(gaveUp)
	if err := <-failed; !errors.Is(err, gaveUp) {
		t.Errorf("%v", err)
	}
	if len(b.List("")) != 0 || len(f.holders()) != 0 || len(b.host.Made()) != 0 {
		t.Errorf("left: %+v, %q, %v", b.List(""), f.holders(), b.host.Made())
	}
	// The removal of a session ends its creation as well.
	began = make(chan struct{})
	go func() {
		_, err := b.Ensure(ctx, me, keyA, imageRequest("p", "node"))
		failed <- err
	}()
	<-began
	must(t, b.Remove(ctx, me, keyA))
	if err := <-failed; !errors.Is(err, ErrState) {
		t.Errorf("%v", err)
	}
	f.pull, f.lost = nil, true
	if _, err := b.Ensure(ctx, me, keyA, imageRequest("p", "node")); !errors.Is(err, ErrImageNotPresent) || !strings.Contains(err.Error(), "images.max_size") {
		t.Errorf("collected at once: %v", err)
	}
}

// TestImageUsers: names are looked up in files that an attacker may have written.
func TestImageUsers(t *testing.T) {
	const passwd = "root:x:0:0::/:/bin/sh\n" + "broken\n" + "x:x:y:z\n" + "app:x:100:101::\n" + "app:x:0:0::\n" + "far:x:70000:0:\n" + "last:x:65534:65534:\n" + "over:x:65535:1:\n" + "big:x:99999999999:0:\n" + "100:x:5:5::\n" + "end:x:12:13"
	const group = "root:x:0:\n" + "staff:x:50:a,b\n" + "farg:x:70000:\n" + "short:x\n"
	files := map[string]string{"/etc/passwd": passwd, "/etc/group": group}
	u := func(uid, gid int) string { return fmt.Sprintf("%d:%d", uid, gid) }
	for _, c := range []struct {
		user  string
		files map[string]string
		want  string // the user, or part of an error after "!"
		boxes int    // that were made to look it up
	}{
		{"", nil, u(0, 0), 0}, {"0", nil, u(0, 0), 0}, {"root", nil, u(0, 0), 0}, {"1000:1000", nil, u(1000, 1000), 0}, {"65534:65534", nil, u(65534, 65534), 0},
		{"1000", nil, u(1000, 0), 1}, {"1000", files, u(1000, 0), 1}, {"100", files, u(100, 101), 1}, {"app", files, u(100, 101), 1}, {"app:staff", files, u(100, 50), 1},
		{"app:7", files, u(100, 7), 1}, {"9:staff", files, u(9, 50), 1}, {"9:staff", map[string]string{"/etc/group": group}, u(9, 50), 1}, {"last", files, u(65534, 65534), 1}, {"end", files, u(12, 13), 1},
		{"65535:0", nil, "!65535:0, and a box has the ids 0 to 65534", 0}, {"0:4294967295", nil, "!a box has the ids", 0}, {"4294967296:0", files, "!is not in its /etc/passwd", 1},
		{"far", files, "!70000:0, and a box", 1}, {"over", files, "!65535:1", 1}, {"big", files, "!is not in its /etc/passwd", 1}, {"x", files, "!is not in", 1}, {"broken", files, "!is not in", 1},
		{"app:farg", files, "!100:70000", 1}, {"app:short", files, "!/etc/group", 1}, {"app:nobody", files, "!/etc/group", 1}, {"app", nil, "!/etc/passwd: ask for a user by number", 1},
		{"-1", files, "!is not in", 1}, {"a\nb", files, `!"a\nb" is not in`, 1}, {":5", nil, u(0, 5), 0},
		{"late", map[string]string{"/etc/passwd": strings.Repeat("x", imageuser.MaxAccounts-len("late:x:1234:9:")) + "\nlate:x:1234:9:\n"}, "!is not in", 1},
		{"12", map[string]string{"/etc/passwd": strings.Repeat("y", imageuser.MaxAccounts-len("\ncut:x:12:3")) + "\ncut:x:12:345:\n"}, u(12, 0), 1}, // 3 is not the group
	} {
		b, _ := imageBench(t, images.Config{User: c.user})
		b.host.SetFiles(func(s engine.Spec, path string) (string, bool) {
			if len(s.Mounts) > 0 || len(s.Layers) != 2 {
				t.Errorf("read in a box with more than the image: %+v", s)
			}
			content, ok := c.files[path]
			return content, ok
		})
		v, err := b.Ensure(ctx, me, keyA, imageRequest("", python))
		got := u(v.Resolved.User.UID, v.Resolved.User.GID)
		if bad, refused := strings.CutPrefix(c.want, "!"); refused && (!errors.Is(err, images.ErrRefused) || !strings.Contains(err.Error(), bad) || strings.Contains(err.Error(), "\n")) || !refused && (err != nil || got != c.want) {
			t.Errorf("%q: %s, %v; want %s", c.user, got, err, c.want)
		}
		boxes := c.boxes
		if err == nil {
			boxes++
			if s := b.host.Box(v.Box).Spec(); s.User != v.Resolved.User {
				t.Errorf("%q: the box has %+v", c.user, s.User)
			}
		}
		if n := len(b.host.Made()); n != boxes {
			t.Errorf("%q: %d boxes, want %d", c.user, n, boxes)
		}
		// A user that is asked for counts, and the image's is not looked up.
		asked := imageRequest("", python)
		asked.User = &engine.User{UID: 3, GID: 4}
		if v := b.ensure(keyB, asked); v.Resolved.User != *asked.User || len(b.host.Made()) != boxes+1 {
			t.Errorf("%q: asked for 3:4, got %+v, %d boxes", c.user, v.Resolved.User, len(b.host.Made()))
		}
		if err == nil { // a second session looks nothing up
			b.ensure(Key{"t", "c"}, imageRequest("", python))
			if n := len(b.host.Made()); n != boxes+2 {
				t.Errorf("%q: %d boxes after a second session", c.user, n)
			}
		}
	}
}

// TestImageConfig: what an image must not say.
func TestImageConfig(t *testing.T) {
	for want, c := range map[string]images.Config{
		"must not be below /proc":         {WorkingDir: "/proc/self/fd/7"}, // CVE-2024-21626
		"must not be below /proc ":        {WorkingDir: "../../proc/self/fd/7"},
		"must not contain a NUL":          {WorkingDir: "/a\x00b"},
		"must be at most 4095 bytes":      {WorkingDir: "/" + strings.Repeat("a/", 3000)},
		"must not contain a NUL ":         {Env: []string{"A=\x00"}},
		"must start with the name":        {Cmd: []string{""}},
		"must not contain a NUL  ":        {Entrypoint: []string{"a\x00"}},
		`stop signal "SIGNOTHING" is unk`: {StopSignal: "SIGNOTHING"},
		`stop signal "65" is unknown`:     {StopSignal: "65"},
	} {
		b, f := imageBench(t, c)
		_, err := b.Ensure(ctx, me, keyA, imageRequest("", python))
		if !errors.Is(err, images.ErrRefused) || errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), strings.TrimRight(want, " ")) || len(err.Error()) > 6000 {
			t.Errorf("%s: %v", want, err)
		}
		if len(f.holders())+len(b.host.IDs())+len(b.List("")) != 0 {
			t.Errorf("%s: something is left", want)
		}
	}
}

// TestDefaultCommand: without arguments a session runs the command of its image; "host" has none.
func TestDefaultCommand(t *testing.T) {
	b, _ := imageBench(t, images.Config{Cmd: []string{"serve"}, WorkingDir: "/app", StopSignal: "SIGINT"})
	host, python := imageRequest("", "host"), imageRequest("", python)
	var bad *engine.FieldError
	if _, err := b.Exec(ctx, me, keyB, &host, Exec{}); !errors.As(err, &bad) || bad.Field != "args" || len(b.List("")) != 0 {
		t.Errorf("%v, %+v", err, b.List(""))
	}
	if _, err := b.Start(ctx, me, keyB, &host, ProcessSpec{ID: "p"}); !errors.As(err, &bad) || bad.Field != "args" || len(b.List("")) != 0 {
		t.Errorf("%v, %+v", err, b.List(""))
	}
	b.ensure(keyB, host)
	if _, err := b.Exec(ctx, me, keyB, nil, Exec{}); !errors.As(err, &bad) || !strings.Contains(err.Error(), `image "host" has no command`) {
		t.Errorf("%v", err)
	}
	v, err := b.Start(ctx, me, keyA, &python, ProcessSpec{ID: "p", ProcessSettings: ProcessSettings{Restart: "on-failure"}})
	if err != nil || !slices.Equal(v.Args, []string{"serve"}) {
		t.Fatalf("%+v, %v", v, err)
	}
	p, err := b.Process(keyA, "p")
	must(t, err)
	p.s.mu.Lock()
	kept := p.record.Kept
	p.s.mu.Unlock()
	if !slices.Equal(kept.Args, []string{"serve"}) || kept.Dir != "/app" {
		t.Errorf("for restarts: %+v", kept)
	}
	truth := b.truth()
	must(t, p.Stop(ctx, me, StopOptions{Grace: time.Millisecond}))
	if sig := syscall.Signal(truth.Signaled.Load()); sig != syscall.SIGINT {
		t.Errorf("stopped by %v", sig)
	}
}

// TestLeasesEnd: leases of sessions that do not exist end when the manager opens; others' stay.
func TestLeasesEnd(t *testing.T) {
	b, f := imageBench(t, images.Config{})
	b.ensure(keyA, imageRequest("", python))
	b.crash()
	for _, holder := range []string{"session:t/gone", "snapshot:x"} {
		f.leases[holder] = image("a", images.Config{})
	}
	b.start()
	if got := f.holders(); !slices.Equal(got, []string{"session:t/a", "snapshot:x"}) {
		t.Errorf("leases %q", got)
	}
}

// TestNoImages: a manager without a store refuses images by name.
func TestNoImages(t *testing.T) {
	b := open(t)
	if _, err := b.Ensure(ctx, me, keyA, imageRequest("", python)); !errors.Is(err, ErrImageNotPresent) || !strings.Contains(err.Error(), "keeps no images") {
		t.Errorf("%v", err)
	}
	b.ensure(keyA, imageRequest("", "host"))
}
