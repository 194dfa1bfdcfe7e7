package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/internal/doctor"
)

const (
	// doctorTime bounds an examination: the health of the launcher, and then its list of engines.
	doctorTime = 2 * healthTime
	// doctorAge is how long an examination is reused. It can make the launcher build a box.
	doctorAge = 10 * time.Second
)

// doctor examines what this process can examine of the host, under its confinement.
func (d *daemon) doctor(ctx context.Context) (apitypes.Doctor, error) {
	return d.examined.get(ctx, doctorTime, doctorAge, func(ctx context.Context) (apitypes.Doctor, error) {
		sick := d.health(ctx)
		engines, err := d.sessions.Engines(ctx)
		if sick == nil {
			sick = err
		}
		checks, missing := doctor.InDaemon(doctor.Inside{StateDir: d.dirs.state, Landlock: d.landlock, Box: sick, Engines: engines, Wanted: d.Config.Policy.Engines})
		found := apitypes.Doctor{At: time.Now(), OnHost: missing,
			OK: !slices.ContainsFunc(checks, func(c doctor.Check) bool { return c.Status == doctor.Failed })}
		for _, c := range checks {
			found.Checks = append(found.Checks, apitypes.DoctorCheck{Name: c.Name, Status: string(c.Status), Detail: c.Detail, Mend: c.Mend})
		}
		return found, nil
	})
}
