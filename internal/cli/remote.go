package cli

import (
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

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// defaultSocket is where packages have the daemon listen.
const defaultSocket = "/run/boxd/boxd.sock"

// statusUnwell says that the answer is a bad one; boxd itself did what was asked.
const statusUnwell = 1

// remoteFlags say which daemon is asked, by whom.
type remoteFlags struct {
	socket, url, tokenFile string
	ca, cert, key          string
	tenant                 string
	formatFlags
}

// register declares the flags that all commands of the daemon share.
func (f *remoteFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
	f.registerDaemon(cmd)
}

// registerDaemon declares those that say which daemon is asked.
func (f *remoteFlags) registerDaemon(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.socket, "socket", "", "`PATH` of the daemon's socket (default: $BOXD_SOCKET, or "+defaultSocket+")")
	fs.StringVar(&f.url, "url", "", "`URL` of a daemon's TCP address instead (default: $BOXD_URL)")
	fs.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the token to authenticate with (default: $BOXD_TOKEN_FILE)")
	fs.StringVar(&f.ca, "tls-ca", "", "`FILE` with the CA certificates to verify the daemon with (default: the system's)")
	fs.StringVar(&f.cert, "tls-cert", "", "`FILE` with the client certificate")
	fs.StringVar(&f.key, "tls-key", "", "`FILE` with the key of the client certificate")
	fs.StringVar(&f.tenant, "tenant", "", "`NAME` of the tenant, for callers who may act for others (default: the caller's own)")
	for _, flag := range []string{"socket", "token-file", "tls-ca", "tls-cert", "tls-key"} {
		must(cmd.MarkFlagFilename(flag))
	}
	for _, flag := range []string{"url", "tenant"} {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	cmd.DisableFlagsInUseLine = true
}

// env is flag, or what the environment has for key if that is empty.
func (a *App) env(flag, key string) string {
	if flag != "" {
		return flag
	}
	value, _ := a.LookupEnv(key)
	return value
}

// newClient makes the client that the flags and the environment describe. It does
// not connect.
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

// maxToken bounds what is read of a file of which only the first line is a token.
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

// tls is nil if there is nothing to say about it.
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

// remote calls fn with a client and a context that ends with the first signal.
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
	err = fn(signals.ctx, c)
	signals.stop()
	if sig := signals.received(); sig != 0 && err != nil {
		return &statusError{status: 128 + int(sig), err: fmt.Errorf("stopped by %s", signalName(sig))}
	}
	return explainRemote(err)
}

// explainRemote says what to do where no daemon answers, or none may be asked.
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
