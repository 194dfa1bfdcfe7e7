package cli

import (
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

func TestLabelsValue(t *testing.T) {
	var labels spec.Labels
	v := labelsValue{"--label", &labels}
	for _, text := range []string{"team=vision", "x=a=b", "empty=", "team=robots"} {
		if err := v.Set(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if v.String() != "empty=, team=robots, x=a=b" {
		t.Errorf("%q", v.String())
	}
	for text, want := range map[string]string{"team": "KEY=VALUE", "=x": "--label", "a=\x1b": "--label.a"} {
		var none spec.Labels
		if err := (labelsValue{"--label", &none}).Set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
