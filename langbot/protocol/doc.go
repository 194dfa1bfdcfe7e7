// Package protocol has the messages between LangBot and its Box runtime as pure values: the
// envelope of requests and replies, the error classes, the models, the names derived from a
// context, and the framing of the stdio transport. It decides nothing about boxes, and knows
// no connections.
package protocol
