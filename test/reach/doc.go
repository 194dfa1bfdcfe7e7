// Package reach runs what users begin with against a real daemon: the quick starts and examples of the
// documents, the clients below clients/, and receivers of webhooks.
package reach
