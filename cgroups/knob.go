package cgroups

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// knob is one file that holds one limit.
type knob struct {
	dir   *os.File
	file  string
	value int64 // the wanted value; Unlimited means no limit
	style style
	old   int64 // the previous value
}

// style is the format of a knob's value.
type style int

const (
	v1Number style = iota // "-1" means no limit
	v2Number              // "max" means no limit
	v2CPU                 // "quota period", "max period"
)

// unlimitedV1 is the smallest value that means "no limit" where the kernel shows no limit
// as a huge number of bytes (PAGE_COUNTER_MAX pages).
const unlimitedV1 = 1 << 62

func (k *knob) format(value int64) string {
	switch {
	case k.style == v2CPU && value < 0:
		return fmt.Sprintf("max %d", cpuPeriod)
	case k.style == v2CPU:
		return fmt.Sprintf("%d %d", value, cpuPeriod)
	case k.style == v2Number && value < 0:
		return "max"
	}
	return strconv.FormatInt(value, 10)
}

// read returns the value in force.
func (k *knob) read() (int64, error) {
	text, err := linux.ReadFileAt(k.dir, k.file)
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	if first == "max" {
		return Unlimited, nil
	}
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, &os.PathError{Op: "parse", Path: k.dir.Name() + "/" + k.file, Err: err}
	}
	if n >= unlimitedV1 || n < 0 {
		return Unlimited, nil
	}
	return n, nil
}

// set writes value and verifies that it is in force.
func (k *knob) set(value int64) error {
	if err := linux.WriteFileAt(k.dir, k.file, k.format(value)); err != nil {
		return err
	}
	got, err := k.read()
	if err == nil && got != value {
		err = fmt.Errorf("writing %s to %s/%s: %s is in force", k.format(value), k.dir.Name(), k.file, k.format(got))
	}
	return err
}

// raises reports whether the wanted value loosens the limit or keeps it.
func (k *knob) raises() bool {
	return k.value < 0 || k.old >= 0 && k.value >= k.old
}

// apply sets all knobs of one limit, or none. knobs are in the order for raising: the outer
// cgroup before the inner one, memsw before memory. For lowering, apply reverses the order,
// because the kernel requires that the inner value is never the larger one.
func apply(knobs []*knob) error {
	for _, k := range knobs {
		var err error
		if k.old, err = k.read(); err != nil {
			return err
		}
	}
	if len(knobs) > 0 && !knobs[len(knobs)-1].raises() {
		slices.Reverse(knobs)
	}
	for i, k := range knobs {
		if k.old == k.value {
			continue
		}
		if err := k.set(k.value); err != nil {
			// Restore k as well: its write may have succeeded and only the check failed.
			return errors.Join(err, restore(knobs[:i+1]))
		}
	}
	return nil
}

// restore restores the old values, last one first.
func restore(knobs []*knob) error {
	var errs []error
	for _, k := range slices.Backward(knobs) {
		if now, err := k.read(); err == nil && now == k.old {
			continue
		}
		errs = append(errs, k.set(k.old))
	}
	return errors.Join(errs...)
}

// exists reports whether name exists beneath dir.
func exists(dir *os.File, name string) bool {
	return unix.Faccessat(int(dir.Fd()), name, unix.F_OK, 0) == nil
}
