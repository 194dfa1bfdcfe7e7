package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newCopy() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION [flags]",
		Short: "Copy files between the host and a session",
		Long: `Copy a file, or a directory with all in it, between the host and a session. One of
both is SESSION:PATH; the other is a path of the host, or "-": a single file goes to
stdout or comes from stdin. A path with a colon is written ./PATH.

If the destination is a directory, the copy is made in it. Permission bits are kept,
owners are not. Symbolic links, devices and the like are left out, and said so on
stderr. Relative paths in a session begin at the workspace.`,
		Example: `  boxd cp lab:result.csv .
  boxd cp src lab:/workspace
  tar c src | boxd cp - lab:src.tar`,
		Args: exactly("SOURCE", "DESTINATION"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				return a.copyBetween(ctx, c, args[0], args[1], f.json)
			})
		},
	}
	f.register(cmd)
	return cmd
}

// workspace is where relative paths in a session begin.
const workspace = "/workspace"

// place is a side of a copy.
type place struct {
	session string // "": the host
	path    string
}

// parsePlace reads SESSION:PATH or a path of the host. What is in front of the
// colon has no slash.
func parsePlace(s string) place {
	session, p, ok := strings.Cut(s, ":")
	if !ok || session == "" || strings.Contains(session, "/") {
		return place{path: s}
	}
	if !path.IsAbs(p) {
		p = path.Join(workspace, p)
	}
	return place{session, p}
}

// copier counts what it copies.
type copier struct {
	app     *App
	c       *client.Client
	session string

	Files       int   `json:"files"`
	Directories int   `json:"directories"`
	Bytes       int64 `json:"bytes"`
	Skipped     int   `json:"skipped"`
}

func (a *App) copyBetween(ctx context.Context, c *client.Client, source, destination string, asJSON bool) error {
	from, to := parsePlace(source), parsePlace(destination)
	if (from.session == "") == (to.session == "") {
		return errors.New("cp: one of source and destination must be SESSION:PATH, the other a path of the host or -")
	}
	job := &copier{app: a, c: c, session: from.session + to.session}
	var err error
	switch {
	case from.session != "" && to.path == "-":
		err = job.print(ctx, from.path)
	case from.session != "":
		err = job.download(ctx, from.path, to.path)
	case from.path == "-":
		err = job.write(ctx, a.Stdin, to.path, "")
	default:
		err = job.upload(ctx, from.path, to.path)
	}
	if err == nil && asJSON && to.path != "-" {
		err = writeJSON(a.Stdout, job)
	}
	return err
}

// print writes one file of the session to stdout.
func (j *copier) print(ctx context.Context, p string) error {
	r, err := j.c.ReadFile(ctx, j.session, p, 0, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(j.app.Stdout, r)
	return err
}

// skip tells of what cannot be copied.
func (j *copier) skip(name, kind string) {
	j.Skipped++
	j.app.say("boxd: %s is a %s, left out", printable(name), kind)
}

// write makes a file of the session.
func (j *copier) write(ctx context.Context, r io.Reader, p, mode string) error {
	info, err := j.c.WriteFile(ctx, j.session, p, r, client.WriteOptions{Mode: mode})
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, p, err)
	}
	j.Files++
	j.Bytes += info.Size
	return nil
}

// upload copies the host's file or directory at from to the session.
func (j *copier) upload(ctx context.Context, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if there, err := j.c.StatFile(ctx, j.session, to); err == nil && there.Type == "dir" {
		to = path.Join(to, filepath.Base(absoluteOr(from)))
	} else if err == nil && info.IsDir() {
		return fmt.Errorf("%s:%s: is not a directory", j.session, to)
	}
	return j.uploadEntry(ctx, from, to, info)
}

// absoluteOr is the absolute form of name, so that "." has a base name.
func absoluteOr(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

func (j *copier) uploadEntry(ctx context.Context, from, to string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return j.uploadDir(ctx, from, to)
	case !info.Mode().IsRegular():
		j.skip(from, typeName(info.Mode()))
		return nil
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return j.write(ctx, f, to, fmt.Sprintf("%04o", info.Mode().Perm()))
}

func (j *copier) uploadDir(ctx context.Context, from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := j.c.Mkdir(ctx, j.session, to, true); err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, to, err)
	}
	j.Directories++
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if err := j.uploadEntry(ctx, filepath.Join(from, e.Name()), path.Join(to, e.Name()), info); err != nil {
			return err
		}
	}
	return nil
}

func typeName(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeSymlink:
		return "symlink"
	case fs.ModeNamedPipe:
		return "fifo"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}

// download copies the session's file or directory at from to the host. What is in
// a session is not trusted: nothing is made outside of the directory to copy to.
func (j *copier) download(ctx context.Context, from, to string) error {
	info, err := j.c.StatFile(ctx, j.session, from)
	if err != nil {
		return err
	}
	dir, name := filepath.Split(absoluteOr(to))
	if there, err := os.Stat(to); err == nil && there.IsDir() {
		dir, name = to, path.Base(from)
	}
	if name == "" || !filepath.IsLocal(name) || name == "." {
		return fmt.Errorf("destination %q: name the copy, %q is no name for it", to, name)
	}
	root, err := os.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return j.downloadEntry(ctx, root, from, name, info)
}

func (j *copier) downloadEntry(ctx context.Context, root *os.Root, from, name string, info apitypes.FileInfo) error {
	switch info.Type {
	case "dir":
		return j.downloadDir(ctx, root, from, name)
	case "file":
		return j.downloadFile(ctx, root, from, name, info)
	}
	j.skip(from, info.Type)
	return nil
}

func (j *copier) downloadDir(ctx context.Context, root *os.Root, from, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	j.Directories++
	list, err := j.c.ListFiles(ctx, j.session, from)
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, from, err)
	}
	if list.Truncated {
		return fmt.Errorf("%s:%s: has more entries than the daemon lists; pack it with tar in the session first", j.session, from)
	}
	for _, e := range list.Files {
		if len(e.RawName) > 0 {
			e.Name = string(e.RawName) // not UTF-8
		}
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\x00") {
			return fmt.Errorf("%s:%s: an entry has the impossible name %q", j.session, from, e.Name)
		}
		if err := j.downloadEntry(ctx, root, path.Join(from, e.Name), path.Join(name, e.Name), e); err != nil {
			return err
		}
	}
	return nil
}

func (j *copier) downloadFile(ctx context.Context, root *os.Root, from, name string, info apitypes.FileInfo) error {
	var mode fs.FileMode = 0o644
	if _, err := fmt.Sscanf(info.Mode, "%o", &mode); err != nil {
		mode = 0o644
	}
	r, err := j.c.ReadFile(ctx, j.session, from, 0, 0)
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, from, err)
	}
	defer r.Close()
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode.Perm())
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	err = errors.Join(err, f.Close())
	if err != nil {
		return fmt.Errorf("%s:%s: %w", j.session, from, err)
	}
	j.Files++
	j.Bytes += n
	return nil
}
