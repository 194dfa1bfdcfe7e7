package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// attacker is the hostile client: it runs with the daemon's user, in a process of its own.
type attacker struct {
	plan
	report
	conn *wire.Conn
	sock *net.UnixConn // of conn
	id   uint32
	own  string // a box of its own, for requests about boxes
}

// playClient attacks, and prints what came of it.
func playClient(text string) {
	a := &attacker{}
	if err := json.Unmarshal([]byte(text), &a.plan); err != nil {
		panic(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || unix.Getuid() != a.UID || a.UID == 0 || !strings.Contains(string(status), "CapPrm:\t0000000000000000\n") {
		panic(fmt.Sprintf("the client must be the daemon's user, without capabilities: %v\n%s", err, status))
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until this process is the launcher's client
	time.AfterFunc(patience-10*time.Second, func() { panic("the attack takes too long") })
	switch a.Phase {
	case "all":
		a.prepare()
		a.dial()
		a.own = a.create(`{"Spec":{"id":"own"}}`)
		for _, attack := range []struct {
			name string
			run  func()
		}{{"reach", a.reach}, {"boxes", a.boxes}, {"storage", a.storage}, {"layers", a.layers}, {"frames", a.frames}, {"fuzz", a.fuzz}, {"search", a.search}} {
			began := time.Now()
			attack.run()
			a.Took = append(a.Took, fmt.Sprintf("%s %v", attack.name, time.Since(began).Round(time.Millisecond)))
		}
	case "linger":
		a.linger()
	case "stop":
		a.dial()
		a.replaceRoot()
		if said := a.ask(rpc.TypeStop, `{"RemoveBoxes":false}`); said != "" {
			a.wrong("stop: %s", said)
		}
	case "again":
		a.dial()
		a.own = a.create(`{"Spec":{"id":"own-again"}}`)
		a.reach()
		a.search()
	}
	if err := json.NewEncoder(os.Stdout).Encode(a.report); err != nil {
		panic(err)
	}
}

func (a *attacker) wrong(format string, args ...any) {
	if len(a.Wrong) < 40 {
		a.Wrong = append(a.Wrong, fmt.Sprintf(format, args...))
	}
}

// loot looks for a secret in what the client has got.
func (a *attacker) loot(how, text string) {
	if i := strings.Index(text, secretMark); i >= 0 && len(a.Loot) < 40 {
		line, _, _ := strings.Cut(text[i:], "\n")
		a.Loot = append(a.Loot, line[:min(len(line), 100)]+" by "+how)
	}
}

// dial connects to the launcher, which may just be starting.
func (a *attacker) dial() {
	for try := 0; ; try++ {
		sock, err := net.Dial("unix", a.Socket)
		if err == nil {
			a.sock = sock.(*net.UnixConn)
			a.conn = wire.NewConn(a.sock)
			var h rpc.Hello
			var f *wire.Frame
			if f, err = a.conn.Receive(); err == nil {
				err = json.Unmarshal(f.Body, &h)
				f.Close()
			}
			if err == nil && h.Error == "" {
				return
			}
			a.conn.Close()
			err = errors.Join(err, errors.New(h.Error))
		}
		if try > 3000 {
			panic(err)
		}
		time.Sleep(10 * time.Millisecond) // nothing tells when the launcher listens
	}
}

// ask sends one request and returns what the answer says is wrong, "" if it was granted.
// Each descriptor that comes with it is searched.
func (a *attacker) ask(typ byte, body string) string {
	said, _ := a.askFor(typ, body)
	return said
}

func (a *attacker) askFor(typ byte, body string) (said, reply string) {
	if !slices.Contains(a.Sent, int(typ)) {
		a.Sent = append(a.Sent, int(typ))
	}
	a.send(typ, body)
	return a.take(fmt.Sprintf("request %d %.150s", typ, body))
}

func (a *attacker) send(typ byte, body string) {
	a.id++
	if a.id == 0 {
		a.id = 1
	}
	if err := a.conn.Send(typ, a.id, []byte(body)); err != nil {
		panic(fmt.Sprintf("request %d %.200s: the launcher is gone: %v", typ, body, err))
	}
}

// take receives one answer.
func (a *attacker) take(what string) (said, reply string) {
	a.Asked++
	for {
		f, err := a.conn.Receive()
		if err != nil {
			panic(fmt.Sprintf("%s: the launcher is gone: %v", what, err))
		}
		files := f.Files()
		a.loot("an answer to "+what, string(f.Body))
		if f.Type != rpc.TypeReply {
			linux.CloseAll(files)
			continue // an event
		}
		var m struct {
			Error *rpc.Error
			Body  json.RawMessage
		}
		if err := json.Unmarshal(f.Body, &m); err != nil {
			a.wrong("%s: answer %.200q: %v", what, f.Body, err)
		}
		if m.Error != nil {
			said = m.Error.Message
			if len(files) > 0 {
				a.wrong("%s: %d descriptors with an error", what, len(files))
			}
			if said == "" || len(said) > 2000 || strings.ContainsAny(said, "\n\r\x00") {
				a.wrong("%s: %.2100q is not one line", what, said)
			}
		} else {
			a.Good++
		}
		for i, file := range files {
			a.searchFile(fmt.Sprintf("descriptor %d of %s", i, what), file)
		}
		linux.CloseAll(files)
		return said, string(m.Body)
	}
}

// create makes a box by a request as it stands; it returns its id, "" if it was refused.
func (a *attacker) create(body string) string {
	said, reply := a.askFor(rpc.TypeCreate, body)
	var created rpc.Created
	if said == "" {
		if err := json.Unmarshal([]byte(reply), &created); err != nil || created.ID == "" {
			a.wrong("%.150s: answer %.200s, %v", body, reply, err)
		}
		a.Boxes++
	}
	return created.ID
}

// searchFile tries what can be done with a descriptor: read all that is behind it, write
// to it, and leave it.
func (a *attacker) searchFile(how string, f *os.File) {
	st, err := linux.Fstat(f)
	if err != nil {
		return
	}
	path := linux.FdPath(f)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		a.spoilFile(how, path)
	case unix.S_IFDIR:
		var fsst unix.Statfs_t
		if unix.Fstatfs(int(f.Fd()), &fsst) == nil && (fsst.Type == unix.CGROUP_SUPER_MAGIC || fsst.Type == unix.CGROUP2_SUPER_MAGIC) {
			if err := unix.Mkdirat(int(f.Fd()), "planted", 0o755); err == nil {
				a.wrong("%s: the client can make cgroups", how)
				_ = unix.Unlinkat(int(f.Fd()), "planted", unix.AT_REMOVEDIR)
			}
			return
		}
		a.spoilTree(how, path+"/.")
		up := path
		for range 12 {
			up += "/.."
			for _, bait := range []string{"bait/secret", "private/secret", "clean/bait/secret", "other/secret"} {
				a.spoilFile(how+" and ..", up+"/"+bait)
				a.spoilFile(how+" and ..", up+a.at(bait))
			}
		}
	}
}

// spoilTree reads and changes everything below path that it can.
func (a *attacker) spoilTree(how, path string) {
	seen := 0
	_ = filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if seen++; seen > 300 {
			return fs.SkipAll
		}
		if err != nil {
			return nil
		}
		if strings.HasPrefix(d.Name(), "planted") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.IsDir() {
			a.spoilFile(how, path)
			return nil
		}
		// What counts is the bait afterwards.
		_ = os.WriteFile(path+"/planted", []byte("x"), 0o755)
		_ = os.Mkdir(path+"/planted-dir", 0o777)
		_ = os.Symlink("/etc/passwd", path+"/planted-link")
		_ = os.Chmod(path+"/planted", 0o4755)
		_ = unix.Setxattr(path, "user.planted", []byte("x"), 0)
		return nil
	})
}

func (a *attacker) spoilFile(how, path string) {
	if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
		buf := make([]byte, 64<<10)
		n, _ := unix.Read(fd, buf)
		a.loot(how+", "+path, string(buf[:max(n, 0)]))
		unix.Close(fd)
	}
	if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
		_, _ = unix.Write(fd, []byte("planted\n"))
		unix.Close(fd)
	}
	_ = unix.Fchmodat(unix.AT_FDCWD, path, 0o4777, 0)
}

// search looks from inside each of the client's boxes at its mounts, and removes the box. Then it tries
// races.
func (a *attacker) search() {
	a.conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: a.Socket})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	ids, err := s.Boxes(ctx)
	if err != nil {
		panic(err)
	}
	for _, id := range ids {
		b, err := s.Adopt(ctx, id, engine.Spec{})
		if errors.Is(err, engine.ErrBoxLost) && id != a.own {
			// A box that writes a layer ends with its client, which the list may have been faster than.
			left, lerr := s.Boxes(ctx)
			for lerr == nil && slices.Contains(left, id) { // until ctx ends: it is being removed
				time.Sleep(5 * time.Millisecond) // the launcher tells nobody when a box is gone
				left, lerr = s.Boxes(ctx)
			}
			if lerr == nil {
				continue
			}
		}
		if err != nil {
			a.wrong("adopting %q: %v", id, err)
			continue
		}
		for _, m := range b.Spec().Mounts {
			a.searchBox(ctx, b, m.Target, fmt.Sprintf("mount %+v", m))
		}
		if err := b.Remove(ctx); err != nil {
			a.wrong("removing %q: %v", id, err)
		}
	}
	if a.Phase == "all" {
		a.races(ctx, s)
		a.legitimate(ctx, s)
	}
}

// spoil is what a box does to a mount. It must not itself hold the mark that is looked for.
const spoil = `grep -rhs 'boxd-hostile-secre[t]-' "$1"
find "$1" -maxdepth 3 -name 'planted*' -prune -o -print 2>/dev/null | while read -r f; do
	if [ -d "$f" ]; then echo planted > "$f/planted"; mkdir "$f/planted-dir"; else echo planted >> "$f"; fi
done 2>/dev/null
chmod -R 0777 "$1" 2>/dev/null
ls -lR "$1" 2>/dev/null | head -c 1000`

func (a *attacker) searchBox(ctx context.Context, b engine.LiveBox, target, how string) {
	var out strings.Builder
	_, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", spoil, "spoil", target}, Stdout: &out, Dir: "/"})
	if err != nil {
		a.wrong("%s: %v", how, err)
	}
	a.loot(how, out.String())
}
