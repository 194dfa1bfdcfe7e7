package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneshot"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// defaultSocket is where the daemon listens by default.
const defaultSocket = oneshot.DefaultSocket

// statusUnwell is the exit status of a check whose answer is no, although boxd itself succeeded.
const statusUnwell = 1

// remoteFlags say which daemon to ask, and with which credentials.
type remoteFlags struct {
	socket, url, tokenFile string
	ca, cert, key          string
	tenant                 string
	formatFlags
	cmd *cobra.Command // the command that the flags belong to
}

// register declares the flags that all commands of the daemon share.
func (f *remoteFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	f.registerDaemon(cmd)
}

// registerDaemon declares all of them but --json.
func (f *remoteFlags) registerDaemon(cmd *cobra.Command) {
	f.cmd = cmd
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.socket, "socket", "", "`PATH` of the daemon's socket (default: $BOXD_SOCKET, or "+defaultSocket+")")
	fs.StringVar(&f.url, "url", "", "`URL` of a daemon's TCP address instead (default: $BOXD_URL)")
	fs.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the token to authenticate with (default: $BOXD_TOKEN_FILE)")
	fs.StringVar(&f.ca, "tls-ca", "", "`FILE` with the CA certificates to verify the daemon with (default: the system's)")
	fs.StringVar(&f.cert, "tls-cert", "", "`FILE` with the client certificate")
	fs.StringVar(&f.key, "tls-key", "", "`FILE` with the key of the client certificate")
	fs.StringVar(&f.tenant, "tenant", "", "`NAME` of the tenant, for callers who may act for others (default: the caller's own)")
	completeFiles(cmd, "socket", "token-file", "tls-ca", "tls-cert", "tls-key")
	completeFlag(cmd, "url")
	completeFlag(cmd, "tenant")
	cmd.DisableFlagsInUseLine = true
}

// env returns flag, or the variable key of the environment if flag is empty.
func (a *App) env(flag, key string) string {
	if flag != "" {
		return flag
	}
	value, _ := a.LookupEnv(key)
	return value
}

// newClient returns the client that the flags and the environment describe. It does not connect.
func (a *App) newClient(f *remoteFlags) (*client.Client, error) {
	o := client.Options{Tenant: f.tenant}
	switch {
	case f.socket != "" && f.url != "":
		return nil, &engine.FieldError{Field: "--socket", Value: spec.Quote(f.socket), Rule: "cannot be used together with --url"}
	case f.socket != "":
		o.Socket = f.socket
	case f.url != "":
		o.URL = f.url
	default:
		if o.Socket = a.env("", "BOXD_SOCKET"); o.Socket == "" {
			o.URL = a.env("", "BOXD_URL")
		}
		if o.Socket == "" && o.URL == "" {
			o.Socket = defaultSocket
		}
	}
	if o.URL == "" {
		return client.New(o)
	}
	var err error
	if path := a.env(f.tokenFile, "BOXD_TOKEN_FILE"); path != "" {
		if o.Token, err = readToken(path); err != nil {
			return nil, err
		}
	}
	if o.TLS, err = f.tls(); err != nil {
		return nil, err
	}
	return client.New(o)
}

// maxToken bounds how much is read of a token file. The first line is the token.
const maxToken = 4096

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if line == "" || strings.ContainsAny(line, " \t\r\x00") {
		return "", &engine.FieldError{Field: "--token-file", Value: spec.Quote(path), Rule: "must hold one token, without blanks"}
	}
	return line, nil
}

// tls returns nil if none of the TLS flags was given.
func (f *remoteFlags) tls() (*tls.Config, error) {
	if f.ca == "" && f.cert == "" && f.key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &engine.FieldError{Field: "--tls-ca", Value: spec.Quote(f.ca), Rule: "must hold certificates in PEM form"}
		}
	}
	if f.cert != "" || f.key != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// remote calls fn with a client and a context that the first signal cancels.
func (a *App) remote(f *remoteFlags, fn func(ctx context.Context, c *client.Client) error) error {
	if err := f.checkFormat(); err != nil {
		return err
	}
	c, err := a.newClient(f)
	if err != nil {
		return err
	}
	defer c.Close()
	signals := a.watchSignals()
	err = fn(signals.Context, c)
	signals.Stop()
	if sig := signals.Received(); sig != 0 && err != nil {
		return stoppedBy(sig)
	}
	return explainRemote(f.nameFlag(err))
}

// answerPatience is how long a daemon may take to answer what needs no work. For its status it asks its engine, which may take 8 s
// (package api).
const answerPatience = 20 * time.Second

// patiently calls ask, which makes a request, with a deadline. The socket of a daemon that hangs accepts connections, as does one that
// systemd holds for a service which cannot start, so the error says where to look.
func patiently(ctx context.Context, patience time.Duration, ask func(context.Context) error) error {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := ask(asking)
	const look = "look at systemctl status boxd, and at journalctl -u boxd"
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case asking.Err() != nil:
		return fmt.Errorf("the daemon does not answer within %s: it hangs, or its service cannot start while systemd holds its socket: %s", patience, look)
	case errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE): // systemd has given up
		return fmt.Errorf("%w: the daemon has ended, or its service cannot start: %s", err, look)
	}
	return err
}

// explainRemote adds to err what the user can do if no daemon answers, or if the user may not
// connect.
func explainRemote(err error) error {
	if isRefused(err) {
		return fmt.Errorf("%w: is the daemon running? start it with boxd serve, or say where it is with --socket or --url", err)
	}
	dial, ok := errors.AsType[*net.OpError](err)
	if !ok || dial.Op != "dial" || dial.Addr == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	who := fmt.Sprintf("user %d", os.Geteuid())
	if u, err := user.Current(); err == nil {
		who = "user " + spec.Quote(u.Username)
	}
	var st unix.Stat_t
	if unix.Stat(dial.Addr.String(), &st) != nil || st.Mode&0o020 == 0 {
		return fmt.Errorf("%w: %s may not use the daemon's socket: run this with sudo", err, who)
	}
	group, lookupErr := user.LookupGroupId(fmt.Sprint(st.Gid))
	if lookupErr != nil {
		return fmt.Errorf("%w: %s may not use the daemon's socket: run this with sudo, or have the daemon started with --socket-group", err, who)
	}
	return fmt.Errorf("%w: the socket is for group %s, and %s is not in it: run this with sudo, or have root add the user (usermod -aG) and log in again", err, spec.Quote(group.Name), who)
}

// nameFlag replaces the field that the daemon, or a store of this host, refused by the flag that sets it.
func (f *remoteFlags) nameFlag(err error) error {
	if bad, ok := errors.AsType[*client.Error](err); ok {
		if text, ok := f.withFlag(bad.Detail, bad.Field); ok {
			named := *bad
			named.Detail = text
			return &named
		}
		return err
	}
	if bad, ok := errors.AsType[*engine.FieldError](err); ok {
		if text, ok := f.withFlag(err.Error(), bad.Field); ok {
			return &namedError{text, err}
		}
	}
	return err
}

// namedError is an error whose message names a flag instead of a field.
type namedError struct {
	text  string
	cause error
}

func (e *namedError) Error() string { return e.text }
func (e *namedError) Unwrap() error { return e.cause }

// withFlag returns text, a message about refused, with the flag that sets it. The field begins the message or one of
// its parts: importing an image: name "A": must be …
func (f *remoteFlags) withFlag(text, refused string) (string, bool) {
	before, rest, ok := strings.Cut(": "+text, ": "+refused)
	if !ok || refused == "" || !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, ":") {
		return "", false
	}
	field, part, _ := strings.Cut(refused, ".")
	field, _, _ = strings.Cut(field, "[")
	name := cmp.Or(settingFlag(field), strings.ReplaceAll(field, "_", "-"))
	switch field {
	case "X-Boxd-Tenant":
		name = "tenant"
	case "dir", "cwd":
		name = "workdir"
	case "ready":
		name = "ready-" + strings.ReplaceAll(part, "_", "-")
		if part == "live_every" {
			name = "live-every"
		}
	case "network_rules": // of its limits, limits.NAME; of its lists, allow[N] and deny[N]
		list, limit, _ := strings.Cut(part, ".")
		list, _, _ = strings.Cut(list, "[")
		switch name = list; list {
		case "limits":
			name = "net-limit " + limit
		case "": // the rules as a whole
			for _, flag := range []string{"net-limit", "deny", "allow"} {
				if f.cmd.Flags().Changed(flag) {
					name = flag
				}
			}
		}
	case "mounts":
		name = strings.TrimSpace("mount " + part)
	case "memory":
		// The API uses one name for the limits of the session and of the process.
		if flags := f.cmd.Flags(); flags.Changed("process-memory") && !flags.Changed("memory") {
			name = "process-memory"
		}
	}
	flag, _, _ := strings.Cut(name, " ")
	if f.cmd.Flags().Lookup(flag) == nil {
		return "", false
	}
	return strings.TrimPrefix(before+": --"+name+rest, ": "), true
}
