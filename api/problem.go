package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// refusal is an error of this package.
type refusal struct {
	code   string // one of apitypes
	field  string // of the request; may be empty
	detail string
	err    error // may be nil
}

func (e *refusal) Error() string { return e.detail }

func (e *refusal) Unwrap() error { return e.err }

// refuse returns a refusal with a code of apitypes.
func refuse(code, field, detail string, args ...any) error {
	return &refusal{code: code, field: field, detail: fmt.Sprintf(detail, args...)}
}

// problemOf returns err in the form of RFC 9457. The text of an unexpected error is for the
// log, not for the client.
func problemOf(err error, request string) apitypes.Problem {
	k := kindOf(err)
	p := apitypes.Problem{
		Type: "urn:boxd:problem:" + k.code, Title: k.title, Status: k.status, Code: k.code,
		Detail: oneline.Error(err), Instance: request,
	}
	if k.code == apitypes.CodeInternal {
		p.Detail = "unexpected error: the daemon's log has it, with the id of the request"
	}
	if own, ok := errors.AsType[*refusal](err); ok {
		p.Field = own.field
	}
	if field, ok := errors.AsType[*engine.FieldError](err); ok && p.Field == "" {
		p.Field = field.Field
	}
	if denied, ok := errors.AsType[*policy.DeniedError](err); ok {
		p.Field = denied.Field
	}
	if conflict, ok := errors.AsType[*session.ConflictError](err); ok {
		for _, f := range conflict.Fields {
			p.Conflicts = append(p.Conflicts, apitypes.Conflict(f))
		}
	}
	if failed, ok := errors.AsType[*session.NotReadyError](err); ok {
		p.Output = failed.Output
	}
	if quota, ok := errors.AsType[*policy.QuotaError](err); ok {
		p.Scope = scopeOf(quota.Tenant)
		p.Limit, p.Value, p.InUse, p.Asked = quota.Resource, quota.Limit, quota.InUse, quota.Asked
	}
	if errors.Is(err, images.ErrQuota) {
		p.Scope, p.Limit = "tenant", "images"
	}
	if rate, ok := errors.AsType[*policy.RateError](err); ok {
		p.Scope, p.Holder = rate.Scope, rate.Holder
		p.Limit, p.Value, p.RetryAfter = rate.Kind.String(), rate.Value(), rate.Seconds()
	}
	return p
}

// scopeOf names the scope of a quota: that of a tenant, or of all of them if tenant is "".
func scopeOf(tenant string) string {
	if tenant == "" {
		return "global"
	}
	return "tenant"
}

// writeProblem answers with p. Caches must not keep it.
func writeProblem(w http.ResponseWriter, p apitypes.Problem) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers and strings
	}
	problemHeader(w.Header(), p)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	w.Write(body)
}

// problemHeader sets what the header of an answer with p says beside its content type.
func problemHeader(h http.Header, p apitypes.Problem) {
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="boxd"`)
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
}
