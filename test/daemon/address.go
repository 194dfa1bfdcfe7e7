package daemon

import (
	"fmt"
	"os"
	"regexp"
)

var (
	address        = regexp.MustCompile(`msg=listening network=tcp address=(\S+)`)
	langbotAddress = regexp.MustCompile(`msg=listening protocol=langbot network=tcp address=(\S+)`)
)

// Address returns the TCP address of the API of the running daemon, according to its log: a port that
// the kernel chooses changes with each start.
func (d *Daemon) Address() (string, error) { return d.logged(address, "the API") }

// LangbotAddress returns the address at which it speaks LangBot's protocol, in the same way.
func (d *Daemon) LangbotAddress() (string, error) {
	return d.logged(langbotAddress, "LangBot's protocol")
}

func (d *Daemon) logged(line *regexp.Regexp, what string) (string, error) {
	log, err := os.ReadFile(d.Log())
	if err != nil {
		return "", err
	}
	all := line.FindAllSubmatch(log, -1)
	if len(all) == 0 {
		return "", fmt.Errorf("the daemon's log names no address of %s: %s", what, log)
	}
	return string(all[len(all)-1][1]), nil
}
