package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// DefaultScope is the template of the ID of sessions if nothing else names one. {caller} is made of the
// caller's name and the program's, and is unique for the caller's credentials and the program.
const DefaultScope = "mcp-{caller!}"

// Options of the tools. The zero value is valid.
//
// The variables of scopes are caller; actor, the caller as logs name it, such as "token:ci"; client and
// client_version, as the program names itself; and mcp_session, the ID of a session of the protocol,
// which revisions from 2026-07-28 on do not have. A scope with a variable that a call does not have is refused.
type Options struct {
	// Version of boxd.
	Version string
	// Profile of new sessions; empty: the default of the tenant.
	Profile string
	// Scope is the template of the ID of sessions if the token and the profile have none; empty:
	// DefaultScope.
	Scope string
	// Session is the ID of the session of all calls; empty: it follows from the scope.
	Session string
	// SessionTool lets the model choose sessions: there is a tool session, and every tool has an
	// argument session.
	SessionTool bool
	// Previews means that the daemon has host names for ports, so that the tool preview works.
	Previews bool
}

// caller is who makes a call.
type caller struct {
	client *client.Client
	actor  string // as in logs
	key    string // no other caller has it
	// done ends with the connection on which the answer is awaited; nil: never.
	done <-chan struct{}
	// hold counts bytes that the answer will hold; nil: it is not bounded.
	hold func(ctx context.Context, n int64) error
	// close is called after the call.
	close func()
}

// tools are the tools of one server. Callers share it, if their sessions have the same profile.
type tools struct {
	opt     Options
	profile apitypes.Profile // of new sessions
	caller  func(*sdk.RequestExtra) (caller, error)
	server  *sdk.Server
}

// schemas keeps what the SDK derives from the types of the tools, for all servers.
var schemas = sync.OnceValue(sdk.NewSchemaCache)

// newServer returns a server whose sessions have profile. who identifies the sender of a request.
func newServer(o Options, profile apitypes.Profile, who func(*sdk.RequestExtra) (caller, error)) *sdk.Server {
	t := &tools{opt: o, profile: profile, caller: who}
	t.server = sdk.NewServer(&sdk.Implementation{Name: "boxd", Title: "boxd", Version: cmp.Or(o.Version, "unknown")}, &sdk.ServerOptions{
		Instructions: t.instructions(),
		SchemaCache:  schemas(),
		// No lists change while a server lives.
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{}},
	})
	t.addCommands()
	t.addProcesses()
	t.addFiles()
	t.addSession()
	return t.server
}

// inSession is a part of the arguments of every tool.
type inSession struct {
	Session string `json:"session,omitempty" jsonschema:"Name of the session to work in; empty: your own."`
}

func (s inSession) sessionName() string { return s.Session }

// kind says what a tool may do, for its annotations.
type kind struct {
	readOnly, destructive, idempotent, openWorld bool
}

// input is the arguments of a tool.
type input interface{ sessionName() string }

// add adds a tool. Its handler gets the session to work in.
func add[In input, Out any](t *tools, name, title, description string, k kind, handle func(*box, context.Context, In) (*sdk.CallToolResult, Out, error)) {
	tool := &sdk.Tool{Name: name, Title: title, Description: description, InputSchema: t.schemaOf(reflect.TypeFor[In]()), Annotations: &sdk.ToolAnnotations{
		Title: title, ReadOnlyHint: k.readOnly, IdempotentHint: k.idempotent, DestructiveHint: &k.destructive, OpenWorldHint: &k.openWorld,
	}}
	sdk.AddTool(t.server, tool, func(ctx context.Context, r *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		var none Out
		b, ctx, closeBox, err := t.open(ctx, r.Session, r.Extra, r.ClientInfo(), in.sessionName())
		if err != nil {
			return nil, none, toolError(err)
		}
		defer closeBox()
		b.request = r
		result, out, err := handle(b, ctx, in)
		return result, out, toolError(err)
	})
}

// inputSchemas keeps the schemas of arguments: see [tools.schemaOf]. The SDK's cache goes by their
// addresses.
var inputSchemas sync.Map

// schemaOf returns the schema of the arguments of a tool. Without the tool session they have no session.
func (t *tools) schemaOf(in reflect.Type) *jsonschema.Schema {
	type key struct {
		in    reflect.Type
		named bool
	}
	k := key{in, t.opt.SessionTool}
	if s, ok := inputSchemas.Load(k); ok {
		return s.(*jsonschema.Schema)
	}
	s, err := jsonschema.ForType(in, &jsonschema.ForOptions{})
	if err != nil {
		panic(err) // a type of this package
	}
	if !k.named {
		delete(s.Properties, "session")
	}
	for _, property := range s.Properties { // a list may be absent, and is never null: not every client knows two types
		if len(property.Types) == 2 && property.Types[0] == "null" {
			property.Type, property.Types = property.Types[1], nil
		}
	}
	first, _ := inputSchemas.LoadOrStore(k, s)
	return first.(*jsonschema.Schema)
}

// box is the session that one call works in.
type box struct {
	t       *tools
	c       *client.Client
	session apitypes.Session
	hold    func(ctx context.Context, n int64) error // caller.hold
	request *sdk.CallToolRequest                     // nil while a resource is read
}

// open returns the session of a request, which it creates if it is missing, and a context that ends
// with the request. The caller calls done.
func (t *tools) open(ctx context.Context, s *sdk.ServerSession, extra *sdk.RequestExtra, program *sdk.Implementation, name string) (b *box, bound context.Context, done func(), err error) {
	who, err := t.caller(extra)
	if err != nil {
		return nil, nil, nil, err
	}
	bound, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-who.done: // nobody can get the answer
			cancel()
		case <-bound.Done():
		}
	}()
	done = func() { cancel(); <-stopped; who.close() }
	q := apitypes.SessionRequest{ID: cmp.Or(name, t.opt.Session)}
	q.Profile = t.opt.Profile
	if q.ID == "" {
		q.StrictScope = true // a program that does not name itself, or has no session of the protocol, gets nobody else's box
		q.DefaultScope, q.Variables = cmp.Or(t.opt.Scope, DefaultScope), variables(who.actor, who.key, s.ID(), program)
	}
	b = &box{t: t, c: who.client, hold: who.hold}
	if b.session, err = who.client.Ensure(bound, q); err != nil {
		done()
		return nil, nil, nil, err
	}
	return b, bound, done, nil
}

// variables returns the variables of the scope of a session.
func variables(actor, key, session string, program *sdk.Implementation) map[string]string {
	vars := map[string]string{"actor": actor}
	if session != "" {
		vars["mcp_session"] = session
	}
	name := "unknown"
	if program != nil && program.Name != "" {
		name = cut(program.Name, maxProgramName)
		vars["client"] = name
	}
	if program != nil && program.Version != "" {
		vars["client_version"] = cut(program.Version, maxProgramName)
	}
	sum := sha256.Sum256([]byte(key + "\x00" + name))
	vars["caller"] = strings.Trim(slug(actor)+"-"+slug(name), "-") + "-" + hex.EncodeToString(sum[:5])
	return vars
}

// maxProgramName bounds the name by which a program distinguishes its session.
const maxProgramName = 256

// cut shortens s to n bytes at most.
func cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// slug returns at most 18 bytes of s as a part of a host name.
func slug(s string) string {
	out := []byte{}
	for _, c := range []byte(strings.ToLower(s)) {
		if len(out) == 18 {
			break
		}
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			out = append(out, c)
		} else if len(out) > 0 && out[len(out)-1] != '-' {
			out = append(out, '-')
		}
	}
	return strings.Trim(string(out), "-")
}

// toolError returns err as the model should see it.
func toolError(err error) error {
	refused, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	text := refused.Error()
	for _, c := range refused.Conflicts {
		text += fmt.Sprintf("; %s is %s and was asked to be %s", c.Field, c.Have, c.Asked)
	}
	if refused.RetryAfter > 0 {
		text += fmt.Sprintf("; retry in %d s", refused.RetryAfter)
	}
	return fmt.Errorf("%s (%s)", text, refused.Code)
}

// instructions tell a model what is in the box.
func (t *tools) instructions() string {
	p := &t.profile
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("The tools of this server work in a box: an isolated Linux system of your own, apart from the user's machine.")
	if p.Image == spec.HostImage || p.Image == "" {
		line("Programs: those of the host's /usr, read-only.")
		line("User: uid 0 of the box, without capabilities: root by name only. It cannot mount, or change the owners of files.")
	} else {
		line("Programs: those of the image %s.", p.Image)
		line("User: the one that the image names, else uid 0 of the box; without capabilities. It cannot mount, or change the owners of files.")
	}
	if names := t.languages(); len(names) > 0 {
		line("Languages of run_code: %s. A language works if its program is installed.", strings.Join(names, ", "))
	}
	switch {
	case p.WorkspaceMode == spec.ReadWrite:
		line("Working directory: %s. Keep your files there; other writable places, such as /tmp (%s), are in memory.", spec.WorkspaceTarget, sizeOf(p.TmpSize))
	default:
		line("There is no writable working directory: write to /tmp (%s), which is in memory.", sizeOf(p.TmpSize))
	}
	line("Limits: memory %s, %s, %s processes; a command may take %s unless it asks for more, at most %s.",
		sizeOf(p.Memory), cpusOf(p.CPUs), countOf(p.PIDs), p.Timeout.D(), timeoutCap(p))
	line("Network: %s.", t.network())
	line("%s", t.persistence())
	line("Each command starts in a new shell: a directory change or a variable does not last, files and processes of start_process do. A command is killed with everything that it started, when it ends or times out.")
	return b.String()
}

func sizeOf(n spec.Size) string {
	if n < 0 {
		return "unlimited"
	}
	return spec.FormatSize(int64(n))
}

func cpusOf(n float64) string {
	if n < 0 {
		return "all processors"
	}
	return fmt.Sprintf("%g processors", n)
}

func countOf(n int64) string {
	if n < 0 {
		return "any number of"
	}
	return fmt.Sprint(n)
}

// timeoutCap says how long a command may take at most.
func timeoutCap(p *apitypes.Profile) string {
	if p.Caps.Timeout <= 0 {
		return "as long as it wants"
	}
	return p.Caps.Timeout.D().String()
}

// network says what the box reaches.
func (t *tools) network() string {
	p := &t.profile
	switch {
	case !p.Network:
		return "none, only servers in the box itself, on 127.0.0.1"
	case p.NetworkRules.Public:
		return "public addresses, through a proxy that the environment names (HTTP_PROXY, ALL_PROXY)"
	case len(p.NetworkRules.Allow) > 0:
		return "through a proxy that the environment names (HTTP_PROXY, ALL_PROXY), only to " + strings.Join(p.NetworkRules.Allow, ", ")
	}
	return "through a proxy that the environment names, which allows nothing at the moment"
}

// persistence says how long files and processes stay.
func (t *tools) persistence() string {
	p := &t.profile
	what := "The box, with its files and processes, stays between calls"
	switch {
	case p.Persistent:
		return what + "."
	case p.Retain == "forever":
		return fmt.Sprintf("%s. After %s without use its processes end; the working directory stays.", what, p.IdleTTL.D())
	case p.Retain != "" && p.Retain != spec.None:
		return fmt.Sprintf("%s. After %s without use its processes end; the working directory stays for %s.", what, p.IdleTTL.D(), p.Retain)
	}
	return fmt.Sprintf("%s and is deleted after %s without use.", what, p.IdleTTL.D())
}

// languages of run_code, sorted.
func (t *tools) languages() (names []string) {
	for _, l := range t.profile.Languages {
		names = append(names, l.Name)
	}
	return names
}
