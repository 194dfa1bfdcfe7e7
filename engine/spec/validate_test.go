package spec

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

func manyMounts(n int) []Mount {
	list := make([]Mount, n)
	for i := range list {
		list[i] = Mount{Source: "/srv", Target: fmt.Sprintf("/m%d", i)}
	}
	return list
}

// wantField checks that err is a FieldError for field, on one line; an empty
// field wants no error.
func wantField(t *testing.T, name string, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
		return
	}
	var bad *FieldError
	if !errors.As(err, &bad) || bad.Field != field || !errors.Is(err, ErrInvalid) {
		t.Errorf("%s: %v, want a FieldError for %q", name, err, field)
		return
	}
	if line := err.Error(); len(line) > 400 || strings.ContainsAny(line, "\n\x00") || bad.Value == "" || bad.Rule == "" {
		t.Errorf("%s: %q is not one clear line", name, line)
	}
}

func layerIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%064x", i)
	}
	return ids
}

var (
	newLayer = Mount{Layer: "new", Source: "/", Target: "/layer"}
	oldLayer = Mount{Layer: layerIDs(1)[0], Source: "/", Target: "/below/0", ReadOnly: true}
)

func TestSpecValidate(t *testing.T) {
	for _, c := range []struct {
		name  string
		spec  Spec
		field string
	}{
		{"zero value", Spec{}, ""},
		{"defaults", Spec{}.WithDefaults(), ""},
		{"writable defaults", Spec{WritableRoot: true}.WithDefaults(), ""},
		{"id", Spec{ID: "a"}, ""},
		{"id of 64", Spec{ID: strings.Repeat("9", 64)}, ""},
		{"id of 65", Spec{ID: strings.Repeat("a", 65)}, "id"},
		{"id upper case", Spec{ID: "Box"}, "id"},
		{"id hyphen first", Spec{ID: "-a"}, "id"},
		{"id dots", Spec{ID: ".."}, "id"},
		{"id slash", Spec{ID: "a/b"}, "id"},
		{"id NUL", Spec{ID: "a\x00"}, "id"},
		{"id letter beyond ASCII", Spec{ID: "ä"}, "id"},
		{"image host", Spec{Image: "host"}, ""},
		{"image unknown", Spec{Image: "debian:12"}, "image"},
		{"image of layers", Spec{Image: "docker.io/library/python:3.12", Layers: layerIDs(2)}, ""},
		{"layers without image", Spec{Layers: layerIDs(1)}.WithDefaults(), ""},
		{"image host with layers", Spec{Image: "host", Layers: layerIDs(1)}, "image"},
		{"image of 512", Spec{Image: strings.Repeat("i", 512), Layers: layerIDs(1)}, ""},
		{"image of 513", Spec{Image: strings.Repeat("i", 513), Layers: layerIDs(1)}, "image"},
		{"image newline", Spec{Image: "a\nb", Layers: layerIDs(1)}, "image"},
		{"image not UTF-8", Spec{Image: "a\xff", Layers: layerIDs(1)}, "image"},
		{"image bidi", Spec{Image: "a\u202eb", Layers: layerIDs(1)}, "image"},
		{"most layers", Spec{Layers: layerIDs(MaxLayers)}, ""},
		{"too many layers", Spec{Layers: layerIDs(MaxLayers + 1)}, "layers"},
		{"layer twice", Spec{Layers: append(layerIDs(2), layerIDs(1)...)}, "layers[2]"},
		{"layer upper case", Spec{Layers: []string{strings.Repeat("A", 64)}}, "layers[0]"},
		{"layer short", Spec{Layers: []string{strings.Repeat("a", 63)}}, "layers[0]"},
		{"layer path", Spec{Layers: []string{"../" + strings.Repeat("a", 61)}}, "layers[0]"},
		{"unpacks", Spec{Unpacks: true, Mounts: []Mount{newLayer, oldLayer}}, ""},
		{"unpacks nothing", Spec{Unpacks: true}, ""},
		{"unpacks only published", Spec{Unpacks: true, Mounts: []Mount{oldLayer}}, ""},
		{"unpacks in a writable root", Spec{Unpacks: true, WritableRoot: true, Mounts: []Mount{newLayer}}, "writable_root"},
		{"unpacks two", Spec{Unpacks: true, Mounts: []Mount{newLayer, {Layer: "b", Source: "/", Target: "/b"}}}, "mounts[1].layer"},
		{"unpacks with layers", Spec{Unpacks: true, Layers: layerIDs(1), Mounts: []Mount{newLayer}}, "layers"},
		{"unpacks and a directory", Spec{Unpacks: true, Mounts: []Mount{newLayer, {Source: "/srv", Target: "/srv"}}}, "mounts[1].layer"},
		{"layer without unpacks", Spec{Mounts: []Mount{oldLayer}}, "mounts[0].layer"},
		{"image case", Spec{Image: "Host"}, "image"},
		{"hostname", Spec{Hostname: "a-1.Example.org"}, ""},
		{"hostname label of 63", Spec{Hostname: strings.Repeat("a", 63)}, ""},
		{"hostname label of 64", Spec{Hostname: strings.Repeat("a", 64)}, "hostname"},
		{"hostname of 64", Spec{Hostname: strings.Repeat("a", 32) + "." + strings.Repeat("b", 31)}, ""},
		{"hostname of 65", Spec{Hostname: strings.Repeat("a", 32) + "." + strings.Repeat("b", 32)}, "hostname"},
		{"hostname hyphen first", Spec{Hostname: "-a"}, "hostname"},
		{"hostname hyphen last", Spec{Hostname: "a-.b"}, "hostname"},
		{"hostname empty label", Spec{Hostname: "a..b"}, "hostname"},
		{"hostname dot last", Spec{Hostname: "a."}, "hostname"},
		{"hostname underscore", Spec{Hostname: "a_b"}, "hostname"},
		{"hostname newline", Spec{Hostname: "a\nb"}, "hostname"},
		{"uid highest", Spec{User: User{MaxID, MaxID}}, ""},
		{"uid of PID 1", Spec{User: User{UID: 65535}}, "user.uid"},
		{"uid negative", Spec{User: User{UID: -1}}, "user.uid"},
		{"gid too high", Spec{User: User{GID: 1 << 32}}, "user.gid"},
		{"upper without writable root", Spec{UpperSize: 1 << 20}, "upper_size"},
		{"upper", Spec{WritableRoot: true, UpperSize: 1 << 20}, ""},
		{"upper small", Spec{WritableRoot: true, UpperSize: 1}, "upper_size"},
		{"upper unlimited", Spec{WritableRoot: true, UpperSize: Unlimited}, "upper_size"},
		{"tmp smallest", Spec{TmpSize: MinTmpSize}, ""},
		{"tmp small", Spec{TmpSize: MinTmpSize - 1}, "tmp_size"},
		{"tmp negative", Spec{TmpSize: -5}, "tmp_size"},
		{"tmp huge", Spec{TmpSize: math.MaxInt64}, "tmp_size"},
		{"limits", Spec{Limits: Limits{Memory: 1}}, "memory"},
		{"mounts", Spec{Mounts: []Mount{{Source: "/srv/a", Target: WorkspaceTarget}, {Source: "/srv/b", Target: "/b"}}}, ""},
		{"mount source relative", Spec{Mounts: []Mount{{Source: "/srv", Target: "/a"}, {Source: "srv", Target: "/b"}}}, "mounts[1].source"},
		{"mount target above root", Spec{Mounts: []Mount{{Source: "/srv", Target: "/../a"}}}, "mounts[0].target"},
		{"mount target twice", Spec{Mounts: []Mount{{Source: "/srv", Target: "/a"}, {Source: "/opt", Target: "/a"}}}, "mounts.target"},
		{"too many mounts", Spec{Mounts: manyMounts(65)}, "mounts"},
		{"first error wins", Spec{ID: "A", Image: "x", Limits: Limits{PIDs: -2}}, "id"},
	} {
		wantField(t, c.name, c.spec.Validate(), c.field)
	}
}

func TestLimitsValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits Limits
		field  string
	}{
		{"defaults", Limits{}.WithDefaults(), ""},
		{"unlimited", Limits{Memory: Unlimited, PIDs: Unlimited, CPUs: Unlimited, FileSize: Unlimited}, ""},
		{"lowest", Limits{MinMemory, 1, MinCPUs, 16, 1}, ""},
		{"highest", Limits{MaxMemory, MaxPIDs, MaxCPUs, MaxOpenFiles, MaxMemory}, ""},
		{"memory low", Limits{Memory: MinMemory - 1}, "memory"},
		{"memory high", Limits{Memory: MaxMemory + 1}, "memory"},
		{"memory negative", Limits{Memory: -2}, "memory"},
		{"memory smallest", Limits{Memory: math.MinInt64}, "memory"},
		{"pids negative", Limits{PIDs: -2}, "pids"},
		{"pids high", Limits{PIDs: MaxPIDs + 1}, "pids"},
		{"cpus NaN", Limits{CPUs: math.NaN()}, "cpus"},
		{"cpus Inf", Limits{CPUs: math.Inf(1)}, "cpus"},
		{"cpus -Inf", Limits{CPUs: math.Inf(-1)}, "cpus"},
		{"cpus low", Limits{CPUs: 0.009}, "cpus"},
		{"cpus high", Limits{CPUs: 4096.1}, "cpus"},
		{"cpus negative", Limits{CPUs: -0.5}, "cpus"},
		{"open files low", Limits{OpenFiles: 15}, "open_files"},
		{"open files unlimited", Limits{OpenFiles: Unlimited}, "open_files"},
		{"open files high", Limits{OpenFiles: MaxOpenFiles + 1}, "open_files"},
		{"file size negative", Limits{FileSize: -2}, "file_size"},
	} {
		wantField(t, c.name, c.limits.Validate(), c.field)
	}
}

func TestChangeValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change Change
		field  string
	}{
		{"empty", Change{}, ""},
		{"limits", Change{Limits: &Limits{Memory: MinMemory}}, ""},
		{"bad limits", Change{Limits: &Limits{CPUs: math.NaN()}}, "cpus"},
		{"attach", Change{Attach: []Mount{{Source: "/srv", Target: "/a"}}}, ""},
		{"attach layer", Change{Attach: []Mount{oldLayer}}, "attach[0].layer"},
		{"attach to root", Change{Attach: []Mount{{Source: "/srv", Target: "/"}}}, "attach[0].target"},
		{"detach", Change{Detach: []string{"/a"}}, ""},
		{"detach root", Change{Detach: []string{"/a", "/"}}, "detach[1]"},
		{"detach relative", Change{Detach: []string{"a"}}, "detach[0]"},
		{"detach not clean", Change{Detach: []string{"/a/../b"}}, "detach[0]"},
		{"detach NUL", Change{Detach: []string{"/a\x00"}}, "detach[0]"},
	} {
		wantField(t, c.name, c.change.Validate(), c.field)
	}
}
