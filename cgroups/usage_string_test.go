package cgroups

import "fmt"

// String shows the figures of u for test logs.
func (u Usage) String() string {
	show := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("user %s system %s throttled %s (box %s) peak %s pids %s oom %s refused %s (box %s) read %s written %s",
		show(u.UserUsec), show(u.SystemUsec), show(u.ThrottledUsec), show(u.BoxThrottledUsec), show(u.MemoryPeak), show(u.PIDsPeak),
		show(u.OOMKills), show(u.PIDsRefused), show(u.BoxPIDsRefused), show(u.IORead), show(u.IOWrite))
}
