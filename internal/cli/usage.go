package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func usageError(cmd *cobra.Command, text string) error {
	return errors.New(text + `; see "` + cmd.CommandPath() + ` --help"`)
}

// checkCommand refuses a command that does not exist. Cobra would parse its flags as those of the
// parent command.
func checkCommand(root *cobra.Command, args []string) error {
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		return nil
	}
	cmd, rest, _ := root.Find(args) // unknownCommand has a better error
	if !cmd.HasSubCommands() || cmd.Runnable() {
		return nil
	}
	for _, arg := range rest {
		switch {
		case !strings.HasPrefix(arg, "-"):
			return unknownCommand(cmd, arg)
		case !slices.Contains([]string{"-h", "--help", "-v", "--version"}, arg):
			return usageError(cmd, "unknown flag "+arg)
		}
	}
	return nil
}

// unknownCommand suggests commands with similar names.
func unknownCommand(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("unknown command %s", spec.Quote(strings.TrimPrefix(cmd.CommandPath()+" "+name, cmd.Root().Name()+" ")))
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(name); len(like) > 0 {
		text += ": did you mean " + strings.Join(like, " or ") + "?"
	}
	return usageError(cmd, text)
}

func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "Show the help of a command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(help *cobra.Command, args []string) error {
			if err := checkCommand(help.Root(), args); err != nil {
				return err
			}
			cmd, _, err := help.Root().Find(args)
			if err != nil {
				return err
			}
			return cmd.Help()
		},
		ValidArgsFunction: func(help *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			if cmd, _, err := help.Root().Find(args); err == nil {
				for _, sub := range cmd.Commands() {
					if sub.IsAvailableCommand() {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		DisableFlagsInUseLine: true,
	}
}

// flagError words an error about a flag like a FieldError.
func flagError(cmd *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		named := engine.FieldError{Field: "--" + bad.GetFlag().Name, Value: spec.Quote(bad.GetValue()), Rule: bad.Unwrap().Error()}
		if _, ok := errors.AsType[*strconv.NumError](bad.Unwrap()); ok {
			named.Rule = plainRule(bad.GetFlag().Value.Type())
		}
		if field, ok := errors.AsType[*engine.FieldError](bad.Unwrap()); ok {
			named.Rule = field.Rule
			if part, ok := strings.CutPrefix(field.Field, "mount"); ok {
				named.Field, named.Value = named.Field+part, field.Value
			}
		}
		return &named
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		kind, _ := pflag.UnquoteUsage(missing.GetFlag())
		return usageError(cmd, fmt.Sprintf("--%s: needs a value: --%s %s", missing.GetFlag().Name, missing.GetFlag().Name, cmp.Or(kind, "VALUE")))
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		text := "unknown flag --" + unknown.GetSpecifiedName()
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			text = fmt.Sprintf("unknown flag -%s in -%s", unknown.GetSpecifiedName(), short)
		}
		if takesCommand(cmd) {
			text += `; flags of the command to run go behind "--"`
		}
		return usageError(cmd, text)
	}
	return usageError(cmd, err.Error())
}

// takesCommand reports whether cmd takes a command to run in a session, after "--". Every flag
// before that belongs to boxd.
func takesCommand(cmd *cobra.Command) bool {
	return strings.Contains(cmd.Use, "SESSION") && strings.Contains(cmd.Use, "-- CMD")
}

// plainRule is the rule of a flag whose type is pflag's own.
func plainRule(kind string) string {
	switch kind {
	case "bool":
		return "must be true or false"
	case "uint16":
		return "must be a whole number from 0 to 65535"
	case "uint64":
		return "must be a whole number of 0 or more"
	}
	return "must be a whole number"
}

// afterDash splits the arguments of "SESSION [-- CMD…]". want names the arguments before the dashes,
// for messages. Without a command, the image's own is meant.
func afterDash(cmd *cobra.Command, args []string, want ...string) (names, command []string, err error) {
	dash := cmd.ArgsLenAtDash()
	form := cmd.CommandPath() + " " + strings.Join(want, " ") + " [-- CMD [ARG...]]"
	before := args
	if dash >= 0 {
		before = args[:dash]
	}
	if network := cmd.Flags().Lookup("network"); len(before) > len(want) && network != nil && network.Changed {
		for _, mode := range []string{networkProxy, spec.None} { // boxd run has --network MODE
			if slices.Contains(before, mode) {
				return nil, nil, usageError(cmd, fmt.Sprintf("--network %s: write --network=%[1]s here, or --network for a proxy", mode))
			}
		}
	}
	switch {
	case dash < 0 && len(args) > len(want):
		// Without the dashes, boxd would take flags of the command as its own.
		return nil, nil, usageError(cmd, fmt.Sprintf(`%s: write "--" before the command: %s %s -- %s`,
			spec.Quote(args[len(want)]), cmd.CommandPath(), strings.Join(args[:len(want)], " "), printable(strings.Join(args[len(want):], " "))))
	case dash < 0:
		dash = len(args)
	}
	switch {
	case dash < len(want):
		return nil, nil, usageError(cmd, want[dash]+" is missing: "+form)
	case dash > len(want):
		return nil, nil, usageError(cmd, fmt.Sprintf(`%s: is one argument too many before "--": %s`, spec.Quote(args[len(want)]), form))
	}
	return args[:dash], args[dash:], checkNames(args[:dash], want)
}

// checkNames refuses an argument that cannot be an ID, if want calls it SESSION or PROCESS.
func checkNames(args, want []string) error {
	for i, arg := range args {
		kind := strings.Trim(want[min(i, len(want)-1)], "[].")
		var err error
		switch kind {
		case "SESSION":
			err = policy.ValidateSessionID(arg)
		case "PROCESS":
			err = policy.ValidateProcessID(arg)
		}
		if bad, ok := errors.AsType[*engine.FieldError](err); ok {
			return &engine.FieldError{Field: kind, Value: bad.Value, Rule: bad.Rule}
		}
	}
	return nil
}

// exactly checks that a command gets the arguments named by want and no others. The last may be
// "[NAME]", which is optional, "NAME...", which can be repeated, or "[NAME]...", which is both.
func exactly(want ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		form := strings.Join(append([]string{cmd.CommandPath()}, want...), " ")
		required := len(slices.DeleteFunc(slices.Clone(want), func(name string) bool {
			return strings.HasPrefix(name, "[") && strings.HasSuffix(strings.TrimSuffix(name, "..."), "]")
		}))
		repeated := len(want) > 0 && strings.HasSuffix(want[len(want)-1], "...")
		switch {
		case len(args) < required:
			return usageError(cmd, strings.TrimSuffix(want[len(args)], "...")+" is missing: "+form)
		case len(args) > len(want) && !repeated:
			return usageError(cmd, spec.Quote(args[len(want)])+": is one argument too many: "+form)
		}
		return checkNames(args, want)
	}
}
