package launcher

var (
	maskedPaths   = []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"}
	readonlyPaths = []string{"/proc/sys", "/proc/sysrq-trigger"}
)
