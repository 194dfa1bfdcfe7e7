package daemon

import (
	"errors"
	"os"
	"regexp"
)

var langbotAddress = regexp.MustCompile(`msg=listening protocol=langbot network=tcp address=(\S+)`)

// LangbotAddress returns the address at which the running daemon speaks LangBot's protocol,
// according to its log: a port that the kernel chooses changes with each start.
func (d *Daemon) LangbotAddress() (string, error) {
	log, err := os.ReadFile(d.Log())
	if err != nil {
		return "", err
	}
	all := langbotAddress.FindAllSubmatch(log, -1)
	if len(all) == 0 {
		return "", errors.New("the daemon's log names no address of LangBot's protocol")
	}
	return string(all[len(all)-1][1]), nil
}
