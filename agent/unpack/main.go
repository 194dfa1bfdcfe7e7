package unpack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/boxd/boxd/agent/unpack/proto"
	"golang.org/x/sys/unix"
)

// Main runs the command that args name, as described in package proto, and returns the exit status.
func Main(args []string) int {
	err := run(args, os.Stdin, os.Stdout)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return status(err)
}

func run(args []string, stdin io.Reader, stdout io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "inflate":
		limit, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil || limit <= 0 {
			return fmt.Errorf("inflate: limit %q: must be a number of bytes above 0", args[1])
		}
		return inflate(stdout, stdin, limit)
	case len(args) == 2 && args[0] == "write":
		var limits proto.Limits
		d := json.NewDecoder(bytes.NewReader([]byte(args[1])))
		d.DisallowUnknownFields()
		if err := d.Decode(&limits); err != nil {
			return fmt.Errorf("write: limits %q: %w", args[1], err)
		}
		if limits.Bytes <= 0 || limits.Entries <= 0 || limits.Below < 0 {
			return fmt.Errorf("write: limits %q: bytes and entries must be above 0", args[1])
		}
		result, err := write(proto.Dir, proto.Below, stdin, limits)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(result)
	case len(args) == 1 && args[0] == "sum":
		result, err := sum(proto.Dir)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(result)
	}
	return fmt.Errorf("arguments %q: must be inflate BYTES, write LIMITS or sum", args)
}

// archiveError is an error that the archive causes.
type archiveError struct {
	status int // proto.Corrupt or proto.Refused
	err    error
}

func (e *archiveError) Error() string { return e.err.Error() }
func (e *archiveError) Unwrap() error { return e.err }

func corrupt(format string, args ...any) error {
	return &archiveError{proto.Corrupt, fmt.Errorf(format, args...)}
}

func refuse(format string, args ...any) error {
	return &archiveError{proto.Refused, fmt.Errorf(format, args...)}
}

func status(err error) int {
	if e, ok := errors.AsType[*archiveError](err); ok {
		return e.status
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return proto.NoSpace
	case errors.Is(err, unix.EMLINK), errors.Is(err, unix.ENAMETOOLONG): // limits of the file system
		return proto.Refused
	}
	return proto.Failed
}

// quote is a name of the archive in an error: one line, and not longer than people read.
func quote(name string) string {
	const most = 200
	if len(name) > most {
		return strconv.Quote(name[:most]) + "…"
	}
	return strconv.Quote(name)
}
