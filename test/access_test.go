package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// accessSentences are what the documents say about who gets in and what they may do then:
// a part of each sentence as it is written, and the tests that prove it. SECURITY.md names its tests itself (TestClaims).
var accessSentences = []struct{ doc, says, tests string }{
	{"docs/api.md", "root, the daemon's own user and members of the socket's group are administrators", "api/auth_test.go TestPeers"},
	{"docs/api.md", "an operator of the tenant `default`, if the kernel says that the client's user is root, started the daemon", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/api.md", "A request that a browser sends for a web page", "api/auth_test.go TestBrowsers"},
	{"docs/api.md", "the tenant and role of the token", "api/auth_test.go TestTokens"},
	{"docs/api.md", "can be visited by administrators only", "api/ports_test.go TestSensitiveSessionsAreNotVisited, api/ports_test.go TestProfilesWithoutNetworkAreNotVisited"},
	{"docs/api.md", "Its ports can be seen by administrators", "api/ports_test.go TestSensitiveSessionsAreNotVisited, session/visit_test.go TestLinks"},
	{"docs/api.md", "a request with a client certificate, or without any credentials, is refused", "api/auth_test.go TestClientCertificates, api/auth_test.go TestBrowsers"},
	{"docs/api.md", "organizational unit, exactly one", "api/auth_test.go TestClientCertificates"},
	{"docs/api.md", "the file must not be accessible to others, and SIGHUP", "api/auth_test.go TestLoadTokens, test/e2e/daemon_start_test.go TestDaemonReloadsTokens"},
	{"docs/api.md", "read the objects of its tenant", "api/roles_test.go TestRoles"},
	{"docs/api.md", "Administrators, and tokens of the tenant `*`, choose a tenant", "api/roles_test.go TestTenantsDoNotMeet"},
	{"docs/api.md", "Another tenant's objects answer exactly as if they did not exist", "api/roles_test.go TestTenantsDoNotMeet"},
	{"docs/api.md", "Viewers may use the routes marked `viewer`", "api/roles_test.go TestRoles, api/openapi_test.go TestRoutesAreDocumented"},
	{"docs/api.md", "`/healthz` answers 200 to anybody", "api/roles_test.go TestRoles"},
	{"docs/api.md", "an administrator, or a token `* viewer`", "api/roles_test.go TestRoles"},
	{"docs/api.md", "`GET /v1/sensitive-paths` for viewers of all tenants", "api/roles_test.go TestRoles"},
	{"docs/api.md", "so it is for operators of all tenants", "api/roles_test.go TestRoles, api/live_test.go TestDoctor"},
	{"docs/ui.md", "for operators of all tenants the [doctor]", "test/ui/status_test.go TestStatus"},
	{"docs/api.md", "Only callers who may act for all tenants pull, import, verify and remove", "api/images_test.go TestSharedImages"},
	{"docs/config.md", "Without a list, only administrators and `pull` of a profile have the daemon pull images", "policy/images_test.go TestCheckPull"},
	{"docs/images.md", "So the operators of a tenant may pull only if `allowed_images` (or the tenant's own) lists what", "policy/images_test.go TestCheckPull"},
	{"docs/images.md", "importing needs no list, and administrators may pull without one", "api/images_test.go TestImagePolicy"},
	{"docs/images.md", "it also refuses imports, and pulls and imports of administrators for the tenant", "api/images_test.go TestImagePolicy, policy/images_test.go TestCheckImage"},
	{"docs/api.md", "An administrator who has removed or emptied one can forget it", "api/roles_test.go TestRoles, api/sensitive_test.go TestSensitive"},

	{"docs/api.md", "who signed in at [the operator's page](ui.md#signing-in) with a token", "api/login_test.go TestLogin, api/login_test.go TestPageRelay"},
	{"docs/api.md", "At the default path it asks only a daemon of root, of its own user", "internal/oneshot/oneshot_test.go TestTrusted, internal/oneshot/oneshot_test.go TestFind"},
	{"docs/ui.md", "only a page of the same origin has the secret", "api/login_test.go TestPageCredentials, test/ui/hostile_test.go TestOtherPages"},
	{"docs/ui.md", "A viewer sees no button that the daemon would refuse", "test/ui/session_test.go TestViewers"},
	{"docs/ui.md", "serves the page too, but signs nobody in", "api/login_test.go TestLoginRefused, api/auth_test.go TestBrowsers"},
	{"docs/ui.md", "the browser's certificate signs in, without a token", "api/login_test.go TestPageWithCertificate"},
	{"docs/ui.md", "or when somebody signs out", "api/login_test.go TestLogin"},

	{"docs/webhooks.md", "shows each receiver to administrators", "api/webhooks_test.go TestWebhookStates"},
	{"docs/config.md", "name or number of the group that may connect", "test/e2e/local_users_test.go TestLocalUsers, internal/daemon/account_test.go TestLookupGroup"},
	{"docs/config.md", "users with write permission may connect", "internal/daemon/listen_test.go TestListenUnixModeAndParents, config/validate_test.go TestValidate"},
	{"docs/config.md", "An address that other hosts reach needs `tokens_file`", "config/validate_test.go TestListen"},
	{"docs/config.md", "Without either, [some users of this host]", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/config.md", "names or numbers of users of this host who may connect", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/config.md", "Clients must then present one", "internal/daemon/doors_test.go TestClientCAIsRequired"},
	{"docs/config.md", "A TCP listener on loopback that asks for no credentials", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/config.md", "without a shared secret) admits these users of the host", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/config.md", "Everyone else gets HTTP 403 with one line that names the setting", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/config.md", "the owners of the `allowed_mount_roots` of its tenant", "test/e2e/local_users_test.go TestLocalUsers, internal/daemon/localusers_test.go TestLocalUsers"},
	{"docs/config.md", "A client in another network namespace", "test/e2e/local_users_test.go TestClientOfAnotherNetwork"},
	{"docs/config.md", "User 65534 (`nobody`) is never admitted", "test/e2e/local_users_test.go TestLocalUsers, internal/daemon/localusers_test.go TestLocalUsers"},
	{"docs/config.md", "Without a secret [some users of this host]", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/config.md", "the one instance of LangBot that is let in", "langbot/door/http_test.go TestConfiguredInstance"},

	{"docs/langbot.md", "the port is for [some users of the host]", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/langbot.md", "`/healthz` and `/readyz` answer everyone", "langbot/door/local_test.go TestLocalUsers"},
	{"docs/langbot.md", "An address that others can reach needs a secret of at least 32 characters", "config/langbot_test.go TestLangbotListen"},
	{"docs/langbot.md", "relays there are for root and the user who runs the command", "test/langbot/users_test.go TestBridgeUsers"},
	{"docs/langbot.md", "who may connect", "config/langbot_test.go TestLangbotListen, test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/langbot.md", "What a grant has let in ends within ten seconds", "test/langbot/admission_test.go TestAdmission"},

	{"docs/operations.md", "the daemon's user and members of the socket's group are administrators through the Unix socket", "api/auth_test.go TestPeers"},
	{"docs/operations.md", "A TCP listener without tokens is for [some users of the host]", "test/e2e/local_users_test.go TestLocalUsers"},
	{"docs/operations.md", "usermod -aG boxd alice # may use the socket", "api/auth_test.go TestPeers"},
	{"docs/operations.md", "`is open to other hosts, which needs authentication`", "config/validate_test.go TestListen"},

	{"docs/config.md", "It needs the same credentials as the API, and gives no right that the API does not give", "test/mcp/badinput_test.go TestAdmission, api/other_test.go TestOther"},

	{"docs/network.md", "Cookies, credentials and headers between the client and boxd do not reach the box", "preview/headers_test.go TestRequestHeaders"},
	{"docs/network.md", "credentials stay outside", "test/network/inject_test.go TestInject"},
	{"docs/network.md", "through `…/ports` and `boxd forward` the operators of the tenant", "api/roles_test.go TestRoles"},
	{"docs/network.md", "takes the box for root then", "test/e2e/local_users_test.go TestLocalUsers"},
}

// aboutAccess finds sentences that say who may do what; notAccess, words in them that mean
// something else: the operator as a person, and the ACL of a directory.
var (
	aboutAccess = regexp.MustCompile(`(?i)\b(administrators?|an operator|operators of|viewers|may (connect|use the (socket|port))|let in|admit(s|ted)?|credentials?|authentication|answers? (200 to )?(anybody|everyone|everybody))\b`)
	notAccess   = regexp.MustCompile(`the operator sets|operator's (settings|list)|the daemon's group is let in|as an administrator would|hand it over|asks the administrator`)
	routeTable  = regexp.MustCompile(`(?s)<!-- routes -->.*<!-- end of routes -->`) // api.TestRoutesAreDocumented
)

// Each sentence of the documents on access is in the table, as it is written, and the tests
// that prove it exist.
func TestAccessSentences(t *testing.T) {
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for _, path := range append(docs, "../README.md") {
		doc := strings.TrimPrefix(path, "../")
		text := routeTable.ReplaceAllString(read(t, path), "")
		text = strings.Join(strings.Fields(text), " ")
		for _, sentence := range regexp.MustCompile(`[.:;] | \| | - `).Split(text, -1) {
			known := false
			for _, r := range accessSentences {
				if r.doc == doc && strings.Contains(sentence, r.says) {
					known, said[r.doc+r.says] = true, true
				}
			}
			if aboutAccess.MatchString(sentence) && !notAccess.MatchString(sentence) && !known {
				t.Errorf("%s: say which test proves %q", doc, sentence)
			}
		}
	}
	for _, r := range accessSentences {
		if !said[r.doc+r.says] {
			t.Errorf("%s: does not say %q", r.doc, r.says)
		}
		for test := range strings.SplitSeq(r.tests, ", ") {
			where, name, _ := strings.Cut(test, " ")
			if why := missingTest(where, name, ""); why != "" {
				t.Errorf("%q: %s", r.says, why)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
