// Package door is how LangBot gets in: HTTP, who may connect, and the WebSocket
// connections that carry actions. It knows envelopes; what an action does is the
// business of its Backend.
package door
