package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// The engine's name of a tenant's volume is volumePrefix and volumeDigits hexadecimal
// digits. It is a digest, because tenants and volumes may have longer names than the
// engine's volumes.
const (
	volumePrefix = "v-"
	volumeDigits = 40
)

// VolumeID returns the name under which the engine keeps the volume name of tenant.
func VolumeID(tenant, name string) string {
	sum := sha256.Sum256([]byte(tenant + "\x00" + name))
	return volumePrefix + hex.EncodeToString(sum[:volumeDigits/2])
}

// IsVolumeID reports whether id can be a result of [VolumeID].
func IsVolumeID(id string) bool {
	digits, ok := strings.CutPrefix(id, volumePrefix)
	return ok && len(digits) == volumeDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

// ValidateVolumeName checks the name of a tenant's volume: 1 to 64 of A-Z, a-z, 0-9 and
// "._-", not starting with ".", without "..".
func ValidateVolumeName(name string) error {
	return validateName("name", name, tenantLen, tenantSet, `A-Z, a-z, 0-9 and "._-"`)
}

// VolumesFor decides about the volumes that a live session of r, which belongs to tenant, is
// to have or to get; field names the list in errors. The mounts are in the order of asked.
func (p *Policy) VolumesFor(tenant, field string, r Resolved, asked []spec.VolumeWish) ([]spec.Mount, []Decision, error) {
	return p.decideVolumes(tenant, field, r.MountMode, r.Target(), asked)
}

// decideVolumes decides about volumes. mode is the most that the profile allows, and
// workspace the target of the workspace. After an error, the last decision is the refusal.
func (p *Policy) decideVolumes(tenant, field, mode, workspace string, asked []spec.VolumeWish) (list []spec.Mount, decisions []Decision, err error) {
	seen := map[string]bool{}
	for i, a := range asked {
		m := spec.Mount{Source: "/", Target: a.Target, Volume: VolumeID(tenant, a.Name), ReadOnly: a.ReadOnly || mode != spec.ReadWrite, Users: true}
		err := checkVolume(fmt.Sprintf("%s[%d]", field, i), mode, workspace, a, m)
		if err == nil && seen[a.Name] {
			err = &spec.FieldError{Field: fmt.Sprintf("%s[%d].name", field, i), Value: spec.Quote(a.Name), Rule: "is there twice: a session has a volume once"}
		}
		seen[a.Name] = true
		d := mountDecision(m, err)
		d.Details["volume"] = a.Name
		if err == nil {
			d.Rule = "volume of the tenant"
		}
		decisions = append(decisions, d)
		if err != nil {
			return nil, decisions, err
		}
		list = append(list, m)
	}
	return list, decisions, nil
}

func checkVolume(field, mode, workspace string, a spec.VolumeWish, m spec.Mount) error {
	if !validName(a.Name, tenantLen, tenantSet) {
		return &spec.FieldError{Field: field + ".name", Value: spec.Quote(a.Name), Rule: fmt.Sprintf(`must be 1 to %d of A-Z, a-z, 0-9 and "._-", not starting with "." and without ".."`, tenantLen)}
	}
	if a.Size != 0 && (a.Size < spec.MinVolumeBytes || a.Size > spec.MaxVolumeBytes) {
		return &spec.FieldError{Field: field + ".size", Value: a.Size.String(), Rule: fmt.Sprintf("must be %s to %s", spec.FormatSize(spec.MinVolumeBytes), spec.FormatSize(spec.MaxVolumeBytes))}
	}
	if mode == spec.None {
		return &DeniedError{Field: field, Value: spec.Quote(a.Name), Rule: `the profile allows no mounts: its mount_mode is "none"`}
	}
	if a.Target == workspace {
		return &spec.FieldError{Field: field + ".target", Value: spec.Quote(a.Target), Rule: "is the workspace's: attach the volume elsewhere, or move the workspace with workspace_target"}
	}
	if err := m.Validate(); err != nil {
		return spec.InMount(field, err)
	}
	return nil
}
