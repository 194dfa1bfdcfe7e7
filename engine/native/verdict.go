package native

import (
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

// judge says why the command ended.
func (p *process) judge(reason engine.Verdict, status unix.WaitStatus, exited, background bool) {
	p.conclude(ending{reason: reason, limit: p.reasonLimit(reason), status: status, exited: exited, background: background})
}

func (p *process) reasonLimit(reason engine.Verdict) string {
	switch reason {
	case engine.TimedOut:
		return p.cmd.Timeout.String()
	case engine.OutputLimit:
		return spec.FormatSize(p.cmd.OutputLimit)
	}
	return ""
}
