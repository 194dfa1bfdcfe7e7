package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/session"
	"github.com/danielgtaylor/huma/v2"
)

const schemas = "#/components/schemas/"

// Document returns the OpenAPI 3.1 document of all routes as JSON. It is always the same
// for the same code.
func Document() []byte {
	// A request may have "512M" and "1m30s"; an answer has numbers.
	asked, registry := huma.NewMapRegistry(schemas, schemaName), huma.NewMapRegistry(schemas, answerName)
	asked.RegisterTypeAlias(reflect.TypeFor[apitypes.Size](), reflect.TypeFor[sizeSchema]())
	asked.RegisterTypeAlias(reflect.TypeFor[apitypes.Duration](), reflect.TypeFor[durationSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[apitypes.Size](), reflect.TypeFor[int64]())
	registry.RegisterTypeAlias(reflect.TypeFor[apitypes.Duration](), reflect.TypeFor[float64]())
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "boxd", Version: "1", License: &huma.License{Name: "Apache License 2.0", Identifier: "Apache-2.0"},
			Description: "Sessions, commands and managed processes in isolated boxes. docs/api.md explains it."},
		Servers: []*huma.Server{{URL: "/", Description: "Wherever the daemon listens; its Unix socket has no URL."}},
		Components: &huma.Components{Schemas: registry, SecuritySchemes: map[string]*huma.SecurityScheme{
			"bearer": {Type: "http", Scheme: "bearer", Description: "On a Unix socket the peer's user counts in its place; with TLS a client certificate may."},
		}},
		Security: []map[string][]string{{"bearer": {}}},
	}
	for i := range routes {
		doc.AddOperation(routes[i].operation(asked, registry))
	}
	describeWebhooks(doc, registry)
	if err := merge(registry.Map(), asked.Map()); err != nil {
		panic(err) // a fault of the types, which the tests would find
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[spec.LiveWishes]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		registry.Map()["SessionUpdate"].Properties[name].Description = f.Tag.Get("update")
	}
	// huma lists embedded fields last; the document keeps the order of the JSON.
	position := map[string]int{}
	for i, f := range reflect.VisibleFields(reflect.TypeFor[apitypes.Profile]()) {
		position[f.Tag.Get("json")] = i
	}
	slices.SortFunc(registry.Map()["Profile"].Required, func(a, b string) int { return position[a] - position[b] })
	for name, values := range enums {
		schema, property, _ := strings.Cut(name, ".")
		registry.Map()[schema].Properties[property].Enum = values
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(err) // a fault of the table, which the tests would find
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		panic(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// schemaName gives the types of package engine/spec their names in package apitypes.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if theirs := map[string]string{"Wishes": "SessionSpec", "Update": "SessionUpdate", "MountWish": "Mount", "VolumeWish": "SessionVolume", "Caps": "ProfileCaps"}[name]; theirs != "" {
		return theirs
	}
	return name
}

// answerName is schemaName for answers. Types with sizes that requests have, too, get another name.
func answerName(t reflect.Type, hint string) string {
	name := schemaName(t, hint)
	if theirs := map[string]string{"NetworkRules": "SessionNetworkRules", "NetworkLimits": "NetworkLimitsInForce"}[name]; theirs != "" {
		return theirs
	}
	return name
}

// merge adds more to all. Types that requests and answers share must be the same in both.
func merge(all, more map[string]*huma.Schema) error {
	for name, schema := range more {
		if has := all[name]; has != nil {
			a, err := json.Marshal(has)
			b, err2 := json.Marshal(schema)
			if err = errors.Join(err, err2); err != nil || !bytes.Equal(a, b) {
				return fmt.Errorf("schema %s: not the same in requests and answers: %w", name, err)
			}
		}
		all[name] = schema
	}
	return nil
}

// enums are the properties that can have only a few values.
var enums = map[string][]any{
	"Problem.code":   codes(),
	"Problem.scope":  {"tenant", "global"},
	"QuotaUse.scope": {"tenant", "global"},
	"Session.state":  {session.Creating, session.Running, session.Stopping, session.Stopped, session.Failed},
	"Process.state": {session.ProcessStarting, session.ProcessRunning, session.ProcessStopping, session.ProcessExited, session.ProcessStopped, session.ProcessFailed,
		session.ProcessReady, session.ProcessUnready, session.ProcessRestarting},
	"ExecResult.verdict": verdicts,
	"Process.verdict":    verdicts,
	"DoctorCheck.status": {"ok", "unknown", "degraded", "failed", "absent"},
	"Webhook.type":       {session.EventProcessExited, session.EventProcessStopped, session.EventExpired, session.EventRemoved},
	"ExecEvent.stream":   {"stdout", "stderr"},
	"Volume.state":       {apitypes.VolumeReady, apitypes.VolumeRemoving, apitypes.VolumeLost},
	"ImageProgress.step": {"resolve", "download", "unpack", "done"},
	"FileInfo.type":      {"file", "dir", "symlink", "fifo", "socket", "device"},
	"Port.protocol":      {"tcp", "tcp6", "udp", "udp6"},

	"Session.workspace_mode":        workspaceModes,
	"SessionSpec.workspace_mode":    workspaceModes,
	"SessionRequest.workspace_mode": workspaceModes,
	"Profile.workspace_mode":        workspaceModes,
	"Profile.mount_mode":            workspaceModes,
	"Event.type": {session.EventCreated, session.EventRecreated, session.EventAdopted, session.EventState, session.EventPaused, session.EventResumed, session.EventExecStarted,
		session.EventExecEnded, session.EventProcessStarted, session.EventProcessExited, session.EventProcessStopped, session.EventProcessReady, session.EventProcessUnready, session.EventOOM,
		session.EventPIDsLimit, session.EventAttached, session.EventDetached, session.EventVolumeCreated, session.EventVolumeResized,
		session.EventVolumeRemoved, session.EventSensitive, session.EventVolumeMarked,
		session.EventImageProgress, session.EventImagePulled, session.EventImageRemoved, session.EventConnection, session.EventPortPublished, session.EventPortUnpublished, session.EventPortOpened, session.EventPortClosed, session.EventExpired, session.EventRemoved, session.EventError},
}

var (
	workspaceModes = []any{"rw", "ro", "none"}
	verdicts       = []any{engine.Exited, engine.Signaled, engine.TimedOut, engine.OOM, engine.PIDsLimit, engine.DiskQuota, engine.OutputLimit,
		engine.Canceled, engine.BoxLost}
)

// codes returns the codes that a client can receive.
func codes() (list []any) {
	for _, k := range slices.Concat(kinds, fileKinds) {
		if k.code != apitypes.CodeCanceled {
			list = append(list, k.code)
		}
	}
	return list
}

// operation describes rt, with the schemas of requests and of answers.
func (rt *route) operation(asked, registry huma.Registry) *huma.Operation {
	op := &huma.Operation{
		Method: rt.method, Path: rt.path, OperationID: rt.name, Summary: rt.summary,
		Description: rt.access(), Parameters: rt.parameters(),
		Responses: map[string]*huma.Response{
			"default":               problemResponse(registry, "Any other error"),
			strconv.Itoa(rt.status): rt.response(registry),
		},
	}
	described := map[string][]string{}
	for _, code := range rt.refusals() {
		status := strconv.Itoa(byCode(code).status)
		described[status] = append(described[status], code)
	}
	for status, codes := range described {
		op.Responses[status] = problemResponse(registry, strings.Join(codes, ", "))
	}
	if rt.open {
		op.Security = []map[string][]string{{}}
	}
	switch {
	case rt.body != nil:
		op.RequestBody = &huma.RequestBody{Required: !rt.bodyOptional, Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemaOf(asked, rt.body)}}}
	case rt.rawBody != "":
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{rt.rawBody: rawBody()}}
	}
	return op
}

func problemResponse(registry huma.Registry, description string) *huma.Response {
	return &huma.Response{Description: description, Content: map[string]*huma.MediaType{
		"application/problem+json": {Schema: schemaOf(registry, apitypes.Problem{})}}}
}

func (rt *route) access() string {
	switch {
	case rt.open:
		return "Open to everybody."
	case rt.everyTenant:
		return "Role " + rt.role.String() + " of all tenants, or above."
	}
	return "Role " + rt.role.String() + " or above."
}

func (rt *route) response(registry huma.Registry) *huma.Response {
	r := &huma.Response{Description: http.StatusText(rt.status), Content: map[string]*huma.MediaType{}}
	if rt.reply != nil && rt.replyType != sse {
		r.Content["application/json"] = &huma.MediaType{Schema: schemaOf(registry, rt.reply)}
	}
	switch rt.replyType {
	case "":
	case ndjson:
		line := rt.line
		if line == nil {
			line = apitypes.ExecEvent{}
		}
		r.Content[ndjson] = &huma.MediaType{Schema: textOf(schemaOf(registry, line), "Lines; each is the JSON of an "+reflect.TypeOf(line).Name()+".")}
	case sse:
		r.Content[sse] = &huma.MediaType{Schema: textOf(schemaOf(registry, rt.reply), "Server-sent events; the data of each is the JSON of this.")}
	case "application/json":
		r.Content[rt.replyType] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeObject}}
	default:
		kind, _, _ := strings.Cut(rt.replyType, ";")
		r.Content[kind] = rawBody()
	}
	return r
}

// textOf describes a stream of many values of a type. If the schema said that the whole
// stream is one value, generated clients would parse it as one.
func textOf(part *huma.Schema, description string) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: description, Extensions: map[string]any{
		"contentMediaType": "application/json", "contentSchema": part}}
}

func rawBody() *huma.MediaType {
	return &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
}

func (rt *route) parameters() []*huma.Param {
	var list []*huma.Param
	for part := range strings.SplitSeq(rt.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			list = append(list, &huma.Param{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
	}
	for _, p := range rt.query {
		schema := &huma.Schema{Type: p.kind}
		if p.kind == huma.TypeArray {
			schema.Items = &huma.Schema{Type: huma.TypeString}
		}
		for _, value := range p.enum {
			schema.Enum = append(schema.Enum, value)
		}
		list = append(list, &huma.Param{Name: p.name, In: "query", Required: p.required, Description: p.doc, Schema: schema})
	}
	if !rt.open {
		list = append(list, &huma.Param{Name: TenantHeader, In: "header", Description: "Tenant that is meant, for callers who may choose; * is all of them.", Schema: &huma.Schema{Type: huma.TypeString}})
	}
	return list
}

func schemaOf(registry huma.Registry, v any) *huma.Schema {
	return registry.Schema(reflect.TypeOf(v), true, "")
}

// sizeSchema stands for apitypes.Size.
type sizeSchema struct{}

// Schema implements huma.SchemaProvider.
func (sizeSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeInteger, Format: "int64"},
		{Type: huma.TypeString, Pattern: `^[0-9.]+ ?[kKmMgGtTpP]?([iI]?[bB])?$`},
	}}
}

// durationSchema stands for apitypes.Duration.
type durationSchema struct{}

// Schema implements huma.SchemaProvider.
func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeNumber}, {Type: huma.TypeString}}}
}

// document answers with the OpenAPI document.
func (c *call) document() error {
	c.w.Header().Set("Content-Type", "application/json")
	_, err := c.w.Write(c.s.openapi())
	return err
}
