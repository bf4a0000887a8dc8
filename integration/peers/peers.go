// Package peers has the external programs that tests run beside Manx, and their supported versions. A wrong version
// would answer, and make many tests wait in vain.
package peers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Program is a program of others.
type Program struct {
	Name    string // as it is looked up in PATH, or a path
	Package string // of Debian
	// Arguments make it print a version, which is the first group of Version.
	Arguments []string
	Version   *regexp.Regexp
	// Oldest is the first supported version, and Major, unless 0, the only major version.
	Oldest string
	Major  int
	Why    string // the feature that another version lacks
}

// Folder of FRR's daemons, which no PATH has.
const frr = "/usr/lib/frr/"

// All are the programs with a version. Each version is that of Debian 12, or later.
var All = []Program{
	{Name: "bird", Package: "bird2", Arguments: []string{"--version"}, Version: after("BIRD version"),
		Oldest: "2.0.12", Major: 2,
		Why: "BIRD 1 has another language of configuration, and one daemon for each family"},
	{Name: "gobgp", Package: "gobgpd", Arguments: []string{"--version"}, Version: after("gobgp version"),
		Oldest: "3.10.0", Major: 3, Why: "the CLI of GoBGP 4 speaks another gRPC service than that of GoBGP 3"},
	{Name: "nft", Package: "nftables", Arguments: []string{"--version"}, Version: after("nftables v"),
		Oldest: "1.0.6", Why: "older ones do not list all that Manx programs"},
	{Name: frr + "bgpd", Package: "frr", Arguments: []string{"--version"}, Version: after("bgpd version"),
		Oldest: "8.4.4", Why: "older ones lack options of the configurations in the tests"},
	{Name: "bgpd", Package: "openbgpd", Arguments: []string{"-V"}, Version: after("OpenBGPD"),
		Oldest: "7.7", Why: "the tests read the output of its bgpctl"},
	{Name: "exabgp", Package: "exabgp", Arguments: []string{"--version"}, Version: after("ExaBGP :"),
		Oldest: "4.2.21", Major: 4, Why: "other major versions have another language of configuration"},
	{Name: "etcd", Package: "etcd-server", Arguments: []string{"--version"}, Version: after("etcd Version:"),
		Oldest: "3.4.23", Why: "older ones lose watch events"},
	{Name: "ip", Package: "iproute2", Arguments: []string{"-V"}, Version: after("iproute2-"),
		Oldest: "6.1.0", Why: "BusyBox and older releases lack namespaces, JSON or kinds of links"},
	{Name: "ping", Package: "iputils-ping", Arguments: []string{"-V"}, Version: after("ping from iputils(?: s)?"),
		Oldest: "20210202", Why: "the tests read what the ping of iputils prints"},
}

func after(words string) *regexp.Regexp { return regexp.MustCompile(words + ` *v?(\d[\d.]*)`) }

// patience bounds the time until a program prints its version.
const patience = time.Minute

var (
	checks   = map[string]func() error{}
	checksMu sync.Mutex
)

// Usable returns nil if a program is installed and, where tests depend on its version, has a supported version. The
// error is a sentence: the version found, where, the version required, and how to get it. Each program is run once.
func Usable(name string) error {
	checksMu.Lock()
	check := checks[name]
	if check == nil {
		check = sync.OnceValue(func() error { return usable(name) })
		checks[name] = check
	}
	checksMu.Unlock()
	return check()
}

func usable(name string) error {
	i := slices.IndexFunc(All, func(p Program) bool { return p.Name == name })
	if i < 0 {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%s is not installed", name)
		}
		return nil
	}
	return All[i].Check()
}

// Check finds the program in PATH and has it print its version.
func (p Program) Check() error {
	get := fmt.Sprintf("apt-get install %s (Debian 12 or later)", p.Package)
	path, err := exec.LookPath(p.Name)
	if err != nil {
		return fmt.Errorf("%s is not installed; want %s: %s", p.Name, p.versionText(), get)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, p.Arguments...).CombinedOutput()
	out = bytes.TrimSpace(out)
	m := p.Version.FindSubmatch(out)
	switch {
	case m == nil && err != nil:
		return fmt.Errorf("%s %s fails: %w: %.200s; want %s: %s", path, strings.Join(p.Arguments, " "), err, out,
			p.versionText(), get)
	case m == nil:
		return fmt.Errorf("%s is not the program %s of Debian's package %s: it prints %.200q; want %s: %s, and remove "+
			"the other one or put it behind in PATH", path, p.Name, p.Package, out, p.versionText(), get)
	case !p.accepts(string(m[1])):
		return fmt.Errorf("%s is version %s; want %s, because %s: %s, and remove the other one or put it behind in "+
			"PATH",
			path, m[1], p.versionText(), p.Why, get)
	}
	return nil
}

func (p Program) versionText() string {
	if p.Major != 0 {
		return fmt.Sprintf("version %d, %s or later", p.Major, p.Oldest)
	}
	return fmt.Sprintf("version %s or later", p.Oldest)
}

func (p Program) accepts(version string) bool {
	have, oldest := numbers(version), numbers(p.Oldest)
	return slices.CompareFunc(have, oldest, cmp.Compare) >= 0 && (p.Major == 0 || have[0] == p.Major)
}

func numbers(version string) (list []int) {
	for word := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(word) // an empty word, as in "2.0.", is 0
		list = append(list, n)
	}
	return list
}

// Check returns an error with a line for each program that cannot be used.
func Check() error {
	var errs []error
	for _, p := range All {
		errs = append(errs, Usable(p.Name))
	}
	return errors.Join(errs...)
}
