package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func usageError(cmd *cobra.Command, text string) error {
	return errors.New(text + `; see "` + cmd.CommandPath() + ` --help"`)
}

// checkCommand refuses a command that does not exist, before its flags are read as
// those of the command above it.
func checkCommand(root *cobra.Command, args []string) error {
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		return nil
	}
	cmd, rest, _ := root.Find(args) // its error is said better here
	if !cmd.HasSubCommands() {
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

// unknownCommand names commands that may have been meant.
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

// flagError words what is wrong with a flag the way a FieldError does.
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

// takesCommand says that a command to run in a session comes behind "--". In front of
// it every flag is one of boxd's, wherever it stands.
func takesCommand(cmd *cobra.Command) bool {
	return strings.Contains(cmd.Use, "SESSION") && strings.Contains(cmd.Use, "-- CMD")
}

// plainRule is what a flag of one of pflag's own types takes.
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

// nameRemoteFlag puts the flag of cmd in place of the field that the daemon refused.
func nameRemoteFlag(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	rest, ok := strings.CutPrefix(bad.Detail, bad.Field+" ")
	field, part, _ := strings.Cut(bad.Field, ".")
	field, _, _ = strings.Cut(field, "[")
	name := cmp.Or(settingFlag(field), strings.ReplaceAll(field, "_", "-"))
	switch field {
	case "dir", "cwd":
		name = "workdir"
	case "mounts":
		name = strings.TrimSpace("mount " + part)
	}
	flag, _, _ := strings.Cut(name, " ")
	if !ok || bad.Field == "" || cmd.Flags().Lookup(flag) == nil {
		return err
	}
	named := *bad
	named.Detail = "--" + name + " " + rest
	return &named
}

// afterDash splits the arguments of "SESSION -- CMD…". want are the names of those
// in front of the dashes, for messages.
func afterDash(cmd *cobra.Command, args []string, want ...string) (names, command []string, err error) {
	dash := cmd.ArgsLenAtDash()
	form := cmd.CommandPath() + " " + strings.Join(want, " ") + " -- CMD [ARG...]"
	switch {
	case dash < 0 && len(args) > len(want):
		// Without the dashes a flag of the command would be taken for one of boxd's.
		return nil, nil, usageError(cmd, fmt.Sprintf(`%s: write "--" before the command: %s %s -- %s`,
			spec.Quote(args[len(want)]), cmd.CommandPath(), strings.Join(args[:len(want)], " "), printable(strings.Join(args[len(want):], " "))))
	case dash < 0:
		return nil, nil, usageError(cmd, "no command given: "+form)
	case dash < len(want):
		return nil, nil, usageError(cmd, want[dash]+" is missing: "+form)
	case dash > len(want):
		return nil, nil, usageError(cmd, fmt.Sprintf(`%s: is one argument too many before "--": %s`, spec.Quote(args[len(want)]), form))
	case len(args) == dash:
		return nil, nil, usageError(cmd, `no command behind "--": `+form)
	}
	return args[:dash], args[dash:], checkNames(args[:dash], want)
}

// checkNames refuses what cannot be the id of a session or process, as the arguments
// that want calls SESSION and PROCESS are.
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

// exactly is the argument check of commands that take the names want and nothing else.
// The last one may be "[NAME]", which can be left out, or "NAME...", which can be
// repeated.
func exactly(want ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		form := strings.Join(append([]string{cmd.CommandPath()}, want...), " ")
		required := len(slices.DeleteFunc(slices.Clone(want), func(name string) bool { return strings.HasPrefix(name, "[") }))
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
