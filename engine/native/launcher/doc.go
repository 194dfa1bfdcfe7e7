// Package launcher is the privileged half of engine/native: the only code that
// calls libcontainer, mounts, writes cgroup files and sets up networks.
//
// It runs as `boxd-init launcher`, a child of its client, in a mount namespace of
// its own, from a sealed copy of its binary. It serves one client over one socket
// and trusts it with nothing but the boxes it asked for: every request is
// validated again. When the client goes away, whatever the reason, the launcher
// destroys its boxes and ends. What a killed launcher leaves is removed by the
// next one that starts on the same state directory.
//
// As `boxd-init launcher --service` ([Service]) it serves one client after another, and
// its boxes outlive clients and launchers: the next launcher adopts them. [Keeper] runs
// it where systemd does not.
package launcher
