package policy

import (
	"cmp"
	"fmt"

	"github.com/boxd/boxd/engine/spec"
)

// DefaultQuotas bound each tenant and DefaultLimits all tenants together, unless the
// configuration says otherwise. They are far above what a host is likely to carry, so that
// they stop a runaway client but not a busy one.
var (
	DefaultQuotas = Quotas{Sessions: 1024, Processes: 1024, Execs: 256, Memory: 512 << 30, CPUs: 1024, WorkspaceBytes: 64 << 30, Volumes: 256, VolumeBytes: 64 << 30, Watches: 64, Ports: 64}
	DefaultLimits = Quotas{Sessions: 4096, Processes: 4096, Execs: 1024, Memory: 2 << 40, CPUs: 4096, WorkspaceBytes: 256 << 30, Volumes: 1024, VolumeBytes: 256 << 30, Watches: 256, Ports: 1024}
)

// resolve fills in zero fields of q from d and checks the others; field is the key of q.
func (q Quotas) resolve(field string, d Quotas) (Quotas, error) {
	q = Quotas{
		Sessions:       cmp.Or(q.Sessions, d.Sessions),
		Processes:      cmp.Or(q.Processes, d.Processes),
		Execs:          cmp.Or(q.Execs, d.Execs),
		Memory:         cmp.Or(q.Memory, d.Memory),
		CPUs:           cmp.Or(q.CPUs, d.CPUs),
		WorkspaceBytes: cmp.Or(q.WorkspaceBytes, d.WorkspaceBytes),
		Volumes:        cmp.Or(q.Volumes, d.Volumes),
		VolumeBytes:    cmp.Or(q.VolumeBytes, d.VolumeBytes),
		Watches:        cmp.Or(q.Watches, d.Watches),
		Ports:          cmp.Or(q.Ports, d.Ports),
	}
	if q.CPUs != spec.Unlimited && !(q.CPUs > 0 && q.CPUs <= maxCPUs) {
		return Quotas{}, badQuota(field+".cpus", fmt.Sprint(q.CPUs))
	}
	for i, n := range q.amounts() {
		if n < 1 && n != spec.Unlimited {
			return Quotas{}, badQuota(field+"."+resources[i].name, fmt.Sprint(n))
		}
	}
	return q, nil
}

func badQuota(field, value string) error {
	return &spec.FieldError{Field: field, Value: value, Rule: "must be above 0, 0 for the default, or -1 for no limit"}
}

// amounts are a count of each of the resources, in their units.
type amounts [len(resources)]int64

// resources are what is counted, in the order of amounts.
var resources = [...]struct {
	name   string // key in the configuration
	format func(int64) string
	advice string
}{
	{"sessions", plain, "remove a session"},
	{"processes", plain, "stop a managed process"},
	{"execs", plain, "wait for a command to end"},
	{"memory", spec.FormatSize, "ask for less, or remove a session"},
	{"cpus", formatCPUs, "ask for fewer, or remove a session"},
	{"workspace_bytes", spec.FormatSize, "delete files in workspaces, or sessions"},
	{"volumes", plain, "remove a volume"},
	{"volume_bytes", spec.FormatSize, "ask for less, or remove a volume"},
	{"watches", plain, "end a watch"},
	{"ports", plain, "remove a session that publishes ports"},
}

func plain(n int64) string {
	if n < 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

const (
	microCPUs = 1e6
	// maxCPUs keeps a sum of CPUs within an int64 of millionths.
	maxCPUs = 1e9
)

func formatCPUs(n int64) string {
	if n < 0 {
		return "unlimited"
	}
	return fmt.Sprint(float64(n) / microCPUs)
}

// amounts returns q as counts, CPUs in millionths: unlike sums of floats, sums of integers
// return to exactly zero when everything is released.
func (q Quotas) amounts() amounts {
	return amounts{q.Sessions, q.Processes, q.Execs, int64(q.Memory), toMicro(q.CPUs), int64(q.WorkspaceBytes), q.Volumes, int64(q.VolumeBytes), q.Watches, q.Ports}
}

// A Figure is one resource in [Quotas] or [Use].
type Figure struct {
	Name  string // key in the configuration
	Value float64
}

// Figures lists the resources of q.
func (q Quotas) Figures() []Figure {
	list := make([]Figure, len(resources))
	for i, n := range q.amounts() {
		list[i] = Figure{resources[i].name, float64(n)}
		if list[i].Name == "cpus" {
			list[i].Value = q.CPUs // n is in millionths
		}
	}
	return list
}

// toMicro returns f, a number of CPUs or Unlimited, in millionths.
func toMicro(f float64) int64 {
	if f < 0 {
		return spec.Unlimited
	}
	return int64(f*microCPUs + 0.5)
}
