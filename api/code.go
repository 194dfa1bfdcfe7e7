package api

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// maxCodeFiles bounds the files of one request: each with an absolute path is a command in the box.
const maxCodeFiles = 64

// code runs source code. It is an exec whose command the session's profile knows, with the
// code in a file in the box.
func (c *call) code(key session.Key) error {
	var q apitypes.CodeRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	e, err := codeOf(&q)
	if err != nil {
		return err
	}
	return c.run(key.Tenant, q.Outputs, e, c.execIn(key, q.Session), codeError)
}

// codeOf returns q in the form of package session.
func codeOf(q *apitypes.CodeRequest) (session.Exec, error) {
	if q.Code == "" {
		return session.Exec{}, &engine.FieldError{Field: "code", Value: `""`, Rule: "must not be empty"}
	}
	if q.File != "" {
		if err := policy.ValidateCodeFile("file", q.File); err != nil {
			return session.Exec{}, err
		}
	}
	env, err := policy.EnvList(q.Env)
	if err != nil {
		return session.Exec{}, err
	}
	e, err := boundsOf(&apitypes.ExecRequest{Stdin: q.Stdin, StdinBase64: q.StdinBase64, Timeout: q.Timeout, Grace: q.Grace, OutputLimit: q.OutputLimit,
		Cwd: q.Cwd, Mkdir: q.Mkdir, User: q.User, Outputs: q.Outputs})
	if err != nil {
		return session.Exec{}, err
	}
	e.Args, e.Env = q.Args, env
	dir := "/tmp/code-" + strings.ToLower(rand.Text()[:12])
	extra, err := codeFilesOf(q.Files, dir)
	if err != nil {
		return session.Exec{}, err
	}
	o := files.Options{User: q.User}
	e.Code = &session.Code{
		Language: q.Language, File: q.File, Dir: dir,
		Write: func(ctx context.Context, box engine.LiveBox, name string) error {
			ctx, cancel := context.WithTimeoutCause(ctx, files.DefaultTimeout, fmt.Errorf("%w after %v", files.ErrTimeout, files.DefaultTimeout))
			defer cancel()
			code := codeFile{path.Join(dir, name), []byte(q.Code)}
			if i := slices.IndexFunc(extra, func(f codeFile) bool { return f.path == code.path }); i >= 0 {
				return &engine.FieldError{Field: fmt.Sprintf("files[%d].path", i), Value: spec.Quote(q.Files[i].Path), Rule: "must not be the file of the code itself"}
			}
			all := append(slices.Clone(extra), code)
			beside, each, err := packCode(all, dir)
			if err != nil {
				return err
			}
			_, err = files.Unpack(ctx, box, o, dir, beside, files.UnpackOptions{New: 0o700, MaxBytes: int64(beside.Len())})
			if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) { // a box of an older build does not know this
				each = all
				err = files.Mkdir(ctx, box, o, dir, files.MkdirOptions{Mode: 0o700})
			}
			if err != nil {
				return err
			}
			for _, f := range each {
				if _, err := files.Write(ctx, box, o, f.path, bytes.NewReader(f.content), files.WriteOptions{MakeParents: true}); err != nil {
					return err
				}
			}
			return nil
		},
		// The request may have ended: it does not bound the removal.
		Remove: func(box engine.LiveBox) {
			_ = files.Remove(context.Background(), box, files.Options{User: q.User, Timeout: codeRemoval}, dir, true) // else it ends with the box
		},
	}
	return e, nil
}

// codeRemoval bounds how long removing the files of code may take, while the client waits.
const codeRemoval = 5 * time.Second

// packCode returns an archive of the files in dir, which takes one command to write, and the other
// files.
func packCode(list []codeFile, dir string) (archive *bytes.Buffer, elsewhere []codeFile, err error) {
	archive = new(bytes.Buffer)
	w := tar.NewWriter(archive)
	now := time.Now().Truncate(time.Second) // an archive rounds up
	for _, f := range list {
		name, ok := strings.CutPrefix(f.path, dir+"/")
		if !ok {
			elsewhere = append(elsewhere, f)
			continue
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(f.content)), Mode: 0o644, ModTime: now}); err != nil {
			return nil, nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, nil, err
		}
	}
	return archive, elsewhere, w.Close()
}

// codeFile is a file to write before code runs.
type codeFile struct {
	path    string // absolute
	content []byte
}

// codeFilesOf checks the files of a request; relative ones are below dir.
func codeFilesOf(list []apitypes.CodeFile, dir string) ([]codeFile, error) {
	if len(list) > maxCodeFiles {
		return nil, &engine.FieldError{Field: "files", Value: fmt.Sprintf("(%d files)", len(list)), Rule: fmt.Sprintf("must be at most %d: write others with PUT …/files/content before", maxCodeFiles)}
	}
	all := make([]codeFile, len(list))
	for i, f := range list {
		field := fmt.Sprintf("files[%d]", i)
		if f.Content != "" && len(f.ContentBase64) > 0 {
			return nil, &engine.FieldError{Field: field + ".content_base64", Value: spec.Quote(string(f.ContentBase64)), Rule: "must be absent if content is given"}
		}
		all[i].path, all[i].content = f.Path, f.ContentBase64
		if f.Content != "" {
			all[i].content = []byte(f.Content)
		}
		if strings.ContainsRune(f.Path, 0) || strings.HasSuffix(f.Path, "/") || len(f.Path) >= maxPath {
			return nil, &engine.FieldError{Field: field + ".path", Value: spec.Quote(f.Path), Rule: fmt.Sprintf("must be the path of a file, without NUL and shorter than %d bytes", maxPath)}
		}
		if path.IsAbs(f.Path) {
			continue
		}
		if !filepath.IsLocal(f.Path) || path.Clean(f.Path) == "." {
			return nil, &engine.FieldError{Field: field + ".path", Value: spec.Quote(f.Path), Rule: `must be absolute, or the path of a file beside the code, without ".."`}
		}
		all[i].path = path.Join(dir, f.Path)
	}
	return all, nil
}

// maxPath is PATH_MAX of Linux.
const maxPath = 4096

// codeError translates err into the terms of a request that runs code.
func codeError(err error) error {
	if bad, ok := errors.AsType[*engine.FieldError](err); ok {
		if bad.Field == "args and env" || strings.HasPrefix(bad.Field, "args[") {
			return &engine.FieldError{Field: "args", Value: bad.Value, Rule: bad.Rule}
		}
	}
	if k := match(fileKinds, err); k != nil && errors.Is(err, session.ErrCodeUnwritten) {
		return &refusal{code: k.code, detail: err.Error(), err: err}
	}
	err = commandError(err, nil)
	if r, ok := err.(*refusal); ok && r.field == "shell" { // the command is the profile's
		r.field = "language"
	}
	return err
}
