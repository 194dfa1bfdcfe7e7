package cli

import (
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
)

// settingFlags declares the flags of spec.Table, each of which is a wish of wishes once it is
// given. box: only those that boxd run has, with the defaults of the engine in the help.
func settingFlags(cmd *cobra.Command, wishes *spec.Wishes, box bool) {
	var defaults spec.Settings
	defaults.Take(spec.Spec{WritableRoot: true}.WithDefaults())
	for _, t := range spec.Table {
		if t.Flag == "" || box && !t.Box {
			continue
		}
		v := &settingValue{setting: t, wish: t.Of(wishes)}
		kind := v.wish.Type().Elem().Kind()
		if box && kind != reflect.Bool {
			v.text = strings.NewReplacer(" ", "", "iB", "").Replace(t.Text(t.Of(&defaults)))
		}
		flag := cmd.Flags().VarPF(v, t.Flag, "", t.Usage)
		if kind == reflect.Bool {
			flag.NoOptDefVal = "true"
			continue
		}
		must(cmd.RegisterFlagCompletionFunc(t.Flag, cobra.FixedCompletions(t.Examples, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)))
	}
}

// settingValue is the flag of a setting. It is parsed as soon as it is given, so that a
// mistake is reported with the name of the flag.
type settingValue struct {
	text    string // as given, or the default as help shows it
	setting *spec.Setting
	wish    reflect.Value // a pointer, nil until the flag is given
}

func (v *settingValue) String() string { return v.text }

func (v *settingValue) Type() string {
	if v.wish.Type().Elem().Kind() == reflect.Bool {
		return "bool"
	}
	return "text" // "string" would put quotes around defaults
}

func (v *settingValue) Set(text string) error {
	wish := reflect.New(v.wish.Type().Elem())
	value := wish.Elem()
	if text == unlimited && v.setting.Unlimited {
		value.Set(reflect.ValueOf(spec.Unlimited).Convert(value.Type()))
	} else if err := parseSetting(value, text); err != nil {
		return err
	} else if value.IsZero() && value.Kind() != reflect.Bool && v.setting.Zero == "" {
		return errZero
	}
	v.text = text
	v.wish.Set(wish)
	return nil
}

// parseSetting reads text into value, by its type. Nothing is negative.
func parseSetting(value reflect.Value, text string) error {
	switch to := value.Addr().Interface().(type) {
	case *spec.Size:
		n, err := spec.ParseSize(text) // not the text of spec.Size, which knows "unlimited"
		*to = spec.Size(n)
		return err
	case *spec.Duration:
		return parseDuration(to, text)
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

// parseDuration reads the text of a spec.Duration that is not negative.
func parseDuration(d *spec.Duration, text string) error {
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	if *d < 0 {
		return errZero
	}
	return nil
}

// settingFlag is the flag of the setting that is called field; empty: there is none.
func settingFlag(field string) string {
	for _, t := range spec.Table {
		if t.Name == field {
			return t.Flag
		}
	}
	return ""
}
