package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unicode"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/langbot/bridge"
	"github.com/spf13/cobra"
)

type langbotFlags struct {
	stdio  bool
	socket string
	host   string
	port   uint16
}

func (a *App) newLangbot() *cobra.Command {
	var f langbotFlags
	cmd := &cobra.Command{
		Use:   "langbot --stdio [flags]",
		Short: "Speak LangBot's Box Runtime protocol on stdin and stdout",
		Long: `Speak LangBot's Box Runtime protocol on stdin and stdout. This is a bridge to the
daemon, for a LangBot that starts its box runtime as a child process. The relays of
managed processes, /healthz and /readyz are served on a TCP address.

The environment identifies the client. LANGBOT_BOX_TRUSTED_INSTANCE_UUID is required.
If LANGBOT_BOX_CONTROL_TOKEN is set, relays require that token; otherwise only root and
the user who runs this command may use them. LANGBOT_BOX_CONFIG, a JSON object, is sent
to the daemon as a box_init.

Messages go to stderr. At the end of stdin, and on SIGINT or SIGTERM, the sessions of
the instance are removed. Exit status: 0, or 1 if the connection to the daemon is lost.`,
		Example: `  boxd langbot --stdio --ws-control-port 5410`,
		Args:    exactly(),
		RunE:    func(*cobra.Command, []string) error { return a.langbot(&f) },

		DisableFlagsInUseLine: true,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&f.stdio, "stdio", false, "speak on stdin and stdout; for TCP, use boxd serve --langbot-listen")
	fs.StringVar(&f.socket, "socket", "", "`PATH` of the daemon's socket (default: $BOXD_SOCKET, or "+defaultSocket+")")
	fs.StringVar(&f.host, "host", "127.0.0.1", "`ADDR` to serve relays on; without a token it must be a loopback address")
	fs.Uint16Var(&f.port, "ws-control-port", 5410, "`PORT` to serve relays on")
	completeFiles(cmd, "socket")
	completeFlag(cmd, "host")
	completeFlag(cmd, "ws-control-port")
	return cmd
}

// instanceName matches the IDs of LangBot's instances. It is compiled at its first use: each start of boxd would pay.
var instanceName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`) })

// minToken is the minimum length of LangBot's tokens.
const minToken = 32

func (a *App) langbot(f *langbotFlags) error {
	o, err := a.bridgeOptions(f)
	if err != nil {
		return err
	}
	// If the parent is gone, writing to it must not end boxd before the sessions are removed.
	signal.Ignore(syscall.SIGPIPE)
	signals := a.watchSignals()
	defer signals.Stop()
	err = bridge.Run(signals.Context, o)
	if _, refused := errors.AsType[*bridge.StatusError](err); refused || isRefused(err) {
		return explainRemote(err)
	}
	if err != nil {
		return &statusError{statusUnwell, err}
	}
	return nil
}

// bridgeOptions reads flags and environment, and opens the address for relays.
func (a *App) bridgeOptions(f *langbotFlags) (o bridge.Options, err error) {
	if !f.stdio {
		return o, &engine.FieldError{Field: "--stdio", Value: "is missing", Rule: "this command speaks on stdin and stdout only; boxd serve --langbot-listen serves TCP"}
	}
	instance := a.env("", "LANGBOT_BOX_TRUSTED_INSTANCE_UUID")
	if !instanceName().MatchString(instance) {
		return o, &engine.FieldError{Field: "LANGBOT_BOX_TRUSTED_INSTANCE_UUID", Value: spec.Quote(instance),
			Rule: "must be the id of the instance: 1 to 128 letters, digits, \".\", \"_\", \":\" and \"-\""}
	}
	token := a.env("", "LANGBOT_BOX_CONTROL_TOKEN")
	if token != "" && (len(token) < minToken || strings.ContainsFunc(token, unicode.IsSpace)) {
		return o, &engine.FieldError{Field: "LANGBOT_BOX_CONTROL_TOKEN", Value: "(secret)", Rule: "must have 32 characters or more, and no blanks"}
	}
	socket := cmp.Or(a.env(f.socket, "BOXD_SOCKET"), defaultSocket)
	o = bridge.Options{
		In: a.Stdin, Out: a.Stdout, Instance: instance, Token: token, Warn: a.warn,
		Dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}
	if o.Init, err = a.bridgeInit(); err != nil {
		return o, err
	}
	o.Listener, err = a.listenRelays(f, token)
	return o, err
}

func (a *App) warn(format string, args ...any) { a.say("boxd: warning: "+format, args...) }

// bridgeInit returns the configuration in the environment, in one line. Anything but a JSON object
// is ignored.
func (a *App) bridgeInit() (json.RawMessage, error) {
	text := a.env("", "LANGBOT_BOX_CONFIG")
	if text == "" {
		return nil, nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		a.warn("LANGBOT_BOX_CONFIG: must be a JSON object; it is ignored")
		return nil, nil
	}
	var one bytes.Buffer
	err := json.Compact(&one, []byte(text))
	return one.Bytes(), err
}

// listenRelays opens the address for relays. LangBot can do without them, so an address that is
// in use is no error.
func (a *App) listenRelays(f *langbotFlags, token string) (net.Listener, error) {
	ip := net.ParseIP(f.host)
	if token == "" && f.host != "localhost" && !ip.IsLoopback() {
		return nil, &engine.FieldError{Field: "--host", Value: spec.Quote(f.host),
			Rule: "must be a loopback address, or LANGBOT_BOX_CONTROL_TOKEN be set"}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(f.host, strconv.Itoa(int(f.port))))
	if err != nil {
		a.warn("relays are not served: %s", oneline.Error(err))
		return nil, nil
	}
	if f.port == 0 {
		a.say("boxd: relays are served at %s", l.Addr())
	}
	return l, nil
}
