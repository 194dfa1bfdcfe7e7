package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/flagtext"
	"github.com/boxd/boxd/internal/oneline"
)

// networkProxy is the value of --network for a box with a proxy.
const networkProxy = flagtext.Proxy

// rules returns what the box may reach. Without --allow that is every public address.
func (f *runFlags) rules() rules.Rules {
	r := rules.Rules{Allow: f.allow, Deny: f.deny, Public: len(f.allow) == 0, Limits: f.netLimits, Inject: f.inject, Upstream: f.upstream}
	if f.upstreamLogin != "" {
		r.UpstreamLogin = &rules.Source{File: f.upstreamLogin}
	}
	return r
}

var limitExamples = []string{"connections=64", "bytes=1G", "bandwidth=10M", "idle=5m"}

func limitsValue(dst *spec.NetworkLimits) *textValue {
	return &textValue{"", func(s string) error { return parseLimits(dst, s) }}
}

// parseLimits reads NAME=VALUE,… with the names of the JSON.
func parseLimits(dst *spec.NetworkLimits, text string) error {
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "connections":
			n, err := strconv.Atoi(value)
			if dst.Connections = n; err != nil || n < 1 {
				return errors.New("connections must be a whole number above 0, such as connections=64")
			}
		case "connection_rate":
			n, err := strconv.Atoi(value)
			if dst.ConnectionRate = n; err != nil || n < 1 {
				return errors.New("connection_rate must be a whole number of new connections per second above 0, such as connection_rate=100")
			}
		case "bytes":
			n, err := spec.ParseSize(value)
			if dst.Bytes = spec.Size(n); err != nil || n <= 0 {
				return errors.New("bytes must be a size above 0, such as bytes=2G")
			}
		case "bandwidth":
			n, err := spec.ParseSize(value)
			if dst.Bandwidth = spec.Size(n); err != nil || n <= 0 {
				return errors.New("bandwidth must be a size per second above 0, such as bandwidth=10M")
			}
		case "idle":
			if err := flagtext.Duration(&dst.Idle, value); err != nil || dst.Idle == 0 {
				return errors.New("idle must be a duration above 0, such as idle=5m")
			}
		default:
			return fmt.Errorf("%s is no limit: must be connections, connection_rate, bytes, bandwidth or idle, such as connections=64,bytes=2G", spec.Quote(name))
		}
	}
	return nil
}

func injectValue(dst *[]rules.Inject) *textValue {
	return &textValue{"", func(s string) error {
		host, rest, _ := strings.Cut(s, " ")
		header, from, _ := strings.Cut(strings.TrimSpace(rest), "=")
		in := rules.Inject{Host: host, Header: header}
		if path, ok := strings.CutPrefix(from, "file:"); ok && path != "" {
			abs, err := filepath.Abs(path)
			if err != nil {
				return err
			}
			in.ValueFrom.File = abs
		} else if name, ok := strings.CutPrefix(from, "env:"); ok && name != "" {
			in.ValueFrom.Env = name
		} else {
			return errors.New("must be 'HOST HEADER=file:PATH' or 'HOST HEADER=env:NAME', such as 'api.example.com Authorization=file:/run/secrets/token'")
		}
		*dst = append(*dst, in)
		return nil
	}}
}

// checkNetwork applies the rules between the flags of the network.
func (f *runFlags) checkNetwork() error {
	switch {
	case f.network != spec.None && f.network != networkProxy:
		return &engine.FieldError{Field: "--network", Value: spec.Quote(f.network), Rule: "must be none or proxy"}
	case f.network == spec.None && (len(f.allow)+len(f.deny)+len(f.inject) > 0 || f.netLimits != (spec.NetworkLimits{}) || f.upstream+f.upstreamLogin != ""):
		return &engine.FieldError{Field: "--allow, --deny, --net-limit, --inject, --upstream, --upstream-login", Value: "without a network", Rule: "need --network proxy"}
	case f.upstreamLogin != "":
		var err error
		if f.upstreamLogin, err = filepath.Abs(f.upstreamLogin); err != nil {
			return err
		}
	}
	set, err := rules.Compile(f.rules())
	if bad, ok := errors.AsType[*engine.FieldError](err); ok {
		flag, field, _ := strings.Cut(bad.Field, "[")
		if name, ok := strings.CutPrefix(flag, "limits."); ok {
			flag, bad.Rule = "net-limit", name+": "+bad.Rule
		} else if _, name, ok := strings.Cut(field, "]."); ok {
			bad.Rule = name + ": " + bad.Rule
		}
		asFlag := strings.NewReplacer("upstream_login", "--upstream-login", "set upstream", "give --upstream",
			"public: true in the configuration allows", "without --allow, a box reaches")
		return &engine.FieldError{Field: "--" + strings.ReplaceAll(flag, "_", "-"), Value: bad.Value, Rule: asFlag.Replace(bad.Rule)}
	}
	if err != nil {
		return err
	}
	for _, in := range f.inject {
		if to, _ := rules.ParseAuthority(in.Host, 443); !set.Decide(to, rules.Surroundings{}).Allowed { // valid: Compile has checked it
			return &engine.FieldError{Field: "--inject", Value: spec.Quote(in.Host), Rule: "is not reached: name it with --allow"}
		}
		if _, err := egress.ReadSecret(in.ValueFrom); err != nil {
			return fmt.Errorf("--inject %s: %w", in.Host, err)
		}
	}
	if f.upstreamLogin != "" {
		if _, err := egress.ReadSecret(rules.Source{File: f.upstreamLogin}); err != nil {
			return fmt.Errorf("--upstream-login: %w", err)
		}
	}
	return nil
}

// openNetwork serves the proxy of box in this process until the caller calls shut, which returns
// what was refused.
func (a *App) openNetwork(ctx context.Context, box engine.Box, f *runFlags) (shut func() []egress.Denial, err error) {
	if f.network == spec.None {
		return func() []egress.Denial { return nil }, nil
	}
	proxy, err := egress.New(egress.Config{Rules: f.rules(), Host: rules.Surroundings{Own: egress.HostAddresses()},
		Trouble: func(err error) { a.say("boxd: the network of the box: %s", oneline.Error(err)) }})
	if err != nil {
		return nil, err
	}
	log.SetOutput(io.Discard) // net/http writes there what servers send at the wrong time
	networked, ok := box.(engine.Networked)
	if !ok {
		return nil, errors.New("--network proxy: this engine gives boxes no network")
	}
	listeners, err := networked.Listen(ctx, egress.Addresses()...)
	if err != nil {
		return nil, fmt.Errorf("opening the network: %w", err)
	}
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() {
			if err := proxy.Serve(l.(*net.TCPListener)); !errors.Is(err, egress.ErrShut) {
				a.say("boxd: the network of the box: %s", oneline.Error(err))
			}
		})
	}
	return func() []egress.Denial {
		proxy.Shut()
		wg.Wait()
		proxy.Wait()
		return proxy.Denials()
	}, nil
}

// explain prints what was refused, on stderr. open says how a private address is allowed; ADDR:PORT in it
// stands for the address.
func (a *App) explain(denied []apitypes.Denial, open string) {
	for _, d := range denied {
		times := "times"
		if d.Count == 1 {
			times = "time"
		}
		hint := ""
		if at, err := netip.ParseAddrPort(d.What); err == nil && d.Rule == "address" && at.Addr().IsPrivate() {
			hint = "; " + strings.ReplaceAll(open, "ADDR:PORT", at.String())
		}
		a.say("denied: %s %s (rule: %s), %d %s%s", d.Kind, printable(d.What), printable(d.Rule), d.Count, times, hint)
	}
}
