package audit

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// ErrBroken: a log is not as it was written. See [BrokenError].
var ErrBroken = errors.New("audit log is broken")

// BrokenError says where a chain first breaks. It matches ErrBroken.
type BrokenError struct {
	File string
	Line int    // from 1; 0: the file as a whole
	What string // what is wrong
}

func (e *BrokenError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.What)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.What)
}

// Is makes every BrokenError an ErrBroken.
func (e *BrokenError) Is(target error) bool { return target == ErrBroken }

// Report is what [Verify] found in an intact log.
type Report struct {
	Files   int    `json:"files"`
	First   uint64 `json:"first"`   // lowest existing sequence number; above 1 if older files were deleted
	Entries uint64 `json:"entries"` // lines that are entries
	Head    Head   `json:"head"`
	Torn    []Torn `json:"torn,omitempty"` // left by crashes
	// Unfinished counts bytes after the last line: from a crash since the log was last
	// opened, or a line that is being written.
	Unfinished int64 `json:"unfinished,omitempty"`
}

// Torn is a partial line, left by a crash, that was recorded at the next start.
type Torn struct {
	File  string `json:"file"`
	Line  int    `json:"line"`
	Bytes int64  `json:"bytes"`
}

// Verify checks the log at path with its rotated files, even while it is being written. The
// first fault is a *[BrokenError]. It also looks for the line that known names: with the
// Head of some moment, it proves that no line from before that moment is missing. The zero
// Head asks for no line.
func Verify(path string, known Head) (Report, error) {
	files, list, err := openAll(path)
	if err != nil {
		return Report{}, err
	}
	defer closeAll(files)
	v := verifier{known: known, number: 1, report: Report{Files: len(files), Head: Head{Hash: noHash}}}
	if len(list) > 0 {
		v.number = list[0]
	}
	v.oldest = v.number
	for i, f := range files {
		if i < len(list) && list[i] != v.number {
			return v.report, &BrokenError{File: path, What: fmt.Sprintf("file %q is missing", rotated(path, v.number))}
		}
		v.file, v.line = f.Name(), 0
		if err := v.readFile(f); err != nil {
			return v.report, err
		}
		if i < len(files)-1 && (v.report.Unfinished > 0 || !v.anchored) {
			return v.report, v.broken(v.line, "the file ends within a line, or has none: its end was cut off")
		}
		v.number++
	}
	return v.report, v.finish(path)
}

// openAll opens all files of the log, oldest first, and returns the numbers of the rotated
// ones. It retries if a rotation interferes.
func openAll(path string) (files []*os.File, list []int, err error) {
	for range 10 {
		if list, err = numbers(path); err != nil {
			return nil, nil, err
		}
		if files, err = openList(path, list); err == nil {
			if again, err := numbers(path); err == nil && slices.Equal(list, again) {
				return files, list, nil
			}
			closeAll(files)
			err = errors.New("files were rotated all the time")
		}
	}
	return nil, nil, fmt.Errorf("opening audit log %q: %w", path, err)
}

func openList(path string, list []int) ([]*os.File, error) {
	var files []*os.File
	names := make([]string, 0, len(list)+1)
	for _, n := range list {
		names = append(names, rotated(path, n))
	}
	for _, name := range append(names, path) {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) && name == path && len(list) > 0 {
			continue // a crash interrupted a rotation
		}
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
