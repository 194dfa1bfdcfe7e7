package apitypes

// Problem is an error in the form of RFC 9457.
type Problem struct {
	Type      string     `json:"type" doc:"urn:boxd:problem: and the code."`
	Title     string     `json:"title" doc:"The kind of error in words."`
	Status    int        `json:"status" doc:"HTTP status."`
	Detail    string     `json:"detail,omitempty" doc:"What is wrong this time and what to do."`
	Instance  string     `json:"instance,omitempty" doc:"Id of the request; it is in the daemon's log lines."`
	Code      string     `json:"code" doc:"The kind of error as one stable word."`
	Field     string     `json:"field,omitempty" doc:"The field of the request that is wrong."`
	Conflicts []Conflict `json:"conflicts,omitempty" doc:"Fields in which the live session differs from the request."`
	Limit     string     `json:"limit,omitempty" doc:"Name of the quota that is used up: sessions, processes, execs, memory, cpus, workspace_bytes, volumes, volume_bytes, watches, watches_per_session, cpu_per_day, execs_per_day or written_per_day. With rate_limited: requests, creates or execs."`
	Scope     string     `json:"scope,omitempty" doc:"Whose quota: tenant or global. With rate_limited: tenant or token."`
	Holder    string     `json:"holder,omitempty" doc:"With rate_limited: the name of that tenant or token."`
	Value     string     `json:"value,omitempty" doc:"Value of that quota, in its unit."`
	InUse     string     `json:"in_use,omitempty" doc:"How much of it is in use."`
	Asked     string     `json:"asked,omitempty" doc:"How much was asked for."`
	// RetryAfter is also the header Retry-After.
	RetryAfter int    `json:"retry_after,omitempty" doc:"With rate_limited: seconds until it is worth trying again."`
	Output     string `json:"output,omitempty" doc:"With not_ready: the end of what the process had written."`
}

// Conflict is one field in which a live session differs from the request.
type Conflict struct {
	Field string `json:"field"`
	Have  string `json:"have"`
	Asked string `json:"asked"`
}
