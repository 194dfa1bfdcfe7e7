package daemon

import (
	"errors"
	"os"
	"regexp"
)

var langbotAddress = regexp.MustCompile(`msg=listening protocol=langbot network=tcp address=(\S+)`)

// LangbotAddress is where the latest incarnation of the daemon speaks LangBot's protocol,
// as its log says: a port that was left to the kernel is another one each time.
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
