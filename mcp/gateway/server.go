package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/headtail"
	"github.com/boxd/boxd/relay"
)

// Modes of a server.
const (
	ModeShared  = "shared"  // one process of a tenant answers all clients
	ModeSession = "session" // each session of the protocol has a box and a process of its own
	ModeRequest = "request" // each request has a process of its own, in one box of the tenant
)

// Values of [Tools].Changed.
const (
	ToolsRefuse = "refuse" // tools that differ from the pinned ones end the server
	ToolsReport = "report" // they are logged
)

// InstallDir is where the volume of an install step is mounted.
const InstallDir = "/mcp"

// Tools says which tools of a server clients may see and call.
type Tools struct {
	Allow   []string // names; empty: all
	Pin     string   // digest of all tools, "sha256:…"; empty: any tools
	Changed string   // what happens if the digest is another one; empty: ToolsRefuse
}

// Server is a server that speaks MCP on stdin and stdout.
type Server struct {
	Name string // 1 to 32 of a-z, 0-9 and "-", not ending with "-install"; a part of the IDs of its sessions and of its path
	Argv []string
	Env  map[string]string
	Cwd  string // empty: the workspace
	Mode string // empty: ModeShared
	// Box describes its sessions. Without an IdleTTL, theirs follows from Idle.
	Box apitypes.SessionSpec
	// Install is a line for sh that is run once in a box that has the volume of the server, at
	// InstallDir, writable. Boxes of the server have the volume read-only. Empty: none.
	Install        string
	InstallProfile string    // of that box, such as one with a network; empty: that of Box
	InstallSize    spec.Size // of the volume; 0: 1 GiB
	StartTimeout   time.Duration
	Idle           time.Duration // without a request, after which its process ends
	MaxSessions    int           // sessions of the protocol of one tenant; above that, the one that was not used longest ends
	Tools          Tools
	Tenants        []string // who may use it; empty: all
}

// isFor reports whether a tenant may use the server.
func (s *Server) isFor(tenant string) bool {
	return len(s.Tenants) == 0 || slices.Contains(s.Tenants, tenant)
}

// Defaults of a [Server].
const (
	DefaultStartTimeout = 30 * time.Second
	DefaultIdle         = 5 * time.Minute
	DefaultMaxSessions  = 64
	defaultInstallSize  = 1 << 30
)

// WithDefaults returns s with defaults for what is zero.
func (s Server) WithDefaults() Server {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&s.StartTimeout, DefaultStartTimeout)
	set(&s.Idle, DefaultIdle)
	if s.Mode == "" {
		s.Mode = ModeShared
	}
	if s.MaxSessions == 0 {
		s.MaxSessions = DefaultMaxSessions
	}
	if s.InstallSize == 0 {
		s.InstallSize = defaultInstallSize
	}
	if s.Tools.Changed == "" {
		s.Tools.Changed = ToolsRefuse
	}
	return s
}

// Labels of sessions and processes of servers.
const (
	labelServer  = "boxd.mcp/server"
	labelOwner   = "boxd.mcp/owner"   // of a session of the protocol: a digest
	labelCommand = "boxd.mcp/command" // digest of what runs
	labelGateway = "boxd.mcp/gateway" // of a process: Options.Instance
)

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// command identifies what the process runs.
func (s *Server) command() string {
	return digest(string(encode([]any{s.Argv, s.Env, s.Cwd, s.Install})))
}

// Caller is who uses a server.
type Caller struct {
	Tenant string
	// Key identifies the caller; no other caller of the tenant has it.
	Key string
	// Actor names the caller in records, and Request is the ID of its request; both may be empty.
	Actor, Request string
	// Dial connects to the API with the caller's rights.
	Dial func(ctx context.Context) (net.Conn, error)
	// Client, instead of Dial, returns a client, which the gateway closes.
	Client func() (*client.Client, error)
}

func (w Caller) owner() string { return digest(w.Tenant, w.Key) }

func (w Caller) client() (*client.Client, error) {
	if w.Client != nil {
		return w.Client()
	}
	return client.New(client.Options{Dial: w.Dial, Tenant: w.Tenant})
}

// place is where a process of a server runs.
type place struct {
	box     string // ID of the session
	process string // ID of the process
	owner   string // of the session of the protocol that alone uses it; empty: it has none
	// greet means that the gateway initializes the server, and not a client.
	greet bool
	// adopt means that only a process that runs already will do.
	adopt bool
	// unasked: see process.
	unasked func(m *message, keep bool) bool
	// start is the start in progress; nil: nothing is started, because of adopt.
	start *attempt
}

// open returns the process at a place, which it starts if it does not run and if the server has not failed just now. Errors are
// *Failure, or errNoProcess with adopt. The caller ends or detaches the process, and without greet ends its start.
func (g *Gateway) open(ctx context.Context, s *Server, who Caller, at place) (*process, error) {
	if at.adopt {
		return g.openAt(ctx, s, who, at)
	}
	start, refused := g.startsOf(s, who.Tenant).begin()
	if refused != nil {
		return nil, refused
	}
	at.start = start
	p, err := g.openAt(ctx, s, who, at)
	f, failed := errors.AsType[*Failure](err)
	switch {
	case failed && ctx.Err() == nil:
		return nil, start.fail(f)
	case err != nil:
		start.abandon()
		return nil, err
	case at.greet:
		start.succeed()
	default:
		p.start = start
	}
	return p, nil
}

// openAt is open without the back-off.
func (g *Gateway) openAt(ctx context.Context, s *Server, who Caller, at place) (_ *process, err error) {
	c, err := who.client()
	if err != nil {
		return nil, s.failed(PhaseStart, err)
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if s.Mode == ModeRequest {
		if err := g.clear(ctx, s, c, who.Tenant, at); err != nil {
			return nil, err
		}
	}
	since, found, err := s.running(ctx, c, at)
	if err != nil {
		return nil, err
	}
	if !found {
		if at.adopt {
			return nil, errNoProcess
		}
		if err := g.start(ctx, s, c, who.Tenant, at); err != nil {
			return nil, err
		}
	}
	p, err := newProcess(g.ctx, s, c, account{g.held, who.Tenant}, at.box, at.process, since)
	if err != nil {
		if !found {
			g.removeAt(c, s, at)
		}
		return nil, s.failed(PhaseStart, err)
	}
	if found {
		// A gateway that was killed may have written half of a line, which takes this request along. Its
		// answer belongs to nothing. An empty line would end some servers.
		p.in.push(request(encode(p.next), "ping", nil).encode())
		p.next++
	}
	p.single = at.owner != ""
	if at.unasked != nil {
		p.unasked = at.unasked
	}
	p.run()
	if !at.greet {
		return p, nil
	}
	err = p.greet(ctx, g.opt.Version)
	if err == nil && (s.Tools.Pin != "" || s.Mode == ModeShared) {
		err = p.checkTools(ctx, g.opt.Logger)
	}
	if err == nil {
		return p, nil
	}
	g.remove(p, at)
	if found && ctx.Err() == nil { // it may only refuse to be initialized twice
		return g.openAt(ctx, s, who, at)
	}
	return nil, err
}

var errNoProcess = errors.New("there is no such process")

// running looks for a process that an earlier gateway has started, and says where its unread output begins.
func (s *Server) running(ctx context.Context, c *client.Client, at place) (relay.Since, bool, error) {
	have, err := c.Process(ctx, at.box, at.process)
	switch {
	case client.IsCode(err, apitypes.CodeSessionNotFound, apitypes.CodeProcessNotFound, apitypes.CodeNotFound):
		return relay.Since{}, false, nil
	case err != nil:
		return relay.Since{}, false, s.failed(PhaseStart, err)
	case have.State != "running" || have.Labels[labelCommand] != s.command() || have.Labels[labelOwner] != at.owner:
		if at.adopt {
			return relay.Since{}, false, nil
		}
		if err := c.RemoveProcess(ctx, at.box, at.process); err != nil && !client.IsCode(err, apitypes.CodeProcessNotFound, apitypes.CodeSessionNotFound) {
			return relay.Since{}, false, s.failed(PhaseStart, err)
		}
		return relay.Since{}, false, nil
	}
	// A line that the process is writing at the moment is the answer to nobody: it is cut off, and not JSON.
	since := relay.Since{Stdout: relay.Position{Kind: relay.End}, Stderr: relay.Position{Kind: relay.End}}
	return since, true, nil
}

// boxRequest returns the request for the session of a place.
func (s *Server) boxRequest(at place) apitypes.SessionRequest {
	r := apitypes.SessionRequest{ID: at.box, SessionSpec: s.Box}
	r.Labels = spec.Labels{labelServer: s.Name}
	if at.owner != "" {
		r.Labels[labelOwner] = at.owner
	}
	for k, v := range s.Box.Labels {
		r.Labels[k] = v
	}
	if s.Install != "" {
		r.Volumes = append(append([]spec.VolumeWish{}, s.Box.Volumes...), spec.VolumeWish{Name: s.volume(), Target: InstallDir, ReadOnly: true})
	}
	// A box that nobody uses any more, because the gateway was killed and no client has come back, ends by
	// itself. The connection to a process is use.
	if r.IdleTTL == nil {
		idle := spec.Duration(max(s.Idle, minBoxIdle))
		r.IdleTTL = &idle
	}
	return r
}

// minBoxIdle keeps the box of a server between its processes.
const minBoxIdle = 10 * time.Second

// start installs what the server needs, and starts its process. Nothing of that place is left if it fails.
func (g *Gateway) start(ctx context.Context, s *Server, c *client.Client, tenant string, at place) error {
	for again := false; ; again = true {
		if err := g.install(ctx, s, c, tenant, at); err != nil {
			return err
		}
		err := s.start(ctx, c, at, g.opt.Instance)
		if err == nil {
			return nil
		}
		f, _ := errors.AsType[*Failure](err)
		if f.Problem == nil || f.Problem.Status >= 500 { // an error of the connection, or of ctx: it may run
			g.removeAt(c, s, at)
		}
		if again || s.Install == "" || f.Problem == nil || f.Problem.Field != fmt.Sprintf("volumes[%d].name", len(s.Box.Volumes)) {
			return err
		}
		g.installed.Delete(installKey(tenant, s)) // the volume was removed
	}
}

// clear removes the processes that an earlier gateway of the same instance, which was killed, has left in the box of a server that
// runs a process for each request. It does so before the first process of this gateway.
func (g *Gateway) clear(ctx context.Context, s *Server, c *client.Client, tenant string, at place) error {
	key := tenantServer{tenant, s.Name}
	unlock, err := g.adopting.LockContext(ctx, installKey(tenant, s))
	if err != nil {
		return s.failed(PhaseStart, err)
	}
	defer unlock()
	if _, done := g.cleared.Load(key); done {
		return nil
	}
	left, err := c.Processes(ctx, at.box, labelServer+"="+s.Name, labelGateway+"="+g.opt.Instance)
	for _, p := range left {
		if err = c.RemoveProcess(ctx, at.box, p.ID); err != nil && !isGone(err) {
			break
		}
	}
	if err != nil && !isGone(err) {
		return s.failed(PhaseStart, err)
	}
	g.cleared.Store(key, true)
	return nil
}

// isGone reports whether err says that there is no such session or process.
func isGone(err error) bool {
	return client.IsCode(err, apitypes.CodeSessionNotFound, apitypes.CodeProcessNotFound, apitypes.CodeNotFound)
}

// start creates the box and starts the process of a gateway. Errors are *Failure.
func (s *Server) start(ctx context.Context, c *client.Client, at place, instance string) error {
	if _, err := c.Ensure(ctx, s.boxRequest(at)); err != nil {
		if isImage(err) {
			return s.failed(PhaseImage, err)
		}
		return s.failed(PhaseStart, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.StartTimeout)
	defer cancel()
	labels := spec.Labels{labelServer: s.Name, labelCommand: s.command(), labelGateway: instance}
	if at.owner != "" {
		labels[labelOwner] = at.owner
	}
	_, err := c.Start(ctx, at.box, apitypes.ProcessRequest{ID: at.process, Argv: s.Argv, Env: s.Env, Cwd: s.Cwd, DropStderr: true, Labels: labels})
	if err != nil {
		return s.failed(PhaseStart, err)
	}
	return nil
}

// volume is the name of the volume that the install step fills.
func (s *Server) volume() string { return "mcp-" + s.Name }

// installMark is a file in the volume with the digest of what was installed.
const installMark = InstallDir + "/.boxd-installed"

func installKey(tenant string, s *Server) string { return tenant + "\x00" + s.Name }

// install runs the install step of a server, once for each tenant.
func (g *Gateway) install(ctx context.Context, s *Server, c *client.Client, tenant string, at place) (err error) {
	if s.Install == "" {
		return nil
	}
	key := installKey(tenant, s)
	unlock, err := g.installing.LockContext(ctx, key)
	if err != nil {
		return s.failed(PhaseInstall, err)
	}
	defer unlock()
	if _, done := g.installed.Load(key); done {
		return nil
	}
	if f := at.start.overtaken(); f != nil { // such as by the step itself, which another request has run
		return f
	}
	defer func() {
		if f, ok := errors.AsType[*Failure](err); ok && ctx.Err() == nil {
			err = at.start.fail(f)
		}
	}()
	box := s.volume() + "-install"
	r := apitypes.SessionRequest{ID: box, SessionSpec: s.Box}
	if s.InstallProfile != "" {
		r.Profile = s.InstallProfile
	}
	r.Volumes = append(append([]spec.VolumeWish{}, s.Box.Volumes...), spec.VolumeWish{Name: s.volume(), Target: InstallDir, Size: s.InstallSize})
	if _, err := c.Ensure(ctx, r); client.IsCode(err, apitypes.CodeVolumeInUse) {
		return s.installed(ctx, c, at) // boxes of the server have it, from before the daemon was restarted
	} else if isImage(err) {
		return s.failed(PhaseImage, err)
	} else if err != nil {
		return s.failed(PhaseInstall, err)
	}
	defer func() { // boxes of the server can have the volume only when this one is gone
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
		defer cancel()
		if gone := c.Remove(ctx, box); gone != nil && err == nil {
			err = s.failed(PhaseInstall, gone)
		}
	}()
	line := fmt.Sprintf(`[ "$(cat %[1]s 2>/dev/null)" = %[2]s ] && exit 0
rm -f %[1]s
( %[3]s
) && echo %[2]s >%[1]s`, installMark, digest(s.Install), s.Install)
	env := map[string]string{"HOME": InstallDir, "XDG_CACHE_HOME": InstallDir + "/.cache", "npm_config_cache": InstallDir + "/.cache/npm"}
	out := headtail.Buffer{Limit: 16 << 10}
	res, err := c.ExecStream(ctx, box, apitypes.ExecRequest{Shell: line, Cwd: InstallDir, Env: env}, &out, &out)
	if err != nil {
		return s.failed(PhaseInstall, err)
	}
	if res.ExitCode == nil || *res.ExitCode != 0 {
		f := s.failed(PhaseInstall, fmt.Errorf("the install step ended with status %d (%s)", res.Status, res.Verdict))
		f.Verdict, f.ExitCode = res.Verdict, res.ExitCode
		var t tail
		text, _ := out.Bytes()
		t.add("", text)
		f.Stderr = t.last()
		return f
	}
	g.installed.Store(key, true)
	return nil
}

// installed checks that the volume has what the install step of today makes, and not that of an older
// configuration.
func (s *Server) installed(ctx context.Context, c *client.Client, at place) error {
	if _, err := c.Ensure(ctx, s.boxRequest(at)); err != nil {
		return s.failed(PhaseInstall, err)
	}
	r, err := c.ReadFile(ctx, at.box, installMark, 0, 1<<10)
	if err != nil {
		return s.failed(PhaseInstall, err)
	}
	defer r.Close()
	if mark, err := io.ReadAll(r); err != nil || strings.TrimSpace(string(mark)) != digest(s.Install) {
		return s.failed(PhaseInstall, fmt.Errorf("the volume %s has what another install step made, and boxes of the server use it: retry when they have ended, or remove sessions with the label %s=%s", s.volume(), labelServer, s.Name))
	}
	return nil
}

// legacyVersion is the revision that the gateway speaks with servers that it initializes itself.
const legacyVersion = "2025-11-25"

// greet does the handshake with a server that clients share.
func (p *process) greet(ctx context.Context, version string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.s.StartTimeout, fmt.Errorf("it did not answer initialize within %s", p.s.StartTimeout))
	defer cancel()
	hello, err := p.do(ctx, "initialize", map[string]any{"protocolVersion": legacyVersion, "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "boxd", "version": version}})
	if err != nil {
		return p.inPhase(PhaseHandshake, err)
	}
	if text(object(hello)["protocolVersion"]) == "" {
		return p.inPhase(PhaseHandshake, errors.New("its answer to initialize has no protocolVersion"))
	}
	p.hello = hello
	return p.send(request(nil, "notifications/initialized", nil))
}

// inPhase returns err as a failure of a phase. How the process ended stays part of it.
func (p *process) inPhase(phase string, err error) *Failure {
	if ended, ok := errors.AsType[*Failure](err); ok {
		f := *ended
		f.Phase = phase
		return &f
	}
	return p.withStderr(p.s.failed(phase, err))
}

// capabilities returns those of a server that the gateway has initialized.
func (p *process) capabilities() map[string]json.RawMessage {
	return object(object(p.hello)["capabilities"])
}
