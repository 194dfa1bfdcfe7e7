// Package protocol is what LangBot and its Box runtime say to each other, as pure
// values: the envelope of requests and replies, the error classes, the models, the
// names that are derived from a context, and the framing of the stdio transport.
// It decides nothing about boxes and knows no connection.
package protocol
