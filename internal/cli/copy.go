package cli

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

func (a *App) newCopy() *cobra.Command {
	var f remoteFlags
	var follow bool
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION [flags]",
		Short: "Copy files between the host and sessions",
		Long: `Copy a file, a symlink, or a directory with its content, between the host and a session,
or between sessions. SESSION:PATH is a path in a session; write a host path that
contains a colon as /DIR/PATH or ./PATH. A relative path in a session starts at the
workspace.

Paths follow the rules of docker cp. If DESTINATION is an existing directory, the copy
is placed in it; if DESTINATION does not exist, it names the copy, and its parent
directory must exist. SOURCE/. means the content of the directory SOURCE. A copy out of
a session follows no symlink at DESTINATION or below it: it replaces one to a file, and
refuses one to a directory. If SOURCE is a symlink, the link itself is copied, unless the path ends in a slash or -L is given.
Permission bits are kept, except on directories that their owner could not write to.
Owners are not kept. Devices, sockets and other special files are skipped and listed on
stderr.

"-" instead of the host path means stdin or stdout: the bytes of a file, or a tar
stream if the path in the session is a directory. From stdin it may be compressed with gzip.

A directory is copied in one request. A file of it that cannot be read ends the copy.`,
		Example: `  boxd cp lab:result.csv .
  boxd cp src lab:
  boxd cp lab:model test:
  boxd cp src/. lab:/workspace/app
  tar c src | boxd cp - lab:
  boxd cp lab:log - | tail`,
		Args: exactly("SOURCE", "DESTINATION"),
		RunE: func(_ *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			if err := checkPlaces(from, to); err != nil {
				return err
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return a.copyBetween(ctx, c, from, to, follow, f.json)
			})
		},
	}
	cmd.ValidArgsFunction = a.completePlace(&f)
	cmd.Flags().BoolVarP(&follow, "follow-link", "L", false, "if SOURCE is a symlink, copy its target")
	f.register(cmd)
	return cmd
}

// completePlace completes "SESSION:". The shell itself completes files of the host.
func (a *App) completePlace(f *remoteFlags) cobra.CompletionFunc {
	sessions := a.completeNames(f, listSessions)
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 1 || strings.ContainsAny(word, "/.") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ids, _ := sessions(cmd, nil, word)
		for i, id := range ids {
			name, state, _ := strings.Cut(id, "\t")
			ids[i] = cobra.CompletionWithDesc(name+":", state)
		}
		return ids, cobra.ShellCompDirectiveNoSpace
	}
}

// place is a side of a copy.
type place struct {
	session string // "": the host
	path    string // as given
}

// parsePlace reads SESSION:PATH or a path of the host. As for docker cp, it is a path of the
// host if the part before the colon contains a slash or begins with a dot.
func parsePlace(s string) place {
	session, p, ok := strings.Cut(s, ":")
	if !ok || session == "" || strings.Contains(session, "/") || strings.HasPrefix(session, ".") {
		return place{path: s}
	}
	return place{session, p}
}

func (p place) String() string {
	if p.session == "" {
		return printable(p.path)
	}
	return printable(p.session + ":" + p.path)
}

// isDirectory reports whether the form of the path says that it is a directory.
func (p place) isDirectory() bool {
	return strings.HasSuffix(p.path, "/") || p.isContent() || path.Base(p.path) == ".."
}

// isContent reports whether the path stands for the content of a directory.
func (p place) isContent() bool {
	return p.path == "." || strings.HasSuffix(p.path, "/.") || p.session != "" && p.path == ""
}

func checkPlaces(from, to place) error {
	switch {
	case from.session == "" && to.session == "":
		return errors.New("cp: neither SOURCE nor DESTINATION names a session: write one of them as SESSION:PATH")
	case from.path == "" && from.session == "" || to.path == "" && to.session == "":
		return errors.New(`cp: a path of the host must not be empty; "." is the current directory`)
	}
	for _, p := range []place{from, to} {
		if p.session != "" {
			if err := checkNames([]string{p.session}, []string{"SESSION"}); err != nil {
				return err
			}
		}
	}
	return nil
}

// copier makes one copy and counts what it copied.
type copier struct {
	app      *App
	c        *client.Client
	session  string
	progress *progress // of bytes; nil if the copy itself is written to the screen

	Files       int   `json:"files"`
	Directories int   `json:"directories"`
	Symlinks    int   `json:"symlinks"`
	Bytes       int64 `json:"bytes"`
	Skipped     int   `json:"skipped"`
}

func (a *App) copyBetween(ctx context.Context, c *client.Client, from, to place, follow, asJSON bool) error {
	j := &copier{app: a, c: c, session: cmp.Or(to.session, from.session)}
	if toStdout := to == (place{path: "-"}); !toStdout || asTerminal(a.Stdout) == nil {
		j.progress = a.newProgress("copying "+from.String(), 0, spec.FormatSize)
		defer j.progress.end()
	}
	var err error
	switch {
	case from.session == "":
		err = j.upload(ctx, from, to, follow)
	case to.session == "":
		err = j.download(ctx, from, to, follow)
	default:
		err = j.across(ctx, from, to, follow)
	}
	if err == nil && asJSON && to != (place{path: "-"}) {
		err = writeJSON(a.Stdout, j)
	}
	return err
}

// inSession returns the absolute form of a path in the session.
func (j *copier) inSession(ctx context.Context, p string) (string, error) {
	if path.IsAbs(p) {
		return path.Clean(p), nil
	}
	s, err := j.c.Session(ctx, j.session)
	if err != nil {
		return "", err
	}
	return path.Join(cmp.Or(s.WorkspaceTarget, engine.WorkspaceTarget), p), nil
}

// source describes the source of a copy.
type source struct {
	dir     bool
	content bool // copy the content of the directory, not the directory
	base    string
}

// landing returns the directory in which a copy is placed, and its name there; "." means the
// directory itself. exists and dir describe the present destination.
func (s source) landing(to place, at string, exists, dir bool) (parent, name string, err error) {
	switch {
	case dir && s.content:
		return at, ".", nil
	case dir:
		return at, s.base, nil
	case exists && s.dir:
		return "", "", fmt.Errorf("destination %s: is not a directory, so a directory cannot be copied there", to)
	case exists && to.isDirectory():
		return "", "", fmt.Errorf("destination %s: is not a directory", to)
	case !s.dir && to.isDirectory():
		return "", "", fmt.Errorf("destination %s: there is no such directory; make it first, or leave out the slash at its end", to)
	}
	at = path.Clean(at)
	return path.Dir(at), path.Base(at), nil
}

// sessionSource describes a source in the session, which is at remote.
func (j *copier) sessionSource(ctx context.Context, from place, follow bool) (remote string, info apitypes.FileInfo, s source, err error) {
	if remote, err = j.inSession(ctx, from.path); err != nil {
		return "", info, s, err
	}
	if info, err = j.c.StatFile(ctx, j.session, remote); err != nil {
		return "", info, s, j.failed(err)
	}
	switch {
	case info.Target != "" && !follow && !from.isDirectory():
		info.Type = "symlink"
	case info.Type == "symlink":
		return "", info, s, fmt.Errorf("source %s: is a dangling symlink to %s", from, spec.Quote(info.Target))
	}
	s = source{dir: info.Type == "dir", base: path.Base(remote)}
	s.content = from.isContent() || s.base == "/"
	switch {
	case !s.dir && from.isDirectory():
		return "", info, s, fmt.Errorf("source %s: is not a directory", from)
	case info.Type == "device" || info.Type == "fifo" || info.Type == "socket":
		return "", info, s, fmt.Errorf("source %s: is a %s, which cannot be copied", from, info.Type)
	}
	return remote, info, s, nil
}

// download copies from the session to the host.
func (j *copier) download(ctx context.Context, from, to place, follow bool) error {
	toStdout := to.path == "-"
	remote, info, s, err := j.sessionSource(ctx, from, follow || toStdout)
	if err != nil {
		return err
	}
	if j.progress != nil && info.Type == "file" {
		j.progress.expect(info.Size)
	}
	if toStdout {
		return j.toStdout(ctx, remote, info, s)
	}
	// Without the slash that would follow a symlink: an earlier copy may have left one that the box has made.
	there, err := os.Lstat(path.Clean(to.path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && there.Mode().Type() == fs.ModeSymlink {
		if target, err := os.Stat(to.path); to.isDirectory() || err == nil && target.IsDir() {
			return fmt.Errorf("destination %s: is a symlink to a directory, and a copy out of a session follows none: name the directory itself, or remove the symlink", to)
		}
		there = nil // the copy takes its place
	}
	parent, name, err := s.landing(to, to.path, there != nil, there != nil && there.IsDir())
	if err != nil {
		return err
	}
	sink, err := openHostSink(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("destination %s: there is no directory %s; make it first", to, spec.Quote(parent))
	}
	if err != nil {
		return err
	}
	defer sink.close()
	return j.fromSession(ctx, remote, name, info, sink)
}

// toStdout writes a file as it is, and a directory as a tar stream.
func (j *copier) toStdout(ctx context.Context, remote string, info apitypes.FileInfo, s source) error {
	if info.Type == "file" {
		r, err := j.c.ReadFile(ctx, j.session, remote, 0, 0)
		if err != nil {
			return j.failed(err)
		}
		defer r.Close()
		_, err = io.Copy(j.app.Stdout, r)
		return err
	}
	if s.content {
		s.base = "."
	}
	w := tar.NewWriter(j.app.Stdout)
	if err := j.fromSession(ctx, remote, s.base, info, tarSink{w, time.Now()}); err != nil {
		return err
	}
	return w.Close()
}

// target is a destination in the session.
type target struct {
	place
	remote      string
	exists, dir bool
}

func (j *copier) sessionTarget(ctx context.Context, to place) (target, error) {
	t := target{place: to, exists: true}
	var err error
	if t.remote, err = j.inSession(ctx, to.path); err != nil {
		return t, err
	}
	there, err := j.c.StatFile(ctx, j.session, t.remote)
	switch {
	case client.IsCode(err, apitypes.CodeNoFile):
		t.exists = false
	case err != nil:
		return t, j.failed(err)
	default:
		t.dir = there.Type == "dir"
	}
	return t, nil
}

// landing is [source.landing] in the session, whose directory parent exists.
func (j *copier) landing(ctx context.Context, s source, t target) (parent, name string, err error) {
	parent, name, err = s.landing(t.place, t.remote, t.exists, t.dir)
	if err != nil || t.exists {
		return parent, name, err
	}
	above, err := j.c.StatFile(ctx, j.session, parent)
	if client.IsCode(err, apitypes.CodeNoFile) || err == nil && above.Type != "dir" {
		return "", "", fmt.Errorf("destination %s: the session has no directory %s; make it first", t, spec.Quote(parent))
	}
	if err != nil {
		return "", "", j.failed(err)
	}
	return parent, name, nil
}

// upload copies from the host to the session.
func (j *copier) upload(ctx context.Context, from, to place, follow bool) error {
	t, err := j.sessionTarget(ctx, to)
	if err != nil {
		return err
	}
	var s source
	var info fs.FileInfo
	if from.path == "-" {
		if t.dir {
			return j.unpack(ctx, t.remote, func(to treeSink) error { return j.fromTar(ctx, tar.NewReader(gunzipped(j.app.Stdin)), to) })
		}
	} else {
		if info, s, err = statSource(from, follow); err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			j.progress.expect(info.Size())
		}
	}
	parent, name, err := j.landing(ctx, s, t)
	if err != nil {
		return err
	}
	one := sessionSink{j, parent}
	switch {
	case from.path == "-":
		return j.file(ctx, one, name, 0, -1, j.app.Stdin)
	case !s.dir:
		return j.oneFromHost(ctx, from.path, name, info, one)
	}
	return j.unpack(ctx, parent, func(to treeSink) error { return j.fromHost(ctx, from.path, name, info, to) })
}

// across copies from one session to another, or within one. The daemon passes the content on.
func (j *copier) across(ctx context.Context, from, to place, follow bool) error {
	there := &copier{app: j.app, c: j.c, session: from.session}
	remote, info, s, err := there.sessionSource(ctx, from, follow)
	if err != nil {
		return err
	}
	t, err := j.sessionTarget(ctx, to)
	if err != nil {
		return err
	}
	parent, name, err := j.landing(ctx, s, t)
	if err != nil {
		return err
	}
	at := path.Join(parent, name)
	switch {
	case info.Type == "symlink":
		j.Symlinks++
		return j.failed(j.c.Symlink(ctx, j.session, at, info.Target))
	case from.session == to.session && s.dir && strings.HasPrefix(at+"/", strings.TrimSuffix(remote, "/")+"/"):
		return fmt.Errorf("destination %s: is in the directory that is to be copied", to)
	case s.dir && name != ".":
		r := apitypes.MkdirRequest{Path: at, Mode: fmt.Sprintf("%04o", permissions(info.Mode)|0o700), Parents: true}
		if err := j.c.Mkdir(ctx, j.session, r); err != nil {
			return j.failed(err)
		}
		j.Directories++
	}
	tree, err := j.c.CopyFiles(ctx, j.session, apitypes.CopyRequest{FromSession: from.session, From: remote, Path: at})
	j.Files, j.Directories, j.Symlinks, j.Bytes = j.Files+int(tree.Files), j.Directories+int(tree.Directories), j.Symlinks+int(tree.Symlinks), j.Bytes+tree.Bytes
	return j.failed(err)
}

// statSource describes the host's file or directory to copy.
func statSource(from place, follow bool) (fs.FileInfo, source, error) {
	stat := os.Lstat
	if follow || from.isDirectory() {
		stat = os.Stat
	}
	info, err := stat(from.path)
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, source{}, fmt.Errorf("source %s: %w", from, failed.Err)
	}
	abs, err := filepath.Abs(from.path)
	if err != nil {
		return nil, source{}, err
	}
	s := source{dir: info.IsDir(), base: filepath.Base(abs)}
	s.content = from.isContent() || s.base == "/"
	if kind := info.Mode().Type(); !info.IsDir() && kind != 0 && kind != fs.ModeSymlink {
		return nil, s, fmt.Errorf("source %s: is a %s, which cannot be copied", from, typeName(info.Mode()))
	}
	return info, s, nil
}

// failed adds the session to an error about one of its files.
func (j *copier) failed(err error) error {
	if err == nil || client.IsCode(err, apitypes.CodeSessionNotFound) {
		return err
	}
	return fmt.Errorf("session %s: %w", j.session, err)
}

// skip reports on stderr that something was not copied.
func (j *copier) skip(name, what string) {
	j.Skipped++
	say := func() { j.app.say("boxd: %s: %s, left out", printable(name), what) }
	if j.progress == nil {
		say()
		return
	}
	j.progress.pause(say)
}
