//go:build !amd64 || amd64.v2

package wire

// StartDebug is empty: this processor needs no setting, or Go does not know it here.
const StartDebug = ""
