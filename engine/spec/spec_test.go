package spec

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestSpecJSON pins the serialised form: specs are stored and sent, so renaming a field would
// change the format.
func TestSpecJSON(t *testing.T) {
	for name, spec := range map[string]Spec{
		"spec-zero.json":     {},
		"spec-defaults.json": Spec{WritableRoot: true}.WithDefaults(),
		"spec-full.json": {
			ID: "job-1", Image: "host", Engine: EngineOCI, Isolation: IsolationGVisor, Hostname: "worker", User: User{UID: 1000, GID: 100}, WritableRoot: true, UpperSize: 1 << 30, TmpSize: 1 << 26,
			Mounts:        []Mount{{Source: "/srv/job", Target: WorkspaceTarget}, {Source: "/srv/data", Target: "/data", ReadOnly: true, Within: "/srv"}},
			Limits:        Limits{Memory: 64 << 20, PIDs: Unlimited, CPUs: 1.5, OpenFiles: 256, FileSize: 1 << 20},
			AllowDegraded: true,
			Zygotes:       []Zygote{{Name: "python", Command: []string{"python3"}, Preload: []string{"json"}, Match: true, Spares: 3}},
		},
	} {
		got, err := json.MarshalIndent(spec, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(append(got, '\n'), want) {
			t.Errorf("%s is now\n%s", name, got)
		}
		var back Spec
		if err := json.Unmarshal(want, &back); err != nil || !reflect.DeepEqual(back, spec) {
			t.Errorf("%s reads back as %+v, %v", name, back, err)
		}
	}
}

func TestWithDefaults(t *testing.T) {
	list := []Mount{{Source: "/srv/a", Target: "/a"}}
	full := Spec{Mounts: list}.WithDefaults()
	if full.Mounts[0].Target = "/b"; list[0].Target != "/a" {
		t.Error("WithDefaults shares the mounts of its receiver")
	}
	zygotes := []Zygote{{Name: "a", Command: []string{"python3"}}}
	if warm := (Spec{Zygotes: zygotes}).WithDefaults().Zygotes[0]; warm.Spares != DefaultSpares || zygotes[0].Spares != 0 {
		t.Errorf("zygote %+v, made of %+v", warm, zygotes[0])
	}
	if again := full.WithDefaults(); !reflect.DeepEqual(again, full) {
		t.Errorf("WithDefaults twice = %+v, once = %+v", again, full)
	}
	if full.UpperSize != 0 {
		t.Errorf("UpperSize of a read-only root = %d, want 0", full.UpperSize)
	}
	kept := Limits{Memory: 5 << 20, PIDs: Unlimited, CPUs: 2, OpenFiles: 99, FileSize: 7}
	if got := kept.WithDefaults(); got != kept {
		t.Errorf("WithDefaults changed set limits to %+v", got)
	}
}

func TestLimitsApply(t *testing.T) {
	got := Limits{Memory: 1, PIDs: 2, CPUs: 3, OpenFiles: 4, FileSize: 5}.Apply(Limits{PIDs: Unlimited, CPUs: 7})
	if want := (Limits{1, Unlimited, 7, 4, 5}); got != want {
		t.Errorf("Apply = %+v, want %+v", got, want)
	}
}
