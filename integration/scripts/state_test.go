package scripts

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

var errDifferent = errors.New("the state is another one")

// state is what the kernel of a node has, by sections of sorted lines, and the objects of table inet manx by their
// heads, such as "chain forward".
type state struct {
	sections map[string][]string
	table    map[string]string
}

// The sections and the commands that print them, one object a line.
var sections = []struct{ name, command string }{
	{"devices", "ip -o link show"},
	{"addresses", "ip -o addr show"},
	{"rules", "ip -4 rule show"},
	{"rules of IPv6", "ip -6 rule show"},
	{"routes", "ip -4 route show table all"},
	{"routes of IPv6", "ip -6 route show table all"},
	{"neighbours", "ip -4 neigh show nud permanent"},
	{"neighbours of IPv6", "ip -6 neigh show nud permanent"},
	{"queues", "tc qdisc show"},
}

// read returns the state of a node, with names in place of whatever differs from run to run.
func (s *scenario) read(n *lab.Node) (*state, error) {
	now := &state{sections: map[string][]string{}, table: map[string]string{}}
	names := s.names(n)
	for _, section := range sections {
		out, err := n.Run("sh", "-c", section.command)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(names.Replace(out)) {
			if line = plain(section.name, line); line != "" {
				now.sections[section.name] = append(now.sections[section.name], line)
			}
		}
		slices.Sort(now.sections[section.name])
	}
	out, err := n.Run("nft", "list", "table", "inet", "manx")
	if err != nil && !strings.Contains(out, "No such file") {
		return nil, err
	}
	now.table = objects(names.Replace(out))
	return now, nil
}

// endpointChains are the chains of a pod's endpoint, by the elements that lead to them; their names are hashes.
var endpointChains = regexp.MustCompile(`"cali-([^"]+)" : goto (?:in|out)/(\w+)`)

// names replaces the interfaces of pods.
func (s *scenario) names(n *lab.Node) *strings.Replacer {
	var pairs []string
	for name, p := range s.pods {
		if p.Node == n {
			pairs = append(pairs, p.Interface(), "cali-"+name)
		}
	}
	return strings.NewReplacer(pairs...)
}

var (
	noise = regexp.MustCompile(strings.Join([]string{`^\d+: `, `@\S+`, `\\`, `\bnetns\b`, `link-netns \S+`,
		`\b(?:qlen|metric 0|valid_lft|preferred_lft) ?\S*`, `\bgroup default`, `lladdr \S+`, `brd \S+`, `link/\w+ \S+`,
		`\b(?:REACHABLE|DELAY|STALE|PROBE|INCOMPLETE|FAILED)\b`, `qdisc \w+ state`, `proto kernel_ll`, `mode DEFAULT`}, "|"))
	counted = regexp.MustCompile(`(counter) packets \d+ bytes \d+| comment "#\w{12}"| #\w{12}`)
	spaces  = regexp.MustCompile(`\s+`)
)

// plain is a line without numbers of devices, MAC addresses and lifetimes; empty for objects of the kernel itself.
func plain(section, line string) string {
	line = strings.TrimSpace(spaces.ReplaceAllString(noise.ReplaceAllString(line, ""), " "))
	switch {
	case strings.Contains(line, "table local"), strings.Contains(line, "fe80::"), strings.Contains(line, "ff00::/8"),
		strings.HasPrefix(line, "lo"), section == "queues" && strings.Contains(line, "noqueue"):
		return ""
	}
	return line
}

// objects splits the text of a table into its chains, sets and maps.
func objects(table string) map[string]string {
	list := map[string]string{}
	ends := endpointChains.FindAllStringSubmatch(table, -1)
	// Endpoints with the same rules share a chain: the first by name gives it a name.
	slices.SortFunc(ends, func(a, b []string) int { return strings.Compare(a[1], b[1]) })
	for _, m := range ends {
		table = strings.ReplaceAll(table, "/"+m[2], "/"+m[1])
	}
	table = elements.ReplaceAllStringFunc(table, sortElements)
	var head string
	for line := range strings.Lines(counted.ReplaceAllString(table, "$1")) {
		text := strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(text, "\t}"):
			head = ""
		case strings.HasPrefix(text, "\t") && !strings.HasPrefix(text, "\t\t"):
			head = strings.TrimSuffix(strings.TrimSpace(text), " {")
			if strings.HasPrefix(head, "counter ") {
				head = ""
			} else {
				list[head] = ""
			}
		case head != "":
			list[head] += "  " + strings.TrimSpace(text) + "\n"
		}
	}
	return list
}

// elements are those of a set, on one or more lines, in the kernel's order.
var elements = regexp.MustCompile(`elements = \{[^}]*\}`)

func sortElements(text string) string {
	list := strings.Split(strings.Trim(strings.TrimPrefix(text, "elements = "), "{}"), ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	slices.Sort(list)
	return "elements = { " + strings.Join(list, ", ") + " }"
}

// since is the text of a state: the lines and the objects of the table that were not there before, or not the same, and
// with a dash those that are gone.
func (s *state) since(before *state) string {
	var b strings.Builder
	for _, section := range sections {
		lines := slices.DeleteFunc(slices.Clone(s.sections[section.name]), func(line string) bool {
			return slices.Contains(before.sections[section.name], line)
		})
		var gone []string
		for _, line := range before.sections[section.name] {
			if !slices.Contains(s.sections[section.name], line) {
				gone = append(gone, "- "+line)
			}
		}
		if len(lines)+len(gone) > 0 {
			fmt.Fprintf(&b, "%s:\n", section.name)
			for _, line := range append(lines, gone...) {
				fmt.Fprintf(&b, "  %s\n", line)
			}
		}
	}
	for _, head := range slices.Sorted(maps.Keys(s.table)) {
		if text := s.table[head]; before.table[head] != text {
			fmt.Fprintf(&b, "%s:\n%s", head, text)
		}
	}
	for _, head := range slices.Sorted(maps.Keys(before.table)) {
		if _, ok := s.table[head]; !ok {
			fmt.Fprintf(&b, "- %s\n", head)
		}
	}
	return b.String()
}

// settled returns the state of a node after it has stayed the same for a while.
func (s *scenario) settled(n *lab.Node) (*state, error) {
	nothing := &state{}
	var last string
	since := time.Now()
	for end := since.Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		now, err := s.read(n)
		if err != nil {
			return nil, err
		}
		if text := now.since(nothing); text != last {
			last, since = text, time.Now()
		}
		if time.Since(since) > still {
			return now, nil
		}
	}
	return nil, fmt.Errorf("the state of %s changes for more than %s", n.Name, patience)
}
