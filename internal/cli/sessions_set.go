package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// registerRules declares the flags of a session's own network rules. *rules is nil until one of them is
// given. The help of each flag begins with when.
func registerRules(fs *pflag.FlagSet, rules **spec.NetworkRules, when string) {
	value := func(set func(*spec.NetworkRules, string) error) pflag.Value {
		return &textValue{"", func(s string) error {
			if *rules == nil {
				*rules = &spec.NetworkRules{}
			}
			return set(*rules, s)
		}}
	}
	fs.Var(value(func(r *spec.NetworkRules, s string) error { r.Allow = append(r.Allow, s); return nil }), "allow",
		when+"of what the profile allows, reach only `NAME`, a name, address or CIDR with or without :PORT (repeatable)")
	fs.Var(value(func(r *spec.NetworkRules, s string) error { r.Deny = append(r.Deny, s); return nil }), "deny", when+"never reach `NAME` (repeatable)")
	fs.Var(value(func(r *spec.NetworkRules, s string) error { return parseLimits(&r.Limits, s) }), "net-limit",
		when+"less than the limits of the profile: `LIMITS` such as connections=64,bytes=2G,bandwidth=10M,idle=5m (repeatable)")
}

// completeRules has shells complete the flags of registerRules.
func completeRules(cmd *cobra.Command) {
	completeFlag(cmd, "allow")
	completeFlag(cmd, "deny")
	completeFlag(cmd, "net-limit", limitExamples...)
}

func (a *App) newSessionsSet() *cobra.Command {
	var f remoteFlags
	var network *bool
	var rules *spec.NetworkRules
	var reset bool
	cmd := &cobra.Command{
		Use:   "set SESSION [flags]",
		Short: "Change the network of a session while it lives",
		Long: `Change the network of a session while it lives, and print the network that it has now. When
the command returns, connections that are not allowed any more have ended.

--network none is for good. All connections are reset, published ports close, and the session
becomes sensitive: it never gets a network again, nor does a later session that has its
workspace, or what else it could write to. A session that has no network stays as it is, with its
published ports; boxd sessions sensitive makes sure that it never gets one, and closes them.

--allow replaces the session's own list of what it reaches, --deny the list of what it does not,
and --net-limit the limits that it names. What no flag names stays; --reset-rules drops the rest.
The rules of a session only narrow those of its profile. Do not change one session from two places
at the same time: each command reads the rules, then replaces them all, and may undo the other's.`,
		Example: `  boxd sessions set lab --network proxy --allow pypi.org --allow files.pythonhosted.org
  boxd sessions set lab --deny bad.example.com --net-limit connections=8,bytes=1G
  boxd sessions set lab --reset-rules
  boxd sessions set lab --network none`,
		Args: exactly("SESSION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuseEmpty(cmd.Flags(), "allow", "deny"); err != nil {
				return err
			}
			changesRules := rules != nil || reset
			switch {
			case network == nil && !changesRules:
				return usageError(cmd, "nothing to change: give --network, --allow, --deny, --net-limit or --reset-rules")
			case network != nil && !*network && changesRules:
				return noNetworkForRules("with --network none")
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				update := apitypes.SessionUpdate{LiveWishes: apitypes.LiveWishes{Network: network}}
				if changesRules { // the daemon replaces them as a whole, so of two clients at the same time the last one wins
					s, err := c.Session(ctx, args[0])
					if err != nil {
						return err
					}
					if !s.Network && network == nil {
						return noNetworkForRules("of session " + spec.Quote(s.ID) + ", which has no network")
					}
					own, given := spec.NetworkRules{}, cmp.Or(rules, &spec.NetworkRules{})
					if s.NetworkRules != nil && !reset {
						own = *s.NetworkRules
					}
					if given.Allow != nil {
						own.Allow = given.Allow
					}
					if given.Deny != nil {
						own.Deny = given.Deny
					}
					own.Limits.Connections = cmp.Or(given.Limits.Connections, own.Limits.Connections)
					own.Limits.ConnectionRate = cmp.Or(given.Limits.ConnectionRate, own.Limits.ConnectionRate)
					own.Limits.Bytes = cmp.Or(given.Limits.Bytes, own.Limits.Bytes)
					own.Limits.Bandwidth = cmp.Or(given.Limits.Bandwidth, own.Limits.Bandwidth)
					own.Limits.Idle = cmp.Or(given.Limits.Idle, own.Limits.Idle)
					update.NetworkRules = &own
				}
				s, err := c.Update(ctx, args[0], update)
				if err != nil {
					return err
				}
				return a.printOne(&f.formatFlags, s, func(out screen) error {
					_, err := fmt.Fprintf(out, "%s: network %s\n", s.ID, printable(networkText(s)))
					if err == nil && network != nil && !*network && len(s.Published) > 0 { // it had no network to give up
						_, err = fmt.Fprintf(out, "%s: its published ports stay open; to close them for good: boxd sessions sensitive %[1]s\n", s.ID)
					}
					return err
				})
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions),
	}
	cmd.Flags().Var(&textValue{"", func(s string) error {
		if s != networkProxy && s != spec.None {
			return errors.New("must be none or proxy")
		}
		network = new(s == networkProxy)
		return nil
	}}, "network", "`MODE` none: take the network away, for good; proxy: give it one, if its profile may have one")
	registerRules(cmd.Flags(), &rules, "")
	cmd.Flags().BoolVar(&reset, "reset-rules", false, "drop the session's own rules and limits that no flag names")
	completeFlag(cmd, "network", networkProxy, spec.None)
	completeRules(cmd)
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}

// noNetworkForRules refuses rules for a session without a network.
func noNetworkForRules(value string) error {
	return &engine.FieldError{Field: "--allow, --deny, --net-limit, --reset-rules", Value: value, Rule: "need --network proxy"}
}

// networkText says whether s has a network, or why it is off, and what narrows the rules of its profile.
func networkText(s apitypes.Session) string {
	switch {
	case !s.Network && s.Sensitive != nil:
		return "off, for good"
	case !s.Network:
		return "off"
	case s.NetworkOff != "":
		return "off: " + s.NetworkOff
	case s.NetworkRules.Equal(nil):
		return "on, with the rules of its profile"
	}
	r := s.NetworkRules
	parts := []string{"on"}
	if len(r.Allow) > 0 {
		parts = append(parts, "allow "+strings.Join(r.Allow, ", "))
	}
	if len(r.Deny) > 0 {
		parts = append(parts, "deny "+strings.Join(r.Deny, ", "))
	}
	limit := func(name string, given bool, value any) {
		if given {
			parts = append(parts, fmt.Sprintf("%s at most %v", name, value))
		}
	}
	limit("connections", r.Limits.Connections > 0, r.Limits.Connections)
	limit("connection_rate", r.Limits.ConnectionRate > 0, r.Limits.ConnectionRate)
	limit("bytes", r.Limits.Bytes > 0, r.Limits.Bytes)
	limit("bandwidth", r.Limits.Bandwidth > 0, r.Limits.Bandwidth)
	limit("idle", r.Limits.Idle > 0, r.Limits.Idle)
	return strings.Join(parts, "; ")
}
