//go:build amd64 && !amd64.v2

package wire

// StartDebug is a setting of GODEBUG, with a comma in front, that saves each start of boxd-init 0.13 ms of its 1.7: a
// package of the zstd decompressor builds a table of CRC-32C when it is initialised, whether or not it is used. Without
// SSE 4.2 that table is the short one of other processors. Nothing else in the program asks for the feature.
const StartDebug = ",cpu.sse42=off"
