// Package hostile has only tests: a client of the launcher that means harm. It is a
// process of its own, with the daemon's user and without capabilities, as a daemon is that
// somebody has taken over, and it talks to the launcher as it is shipped, over its socket.
// What it gets is compared with bait on the host: not a byte that only root may read, and
// no change of what only root may write.
package hostile
