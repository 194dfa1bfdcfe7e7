package cli

import (
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// mountKeys maps the keys of the long form, with docker's aliases, to our names.
var mountKeys = map[string]string{
	"type":   "type",
	"source": "source", "src": "source",
	"target": "target", "dst": "target", "destination": "target",
	"readonly": "readonly", "ro": "readonly",
}

// parseMount reads either form of --mount.
func parseMount(s string) (engine.Mount, error) {
	key, _, hasValue := strings.Cut(strings.SplitN(s, ",", 2)[0], "=")
	if _, known := mountKeys[key]; known && (hasValue || key != s) {
		return parseLongMount(s)
	}
	return spec.ParseMount(s)
}

// parseLongMount reads type=bind,source=SRC,target=DST[,readonly]. It is a line
// of CSV, as in docker, so that a path with a comma can be quoted.
func parseLongMount(s string) (engine.Mount, error) {
	fields, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil || strings.ContainsAny(s, "\r\n") {
		return engine.Mount{}, errors.New("must be one line of KEY=VALUE pairs with commas between them")
	}
	var m engine.Mount
	for _, field := range fields {
		key, value, hasValue := strings.Cut(field, "=")
		switch mountKeys[key] {
		case "type":
			if value != "bind" {
				return engine.Mount{}, fmt.Errorf("type %s must be bind", spec.Quote(value))
			}
		case "source":
			m.Source = value
		case "target":
			m.Target = value
		case "readonly":
			readOnly, err := strconv.ParseBool(value)
			if hasValue && err != nil {
				return engine.Mount{}, fmt.Errorf("%s %s must be true or false", key, spec.Quote(value))
			}
			m.ReadOnly = readOnly || !hasValue
		default:
			return engine.Mount{}, fmt.Errorf("key %s must be one of type, source, target, readonly", spec.Quote(key))
		}
	}
	if m.Source == "" || m.Target == "" {
		return engine.Mount{}, errors.New("needs source and target")
	}
	return m, m.Validate()
}
