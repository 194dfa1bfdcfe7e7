package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
)

func TestValidateManaged(t *testing.T) {
	good := Managed{Key: "a-1", Args: []string{"x"}}
	for name, c := range map[string]struct {
		change func(m *Managed)
		field  string // "" is valid
	}{
		"good":              {func(m *Managed) {}, ""},
		"longest key":       {func(m *Managed) { m.Key = strings.Repeat("k", 64) }, ""},
		"key too long":      {func(m *Managed) { m.Key = strings.Repeat("k", 65) }, "key"},
		"no key":            {func(m *Managed) { m.Key = "" }, "key"},
		"upper case":        {func(m *Managed) { m.Key = "A" }, "key"},
		"slash":             {func(m *Managed) { m.Key = "a/b" }, "key"},
		"NUL":               {func(m *Managed) { m.Key = "a\x00" }, "key"},
		"unicode":           {func(m *Managed) { m.Key = "ä" }, "key"},
		"no program":        {func(m *Managed) { m.Args = nil }, "args"},
		"directory":         {func(m *Managed) { m.Dir = "/proc/1" }, "dir"},
		"smallest history":  {func(m *Managed) { m.History = MinHistory }, ""},
		"largest history":   {func(m *Managed) { m.History = MaxHistory }, ""},
		"history too small": {func(m *Managed) { m.History = MinHistory - 1 }, "history"},
		"history too large": {func(m *Managed) { m.History = MaxHistory + 1 }, "history"},
		"negative history":  {func(m *Managed) { m.History = -1 }, "history"},
		"least memory":      {func(m *Managed) { m.Memory = spec.MinMemory }, ""},
		"most memory":       {func(m *Managed) { m.Memory = spec.MaxMemory }, ""},
		"memory too small":  {func(m *Managed) { m.Memory = spec.MinMemory - 1 }, "memory"},
		"memory too large":  {func(m *Managed) { m.Memory = spec.MaxMemory + 1 }, "memory"},
		"unlimited memory":  {func(m *Managed) { m.Memory = Unlimited }, "memory"},
		"terminal":          {func(m *Managed) { m.TTY = &WindowSize{} }, ""},
	} {
		m := good
		c.change(&m)
		err := m.Validate()
		var field *FieldError
		if (err == nil) != (c.field == "") || err != nil && (!errors.As(err, &field) || field.Field != c.field) {
			t.Errorf("%s: %v, want field %q", name, err, c.field)
		}
	}
}
