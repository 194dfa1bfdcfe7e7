// Package grants keeps the admission of a managed deployment: the policy of box_init,
// which workspaces may use a sandbox until when, and which may not any more. It outlives a
// restart. It knows nothing of sessions: callers remove what a lost grant leaves behind.
package grants
