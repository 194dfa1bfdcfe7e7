package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/danielgtaylor/huma/v2"
)

const schemas = "#/components/schemas/"

// Document is the OpenAPI 3.1 document of all routes, as JSON. It is the same for
// the same code.
func Document() []byte {
	registry := huma.NewMapRegistry(schemas, huma.DefaultSchemaNamer)
	registry.RegisterTypeAlias(reflect.TypeFor[apitypes.Size](), reflect.TypeFor[sizeSchema]())
	registry.RegisterTypeAlias(reflect.TypeFor[apitypes.Duration](), reflect.TypeFor[durationSchema]())
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "boxd", Version: "1",
			Description: "Sessions, commands and managed processes in isolated boxes. docs/api.md explains it."},
		Components: &huma.Components{Schemas: registry, SecuritySchemes: map[string]*huma.SecurityScheme{
			"bearer": {Type: "http", Scheme: "bearer", Description: "On a Unix socket the peer's user counts in its place; with TLS a client certificate may."},
		}},
		Security: []map[string][]string{{"bearer": {}}},
	}
	for i := range routes {
		doc.AddOperation(routes[i].operation(registry))
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		panic(err) // of the table, and the tests would have it too
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		panic(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// operation describes rt.
func (rt *route) operation(registry huma.Registry) *huma.Operation {
	op := &huma.Operation{
		Method: rt.method, Path: rt.path, OperationID: rt.name, Summary: rt.summary,
		Description: rt.access(), Parameters: rt.parameters(),
		Responses: map[string]*huma.Response{
			"default": {Description: "An error", Content: map[string]*huma.MediaType{
				"application/problem+json": {Schema: schemaOf(registry, apitypes.Problem{})}}},
			strconv.Itoa(rt.status): rt.response(registry),
		},
	}
	if rt.open {
		op.Security = []map[string][]string{{}}
	}
	switch {
	case rt.body != nil:
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemaOf(registry, rt.body)}}}
	case rt.rawBody != "":
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{rt.rawBody: binary()}}
	}
	return op
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
		r.Content[ndjson] = &huma.MediaType{Schema: schemaOf(registry, apitypes.ExecEvent{})}
	case sse:
		r.Content[sse] = &huma.MediaType{Schema: schemaOf(registry, rt.reply)}
	case "application/json":
		r.Content[rt.replyType] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeObject}}
	default:
		kind, _, _ := strings.Cut(rt.replyType, ";")
		r.Content[kind] = binary()
	}
	return r
}

func binary() *huma.MediaType {
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
		list = append(list, &huma.Param{Name: p.name, In: "query", Required: p.required, Description: p.doc, Schema: &huma.Schema{Type: p.kind}})
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
