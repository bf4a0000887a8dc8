package install

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

const (
	root  = "../.."
	limit = time.Minute
)

// machines are fresh ones in one rack, which have the sources and the built programs at /mnt. The letter makes the name
// of the lab unique.
func machines(t *testing.T, letter string, names ...string) (*lab.Lab, []*lab.Machine) {
	t.Helper()
	bin, missing := lab.Require("ip", "bird", "birdc")
	if missing != nil {
		t.Skip(missing)
	}
	sources, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	spec := lab.Spec{Name: fmt.Sprintf("%s%d", letter, os.Getpid()%1e6), Bin: bin}
	for _, name := range names {
		spec.Nodes = append(spec.Nodes, lab.NodeSpec{Name: name})
	}
	l, err := lab.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	var list []*lab.Machine
	for _, n := range l.Nodes {
		m, err := n.BootFresh(sources)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return l, list
}
