package config

import (
	"strings"
	"testing"
)

func TestWebhooks(t *testing.T) {
	const good = "url: https://ci.example.com/hook?key=hidden, secret: {file: /etc/boxd/secret}"
	for text, part := range map[string]string{
		"webhooks: {ci: {" + good + "}}": "",
		"webhooks: {ci: {" + good + ", events: [removed, process-exited], tenants: [alice], timeout: 1s, rate: 1000, queue_size: 64K, max_age: 720h}}": "",
		"webhooks: {ci: {url: 'http://10.0.0.1:8080', secret: {env: X}}}":                                                                              "",
		"webhooks: {CI: {" + good + "}}":                                          `webhooks.CI "CI": must be 1 to 32`,
		"webhooks: {ci: {secret: {env: X}}}":                                      "webhooks.ci.url",
		"webhooks: {ci: {url: 'https://user:hidden@h/', secret: {env: X}}}":       "without a login",
		"webhooks: {ci: {url: 'file:///etc/passwd', secret: {env: X}}}":           "webhooks.ci.url",
		"webhooks: {ci: {url: 'https://h/'}}":                                     "webhooks.ci.secret",
		"webhooks: {ci: {url: 'https://h/', secret: {env: X, file: /y}}}":         "webhooks.ci.secret",
		"webhooks: {ci: {url: 'https://h/', secret: {file: y}}}":                  "webhooks.ci.secret.file",
		"webhooks: {ci: {" + good + ", events: [removed, started]}}":              `webhooks.ci.events[1] "started"`,
		"webhooks: {ci: {" + good + ", tenants: ['*']}}":                          "webhooks.ci.tenants[0]",
		"webhooks: {ci: {" + good + ", timeout: 2m}}":                             "webhooks.ci.timeout",
		"webhooks: {ci: {" + good + ", rate: -1}}":                                "webhooks.ci.rate",
		"webhooks: {ci: {" + good + ", queue_size: 1K}}":                          "webhooks.ci.queue_size",
		"webhooks: {ci: {" + good + ", max_age: 1s}}":                             "webhooks.ci.max_age",
		"allowed_mount_roots: [/etc/boxd/secret]\nwebhooks: {ci: {" + good + "}}": "allowed_mount_roots",
		"webhooks: {" + many(17, "{"+good+"}") + "}":                              "must be at most 16",
	} {
		c, err := load(t, text, nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		err = c.Validate()
		if (err == nil) != (part == "") || err != nil && (!strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
	c, err := load(t, "webhooks: {a: {url: 'http://127.0.0.1:1/'}, b: {url: 'http://10.0.0.1/'}, c: {url: 'https://10.0.0.1/'}, d: {url: 'http://localhost/'}}", nil)
	if err != nil {
		t.Fatal(err)
	}
	if plain := strings.Join(c.PlainWebhooks(), " "); plain != "b" {
		t.Errorf("webhooks that others can read: %q", plain)
	}
}

// many returns n entries of a mapping.
func many(n int, value string) string {
	var list []string
	for i := range n {
		list = append(list, "n"+strings.Repeat("n", i)+": "+value)
	}
	return strings.Join(list, ", ")
}
