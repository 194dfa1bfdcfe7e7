// Package bridge is LangBot's stdio transport in front of a daemon that runs
// already: messages of stdin go to the daemon as WebSocket messages, answers come
// back on stdout, and a TCP port of its own leads to the relays. It understands no
// action but the two that it sends itself.
package bridge
