// Package hostile has only tests: a client attacks the launcher. The client is a process of its
// own with the daemon's user and without capabilities, like a daemon that was taken over, and talks
// to the real launcher over its socket. Bait on the host shows what it achieves: it must get no
// byte that only root may read, and change nothing that only root may write.
package hostile
