package gateway

import (
	"encoding/json"
	"net/http"
)

// legacyVersions are the revisions with sessions, newest first. Others pass through as well.
var legacyVersions = []string{legacyVersion, "2025-06-18", "2025-03-26", "2024-11-05"}

// stateless handles a request of a revision without sessions of the protocol. The server speaks an older
// one with the gateway, so answers get what the newer one adds.
func (g *Gateway) stateless(w http.ResponseWriter, r *http.Request, s *Server, who Caller, m *message, version string, record *ToolCall) {
	if version == "" {
		version = statelessSince
	}
	supported := append([]string{statelessSince}, legacyVersions...)
	if s.Mode == ModeSession {
		supported = legacyVersions
	}
	if s.Mode == ModeSession || version != statelessSince {
		why := "revision " + version + ": not spoken by this gateway"
		if s.Mode == ModeSession {
			why = "revision " + version + ": has no sessions, and each session has a process of this server: use " + legacyVersion
		}
		refuse(w, http.StatusBadRequest, m.id, rpcError{codeUnsupportedVersion, why, map[string]any{"supported": supported, "requested": version}})
		return
	}
	params := object(m.members["params"])
	for header, value := range map[string]string{"Mcp-Method": m.method, "Mcp-Name": text(params["name"])} {
		if got := r.Header.Get(header); got != "" && value != "" && got != value && got[0] != '=' {
			refuse(w, http.StatusBadRequest, m.id, rpcError{codeHeaderMismatch, header + " is not what the body says", nil})
			return
		}
	}
	switch {
	case m.id == nil || m.method == "": // no process waits for it: to cancel, clients close the stream
		w.WriteHeader(http.StatusAccepted)
		return
	case m.method == "subscriptions/listen":
		refuse(w, http.StatusNotFound, m.id, rpcError{codeMethodNotFound, m.method + ": the server speaks an older revision", nil})
		return
	}
	out := newStream(w, r)
	out.id = m.id
	if m.method != "server/discover" {
		g.answer(r.Context(), out, s, nil, who, m, record, func(answer *message) *message { return complete(answer, m.method) })
		return
	}
	err := g.with(r.Context(), s, nil, who, func(p *process) error {
		capabilities := p.capabilities()
		for name := range capabilities { // there are no subscriptions
			if c := object(capabilities[name]); c != nil {
				delete(c, "listChanged")
				delete(c, "subscribe")
				capabilities[name] = encode(c)
			}
		}
		hello := object(p.hello)
		result := map[string]any{"supportedVersions": supported, "capabilities": capabilities, "_meta": map[string]any{"io.modelcontextprotocol/serverInfo": hello["serverInfo"]}}
		if hello["instructions"] != nil {
			result["instructions"] = hello["instructions"]
		}
		out.send(complete(response(m.id, result), m.method).encode(), true)
		return nil
	})
	if err != nil {
		out.fail(err)
	}
}

// cacheable are the methods whose results say how long they hold.
var cacheable = map[string]bool{"server/discover": true, "tools/list": true, "prompts/list": true, "resources/list": true, "resources/templates/list": true, "resources/read": true}

// complete adds to a result what the revision of 2026-07-28 demands.
func complete(m *message, method string) *message {
	result := object(m.members["result"])
	if result == nil {
		return m
	}
	add := func(name, value string) {
		if _, ok := result[name]; !ok {
			result[name] = json.RawMessage(value)
		}
	}
	add("resultType", `"complete"`)
	if cacheable[method] {
		add("ttlMs", "0")
		add("cacheScope", `"private"`)
	}
	m.members["result"] = encode(result)
	return m
}
