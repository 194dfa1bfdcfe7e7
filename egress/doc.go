// Package egress is the proxy through which one box reaches the network: HTTP (CONNECT and
// absolute-form) and SOCKS5 on listeners that its caller made inside the box's network
// namespace. Each connection is decided by name, dialled, decided again by the address
// that is really dialled, counted, bounded and reported; a [Proxy] can be shut for good.
//
// An upstream proxy resolves the names itself, so of what it dials only literal addresses
// and the names are decided here. Plain HTTP carries no Upgrade (a WebSocket needs CONNECT),
// no trailers and no 1xx responses but 100. A kept connection is used for the same scheme,
// host and port again, and never under other rules.
//
// It knows no boxes, sessions or profiles: who gets which rules is decided above it.
//
// Life of a connection:
//
//	accept ─ head slot ─ request line or SOCKS greeting, at most 10 s
//	       ─ connection slot ─ rules.Set.Decide(name, port)
//	       ─ resolve ─ net.Dialer.Control: rules.Set.Address(address, port)
//	       ─ answer ─ port 443: server name of the ClientHello = name asked for
//	                  port 80: each request is parsed, its Host = name asked for
//	                  else, if a rule names the port: bytes as they come
//	       ─ copy both ways until both ends are done, idle, over a limit, or shut
package egress
