package launcher

import (
	"strings"
	"testing"
)

func TestInUnit(t *testing.T) {
	for text, want := range map[string]bool{
		"0::/system.slice/boxd.service\n":                                                true,
		"5:memory:/\n1:name=systemd:/system.slice/boxd.service\n0::/\n":                  true,
		"0::/boxd.service\n":                                                             true,
		"0::/tenants.slice/tenants-one.slice/boxd.service\n":                             true,
		"0::/system.slice/boxd.service/inner\n":                                          false,
		"0::/system.slice/other.service\n":                                               false,
		"0::/system.slice/xboxd.service\n":                                               false,
		"5:memory:/system.slice/boxd.service\n0::/\n":                                    false, // not systemd's hierarchy
		"0::/user.slice/user-998.slice/user@998.service/app.slice/boxd.service\n":        false, // its user's own manager
		"0::/user.slice/user-998.slice/user@998.service/boxd.service\n":                  false,
		"0::/machine.slice/libpod-1.scope/system.slice/boxd.service\n":                   false, // a container's
		"1:name=systemd:/user.slice/user-998.slice/session-1.scope/boxd.service\n0::/\n": false,
		"0::/../system.slice/boxd.service\n":                                             false, // outside of this cgroup namespace
		"0::\n":                                                                          false,
		"":                                                                               false,
	} {
		if got := inUnit(text, "boxd.service"); got != want {
			t.Errorf("%q: %v, want %v", strings.TrimSpace(text), got, want)
		}
	}
}

func TestParseClientRefusesNobody(t *testing.T) {
	for _, client := range []string{"65534", "nobody", "65534:0"} {
		if _, err := ParseService([]string{"--state-dir", "/run/x", "--client", client}); err == nil || !strings.Contains(err.Error(), "must not be nobody") {
			t.Errorf("%s: %v, want a refusal", client, err)
		}
	}
	if _, err := ParseService([]string{"--state-dir", "/run/x", "--client", "7", "--client-unit", "boxd"}); err == nil {
		t.Error("a unit that is no service is taken")
	}
}
