package engine

import "fmt"

// minOpenFiles leaves room for three streams and for what a dynamic loader and
// an interpreter hold open while they start.
const minOpenFiles = 16

// Validate checks that each limit is zero, Unlimited or within its bounds.
// OpenFiles cannot be Unlimited: the kernel refuses an RLIMIT_NOFILE above
// fs.nr_open, which is MaxOpenFiles unless it was changed (setrlimit(2)).
func (l Limits) Validate() error {
	return first(
		func() error { return validateLimitSize("memory", l.Memory, MinMemory) },
		func() error { return validatePIDs(l.PIDs) },
		func() error { return validateCPUs(l.CPUs) },
		func() error { return validateCount("open_files", l.OpenFiles, minOpenFiles, MaxOpenFiles) },
		func() error { return validateLimitSize("file_size", l.FileSize, 1) },
	)
}

func validateLimitSize(field string, n, lowest int64) error {
	if n == Unlimited {
		return nil
	}
	return validateSize(field, n, lowest)
}

func validatePIDs(n int64) error {
	if n == Unlimited {
		return nil
	}
	return validateCount("pids", n, 1, MaxPIDs)
}

func validateCount(field string, n, lowest, highest int64) error {
	if n == 0 || (n >= lowest && n <= highest) {
		return nil
	}
	return &FieldError{field, fmt.Sprint(n), fmt.Sprintf("must be %d to %d", lowest, highest)}
}

// validateCPUs is written so that NaN, for which every comparison is false, is
// refused.
func validateCPUs(f float64) error {
	if f == 0 || f == Unlimited || (f >= MinCPUs && f <= MaxCPUs) {
		return nil
	}
	return &FieldError{"cpus", fmt.Sprint(f), fmt.Sprintf("must be %g to %d", MinCPUs, MaxCPUs)}
}
