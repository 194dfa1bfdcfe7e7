package cli

import (
	"cmp"
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

// settingFlags declares the flags of spec.Table. A flag that is given sets its field of wishes.
// If box is true, only the flags of boxd run are declared, and the help shows the engine's
// defaults.
func settingFlags(cmd *cobra.Command, wishes *spec.Wishes, box bool) {
	var defaults spec.Settings
	defaults.Take(spec.Spec{WritableRoot: true}.WithDefaults())
	for _, t := range spec.Table {
		if t.Flag == "" || box && !t.Box {
			continue
		}
		wish := t.Of(wishes) // a pointer, nil until the flag is given
		v := &textValue{parse: func(text string) error { return setWish(t, wish, text) }}
		if wish.Type().Elem().Kind() == reflect.Bool {
			cmd.Flags().VarPF(boolValue{v}, t.Flag, "", t.Usage).NoOptDefVal = "true"
			continue
		}
		if box && wish.Type().Elem().Kind() != reflect.String { // the usage has the default of a word
			v.text = strings.NewReplacer(" ", "", "iB", "").Replace(t.Text(t.Of(&defaults)))
		}
		cmd.Flags().Var(v, t.Flag, t.Usage)
		completeFlag(cmd, t.Flag, t.Examples...)
	}
}

// setWish makes wish point to the value of text.
func setWish(t *spec.Setting, wish reflect.Value, text string) error {
	given := reflect.New(wish.Type().Elem())
	value := given.Elem()
	if t.Name == "network" { // the words of boxd run --network
		text = cmp.Or(map[string]string{networkProxy: "true", spec.None: "false"}[text], text)
	}
	if text == unlimited && t.Unlimited {
		value.Set(reflect.ValueOf(spec.Unlimited).Convert(value.Type()))
	} else if err := parseSetting(value, text); err != nil {
		return err
	} else if value.IsZero() && value.Kind() != reflect.Bool && t.Zero == "" {
		return errZero
	}
	wish.Set(given)
	return nil
}

// parseSetting reads text into value according to its type. It refuses negative values.
func parseSetting(value reflect.Value, text string) error {
	switch to := value.Addr().Interface().(type) {
	case *spec.Size:
		n, err := spec.ParseSize(text) // UnmarshalText would accept "unlimited"
		*to = spec.Size(n)
		return err
	case *spec.Duration:
		return parseDuration(to, text)
	case *string:
		*to = text // the daemon checks it
		return nil
	case *bool:
		b, err := strconv.ParseBool(text)
		*to = b
		return err
	case *float64:
		n, err := spec.ParseCPUs(text)
		*to = n
		return err
	case *int64:
		n, err := strconv.ParseUint(text, 10, 62)
		if err != nil {
			return errors.New("must be a whole number")
		}
		*to = int64(n)
		return nil
	}
	panic("cli: no way to parse a " + value.Type().String())
}

// parseDuration reads a spec.Duration and refuses a negative one.
func parseDuration(d *spec.Duration, text string) error {
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	if *d < 0 {
		return errZero
	}
	return nil
}

// settingFlag returns the flag of the setting called field, or "".
func settingFlag(field string) string {
	for _, t := range spec.Table {
		if t.Name == field {
			return t.Flag
		}
	}
	return ""
}
