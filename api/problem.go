package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// refusal is an error that begins in this package.
type refusal struct {
	code   string // one of apitypes
	field  string // of the request; may be empty
	detail string
	err    error // may be nil
}

func (e *refusal) Error() string { return e.detail }

func (e *refusal) Unwrap() error { return e.err }

// refuse makes a refusal with a code of apitypes.
func refuse(code, field, detail string, args ...any) error {
	return &refusal{code: code, field: field, detail: fmt.Sprintf(detail, args...)}
}

// problemOf says err in the form of RFC 9457. What an unexpected error says is for
// the log, not for the client.
func problemOf(err error, request string) apitypes.Problem {
	k := kindOf(err)
	p := apitypes.Problem{
		Type: "urn:boxd:problem:" + k.code, Title: k.title, Status: k.status, Code: k.code,
		Detail: oneline.Error(err), Instance: request,
	}
	if k.code == apitypes.CodeInternal {
		p.Detail = "unexpected error: the daemon's log has it, with the id of the request"
	}
	if own := new(refusal); errors.As(err, &own) {
		p.Field = own.field
	}
	addDetails(&p, err)
	return p
}

// addDetails copies what typed errors know.
func addDetails(p *apitypes.Problem, err error) {
	var field *engine.FieldError
	if errors.As(err, &field) && p.Field == "" {
		p.Field = field.Field
	}
	var denied *policy.DeniedError
	if errors.As(err, &denied) {
		p.Field = denied.Field
	}
	var conflict *session.ConflictError
	if errors.As(err, &conflict) {
		for _, f := range conflict.Fields {
			p.Conflicts = append(p.Conflicts, apitypes.Conflict(f))
		}
	}
	var quota *policy.QuotaError
	if errors.As(err, &quota) {
		addQuota(p, quota)
	}
}

// writeProblem answers with p. What it says must not be kept by a cache.
func writeProblem(w http.ResponseWriter, p apitypes.Problem) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers and strings
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="boxd"`)
	}
	w.WriteHeader(p.Status)
	w.Write(body)
}

func addQuota(p *apitypes.Problem, q *policy.QuotaError) {
	p.Scope = "tenant"
	if q.Tenant == "" {
		p.Scope = "global"
	}
	p.Limit, p.Value, p.InUse, p.Asked = q.Resource, q.Limit, q.InUse, q.Asked
}
