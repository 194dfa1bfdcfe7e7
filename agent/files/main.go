package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/boxd/boxd/agent/files/proto"
	"golang.org/x/sys/unix"
)

// operation is a requested file operation.
type operation struct {
	path  string
	args  []string // after the path
	stdin io.Reader
	out   io.Writer
}

// operations maps names to functions, with the number of arguments after the path.
var operations = map[string]struct {
	args int
	run  func(*operation) (proto.Reply, error)
}{
	"read":    {2, (*operation).read},
	"write":   {3, (*operation).write},
	"list":    {1, (*operation).list},
	"stat":    {0, (*operation).stat},
	"remove":  {1, (*operation).remove},
	"mkdir":   {2, (*operation).mkdir},
	"symlink": {1, (*operation).symlink},
	"rename":  {2, (*operation).rename},
	"pack":    {1, (*operation).pack},
	"unpack":  {1, (*operation).unpack},
	"watch":   {1, (*operation).watch},
}

// Main carries out the operation that args request, as described in package proto, and
// returns the exit status.
func Main(args []string) int {
	reply, err := run(args, os.Stdin, os.Stdout)
	status := 0
	if err != nil {
		reply.Failure, status = failure(err), 1
	}
	line, err := json.Marshal(reply)
	if err == nil {
		_, err = os.Stderr.Write(append(line, '\n'))
	}
	if err != nil {
		return 2
	}
	return status
}

func run(args []string, stdin io.Reader, out io.Writer) (proto.Reply, error) {
	if len(args) < 2 {
		return proto.Reply{}, unix.EINVAL
	}
	op, ok := operations[args[0]]
	if !ok || len(args) != 2+op.args {
		return proto.Reply{}, fmt.Errorf("arguments %q: %w", args, unix.EINVAL)
	}
	return op.run(&operation{path: args[1], args: args[2:], stdin: stdin, out: out})
}

// flag reports whether argument i is name; "-" means no.
func (o *operation) flag(i int, name string) bool { return o.args[i] == name }

// number parses argument i, which must not be negative.
func (o *operation) number(i, base int) (int64, error) {
	n, err := strconv.ParseInt(o.args[i], base, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("argument %q: %w", o.args[i], unix.EINVAL)
	}
	return n, nil
}

// stepError reports a failed step on a path other than the requested one.
type stepError struct {
	step, path string
	err        error
}

func (e *stepError) Error() string { return fmt.Sprintf("%s %q: %v", e.step, e.path, e.err) }
func (e *stepError) Unwrap() error { return e.err }

// typeError reports a file that is not a regular file.
type typeError struct{ mode uint32 }

func (e typeError) Error() string { return fmt.Sprintf("mode %o is not a regular file", e.mode) }

// failure translates err for the other half. An error without an errno of the kernel becomes
// EIO.
func failure(err error) *proto.Failure {
	f := &proto.Failure{Errno: unix.EIO}
	if step, ok := errors.AsType[*stepError](err); ok {
		f.Step, f.Path = step.step, []byte(step.path)
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok && errno != 0 {
		f.Errno = errno
	}
	if wrong, ok := errors.AsType[typeError](err); ok {
		f.Errno, f.Type = unix.EINVAL, wrong.mode&unix.S_IFMT
		if f.Type == unix.S_IFDIR {
			f.Errno = unix.EISDIR
		}
	}
	return f
}
