package native

import (
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

// judge says why the command ended. boxd's own reasons come first, then the
// limits that the kernel counted, then the command's own doing. A command that
// coped with a limit and exited 0 has simply exited, unless it left processes
// behind that went on running into it. A status that is no end is a lie of PID 1.
func (p *process) judge(reason engine.Verdict, status unix.WaitStatus, exited, background bool) {
	r := &p.result
	r.ExitCode = -1
	if exited && status.Exited() {
		r.ExitCode = status.ExitStatus()
	}
	if exited && status.Signaled() {
		r.Signal = status.Signal()
	}
	if exited && !status.Exited() && !status.Signaled() {
		reason = engine.BoxLost
	}
	failed := r.ExitCode != 0
	limits := p.box.currentLimits()
	switch {
	case reason != "":
		r.Verdict, r.Limit = reason, p.reasonLimit(reason)
	case failed && positive(r.Receipt.OOMKills):
		r.Verdict, r.Limit = engine.OOM, engine.FormatSize(limits.Memory)
	case (failed || background) && positive(r.Receipt.PIDsLimitReached):
		r.Verdict, r.Limit = engine.PIDsLimit, fmt.Sprint(limits.PIDs)
	case r.Signal == unix.SIGXFSZ && p.fileSize > 0:
		r.Verdict, r.Limit = engine.DiskQuota, "file size "+engine.FormatSize(p.fileSize)
	case failed && p.filled() != "":
		r.Verdict, r.Limit = engine.DiskQuota, p.filled()
	case r.Signal != 0:
		r.Verdict = engine.Signaled
	default:
		r.Verdict = engine.Exited
	}
}

func positive(v *int64) bool { return v != nil && *v > 0 }

func (p *process) reasonLimit(reason engine.Verdict) string {
	switch reason {
	case engine.TimedOut:
		return p.cmd.Timeout.String()
	case engine.OutputLimit:
		return engine.FormatSize(p.cmd.OutputLimit)
	}
	return ""
}

// filled names the volumes that became full while the command ran.
func (p *process) filled() string {
	now := fullVolumes(p.box.volumes) &^ p.fullAtRun
	var names []string
	for i, v := range p.box.volumes {
		if now&(1<<i) != 0 {
			names = append(names, v.Path+" "+engine.FormatSize(v.Size))
		}
	}
	return strings.Join(names, ", ")
}
