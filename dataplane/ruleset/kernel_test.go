package ruleset_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/integration/namespace"
)

// nft lists the programmed rules like the rules that it loads from the text: both agree on every feature.
func TestTextIsWhatIsProgrammed(t *testing.T) {
	namespace.Require(t, "nft")
	ns := namespace.New(t, "manxsame")
	table := ruleset.FullTable()
	rules, err := nftables.Open("/run/netns/" + ns)
	if err != nil {
		t.Fatal(err)
	}
	defer rules.Close()
	if err := rules.CommitRules(table.TakeChanges()); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := table.Text(&text, ruleset.TextOptions{Name: "text", IDs: true}); err != nil {
		t.Fatal(err)
	}
	nft := func(stdin string, args ...string) string {
		cmd := exec.Command("ip", append([]string{"netns", "exec", ns, "nft"}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("nft %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	nft(text.String(), "-f", "-")
	// Two forms of "no route": its interface is 0, and it is missing.
	route := strings.NewReplacer("iif oif 0 ", "iif oif missing ", "iif oif != 0 ", "iif oif exists ")
	programmed := blocks(route.Replace(nft("", "list", "table", "inet", "manx")))
	loaded := blocks(nft("", "list", "table", "inet", "text"))
	if len(programmed) != len(loaded) {
		t.Errorf("%d sets, maps and chains are programmed, %d loaded", len(programmed), len(loaded))
	}
	for name, want := range loaded {
		got := programmed[name]
		for i, line := range want {
			if i >= len(got) || got[i] != line {
				t.Errorf("%s, line %d:\nprogrammed %s\ntext       %s", name, i+1,
					strings.Join(got[min(i, len(got)):], "\n"), line)
				break
			}
		}
	}
}

// blocks splits nft's list into sets, maps and chains, by their first lines; their order is irrelevant.
func blocks(listed string) map[string][]string {
	out := map[string][]string{}
	_, body, _ := strings.Cut(listed, "\n")
	for block := range strings.SplitSeq(body, "\n\n") {
		lines := strings.Split(block, "\n")
		out[lines[0]] = lines[1:]
	}
	return out
}
