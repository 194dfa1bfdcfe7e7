package cli

import (
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

func TestParseVolume(t *testing.T) {
	for text, want := range map[string]apitypes.SessionVolume{
		"data:/data":                {Name: "data", Target: "/data"},
		"data:/data:ro":             {Name: "data", Target: "/data", ReadOnly: true},
		"data:/data:rw":             {Name: "data", Target: "/data"},
		"data:/data:ro,size=1G":     {Name: "data", Target: "/data", ReadOnly: true, Size: 1 << 30},
		"data:/data:size=1048576":   {Name: "data", Target: "/data", Size: 1 << 20},
		"a.b_c-D:/x y,z:size=1.5MB": {Name: "a.b_c-D", Target: "/x y,z", Size: 3 << 19},
	} {
		if got, err := parseVolume(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "data", ":/data", "data:", "data:/data:", "data:/data:rx", "data:/data:ro,", "data:/data:size=", "data:/data:size=-1", "data:/data:ro:rw", "data:/data,size=1G"} {
		if got, err := parseVolume(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func FuzzParseVolume(f *testing.F) {
	f.Add("data:/data:ro,size=1G")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseVolume(text)
		if err == nil && (v.Name == "" || v.Target == "" || v.Size < 0) {
			t.Errorf("%q: %+v", text, v)
		}
	})
}
