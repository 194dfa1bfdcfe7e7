// Package launcher is the privileged half of engine/native: the only code that
// calls libcontainer, mounts, writes cgroup files and sets up networks.
//
// It runs as `boxd-init launcher`, a child of its client, in a mount namespace of
// its own, from a sealed copy of its binary. It serves one client over one socket.
// The client can reach only the boxes that it asked for, and every request is
// validated again. When the client goes away, for whatever reason, the launcher
// destroys its boxes and exits. If a launcher is killed, the next one on the same
// state directory removes what it left.
//
// As `boxd-init launcher --service` ([Service]) it serves one client after another, and
// its boxes outlive clients and launchers: the next launcher adopts them. Where systemd
// does not start the service, [Keeper] does.
package launcher
