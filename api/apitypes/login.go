package apitypes

import "time"

// LoginRequest exchanges a token for the cookie of a page.
type LoginRequest struct {
	Token string `json:"token" doc:"A token of the daemon's tokens_file."`
}

// Login says who the caller is, and how long the login of a page lasts.
type Login struct {
	Tenant     string     `json:"tenant" doc:"The caller's own; * for a caller of all tenants."`
	Role       string     `json:"role" doc:"viewer, operator or admin."`
	Actor      string     `json:"actor" doc:"The caller's name in the audit log, such as token:ci."`
	AllTenants bool       `json:"all_tenants,omitempty" doc:"The caller chooses the tenant with X-Boxd-Tenant."`
	ExpiresAt  *time.Time `json:"expires_at,omitempty" doc:"When the login of a page ends unless it is renewed; absent: the request had other credentials."`
	Page       string     `json:"page,omitempty" doc:"In the answer to POST: what each request of the page sends as X-Boxd-Page, beside the cookie."`
}
