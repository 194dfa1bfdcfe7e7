package cli

import (
	"reflect"
	"strings"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/flagtext"
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
		v := &textValue{parse: func(text string) error { return flagtext.Setting(t, wish, text) }}
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

// settingFlag returns the flag of the setting called field, or "".
func settingFlag(field string) string {
	for _, t := range spec.Table {
		if t.Name == field {
			return t.Flag
		}
	}
	return ""
}
